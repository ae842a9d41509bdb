"""sacreBLEU's BLEU: of a corpus, by the length of the source, and how far a system is ahead of its baseline there."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from sacrebleu.metrics.bleu import BLEU, BLEUScore

from seqtool.errors import InputError
from seqtool.metrics.bootstrap import SAMPLES, Estimate, Indices, bootstrap
from seqtool.metrics.scores import Statistics

LENGTH_EDGES = (8, 14)  # source words: up to 8, 9 to 14, 15 and more


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the sentences whose source is as long as the label says; None where there are none."""

    label: str
    sentences: int
    bleu: Estimate | None


@dataclass(frozen=True)
class Gaps:
    """How far a system is above its baseline in BLEU: on short sentences, on long ones, and long − short."""

    short: Estimate
    long: Estimate
    growth: Estimate


def make_bleu(tokenize: str, *, lowercase: bool) -> BLEU:
    """sacreBLEU's BLEU, without its warning about tokenised text, which speaks of sacreBLEU's own options."""
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"Unknown tokeniser '{tokenize}'; choose from {', '.join(BLEU.TOKENIZERS)}.")
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    except (ImportError, RuntimeError) as error:  # what sacreBLEU raises where MeCab is not installed
        language = tokenize.split("-")[0]
        raise InputError(
            f"The tokeniser '{tokenize}' needs more packages: pip install 'sacrebleu[{language}]'."
        ) from error


def bleu_parts(statistics: Statistics, *, effective_order: bool = False) -> BLEUScore:
    """BLEU, its n-gram precisions, brevity penalty and lengths, of the corpus whose sentences have these rows of
    sacreBLEU's: hypothesis and reference length, matched and possible n-grams for n = 1..4.

    `effective_order`: over the n that there are, for short sentences by themselves.
    """
    sums = statistics.sum(axis=0).tolist()
    return BLEU.compute_bleu(sums[2:6], sums[6:], sums[0], sums[1], "exp", effective_order=effective_order)


def bleu_of(statistics: Statistics) -> float:
    """BLEU alone."""
    return float(bleu_parts(statistics).score)


def bleu_by_length(
    statistics: Statistics, sources: Sequence[str], *, edges: Sequence[int] = LENGTH_EDGES, samples: int = SAMPLES
) -> tuple[LengthScore, ...]:
    """BLEU of the sentences in each bin of source length (Bahdanau et al. 2015, Figure 2)."""
    found = []
    for label, chosen in length_bins(sources, edges=edges):
        bleu = bootstrap(lambda i: bleu_of(statistics[i]), [chosen], samples) if len(chosen) else None
        found.append(LengthScore(label, len(chosen), bleu))
    return tuple(found)


def length_bins(sources: Sequence[str], *, edges: Sequence[int] = LENGTH_EDGES) -> list[tuple[str, Indices]]:
    """Sentences by white-space words of the source: up to the first edge, to the next, …, above the last."""
    lengths = np.array([len(source.split()) for source in sources], dtype=np.int64)
    lows = [0, *(edge + 1 for edge in edges)]
    highs = [*edges, np.iinfo(np.int64).max]
    labels = [f"≤{edges[0]}", *(f"{a + 1}–{b}" for a, b in pairwise(edges)), f"≥{lows[-1]}"]
    return [
        (label, np.flatnonzero((lengths >= low) & (lengths <= high)))
        for label, low, high in zip(labels, lows, highs, strict=True)
    ]


def length_gaps(baseline: Statistics, system: Statistics, short: Indices, long: Indices, *, samples: int) -> Gaps:
    """The gaps between two systems in two bins of sentences, neither empty; each resample serves both."""

    def gap(i: Indices) -> float:
        return bleu_of(system[i]) - bleu_of(baseline[i])

    def growth(i: Indices, j: Indices) -> float:
        return gap(j) - gap(i)

    return Gaps(
        short=bootstrap(gap, [short], samples),
        long=bootstrap(gap, [long], samples),
        growth=bootstrap(growth, [short, long], samples),
    )
