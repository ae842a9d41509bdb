"""Random choices of the built-in corpora."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw(random.Random):
    """Choices made only with random(), the one sequence that stays the same in every version of Python."""

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability
