"""Scores of translations, by sacreBLEU: BLEU, chrF and TER.

BLEU and a system's lead over its baseline can also be computed by source length. Scores are on a scale from 0 to 100.
Each has a signature, as only scores with equal signatures are comparable.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seqtool.data.text.words import analyse_writing, characters
from seqtool.errors import InputError
from seqtool.metrics.bootstrap import SAMPLES, SEED, Estimate, Indices, bootstrap
from seqtool.metrics.scores import Scorer, Statistics
from seqtool.runtime.network import LibraryDownload

TOKENISED_LINES = 100  # with this many lines that end in " .", sacreBLEU regards a text as tokenised
TUNING_STEPS = [sign * 2.0**power for power in range(-6, 3) for sign in (1, -1)]  # by which `tune` changes a weight
LANGUAGE_TOKENISERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}  # sacreBLEU's defaults; elsewhere 13a
CHARACTER_TOKENISERS = ("zh", "char")


class SacreBleu(Scorer):
    """Computes the score `name` by one of sacreBLEU's metrics."""

    def __init__(self, name: str, metric: Metric, references: Sequence[Sequence[str]]) -> None:
        self.name = name
        self.metric = metric
        self._texts = list(zip(*references, strict=True))  # one text for each reference, as sacreBLEU expects

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
    """BLEU. A single sentence is scored by the n-gram orders that it has (sacreBLEU's effective order)."""

    def __init__(self, references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> None:
        super().__init__("bleu", make_bleu(tokenize, lowercase=lowercase), references)

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        return [{self.name: bleu_parts(row[np.newaxis], effective_order=True).score} for row in statistics]


def make_bleu(tokenize: str, *, lowercase: bool) -> BLEU:
    """sacreBLEU's BLEU, without its warning about tokenised text, which mentions sacreBLEU's own options. Raises
    InputError if the tokeniser is unknown or not available.
    """
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"Unknown tokeniser '{tokenize}'; choose from {', '.join(BLEU.TOKENIZERS)}.")
    # some tokenisers download a SentencePiece model
    download = LibraryDownload(f"The tokeniser '{tokenize}'", advice="copy ~/.sacrebleu/models from another machine")
    try:
        return download.run(lambda: BLEU(lowercase=lowercase, tokenize=tokenize, force=True))
    except (ImportError, RuntimeError) as error:  # what sacreBLEU raises if MeCab is not installed
        package = f"sacrebleu[{tokenize.split('-')[0]}]"
        raise InputError(f"The tokeniser '{tokenize}' needs more packages: pip install '{package}'.") from error


def fitting_tokeniser(references: Iterable[str], *, language: str | None = None) -> tuple[str, str]:
    """The name of BLEU's tokeniser for these references, and the reason, empty for 13a in ordinary text.

    language: the language of the references if they are from a sacreBLEU test set; sacreBLEU's default for it is then
        preferred

    Otherwise only tokenisers are chosen that need no further package. Any text with hardly any spaces is scored by
    characters, since a line of a single word has no n-grams with n > 1.
    """
    writing = analyse_writing(references)
    tokenize, reason = "13a", ""
    if writing.has_no_spaces and writing.is_chinese:
        tokenize, reason = "zh", "the references are Chinese; each of their characters counts as a word"
    elif writing.has_no_spaces or writing.has_hardly_any_spaces:
        tokenize, reason = "char", "the references have almost no spaces; each character counts as a word"
    elif writing.is_mostly_unspaced:
        by_characters = "zh" if writing.is_chinese else "char"
        reason = f"the references seem to be segmented into words by spaces; tokenize={by_characters} counts characters"
    if language is not None:
        better = LANGUAGE_TOKENISERS.get(language.partition("_")[0], "13a")
        with suppress(InputError):
            if better != tokenize:
                make_bleu(better, lowercase=False)  # raises InputError if it is not installed
            is_ordinary = better == "13a" and not reason
            return better, "" if is_ordinary else f"tokenize={better}, sacreBLEU's default for this language pair."
    else:
        better = "ja-mecab" if writing.scripts["kana"] and tokenize == "char" else ""
        better = "ko-mecab" if 2 * writing.scripts["Hangul"] > writing.scripts.total() else better
    note = f"tokenize={tokenize}: {reason}." if reason else f"tokenize={tokenize}."
    if better:
        package = f"sacrebleu[{better.partition('-')[0]}]"
        note += f" tokenize={better} segments text into words; it needs pip install '{package}'."
    return tokenize, note if reason or better else ""


def make_chrf(references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> Scorer:
    """chrF2, which compares characters; `tokenize` is ignored."""
    return SacreBleu("chrf", CHRF(lowercase=lowercase), references)


def make_ter(references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> Scorer:
    """TER with sacreBLEU's defaults: lower-cased, with its own tokeniser. `tokenize` and `lowercase` are ignored."""
    return SacreBleu("ter", TER(), references)


def bleu_parts(statistics: Statistics, *, effective_order: bool = False) -> BLEUScore:
    """BLEU of a corpus, with its n-gram precisions, brevity penalty and lengths.

    statistics: sacreBLEU's, a row for each sentence: hypothesis length, reference length, and for n = 1..4 the numbers
        of matched n-grams and of the hypothesis's n-grams
    effective_order: leave out the n for which there are no n-grams, to score single short sentences
    """
    sums = statistics.sum(axis=0).tolist()
    return BLEU.compute_bleu(sums[2:6], sums[6:], sums[0], sums[1], "exp", effective_order=effective_order)


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the sentences whose source length lies in one bin."""

    label: str  # the bin, such as 9–14
    sentences: int  # the number of sentences
    bleu: Estimate | None  # None if there are no such sentences


def bleu_by_length(
    statistics: Statistics, sources: Sequence[str], *, edges: Sequence[int], samples: int = SAMPLES
) -> list[LengthScore]:
    """BLEU of the sentences in each bin of source length (Bahdanau et al. 2015, Figure 2)."""
    scores = []
    for label, sentences in length_bins(sources, edges=edges):
        bleu = bootstrap(lambda i: bleu_parts(statistics[i]).score, [sentences], samples) if len(sentences) else None
        scores.append(LengthScore(label, len(sentences), bleu))
    return scores


def length_bins(sources: Sequence[str], *, edges: Sequence[int]) -> list[tuple[str, Indices]]:
    """The label and sentences of each bin of source lengths: up to the first edge, to the second, …, above the last."""
    bins = np.searchsorted(edges, lengths(sources)[0])
    labels = [f"≤{edges[0]}", *(f"{low + 1}–{high}" for low, high in pairwise(edges)), f"≥{edges[-1] + 1}"]
    return [(label, np.flatnonzero(bins == number)) for number, label in enumerate(labels)]


def lengths(sources: Sequence[str]) -> tuple[list[int], str]:
    """The length of each source, and the unit: words between white space, or characters if the sources lack spaces."""
    if analyse_writing(sources).has_no_spaces:
        return [len(characters(source)) for source in sources], "characters"
    return [len(source.split()) for source in sources], "words"


def length_gaps(
    baseline: Statistics, system: Statistics, short: Indices, long: Indices, *, samples: int
) -> dict[str, Estimate]:
    """The system's lead over its baseline on `short` sentences, on `long` ones, and its `growth` from short to long;
    from BLEU statistics and the same resamples. `short` and `long` are the indices of the sentences in two bins,
    neither of them empty.
    """

    def lead(i: Indices) -> float:
        return bleu_parts(system[i]).score - bleu_parts(baseline[i]).score

    return {
        "short": bootstrap(lead, [short], samples),
        "long": bootstrap(lead, [long], samples),
        "growth": bootstrap(lambda i, j: lead(j) - lead(i), [short, long], samples),
    }


def tune(scores: NDArray[np.float64], statistics: Statistics) -> tuple[float, NDArray[np.float64]]:
    """The highest BLEU of texts that are chosen from lists by a weighted sum of scores, and the weights, K. The text
    with the highest sum is chosen, and the first of equals.

    scores: K scores of N texts in each of S lists, S×N×K
    statistics: BLEU's of the texts, S×N×10

    As in minimum error rate training (Och 2003), BLEU itself is raised, by changing one weight after the other. Instead
    of all points at which BLEU changes, steps of 18 sizes are tried: on five random problems of 200 lists, in less than
    a second each, they reached between 0.13 BLEU less and 0.49 more than 300 of those points. The search starts from
    each score alone, so that none is better alone, and from all with equal weights, in units of their deviations within
    lists.
    """
    deviations = (scores - scores.mean(1, keepdims=True)).std((0, 1))
    units = np.where(deviations > 1e-9, deviations, 1.0)  # the scores of a list may all be equal
    lists, axes, results = np.arange(len(scores)), np.eye(len(units)), []

    def bleu(weights: NDArray[np.float64]) -> float:
        return bleu_parts(statistics[lists, (scores @ (weights / units)).argmax(1)]).score

    for weights in (*axes, axes.mean(0)):
        best, last = bleu(weights), -1.0
        while best > last:
            last = best
            for axis in axes:
                candidates = [weights, *(weights + step * axis for step in TUNING_STEPS)]
                candidates = [candidate / (np.abs(candidate).sum() or 1.0) for candidate in candidates]
                values = [bleu(candidate) for candidate in candidates]
                best, weights = max(values), candidates[int(np.argmax(values))]
        results.append((best, weights / units))
    return max(results, key=lambda result: result[0])


def check_lengths(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, name: str, reference_names: Sequence[str]
) -> None:
    """Raise InputError if there are no hypotheses, or the texts are not parallel. The message names the files."""
    if not hypotheses:
        raise InputError(f"{name} has no lines: there is nothing to score.")
    for reference, reference_name in zip(references, reference_names, strict=True):
        if len(reference) != len(hypotheses):
            raise InputError(
                f"{name} has {len(hypotheses):,} lines but {reference_name} has {len(reference):,}: "
                "they must be parallel, line by line."
            )
