"""Minimum Bayes risk: of the texts that a search found, choose the one with the best expected score, not the likeliest
(Kumar & Byrne 2004).

Nobody knows the reference, but the model says how likely each text is to be it. Its samples y_1 … y_K stand for the
reference (Eikema & Aziz 2022, "Sampling-based approximations to minimum Bayes risk decoding"):

    y* = argmax_y 1/K Σ_k u(y, y_k),    y_k ~ p(y | x)

where u(y, r) is the score of y with r as the only reference. λ log p(y | x) can be added, which favours likely
texts, and so short ones.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.vocabulary import UNKNOWN
from seqtool.decoding.batching import DecodeSettings
from seqtool.decoding.common import Hypothesis
from seqtool.errors import InputError
from seqtool.metrics.captions import DocumentFrequencies, tokenize_captions
from seqtool.metrics.scores import CAPTIONING, parse_sum, scorers, weighted_sums

CIDER = {"cider_d", "plain_cider"}  # the scores that weight n-grams by document frequencies
NO_WORD = "ꙮ"  # stands in a hypothesis for what is unknown: no sample has it, and tokenisers keep it
EQUAL = DocumentFrequencies(2, {}, "none", "equal")  # give all n-grams the same weight


@dataclass(frozen=True)
class MinimumBayesRisk:
    """Ranks hypotheses by their mean score against samples."""

    weights: Mapping[str, float]  # the weights of the scores, by name (`scores.weighted_sums`)
    task: str  # the task whose scores they are
    decode: Callable[[Sequence[int]], str]  # makes the text of ids
    tokenize: str  # how texts are tokenised, as in `eval`
    frequencies: DocumentFrequencies | None = None  # for CIDEr; None gives all n-grams the same weight
    log_p: float = 0.0  # λ, the weight of a hypothesis's own log-probability in nats

    @classmethod
    def of(
        cls, settings: DecodeSettings, task: str, decode: Callable[[Sequence[int]], str], tokenize: str | None
    ) -> Self:
        """What `settings.mbr` asks for. Raises InputError for what is no score of the task, and for bad frequencies.

        tokenize: how validation tokenised; None is the usual way. Document frequencies have their own.
        """
        path, weights = settings.mbr_frequencies, parse_sum(str(settings.mbr), task, setting="mbr", others=["log_p"])
        log_p = weights.pop("log_p", 0.0)
        if path is None:
            return cls(weights, task, decode, tokenize or ("ptb" if task == CAPTIONING else "13a"), log_p=log_p)
        if not CIDER & weights.keys():
            raise InputError("mbr_frequencies=… is for mbr=cider_d or plain_cider, which give rare words more weight.")
        frequencies = DocumentFrequencies.load(Path(path))
        if frequencies.images < 2:
            raise InputError(f"mbr_frequencies={path}: all n-grams of a single image have the weight 0. Count more.")
        return cls(weights, task, decode, frequencies.tokenize, frequencies, log_p)

    def rank(self, hypotheses: Sequence[Hypothesis], samples: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses with their expected scores, best first; those that were cut off come last."""
        texts = [self.decode(hypothesis.tokens).replace(UNKNOWN, NO_WORD) for hypothesis in hypotheses]
        counts = Counter(self.decode(sample.tokens) for sample in samples)
        sums = self._scores(texts, list(counts)) @ np.array(list(counts.values()))
        ranked = [
            hypothesis._replace(score=float(total) / len(samples) + self.log_p * hypothesis.log_probability)
            for hypothesis, total in zip(hypotheses, sums, strict=True)
        ]
        return sorted(ranked, key=lambda hypothesis: (not hypothesis.ended, -hypothesis.score))  # keeps equals in order

    def _scores(self, texts: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
        """The score of each text with each reference alone, texts × references."""
        options: dict[str, Any] = {"tokenize": self.tokenize, "lowercase": False}
        if self.task == CAPTIONING:
            texts, references = (tokenize_captions(captions, self.tokenize) for captions in (texts, references))
            frequencies = replace(self.frequencies, tokenize="none") if self.frequencies else EQUAL
            options = {"tokenize": "none", "rouge": "rouge_l" in self.weights, "document_frequencies": frequencies}
        hypotheses = [text for text in texts for _ in references]
        made = scorers(self.weights, [[reference] for reference in references] * len(texts), **options)
        sums = weighted_sums(self.weights, made, hypotheses, noun="score of mbr=")
        return sums.reshape(len(texts), len(references))
