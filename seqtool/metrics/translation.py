"""How good translations are: sacreBLEU's BLEU, chrF and TER.

Scores are on the 0–100 scale, and every one carries the signature that makes it comparable.
"""

import logging
from collections.abc import Sequence
from typing import final

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seqtool.errors import InputError
from seqtool.metrics.bleu import bleu_parts, make_bleu
from seqtool.metrics.bootstrap import SEED
from seqtool.metrics.scores import Scorer, Statistics

NAMES = ("bleu", "chrf", "ter")
TOKENISED = 100  # sacreBLEU takes a text with so many lines that end in " ." for tokenised

log = logging.getLogger(__name__)


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
    """BLEU; of one sentence over the orders that it has (sacreBLEU's effective order)."""

    def __init__(self, references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> None:
        super().__init__("bleu", make_bleu(tokenize, lowercase=lowercase), references)

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        return [{self.name: bleu_parts(row[np.newaxis], effective_order=True).score} for row in statistics]


def make_chrf(references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> Scorer:
    """chrF2, of characters: it takes no tokeniser."""
    return SacreBleu("chrf", CHRF(lowercase=lowercase), references)


def make_ter(references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool) -> Scorer:
    """TER, lower-cased always and with a tokeniser of its own, as sacreBLEU's default is."""
    return SacreBleu("ter", TER(), references)


def check_lengths(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    name: str = "the hypotheses",
    reference_names: Sequence[str],
) -> None:
    """Refuse texts that are not parallel, or empty, naming the files and how many lines each has."""
    if not hypotheses:
        raise InputError(f"{name} has no lines: there is nothing to score.")
    for reference, reference_name in zip(references, reference_names, strict=True):
        if len(reference) != len(hypotheses):
            raise InputError(
                f"{name} has {len(hypotheses):,} lines but {reference_name} has {len(reference):,}: "
                "they must be parallel, line by line."
            )


def warn_of_tokenised(lines: Sequence[str], *, name: str, tokenize: str) -> None:
    """Warn where the text looks tokenised already: BLEU would tokenise it a second time."""
    ends = sum(line.endswith(" .") for line in lines)
    if ends >= TOKENISED and tokenize != "none":
        log.warning(
            "%s looks tokenised (%s lines end in ' .'), but tokenize=%s is for text as people write it: detokenise it, "
            "or say tokenize=none where hypotheses and references are tokenised alike.",
            name,
            f"{ends:,}",
            tokenize,
        )
