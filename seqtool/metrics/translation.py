"""Scores of translations: sacreBLEU's BLEU, chrF and TER, BLEU by source length, and a system's lead over its
baseline by source length.

Scores are on the 0–100 scale, and each has the signature that makes it comparable.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seqtool.data.text.words import characters, writing
from seqtool.errors import InputError
from seqtool.metrics.bootstrap import SAMPLES, SEED, Estimate, Indices, bootstrap
from seqtool.metrics.scores import Scorer, Statistics
from seqtool.runtime.network import LibraryDownload

TOKENISED = 100  # with this many lines that end in " .", sacreBLEU regards a text as tokenised
BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}  # sacreBLEU's tokenisers, for its test sets
OF_CHARACTERS = ("zh", "char")
LENGTH_EDGES = (8, 14)  # source words: up to 8, 9 to 14, 15 and more


class SacreBleu(Scorer):
    """The score `name` by one of sacreBLEU's metrics."""

    def __init__(self, name: str, metric: Metric, references: Sequence[Sequence[str]]) -> None:
        self.name = name
        self.metric = metric
        self._texts = list(zip(*references, strict=True))  # sacreBLEU takes whole texts

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        return np.array(self.metric._extract_corpus_statistics(hypotheses, self._texts))

    def scores(self, statistics: Statistics) -> dict[str, float]:
        return {self.name: float(self.metric._compute_score_from_stats(statistics.sum(0).tolist()).score)}

    def signature(self, *, samples: int | None = None) -> str:
        signature = self.metric.get_signature()
        if samples is not None:
            signature.update("bs", samples)
            signature.update("seed", SEED)
        return str(signature)


@final
class Bleu(SacreBleu):
    """BLEU; for one sentence, only over the orders that it has (sacreBLEU's effective order)."""

    def __init__(self, references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> None:
        super().__init__("bleu", make_bleu(tokenize, lowercase=lowercase), references)

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        return [{self.name: bleu_parts(row[np.newaxis], effective_order=True).score} for row in statistics]


def make_bleu(tokenize: str, *, lowercase: bool) -> BLEU:
    """sacreBLEU's BLEU, without its warning about tokenised text, which mentions sacreBLEU's own options."""
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"Unknown tokeniser '{tokenize}'; choose from {', '.join(BLEU.TOKENIZERS)}.")
    # of a model of SentencePiece, if the tokeniser has one
    download = LibraryDownload(f"The tokeniser '{tokenize}'", advice="copy ~/.sacrebleu/models from another machine")
    try:
        return download.run(lambda: BLEU(lowercase=lowercase, tokenize=tokenize, force=True))
    except (ImportError, RuntimeError) as error:  # what sacreBLEU raises if MeCab is not installed
        package = f"sacrebleu[{tokenize.split('-')[0]}]"
        raise InputError(f"The tokeniser '{tokenize}' needs more packages: pip install '{package}'.") from error


def fitting_tokeniser(references: Iterable[str], *, language: str | None = None) -> tuple[str, str]:
    """The tokeniser of BLEU for these references, of those that need no further package; and a sentence about it, empty
    where there is nothing to say about 13a. Any text with hardly any spaces, such as letters, counts characters, since
    a line of one word has no n-grams. `language`: of the references, if they are one of sacreBLEU's test sets.
    """
    text = writing(references)
    tokenize, why = "13a", ""
    if text.has_no_spaces and text.is_chinese:
        tokenize, why = "zh", "the references are Chinese; each of their characters counts as a word"
    elif text.has_no_spaces or text.has_hardly_any_spaces:
        tokenize, why = "char", "the references have almost no spaces; each character counts as a word"
    elif text.is_mostly_unspaced:
        counting = "zh" if text.is_chinese else "char"
        why = f"the references seem to be cut into words by spaces; tokenize={counting} counts characters"
    if language is not None:
        usual = BY_LANGUAGE.get(language.partition("_")[0], "13a")
        with suppress(InputError):
            if usual != tokenize:
                make_bleu(usual, lowercase=False)  # is it installed?
            return usual, f"tokenize={usual}, as sacreBLEU has it for this pair." if why or usual != "13a" else ""
    else:
        usual = "ja-mecab" if text.scripts["kana"] and tokenize == "char" else ""
        usual = "ko-mecab" if 2 * text.scripts["Hangul"] > text.scripts.total() else usual
    note = f"tokenize={tokenize}{why and ': '}{why}."
    if usual:
        note += f" tokenize={usual} finds words, with pip install 'sacrebleu[{usual.partition('-')[0]}]'."
    return tokenize, note if why or usual else ""


def make_chrf(references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> Scorer:
    """chrF2, on characters, so it needs no tokeniser."""
    return SacreBleu("chrf", CHRF(lowercase=lowercase), references)


def make_ter(references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> Scorer:
    """TER, always lower-cased and with its own tokeniser, like sacreBLEU's default."""
    return SacreBleu("ter", TER(), references)


def bleu_parts(statistics: Statistics, *, effective_order: bool = False) -> BLEUScore:
    """BLEU, its n-gram precisions, brevity penalty and lengths, for the corpus whose sentences have these rows of
    sacreBLEU's: hypothesis and reference length, matched and possible n-grams for n = 1..4.

    `effective_order`: only over the n that exist, for scoring short sentences one by one.
    """
    sums = statistics.sum(axis=0).tolist()
    return BLEU.compute_bleu(sums[2:6], sums[6:], sums[0], sums[1], "exp", effective_order=effective_order)


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the sentences whose source is as long as the label says; None if there are none."""

    label: str
    sentences: int
    bleu: Estimate | None


def bleu_by_length(
    statistics: Statistics, sources: Sequence[str], *, edges: Sequence[int] = LENGTH_EDGES, samples: int = SAMPLES
) -> tuple[LengthScore, ...]:
    """BLEU of the sentences in each bin of source length (Bahdanau et al. 2015, Figure 2)."""
    scores = []
    for label, chosen in length_bins(sources, edges=edges):
        bleu = bootstrap(lambda i: bleu_parts(statistics[i]).score, [chosen], samples) if len(chosen) else None
        scores.append(LengthScore(label, len(chosen), bleu))
    return tuple(scores)


def length_bins(sources: Sequence[str], *, edges: Sequence[int] = LENGTH_EDGES) -> list[tuple[str, Indices]]:
    """Sentences by the source's length (`lengths`): up to the first edge, to the next, …, above the last."""
    bins = np.searchsorted(edges, lengths(sources)[0])
    labels = [f"≤{edges[0]}", *(f"{low + 1}–{high}" for low, high in pairwise(edges)), f"≥{edges[-1] + 1}"]
    return [(label, np.flatnonzero(bins == number)) for number, label in enumerate(labels)]


def lengths(sources: Sequence[str]) -> tuple[list[int], str]:
    """The length of each source, and its unit: words between white space, or characters if none have spaces."""
    if writing(sources).has_no_spaces:
        return [len(characters(source)) for source in sources], "characters"
    return [len(source.split()) for source in sources], "words"


@dataclass(frozen=True)
class Gaps:
    """How far a system is above its baseline in BLEU: on short sentences, on long ones, and long − short."""

    short: Estimate
    long: Estimate
    growth: Estimate


def length_gaps(baseline: Statistics, system: Statistics, short: Indices, long: Indices, *, samples: int) -> Gaps:
    """The gaps between two systems in two bins of sentences, neither empty; each resample serves both."""

    def gap(i: Indices) -> float:
        return bleu_parts(system[i]).score - bleu_parts(baseline[i]).score

    return Gaps(
        short=bootstrap(gap, [short], samples),
        long=bootstrap(gap, [long], samples),
        growth=bootstrap(lambda i, j: gap(j) - gap(i), [short, long], samples),
    )


def check_lengths(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    name: str = "the hypotheses",
    reference_names: Sequence[str],
) -> None:
    """Refuse texts that are empty or not parallel, naming the files and how many lines each has."""
    if not hypotheses:
        raise InputError(f"{name} has no lines: there is nothing to score.")
    for reference, reference_name in zip(references, reference_names, strict=True):
        if len(reference) != len(hypotheses):
            raise InputError(
                f"{name} has {len(hypotheses):,} lines but {reference_name} has {len(reference):,}: "
                "they must be parallel, line by line."
            )
