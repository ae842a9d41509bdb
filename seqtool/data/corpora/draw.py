"""Random choices for the built-in corpora, which are equal in all versions of Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class StableRandom(random.Random):
    """Random choices that only use random(): Python guarantees equal sequences in all versions only for this method."""

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability
