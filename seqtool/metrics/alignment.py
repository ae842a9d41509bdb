"""Scores of word alignments against gold alignments of sure and possible links."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from seqtool.data.text.alignment import Link, diagonal, uniform
from seqtool.runtime.tables import table

Gold = tuple[set[Link], set[Link]]  # sure links, possible links


@dataclass(frozen=True)
class AlignmentScores:
    """The alignment error rates of a system and of two baselines, and how many gold swaps the system reproduces."""

    aer: float  # the system's alignment error rate; 0 is perfect
    aer_uniform: float  # the error rate of links drawn uniformly at random
    aer_diagonal: float  # the error rate of links along the diagonal
    crossed: int  # the number of gold swaps that the system reproduces (see `crossings`)
    swaps: int  # the number of all gold swaps
    crossed_agreeing: int  # the reproduced gold swaps of a noun and an adjective that agrees with it
    swaps_agreeing: int  # all gold swaps of a noun and an adjective that agrees with it

    @classmethod
    def of(cls, links: Sequence[set[Link]], golds: Sequence[Gold], sizes: Sequence[tuple[int, int]]) -> Self:
        """Score the links of sentence pairs. `sizes` holds the numbers of source and target words of each pair."""
        generator = np.random.default_rng(0)
        return cls(
            alignment_error_rate(links, golds),
            alignment_error_rate([uniform(*size, generator) for size in sizes], golds),
            alignment_error_rate([diagonal(*size) for size in sizes], golds),
            *crossings(links, golds),
            *crossings(links, golds, agreeing=True),
        )

    def text(self) -> str:
        """The error rates and notes as plain text."""
        return "\n".join([*table(("alignment error rate", ""), self.rows()), "", *self.notes()]).rstrip()

    def rows(self) -> list[tuple[str, str]]:
        """The error rates of the system, of diagonal links and of uniform links, with names."""
        rows = [("this system", self.aer), ("diagonal", self.aer_diagonal), ("uniform", self.aer_uniform)]
        return [(name, f"{value:.3f}") for name, value in rows]

    def notes(self) -> list[str]:
        """How many of the gold swaps the system reproduces."""
        crossed = {
            "Swapped neighbours whose links cross": (self.crossed, self.swaps),
            "  of a noun and an adjective that agrees with it": (self.crossed_agreeing, self.swaps_agreeing),
        }
        return [f"{name}: {n:,} of {swaps:,} ({n / swaps:.1%})" for name, (n, swaps) in crossed.items() if swaps]


def alignment_error_rate(hypotheses: Sequence[set[Link]], golds: Sequence[Gold]) -> float:
    """The alignment error rate of a corpus, 1 − (|A∩S| + |A∩P|) / (|A| + |S|); 0 is perfect (Och and Ney 2003).

    A is the set of hypothesised links, S the set of sure gold links, and P the set of possible ones, including S.
    """
    agreed = total = 0
    for links, (sure, possible) in zip(hypotheses, golds, strict=True):
        agreed += len(links & sure) + len(links & (sure | possible))
        total += len(links) + len(sure)
    return 1 - agreed / total if total else 0.0


def crossings(hypotheses: Sequence[set[Link]], golds: Sequence[Gold], *, agreeing: bool = False) -> tuple[int, int]:
    """The number of gold swaps that the hypotheses reproduce by links that cross, and the number of gold swaps.

    A swap is a pair of target words j, j+1 whose sure links go to i+1, i ("big cat", "gato grande"). With `agreeing`,
    count only swaps in which target word j+1 also has a possible link to source word i+1, as an adjective has to the
    noun that it agrees with.
    """
    crossed = swaps = 0
    for links, (sure, possible) in zip(hypotheses, golds, strict=True):
        for i, j in sure:
            if (i - 1, j + 1) in sure and (not agreeing or (i, j + 1) in possible):
                swaps += 1
                left = [source for source, target in links if target == j]
                right = [source for source, target in links if target == j + 1]
                crossed += bool(left and right and min(left) > max(right))
    return crossed, swaps
