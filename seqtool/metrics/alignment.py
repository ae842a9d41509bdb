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
    """Alignment error rate (0 is perfect) beside two baselines, and in how many of the gold swaps links cross.

    Agreeing swaps are those of a noun and an adjective that agrees with it (see `crossings`).
    """

    aer: float
    aer_uniform: float
    aer_diagonal: float
    crossed: int
    swaps: int
    crossed_agreeing: int
    swaps_agreeing: int

    @classmethod
    def of(cls, links: Sequence[set[Link]], golds: Sequence[Gold], sizes: Sequence[tuple[int, int]]) -> Self:
        """sizes: of each pair of sentences the number of words of source and target."""
        generator = np.random.default_rng(0)
        return cls(
            alignment_error_rate(links, golds),
            alignment_error_rate([uniform(*size, generator) for size in sizes], golds),
            alignment_error_rate([diagonal(*size) for size in sizes], golds),
            *crossings(links, golds),
            *crossings(links, golds, agreeing=True),
        )

    def text(self) -> str:
        return "\n".join([*table(("alignment error rate", ""), self.rows()), "", *self.notes()]).rstrip()

    def rows(self) -> list[tuple[str, str]]:
        """The error rates of this system's links, of the diagonal and of uniform ones."""
        rows = [("this system", self.aer), ("diagonal", self.aer_diagonal), ("uniform", self.aer_uniform)]
        return [(name, f"{value:.3f}") for name, value in rows]

    def notes(self) -> list[str]:
        """Of the swaps that there are, how many links cross."""
        crossed = {
            "Swapped neighbours whose links cross": (self.crossed, self.swaps),
            "  of a noun and an adjective that agrees with it": (self.crossed_agreeing, self.swaps_agreeing),
        }
        return [f"{name}: {n:,} of {of:,} ({n / of:.1%})" for name, (n, of) in crossed.items() if of]


def alignment_error_rate(hypotheses: Sequence[set[Link]], golds: Sequence[Gold]) -> float:
    """1 − (|A∩S| + |A∩P|) / (|A| + |S|) over a corpus, 0 is perfect (Och and Ney 2003).

    A gold alignment is (sure links S, possible links); a sure link is possible as well: P includes S.
    """
    agreed = total = 0
    for links, (sure, possible) in zip(hypotheses, golds, strict=True):
        agreed += len(links & sure) + len(links & (sure | possible))
        total += len(links) + len(sure)
    return 1 - agreed / total if total else 0.0


def crossings(hypotheses: Sequence[set[Link]], golds: Sequence[Gold], *, agreeing: bool = False) -> tuple[int, int]:
    """The number of the gold alignments' swaps in which the hypotheses' links cross too, and the number of swaps.

    A swap is a pair of target words j, j+1 whose sure links go to i+1, i ("big cat", "gato grande"). With `agreeing`,
    only swaps whose second word has the first one's source as a possible link count: an adjective after its noun.
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
