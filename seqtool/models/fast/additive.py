"""Additive attention without tanh, and RNNsearch's decoder with this attention.

Since tanh(q + k) = 1 − 2 / (1 + e^2q e^2k), a key is e^2k, k = U_a h_j, computed once per sentence, and each of the
B·K·S·A tanh evaluations per step becomes a multiplication and a division. The backward pass recomputes these products
instead of storing them. With tanh an update of Show, Attend and Tell takes 1.39 times as long in fp32 and 1.28 times in
bf16 (one thread, 64 locations).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqtool.models.attention import Additive
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import GRU, Layers
from seqtool.models.contract import Memory
from seqtool.models.fast.deferred_gradients import Ledger, once_per_pass
from seqtool.models.fast.private import through_sigmoid, through_softmax
from seqtool.models.fast.recurrences import add_product, gru_back, gru_step, room_after, weight_and_bias_gradients
from seqtool.models.parts import at_least_single, product_dtype
from seqtool.models.recurrent_decoder import StepOutput

MAX_NUMBERS_IN_CACHE = 2**20  # the size of an intermediate result on a CPU: 4 MB fit into the cores' shared cache


class ExponentialAdditive(Additive):
    """The score `attention.Additive`, computed from keys e^2k."""

    def keys(self, values: Tensor) -> Tensor:
        return _Exponential.apply(self.U(values))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        v = self.v.weight.squeeze(0)
        keys_and_ledger = once_per_pass(keys, lambda ledger: (_SharedKeys.apply(keys, v.detach(), ledger), ledger))
        keys, ledger = (keys, None) if keys_and_ledger is None else keys_and_ledger
        return _Score.apply(self.W(query), keys, v, ledger)


def exponential(x: Tensor) -> Tensor:
    """Return e^2x in single precision at least. |x| is clamped to 43, so that the result is neither 0 nor ∞ and no
    product is 0 · ∞; a product of two may be 0 or ∞, which gives a tanh of −1 or 1.
    """
    return at_least_single(2 * x).clamp_(-86, 86).exp_()  # e^±87 is about where single precision ends


class _Exponential(torch.autograd.Function):
    """Keys e^2k. Functions of them return the gradient of k, which cannot overflow, instead of that of e^2k."""

    @staticmethod
    def forward(ctx: Any, k: Tensor) -> Tensor:
        return exponential(k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, k_gradient: Tensor) -> Tensor:
        return k_gradient


class _SharedKeys(torch.autograd.Function):
    """Keys that all steps use: each step adds the gradient of k, without its factor 4 v, to a sum in the ledger."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, v: Tensor, ledger: Ledger) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.ledger = ledger
        ctx.save_for_backward(v)
        return keys.view_as(keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        (v,) = ctx.saved_tensors
        if entries := ctx.ledger.entries():
            total = entries.pop().mul_(4 * v)
            gradient = total if gradient is None else total + gradient
        return gradient, None, None


class _Score(torch.autograd.Function):
    """The score Σ_a v_a (1 − 2 r_a), r = 1 / (1 + e^2q e^2k), of q, B×K×A, keys e^2k, B×S×A, and v, A."""

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
        sums = [] if ctx.ledger is None else ctx.ledger.entries()
        if not sums:
            sums.append(torch.zeros_like(keys))
        (k_gradient,) = sums
        v_gradient = gradient.sum().expand(len(v)).clone()
        q_gradient = torch.empty_like(q)
        additive_back(gradient, q, keys, q_gradient=q_gradient, k_gradient=k_gradient, v_gradient=v_gradient)
        returned_k_gradient = k_gradient.mul_(4 * v) if ctx.ledger is None else None
        return (q_gradient * 4 * v).to(ctx.dtype), returned_k_gradient, v_gradient, None


def additive(q: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """Return −2 Σ_a v_a r_a, r = 1 / (1 + e^2q e^2k), which is the score minus Σ_a v_a: q is e^2q, B×K×A, and keys are
    e^2k, B×S×A. On a CPU a few rows are computed at a time, so that intermediate results stay in its cache.
    """
    with torch.autocast(q.device.type, enabled=False):
        pieces = []
        for rows in _row_slices(q, keys):
            denominators = _denominators(q[rows], keys[rows])
            pieces.append(torch.div(v, denominators, out=denominators).sum(-1))
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).mul_(-2)


def additive_back(
    gradient: Tensor, q: Tensor, keys: Tensor, *, q_gradient: Tensor, k_gradient: Tensor, v_gradient: Tensor
) -> None:
    """Write the gradient of q, and add to the gradients of k and v. The caller multiplies the gradients of q and k by
    their factor, 4 v, and adds the sum of `gradient`, due to Σ_a v_a, to that of v.
    """
    for rows in _row_slices(q, keys):
        r, e = _denominators(q[rows], keys[rows]).reciprocal_(), gradient[rows]
        v_gradient -= 2 * (e.flatten() @ r.flatten(0, -2))
        slope = through_sigmoid(e[..., None], r, grad_input=r)  # e r (1 − r); tanh′(q + k) = 4 r (1 − r)
        torch.sum(slope, 2, out=q_gradient[rows])
        for k in range(q.shape[1]):
            k_gradient[rows] += slope[:, k]


def _denominators(q: Tensor, keys: Tensor) -> Tensor:
    """Return 1 + e^2q e^2k, B×K×S×A."""
    return torch.addcmul(q.new_ones(()), q[:, :, None], keys[:, None])


def _row_slices(q: Tensor, k: Tensor) -> list[slice]:
    """Return slices of the B rows that are computed together: on a CPU as many as fit into its cache, otherwise all."""
    rows = max(1, MAX_NUMBERS_IN_CACHE // (q.shape[1] * k[0].numel())) if k.device.type == "cpu" else len(k)
    return [slice(start, start + rows) for start in range(0, len(k), rows)]


def attentive_gru(model: Any, memory: Memory, state: Layers, projected: Tensor) -> StepOutput[Layers] | None:
    """Run RNNsearch's decoder over a whole target, with one hand-written backward pass, if it has one GRU layer and
    additive attention, the common choice; otherwise return None.

    memory: its keys are e^2k; the gradient returned for them is that of k
    projected: the input projections of all words, T×N×3H

    The equations are those of `bahdanau` and `cells.GRU`. As in `recurrences`, all steps write into common tensors,
    which saves autograd's nodes and copies at every step, and the gradient of each matrix is one product. This saves
    5 % of an update in bf16 and 0.5 % in fp32 (Intel Xeon, one thread); on an earlier machine 7 and 5 %.
    """
    if type(model) is not Bahdanau:  # a subclass may have another step
        return None
    cell: Any = model.cell
    score: Any = model.attention.score
    supported = type(cell) is GRU and type(score) is ExponentialAdditive and not model.upper
    s_0 = state.layers[0][0]
    one_query_a_row = len(s_0) == len(memory.mask)
    if not (supported and one_query_a_row and len(projected) and torch.is_grad_enabled()):
        return None
    dtype = cell.recurrent.weight.dtype
    steps = _AttentiveGRU.apply(
        *(projected.to(dtype), s_0.to(dtype), memory.values, memory.keys, memory.mask),
        *(score.W.weight, score.W.bias, score.v.weight.squeeze(0)),
        *(model.cell_context.weight, cell.recurrent.weight, cell.recurrent.bias),
    )
    s, context, alpha = (tensor.transpose(0, 1) for tensor in steps)
    return StepOutput(Layers(((s[:, -1],),)), (s, context), alpha)


class _AttentiveGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        projected, s_0, values, keys, mask, w_s, b_s, v, w_c, w_h, b_h = tensors
        dtype = product_dtype(projected)
        w_s, w_c, w_h, values, v = w_s.to(dtype), w_c.to(dtype), w_h.to(dtype), values.to(dtype), v.to(keys.dtype)
        steps, rows = len(projected), len(s_0)
        mask_bias = torch.zeros_like(mask, dtype=keys.dtype).masked_fill_(~mask, -torch.inf)
        s, u, gates = room_after(s_0, steps), torch.empty_like(projected), torch.empty_like(projected)
        q = keys.new_empty(steps, rows, 1, len(w_s))
        alphas = keys.new_empty(steps, rows, keys.shape[1])
        contexts = values.new_empty(steps, rows, values.shape[2])
        for t in range(steps):
            q[t, :, 0] = exponential(add_product(b_s, s[t], w_s.t()))
            torch.softmax(additive(q[t], keys, v).squeeze(1).add_(mask_bias), -1, out=alphas[t])  # A.1.2, (6)
            torch.bmm(alphas[t, :, None].to(dtype), values, out=contexts[t, :, None])  # (5)
            add_product(b_h, s[t], w_h.t(), out=u[t])
            x = add_product(projected[t], contexts[t], w_c.t())
            gru_step(x, u[t], s[t], gates=gates[t], h_new=s[t + 1])  # A.2.2
        ctx.save_for_backward(s, u, gates, q, alphas, contexts, values, keys, v, w_s, w_c, w_h)
        return s[1:], contexts, alphas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_contexts: Tensor, d_alphas: Tensor) -> tuple[Tensor | None, ...]:
        s, u, gates, q, alphas, contexts, values, keys, v, w_s, w_c, w_h = ctx.saved_tensors
        dx, du, dc, dq = (torch.empty_like(tensor) for tensor in (gates, gates, contexts, q))
        w_q = (4 * v[:, None] * w_s).to(w_s.dtype)
        ds, dv, dk = torch.zeros_like(s[0]), torch.zeros_like(v), torch.zeros_like(keys)
        for t in reversed(range(len(gates))):
            ds = gru_back(ds.add_(d_states[t]), u[t], s[t], gates[t], dx=dx[t], du=du[t])
            add_product(d_contexts[t], dx[t], w_c, out=dc[t])
            d_alpha = d_alphas[t] + torch.bmm(dc[t, :, None], values.transpose(1, 2)).squeeze(1)
            de = through_softmax(d_alpha, alphas[t], -1, alphas.dtype)
            additive_back(de[:, None], q[t], keys, q_gradient=dq[t], k_gradient=dk, v_gradient=dv)
            ds = add_product(ds, du[t], w_h)
            ds = add_product(ds, dq[t, :, 0], w_q)
        dq *= 4 * v  # w_q already contains this factor; Σ_a v_a, added to every score, cancels in the softmax
        d_values = alphas.permute(1, 2, 0).to(dc.dtype) @ dc.transpose(0, 1)
        d_context = dx.flatten(0, 1).to(w_c.dtype).t() @ contexts.flatten(0, 1)
        d_query = weight_and_bias_gradients(dq.squeeze(2), s[:-1], w_s.dtype)
        d_recurrent = weight_and_bias_gradients(du, s[:-1], w_h.dtype)
        return dx, ds, d_values, dk.mul_(4 * v), None, *d_query, dv, d_context, *d_recurrent
