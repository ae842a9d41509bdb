"""Our answers to the exercises: the package's own code, called as an exercise asks for it."""
# ruff: noqa: N803, N806

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seqtool.cli.exercises import Answer
from seqtool.decoding.beam_search import Lattice, beam_search
from seqtool.models.attention import Attention, make_score
from seqtool.models.cells import Recurrence, States
from seqtool.models.contract import Memory, Step
from seqtool.models.parts import PLAIN, cross_entropy
from seqtool.models.tokens import BOS, EOS, PAD
from seqtool.training.losses import doubly_stochastic


class _Called(nn.Module):
    """A function of a module, as a module: its weights can be given for one call."""

    def __init__(self, module: nn.Module, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self) -> Any:
        return self.function(self.module)


def _call(module: nn.Module, function: Callable[[Any], Any], weights: Mapping[str, Tensor]) -> Any:
    return functional_call(_Called(module, function), {f"module.{name}": w for name, w in weights.items()}, ())


def _score(name: str, queries: Tensor, annotations: Tensor, size: int = 0, **weights: Tensor) -> Any:
    score = make_score(name, query=queries.shape[-1], value=annotations.shape[-1], size=size)
    named = {f"{name}.weight": weight for name, weight in weights.items() if name != "bias"}
    if "bias" in weights:
        named["W.bias"] = weights["bias"]
    return _call(score, lambda score: score(queries, score.keys(annotations)), named)


def _additive(queries: Tensor, annotations: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Any:
    return _score("additive", queries, annotations, len(v), W=W, U=U, v=v[None], bias=torch.zeros_like(v))


def _attention(queries: Tensor, annotations: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    attention = Attention("dot", query=queries.shape[-1], value=annotations.shape[-1], size=0)
    attended = attention(queries.flatten(0, 1), Memory(annotations, annotations, mask))
    return tuple(tensor.unflatten(0, queries.shape[:2]) for tensor in attended)


def _causal_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    past = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool).tril()
    return PLAIN.attend(queries, keys, values, mask[:, None] & past)


def _cell(name: str) -> Answer:
    def answer(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, c: Tensor | None = None) -> Any:
        weights = {"input.weight": W, "input.bias": b, "cell.recurrent.weight": U, "cell.recurrent.bias": 0 * b}
        if name == "gru_cho":
            gates, weights["cell.candidate.weight"] = U[: 2 * len(W) // 3], U[2 * len(W) // 3 :]
            weights |= {"cell.recurrent.weight": gates}
            del weights["cell.recurrent.bias"]
        recurrence = Recurrence(name, x.shape[1], h.shape[1])
        return _call(recurrence, lambda recurrence: recurrence.step(x, (h,) if c is None else (h, c)), weights)

    return answer


def _beam_step(total: Tensor, log_p: Tensor, length: int, eos: int) -> tuple[Tensor, ...]:
    """The second step of a search whose first step makes these hypotheses, which are the ids after EOS.

    The search decides in single precision. The sums are then computed in the precision of the arguments.
    """
    B, K, V = log_p.shape
    own_ids = torch.tensor([eos, *(token for token in range(V) if token != eos)])  # by our ids from EOS on

    def step(_: Any, sentence: Tensor, token: Tensor) -> Step[Tensor]:
        logits = torch.full((len(token), EOS + V), -torch.inf, dtype=torch.float64)
        first, later = token == BOS, token != BOS
        logits[first, EOS + 1 : EOS + 1 + K] = total[sentence[first]]
        logits[later, EOS:] = log_p[sentence[later], (token[later] - EOS - 1) % K][:, own_ids]  # −∞ has any id
        return Step(logits, sentence, None)

    lattice = Lattice()
    settings: Any = {"beam": K, "n_best": K, "penalty": float, "coverage": 0, "keep_attention": False}
    beam_search(step, (), torch.arange(B), maximum=[2] * B, trace=lattice, **settings)
    score = torch.full((B, K), -torch.inf, dtype=torch.float64)
    row, token = torch.zeros(2, B, K, dtype=torch.int64)
    for i in range(B):
        live = [candidate for candidate in lattice.steps[i][1] if candidate.fate == "kept"]
        row[i] = torch.tensor([candidate.parent for candidate in live])
        token[i] = own_ids[[candidate.token - EOS for candidate in live]]
        for rank, candidate in enumerate(lattice.steps[i][1]):
            if candidate.fate == "ended":
                score[i, rank] = (total[i, candidate.parent] + log_p[i, candidate.parent, eos]) / length
    sentence = torch.arange(B)[:, None]
    return total[sentence, row] + log_p[sentence, row, token], row, token, score


def _loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    return cross_entropy(logits, lambda logits: logits, labels, smoothing).total / (labels != PAD).sum()


ANSWERS: dict[str, Answer] = {
    "dot": lambda queries, annotations: _score("dot", queries, annotations),
    "scaled_dot": lambda queries, annotations: _score("scaled_dot", queries, annotations),
    "general": lambda queries, annotations, W: _score("general", queries, annotations, W=W.T),
    "additive": _additive,
    "attention": _attention,
    "causal_attention": _causal_attention,
    **{name: _cell(name) for name in ("rnn", "lstm", "gru", "gru_cho")},
    "last_state": lambda states, lengths: States.of((states.transpose(0, 1),), lengths).last,
    "beam_step": _beam_step,
    "masked_loss": _loss,
    "label_smoothing": _loss,
    "doubly_stochastic": doubly_stochastic,
}
