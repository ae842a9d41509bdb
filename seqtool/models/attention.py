"""Attention: scores of how well a state s matches each annotation h_j, and the weighted sum of the annotations.

A query is the decoder's state; keys are computed from the annotation vectors, once per sentence. K queries (the beams
of one sentence) share its keys and values without a copy.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.contract import Memory
from seqtool.models.parts import PLAIN, Parts
from seqtool.settings.classes import chosen

Queries = Float[Tensor, "B K H"]
Values = Float[Tensor, "B S D"]
Keys = Float[Tensor, "B S A"]
Scores = Float[Tensor, "B K S"]


class AttentionScore(nn.Module, ABC):
    """How well queries match keys; `keys` turns annotation vectors into keys, once.

    query: the size H of queries
    value: the size D of annotation vectors
    size: `model.alignment`, A

    A score that can be built of faster parts has an argument `parts` as well.
    """

    def __init__(self, query: int, value: int, size: int) -> None:
        super().__init__()

    @abstractmethod
    def keys(self, values: Values) -> Keys: ...

    @abstractmethod
    def forward(self, query: Queries, keys: Keys) -> Scores: ...


class Dot(AttentionScore):
    """h_jᵀ s; needs annotation vectors of the state's size."""

    def __init__(self, query: int, value: int, size: int) -> None:
        super().__init__(query, value, size)
        if query != value:
            raise InputError(
                "The scores dot and scaled_dot need states and annotation vectors of one size, but they have "
                f"{query} and {value} numbers: make the two sizes equal or use model.score=general."
            )

    def keys(self, values: Values) -> Keys:
        return values

    def forward(self, query: Queries, keys: Keys) -> Scores:
        return query @ keys.transpose(1, 2)


class ScaledDot(Dot):
    """h_jᵀ s / √d."""

    def forward(self, query: Queries, keys: Keys) -> Scores:
        return super().forward(query / math.sqrt(query.shape[-1]), keys)


class General(AttentionScore):
    """h_jᵀ W s, also called bilinear."""

    def __init__(self, query: int, value: int, size: int, parts: Parts = PLAIN) -> None:
        super().__init__(query, value, size)
        self.W = parts.linear(value, query, bias=False)

    def keys(self, values: Values) -> Keys:
        return self.W(values)

    def forward(self, query: Queries, keys: Keys) -> Scores:
        return query @ keys.transpose(1, 2)


class Additive(AttentionScore):
    """v_aᵀ tanh(W_a s + U_a h_j) (Bahdanau et al. 2015, A.1.2)."""

    def __init__(self, query: int, value: int, size: int, parts: Parts = PLAIN) -> None:
        super().__init__(query, value, size)
        self.W = parts.linear(query, size)
        self.U = parts.linear(value, size, bias=False)
        self.v = parts.linear(size, 1, bias=False)

    def keys(self, values: Values) -> Keys:
        return self.U(values)

    def forward(self, query: Queries, keys: Keys) -> Scores:
        e: Tensor = self.v(torch.tanh(self.W(query)[:, :, None] + keys[:, None]))
        return e.squeeze(-1)


SCORES: dict[str, type[AttentionScore]] = {
    "additive": Additive,
    "dot": Dot,
    "general": General,
    "scaled_dot": ScaledDot,
}


def make_score(
    score: str | type[AttentionScore], *, query: int, value: int, size: int, parts: Parts = PLAIN
) -> AttentionScore:
    """Build a score from its name or class; the sizes are those of `AttentionScore`."""
    return parts.build(chosen(score, SCORES, kind="score"), query, value, size)


class AttentionOutput(NamedTuple):
    """The result of attention: the context c, and alpha, which sums to 1 over real positions and is 0 elsewhere."""

    context: Float[Tensor, "N D"]
    alpha: Float[Tensor, "N S"]


class Attention(nn.Module):
    """Softmax of a score over the real positions (6) and the weighted sum of the annotation vectors (5)."""

    def __init__(
        self, score: str | type[AttentionScore], *, query: int, value: int, size: int, parts: Parts = PLAIN
    ) -> None:
        super().__init__()
        self.score = make_score(score, query=query, value=value, size=size, parts=parts)
        self.weighted_sum = parts.weighted_sum

    def forward(self, query: Float[Tensor, "N H"], memory: Memory) -> AttentionOutput:
        """Attend with N = B·K queries, K for each row of the memory. The softmax is in single precision at least."""
        e = self.score(query.view(len(memory.mask), -1, query.shape[-1]), memory.keys)
        alpha = (e + memory.mask_bias).softmax(-1).flatten(0, 1)
        return AttentionOutput(self.weighted_sum(alpha, memory.values), alpha)
