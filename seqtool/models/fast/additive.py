"""Additive attention without tanh, and RNNsearch's decoder with this attention.

Since tanh(q + k) = 1 − 2 r with r = e^−2q / (e^−2q + e^2k), a key is e^2k, k = U_a h_j, computed once per sentence, and
each of the B·K·S·A tanh evaluations per step becomes an addition and a division. The backward pass recomputes r instead
of storing it. With tanh an update of Show, Attend and Tell takes 1.39 times as long in fp32 and 1.28 times in
bf16 (one thread, 64 locations).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqtool.models.attention import Additive
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import GRU, GRUCho, Layers
from seqtool.models.contract import Memory
from seqtool.models.fast import recurrences
from seqtool.models.fast.deferred_gradients import Ledger, once_per_pass
from seqtool.models.fast.private import through_sigmoid, through_softmax
from seqtool.models.fast.products import add_product
from seqtool.models.parts import at_least_single, product_dtype
from seqtool.models.recurrent_decoder import StepOutput

MAX_NUMBERS_IN_CACHE = 2**20  # the size of an intermediate result on a CPU: 4 MB fit into the cores' shared cache


class ExponentialAdditive(Additive):
    """The score `attention.Additive`, computed from keys e^2k."""

    def keys(self, values: Tensor) -> Tensor:
        return _Exponential.apply(self.U(values))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        v = self.v.weight.squeeze(0)
        operands = once_per_pass(keys, lambda ledger: _operands(keys, v, ledger))
        return _Score.apply(self.W(query), *(operands or _operands(keys, v, None)))


def _operands(keys: Tensor, v: Tensor, ledger: Ledger | None) -> tuple[Any, ...]:
    """Return the arguments of `_Score` beside the query; 4 v is the factor of gradients, if these are needed."""
    v_sum, scale = v.detach().sum(), 4 * v.detach() if torch.is_grad_enabled() else None
    if ledger is not None:
        keys, v = _SharedOperands.apply(keys, v, ledger)
    return keys, v, v_sum, scale, ledger


def exponential(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return e^x in single precision at least. |x| is clamped to 86, so that neither the result nor a sum of two is 0
    or ∞: e^±87 is about where single precision ends.
    """
    return torch.exp(at_least_single(x).clamp(-86, 86), out=out)


class _Exponential(torch.autograd.Function):
    """Keys e^2k. Functions of them return the gradient of k, which cannot overflow, instead of that of e^2k."""

    @staticmethod
    def forward(ctx: Any, k: Tensor) -> Tensor:
        return exponential(2 * k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, k_gradient: Tensor) -> Tensor:
        return k_gradient


class _SharedOperands(torch.autograd.Function):
    """Keys and v, which all steps use: the ledger has the sums of their gradients, that of k without its factor 4 v,
    and the gradient of every step's score.
    """

    @staticmethod
    def forward(ctx: Any, keys: Tensor, v: Tensor, ledger: Ledger) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.ledger = ledger
        ctx.save_for_backward(v)
        return keys.view_as(keys), v.view_as(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, v_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        (v,) = ctx.saved_tensors
        if entries := ctx.ledger.entries():
            k_total, v_total, *scores = entries
            entries.clear()
            k_total.mul_(4 * v)
            v_total += torch.cat([score.flatten() for score in scores]).sum()  # of the score's term Σ_a v_a
            gradient = k_total if gradient is None else k_total + gradient
            v_gradient = v_total.to(v.dtype) if v_gradient is None else v_total.to(v.dtype) + v_gradient
        return gradient, v_gradient, None


class _Score(torch.autograd.Function):
    """The score Σ_a v_a (1 − 2 r_a), of q, B×K×A, keys e^2k, B×S×A, and v, A; Σ_a v_a and 4 v are given as well."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, v: Tensor, v_sum: Tensor, scale: Tensor | None, ledger: Ledger | None
    ) -> Tensor:
        ctx.ledger, ctx.dtype = ledger, q.dtype
        q, v = exponential(-2 * q), v.to(keys.dtype)
        ctx.save_for_backward(q, keys, scale)
        return additive(q, keys, v, v_sum.to(keys.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, keys, scale = ctx.saved_tensors
        sums = [] if ctx.ledger is None else ctx.ledger.entries()
        if not sums:
            sums += [torch.zeros_like(keys), keys.new_zeros(len(scale))]
        k_gradient, v_gradient = sums[:2]
        q_gradient = torch.empty_like(q)
        additive_back(gradient, q, keys, q_gradient=q_gradient, k_gradient=k_gradient, v_gradient=v_gradient)
        q_gradient = (q_gradient * scale).to(ctx.dtype)
        if ctx.ledger is not None:
            sums.append(gradient)
            return q_gradient, None, None, None, None, None
        return q_gradient, k_gradient.mul_(scale), v_gradient.add_(gradient.sum()), None, None, None


def additive(q: Tensor, keys: Tensor, v: Tensor, addend: Tensor) -> Tensor:
    """Return addend − 2 Σ_a v_a r_a, which is the score if the addend, B×K×S or a number, is Σ_a v_a: q is e^−2q,
    B×K×A, and keys are e^2k, B×S×A. On a CPU a few rows are computed at a time, so that intermediate results stay in
    its cache.
    """
    with torch.autocast(q.device.type, enabled=False):
        pieces = []
        for rows in _row_slices(q, keys):
            r = _share(q[rows], keys[rows])
            sums = addend[rows].flatten() if addend.dim() else addend
            product = torch.addmv(sums, r.flatten(0, -2), v, alpha=-2)
            pieces.append(product.view(r.shape[:-1]))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def additive_back(
    gradient: Tensor, q: Tensor, keys: Tensor, *, q_gradient: Tensor, k_gradient: Tensor, v_gradient: Tensor
) -> None:
    """Write the gradient of q, and add to the gradients of k and v. The caller multiplies the gradients of q and k by
    their factor, 4 v, and adds the sum of `gradient`, due to Σ_a v_a, to that of v.
    """
    for rows in _row_slices(q, keys):
        r, e = _share(q[rows], keys[rows]), gradient[rows]
        v_gradient.addmv_(r.flatten(0, -2).t(), e.flatten(), alpha=-2)
        slope = through_sigmoid(e[..., None], r, grad_input=r)  # e r (1 − r); tanh′(q + k) = 4 r (1 − r)
        torch.sum(slope, 2, out=q_gradient[rows])
        for k in range(q.shape[1]):
            k_gradient[rows].add_(slope[:, k])


def _share(q: Tensor, keys: Tensor) -> Tensor:
    """Return r = e^−2q / (e^−2q + e^2k), B×K×S×A."""
    total = q[:, :, None] + keys[:, None]
    return torch.div(q[:, :, None], total, out=total)


def _row_slices(q: Tensor, k: Tensor) -> list[slice]:
    """Return slices of the B rows that are computed together: on a CPU as many as fit into its cache, otherwise all."""
    rows = max(1, MAX_NUMBERS_IN_CACHE // (q.shape[1] * k[0].numel())) if k.device.type == "cpu" else len(k)
    return [slice(start, start + rows) for start in range(0, len(k), rows)]


def attentive_gru(model: Any, memory: Memory, state: Layers, projected: Tensor) -> StepOutput[Layers] | None:
    """Run RNNsearch's decoder over a whole target, with one hand-written backward pass, if it has one layer of
    GRUs, torch's or the paper's, and additive attention; otherwise return None.

    memory: its keys are e^2k; the gradient returned for them is that of k
    projected: the input projections of all words, T×N×3H

    The equations are those of `bahdanau` and `cells.GRU`. As in `recurrences`, all steps write into common tensors,
    which saves autograd's nodes and copies at every step, and the gradient of each matrix is one product. This saves
    5 % of an update in bf16 and 0.5 % in fp32 (Intel Xeon, one thread); on an earlier machine 7 and 5 %.
    """
    if not isinstance(model, Bahdanau) or not type(model).__module__.startswith("seqtool."):  # one's own may differ
        return None
    cell: Any = model.cell
    score: Any = model.attention.score
    supported = type(cell) in (GRU, GRUCho) and type(score) is ExponentialAdditive and not model.upper
    s_0 = state.layers[0][0]
    one_query_a_row = len(s_0) == len(memory.mask)
    if not (supported and one_query_a_row and len(projected) and torch.is_grad_enabled()):
        return None
    dtype = cell.recurrent.weight.dtype
    steps = _AttentiveGRU.apply(
        *(projected.to(dtype), s_0.to(dtype), memory.values, memory.keys, memory.mask_bias.to(memory.keys.dtype)),
        *(score.W.weight, score.W.bias, score.v.weight.squeeze(0)),
        *(model.cell_context.weight, *recurrences.recurrent_weights(cell)),
    )
    s, context, alpha = (tensor.transpose(0, 1) for tensor in steps)
    return StepOutput(Layers(((s[:, -1],),)), (s, context), alpha)


class _AttentiveGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        projected, s_0, values, keys, mask_bias, w_s, b_s, v, w_c, w_h, second = tensors
        dtype = product_dtype(projected)
        w_s, w_c, w_h, values, v = w_s.to(dtype), w_c.to(dtype), w_h.to(dtype), values.to(dtype), v.to(keys.dtype)
        second = second.to(dtype) if second.dim() == 2 else second
        b_h, candidate = recurrences.bias_and_candidate(second, w_h)
        steps, rows, size = len(projected), len(s_0), len(w_s)
        s, gates = recurrences.room_after(s_0, steps), torch.empty_like(projected)
        u = projected.new_empty(steps, rows, size + len(w_h))
        q = keys.new_empty(steps, rows, 1, size)
        alphas = keys.new_empty(steps, rows, keys.shape[1])
        contexts = values.new_empty(steps, rows, values.shape[2])
        of_state, bias = torch.cat([-2 * w_s, w_h]).t(), torch.cat([-2 * b_s, b_h])  # one product of s_{i−1} for both
        for t in range(steps):
            add_product(bias, s[t], of_state, out=u[t])
            exponential(u[t, :, None, :size], out=q[t])
            torch.softmax(additive(q[t], keys, v, mask_bias).squeeze(1), -1, out=alphas[t])  # A.1.2, (6)
            torch.bmm(alphas[t, :, None].to(dtype), values, out=contexts[t, :, None])  # (5)
            x = add_product(projected[t], contexts[t], w_c.t())
            recurrences.gru_step(x, u[t, :, size:], s[t], candidate, gates=gates[t], h_new=s[t + 1])  # A.2.2
        ctx.save_for_backward(s, u[..., size:], gates, q, alphas, contexts, values, keys, v, w_s, w_c, w_h, second)
        return s[1:], contexts, alphas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_contexts: Tensor, d_alphas: Tensor) -> tuple[Tensor | None, ...]:
        s, u, gates, q, alphas, contexts, values, keys, v, w_s, w_c, w_h, second = ctx.saved_tensors
        size, dc, back_class = len(w_s), torch.empty_like(contexts), recurrences.gru_back(second)
        room = s.new_empty(*q.shape[:2], size + back_class.columns * s.shape[2])  # the gradient of q, and the cell's
        dq, d_products = room[..., None, :size], room[..., : size + len(w_h)]
        back = back_class(s, u, gates, second, room[..., size:])
        of_state = torch.cat([(4 * v[:, None] * w_s).to(w_s.dtype), back.ordered(w_h)])
        ds, dv, dk = torch.zeros_like(s[0]), torch.zeros_like(v), torch.zeros_like(keys)
        for t in reversed(range(len(gates))):
            back.step(t, ds.add_(d_states[t]))
            add_product(d_contexts[t], back.dx[t], w_c, out=dc[t])
            d_alpha = d_alphas[t] + torch.bmm(dc[t, :, None], values.transpose(1, 2)).squeeze(1)
            de = through_softmax(d_alpha, alphas[t], -1, alphas.dtype)
            additive_back(de[:, None], q[t], keys, q_gradient=dq[t], k_gradient=dk, v_gradient=dv)
            ds = add_product(back.dh[t], d_products[t], of_state)
        dq = dq.squeeze(2) * (4 * v)  # `of_state` contains this factor; Σ_a v_a cancels in the softmax
        d_values = alphas.permute(1, 2, 0).to(dc.dtype) @ dc.transpose(0, 1)
        d_context = back.dx.flatten(0, 1).to(w_c.dtype).t() @ contexts.flatten(0, 1)
        d_query = recurrences.weight_and_bias_gradients(dq, s[:-1], w_s.dtype)
        return back.dx, ds, d_values, dk.mul_(4 * v), None, *d_query, dv, d_context, *back.weight_gradients(w_h.dtype)
