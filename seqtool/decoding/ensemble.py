"""Several models that decode as one."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.models.contract import Prefilled, Step


class Ensemble:
    """Several models that share vocabularies, decoded as one: their probabilities are averaged
    (Sutskever et al. 2014, section 3.6). Memory and state are tuples, one entry per model.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = tuple(models)

    def encode(self, source: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        encoded = [model.encode(source) for model in self.models]
        return tuple(memory for memory, _ in encoded), tuple(state for _, state in encoded)

    def prefill(
        self, memory: tuple[Any, ...], state: tuple[Any, ...], tokens: Int[Tensor, "N t"]
    ) -> Prefilled[tuple[Any, ...]]:
        read = [model.prefill(m, s, tokens) for model, m, s in zip(self.models, memory, state, strict=True)]
        return Prefilled(tuple(each.state for each in read), _mean([each.attention for each in read]))

    def step(self, memory: tuple[Any, ...], state: tuple[Any, ...], token: Int[Tensor, "N"]) -> Step[tuple[Any, ...]]:
        steps = [model.step(m, s, token) for model, m, s in zip(self.models, memory, state, strict=True)]
        log_p = torch.stack([s.logits.float().log_softmax(-1) for s in steps]).logsumexp(0)
        attention = _mean([s.attention for s in steps])
        return Step(log_p - math.log(len(steps)), tuple(s.state for s in steps), attention)


def _mean(attention: Sequence[Float[Tensor, "N *t S"] | None]) -> Float[Tensor, "N *t S"] | None:
    """The mean over the models that attend."""
    alphas = [alpha for alpha in attention if alpha is not None]
    return torch.stack(alphas).mean(0) if alphas else None
