"""Attention: how well a state s and an annotation h_j match (the score), and the weighted sum of the annotations.

The four scores of the lectures. A query is the decoder's state, keys are what a score makes of the annotation
vectors once per sentence. K queries (the beams of one sentence) share its keys and values without a copy.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqtool.errors import InputError
from seqtool.models import sharing
from seqtool.models.encoder_decoder import Memory
from seqtool.models.sharing import Ledger, StepLinear, ledger_of, product

IN_CACHE = 2**20  # numbers that the cache which cores share has room for
_through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input


class Score(nn.Module, ABC):
    """score(query B×K×H, keys B×S×A) → B×K×S; `keys` turns annotation vectors B×S×D into keys, once."""

    @abstractmethod
    def keys(self, values: Tensor) -> Tensor: ...

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor: ...


class Dot(Score):
    """h_jᵀ s; needs annotation vectors as long as the state."""

    def __init__(self, query: int, value: int, size: int) -> None:
        super().__init__()
        if query != value:
            raise InputError(
                f"The score '{type(self).__name__.lower()}' multiplies the state ({query}) with annotation vectors "
                f"({value}): make decoder_hidden equal to the encoder's output, or choose score=general."
            )

    def keys(self, values: Tensor) -> Tensor:
        return values

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.transpose(1, 2)


class ScaledDot(Dot):
    """h_jᵀ s / √d."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return super().forward(query / math.sqrt(query.shape[-1]), keys)


class General(Score):
    """h_jᵀ W s, also called bilinear."""

    def __init__(self, query: int, value: int, size: int) -> None:
        super().__init__()
        self.W = nn.Linear(value, query, bias=False)

    def keys(self, values: Tensor) -> Tensor:
        keys: Tensor = self.W(values)
        return keys

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.transpose(1, 2)


class Additive(Score):
    """v_aᵀ tanh(W_a s + U_a h_j) (Bahdanau et al. 2015, A.1.2).

    Taken as tanh(q + k) = 1 − 2 / (1 + e^2q e^2k): a key is e^2k, k = U_a h_j, made once a sentence, and each of the
    B·K·S·A tanh of a step becomes a multiplication and a division. `sharing.plain` has the equation as printed.
    """

    def __init__(self, query: int, value: int, size: int) -> None:
        super().__init__()
        self.W = StepLinear(query, size)
        self.U = nn.Linear(value, size, bias=False)
        self.v = nn.Linear(size, 1, bias=False)

    def keys(self, values: Tensor) -> Tensor:
        k: Tensor = self.U(values)
        return k if sharing.is_plain() else _share_exponential(k, self.v.weight.squeeze(0))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        q = self.W(query)
        if sharing.is_plain():
            e: Tensor = self.v(torch.tanh(q[:, :, None] + keys[:, None])).squeeze(-1)
        else:
            e = _AdditiveScore.apply(q, keys, self.v.weight.squeeze(0), ledger_of(keys))
        return e


def _share_exponential(k: Tensor, v: Tensor) -> Tensor:
    """e^2k, shared; its ledger adds up the gradients of k itself, which cannot overflow, without their factor 4 v."""
    ledger = Ledger()
    keys: Tensor = _Exponential.apply(k, v.detach(), ledger)
    if sharing.is_on():
        keys.ledger = ledger  # type: ignore[attr-defined]
    return keys


def exponential(x: Tensor) -> Tensor:
    """e^2x in single precision at least; |x| = 30 is far beyond where a tanh is 1, and no product is 0 · ∞."""
    return (2 * x).to(torch.promote_types(x.dtype, torch.float32)).clamp_(-60, 60).exp_()


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, ledger: Ledger) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.ledger, ctx.dtype = ledger, k.dtype
        keys = exponential(k)
        ctx.save_for_backward(keys, v)
        return keys

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        keys, v = ctx.saved_tensors
        total, _ = ctx.ledger.close()
        if total is not None:
            total = total.mul_(4 * v)
        if gradient is not None:  # of keys that were used without their ledger
            total = gradient * 2 * keys + (0 if total is None else total)
        return (None if total is None else total.to(ctx.dtype)), None, None


class _AdditiveScore(torch.autograd.Function):
    """Σ_a v_a (1 − 2 r_a), r = 1 / (1 + e^2q e^2k); q B×K×A, keys e^2k B×S×A, v A.

    The backward pass takes r again instead of keeping B·K·S·A numbers of every step. On a CPU the rows are
    taken a few at a time, so that what is made of them stays in its cache.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, v: Tensor, ledger: Ledger | None) -> Tensor:
        ctx.ledger, ctx.dtype = ledger, q.dtype
        q, v = exponential(q), v.to(keys.dtype)
        ctx.save_for_backward(q, keys, v)
        return additive(q, keys, v).add_(v.sum())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        q, keys, v = ctx.saved_tensors
        k_gradient = torch.zeros_like(keys) if ctx.ledger is None else ctx.ledger.sum_for(keys)
        v_gradient = gradient.sum().expand(len(v)).clone()
        q_gradient = torch.empty_like(q)
        additive_back(gradient, q, keys, q_gradient=q_gradient, k_gradient=k_gradient, v_gradient=v_gradient)
        keys_gradient = k_gradient * 2 * v / keys if ctx.ledger is None else None  # k = ln(keys) / 2
        return (q_gradient * 4 * v).to(ctx.dtype), keys_gradient, v_gradient, None


def additive(q: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """−2 Σ_a v_a r_a, r = 1 / (1 + e^2q e^2k): the score less Σ_a v_a. q is e^2q B×K×A, keys e^2k B×S×A → B×K×S."""
    with torch.autocast(q.device.type, enabled=False):
        pieces = []
        for rows in _few_rows(q, keys):
            divisor = _divisor(q[rows], keys[rows])
            pieces.append(torch.div(v, divisor, out=divisor).sum(-1))
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).mul_(-2)


def additive_back(
    gradient: Tensor, q: Tensor, keys: Tensor, *, q_gradient: Tensor, k_gradient: Tensor, v_gradient: Tensor
) -> None:
    """Write the gradient of q, add those of k and v. Those of q and k are without their factor 4 v, and that of v is
    without the sum of `gradient`, the share of Σ_a v_a.
    """
    for rows in _few_rows(q, keys):
        r, e = _divisor(q[rows], keys[rows]).reciprocal_(), gradient[rows]
        v_gradient -= 2 * (e.flatten() @ r.flatten(0, -2))
        slope = _through_sigmoid(e[..., None], r, grad_input=r)  # e r (1 − r); tanh′(q + k) = 4 r (1 − r)
        torch.sum(slope, 2, out=q_gradient[rows])
        for k in range(q.shape[1]):
            k_gradient[rows] += slope[:, k]


def _divisor(q: Tensor, keys: Tensor) -> Tensor:
    """1 + e^2q e^2k, B×K×S×A."""
    return torch.addcmul(q.new_ones(()), q[:, :, None], keys[:, None])


def _few_rows(q: Tensor, k: Tensor) -> list[slice]:
    rows = max(1, IN_CACHE // (q.shape[1] * k[0].numel())) if k.device.type == "cpu" else len(k)
    return [slice(start, start + rows) for start in range(0, len(k), rows)]


SCORES: dict[str, type[Dot] | type[General] | type[Additive]] = {
    "additive": Additive,
    "dot": Dot,
    "general": General,
    "scaled_dot": ScaledDot,
}


class Attended(NamedTuple):
    """What a query saw: context N×D, and alpha N×S, which sums to 1 over real positions and is 0 elsewhere."""

    context: Tensor
    alpha: Tensor


class Attention(nn.Module):
    """Softmax of a score over the real positions (6) and the weighted sum of the annotation vectors (5)."""

    def __init__(self, score: str, *, query: int, value: int, size: int) -> None:
        super().__init__()
        if score not in SCORES:
            raise InputError(f"Unknown score '{score}'; choose from {', '.join(SCORES)}.")
        self.score = SCORES[score](query, value, size)

    def forward(self, query: Tensor, memory: Memory) -> Attended:
        """`query` is N×H with N = B·K: K queries for each of the memory's B rows."""
        rows = memory.mask.shape[0]
        e = self.score(query.view(rows, -1, query.shape[-1]), memory.keys)
        alpha = e.masked_fill(~memory.mask[:, None], -math.inf).softmax(-1)
        context = product(alpha.to(memory.values.dtype), memory.values)
        return Attended(context.flatten(0, 1), alpha.flatten(0, 1))
