"""Decoded sequences, and the scores by which they are ranked."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqtool.models.tokens import EOS, PAD
from seqtool.settings.classes import chosen

LengthPenalty = Callable[[float], float]
LEAST_COVERED = torch.finfo(torch.float32).tiny  # the coverage of a position: 0 after underflow has no logarithm


class Expected(NamedTuple):
    """What a model expected where each token of a text stands, EOS included: the entropy of its distribution in nats,
    and the k likeliest tokens, best first, with their log-probabilities.
    """

    entropy: Float[Tensor, "T"]
    tokens: Int[Tensor, "T k"]
    log_p: Float[Tensor, "T k"]

    def first(self, count: int) -> "Expected":
        return Expected(*(column[:count] for column in self))


class Whole(NamedTuple):
    """A hypothesis with the prefix from which it was decoded: the prefix's length in tokens, how many of them the model
    does not know, and the log-probability and score of all tokens together.
    """

    prefix_tokens: int
    prefix_unknown: int
    log_probability_with_prefix: float
    score_with_prefix: float


class Hypothesis(NamedTuple):
    """A decoded sequence.

    tokens: its ids without BOS and EOS, with a prefix's
    log_probability: summed over tokens, EOS included, in nats, without a prefix's
    score: what it was ranked by, likewise
    attention: a row for each token and, if it ended, one for EOS, with a prefix's, or None
    ended: whether with EOS, not by reaching the maximum length
    log_p: of each token of a text that was forced (`forced.force`), EOS included
    expected: what the model expected there, if it was asked for
    whole: with the prefix from which it was decoded, if it was asked for
    locations: for each row of attention the source position that hard attention chose; None if it chose none
    """

    tokens: list[int]
    log_probability: float
    score: float
    attention: Float[Tensor, "T S"] | None
    ended: bool
    log_p: Float[Tensor, "T"] | None = None
    expected: Expected | None = None
    whole: Whole | None = None
    locations: list[int] | None = None


def length_penalty(name: str, alpha: float) -> LengthPenalty:
    """The divisor of a log-probability, given the length in tokens, EOS included.

    `none` 1; `average` the length; `gnmt` ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    """
    penalties: dict[str, LengthPenalty] = {
        "none": lambda length: 1.0,
        "average": lambda length: length,
        "gnmt": lambda length: float(((5 + length) / 6) ** alpha),
    }
    return chosen(name, penalties, kind="length_penalty")


def covered(attention: Float[Tensor, "T S"], real: Bool[Tensor, "S"] | None) -> float:
    """Σ_j log min(Σ_i α_ij, 1) of the attention (Wu et al. 2016, equation 14, without its β); j over the source
    positions where `real` is true, or over all.
    """
    total = attention.sum(0) if real is None else attention.sum(0)[real]
    return float(total.clamp(LEAST_COVERED, 1).log().sum())


def hypotheses(
    ids: Sequence[list[int]],
    attention: Float[Tensor, "N T S"] | None,
    locations: Int[Tensor, "N T"] | None,
    log_p: Float[Tensor, "N"],
) -> list[Hypothesis]:
    """N rows of ids, without BOS, as hypotheses: each up to its EOS, without padding, scored by log-probability."""
    attention = None if attention is None else attention.cpu()
    chosen = None if locations is None else locations.tolist()
    result = []
    for row, (tokens, log_probability) in enumerate(zip(ids, log_p.tolist(), strict=True)):
        ended = EOS in tokens
        tokens = tokens[: tokens.index(EOS)] if ended else [token for token in tokens if token != PAD]
        alpha = None if attention is None else attention[row, : len(tokens) + ended].clone()  # no view
        chosen_here = None if chosen is None else chosen[row][: len(tokens) + ended]
        result.append(Hypothesis(tokens, log_probability, log_probability, alpha, ended, locations=chosen_here))
    return result
