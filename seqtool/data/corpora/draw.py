"""The random choices of the built-in corpora, which are the same in every version of Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class StableRandom(random.Random):
    """Random choices that use only random(): Python guarantees the same sequence only for this method."""

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability
