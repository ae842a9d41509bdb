"""BLEU from its sufficient statistics a sentence: by source length, with intervals, and gaps between systems.

Intervals are 95 % percentile bootstrap intervals over sentences, from seeded resamples: the same input gives
the same interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU

from seqtool.errors import InputError

Statistics = NDArray[np.int64]
Indices = NDArray[np.int64]

SAMPLES = 1000  # resamples of a bootstrap, as sacreBLEU's
SEED = 12345  # sacreBLEU's
LENGTH_EDGES = (8, 14)  # source words: up to 8, 9 to 14, 15 and more


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class LengthScore:
    """BLEU over the sentences whose source has so many words; None where there are no such sentences."""

    label: str
    sentences: int
    bleu: Estimate | None


@dataclass(frozen=True)
class Gaps:
    """How far a system is above its baseline in BLEU: on short sentences, on long ones, and long − short."""

    short: Estimate
    long: Estimate
    growth: Estimate


def make_bleu(tokenize: str, *, lowercase: bool, force: bool = False, effective_order: bool = False) -> BLEU:
    """sacreBLEU's BLEU. force: without its warning when the text looks tokenised."""
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"Unknown tokeniser '{tokenize}'; choose from {', '.join(BLEU.TOKENIZERS)}.")
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=force, effective_order=effective_order)
    except (ImportError, RuntimeError) as error:  # what sacreBLEU raises where MeCab is not installed
        language = tokenize.split("-")[0]
        raise InputError(
            f"The tokeniser '{tokenize}' needs more packages: pip install 'sacrebleu[{language}]'."
        ) from error


def bleu_statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Statistics:
    """Sentences × 10: hypothesis and reference length, matched and possible n-grams for n = 1..4."""
    bleu = make_bleu(tokenize, lowercase=lowercase, force=True, effective_order=True)
    rows = []
    for hypothesis, *alternatives in zip(hypotheses, *references, strict=True):
        score = bleu.sentence_score(hypothesis, alternatives)
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=np.int64).reshape(-1, 10)


def bleu_of(statistics: Statistics) -> float:
    """Corpus BLEU of the sentences with these statistics."""
    hypothesis_length, reference_length, *counts = statistics.sum(axis=0).tolist()
    score = BLEU.compute_bleu(counts[:4], counts[4:], hypothesis_length, reference_length, "exp")
    return float(score.score)


def bleu_interval(statistics: Statistics, *, samples: int = SAMPLES, seed: int = SEED) -> Estimate:
    """Corpus BLEU with its interval."""
    return _bootstrap(lambda i: bleu_of(statistics[i]), [np.arange(len(statistics))], samples, seed)


def bleu_by_length(
    statistics: Statistics, sources: Sequence[str], *, edges: Sequence[int] = LENGTH_EDGES
) -> tuple[LengthScore, ...]:
    """BLEU of the sentences in each bin of source length (Bahdanau et al. 2015, Figure 2)."""
    return tuple(
        LengthScore(label, len(indices), bleu_interval(statistics[indices]) if len(indices) else None)
        for label, indices in length_bins(sources, edges=edges)
    )


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


def length_gaps(
    baseline: Statistics,
    system: Statistics,
    short: Indices,
    long: Indices,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Gaps:
    """The gaps between two systems in two bins of sentences, neither empty; each resample serves both."""

    def gap(i: Indices) -> float:
        return bleu_of(system[i]) - bleu_of(baseline[i])

    def growth(i: Indices, j: Indices) -> float:
        return gap(j) - gap(i)

    return Gaps(
        short=_bootstrap(gap, [short], samples, seed),
        long=_bootstrap(gap, [long], samples, seed),
        growth=_bootstrap(growth, [short, long], samples, seed),
    )


def _bootstrap(statistic: Callable[..., float], strata: Sequence[Indices], samples: int, seed: int) -> Estimate:
    """A statistic of sets of sentences, and its interval when each set is drawn anew with replacement."""
    generator = np.random.default_rng(seed)
    draws = [
        statistic(*(indices[generator.integers(len(indices), size=len(indices))] for indices in strata))
        for _ in range(samples)
    ]
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(statistic(*strata), float(low), float(high))
