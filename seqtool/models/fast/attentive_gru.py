"""RNNsearch's decoder over a whole target with one hand-written backward pass: the fast path of `bahdanau`.

For the common choice, one layer of GRUs with additive attention. Equations are those of `bahdanau`, `cells.GRU` and
`additive`; as in `recurrences`, the steps' tensors are written one below the other, which saves autograd's nodes and
copies at every step, and the gradient of every matrix is one product. This saves 5 % of an update in bf16 and 0.5 % in
fp32 (Intel Xeon, one thread); on an earlier machine 7 and 5 %.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import GRU, Layers
from seqtool.models.contract import Memory
from seqtool.models.fast import recurrences
from seqtool.models.fast.additive import ExponentialAdditive, additive, additive_back, exponential
from seqtool.models.fast.private import through_softmax
from seqtool.models.parts import product_dtype
from seqtool.models.recurrent_decoder import StepOutput


def unroll(model: Any, memory: Memory, state: Layers, words: Tensor) -> StepOutput[Layers] | None:
    """All steps of a decoder after the words, input projections T×N×3H; None where this cannot compute them.

    The memory's keys are e^2k; the gradient returned for them is that of k.
    """
    if type(model) is not Bahdanau:  # a subclass may have another step
        return None
    cell: Any = model.cell
    score: Any = model.attention.score
    of_these_parts = type(cell) is GRU and type(score) is ExponentialAdditive and not model.upper
    one_query_a_row = len(state.top) == len(memory.mask)
    if not (of_these_parts and one_query_a_row and len(words) and torch.is_grad_enabled()):
        return None
    dtype = cell.recurrent.weight.dtype
    steps = _AttentiveGRU.apply(
        *(words.to(dtype), state.top.to(dtype), memory.values, memory.keys, memory.mask),
        *(score.W.weight, score.W.bias, score.v.weight.squeeze(0)),
        *(model.cell_context.weight, cell.recurrent.weight, cell.recurrent.bias),
    )
    s, context, alpha = (tensor.transpose(0, 1) for tensor in steps)
    return StepOutput(Layers(((s[:, -1],),)), (s, context), alpha)


class _AttentiveGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words, first, values, keys, mask, w_s, b_s, v, w_c, w_h, b_h = tensors
        dtype = product_dtype(words)
        w_s, w_c, w_h, values, v = w_s.to(dtype), w_c.to(dtype), w_h.to(dtype), values.to(dtype), v.to(keys.dtype)
        steps, rows = len(words), len(first)
        padding = torch.zeros_like(mask, dtype=keys.dtype).masked_fill_(~mask, -torch.inf)
        s, u, gate = recurrences.room_after(first, steps), torch.empty_like(words), torch.empty_like(words)
        q = keys.new_empty(steps, rows, 1, len(w_s))
        alphas = keys.new_empty(steps, rows, keys.shape[1])
        contexts = values.new_empty(steps, rows, values.shape[2])
        for t in range(steps):
            q[t, :, 0] = exponential(recurrences.add_product(b_s, s[t], w_s.t()))
            torch.softmax(additive(q[t], keys, v).squeeze(1).add_(padding), -1, out=alphas[t])  # A.1.2, (6)
            torch.bmm(alphas[t, :, None].to(dtype), values, out=contexts[t, :, None])  # (5)
            recurrences.add_product(b_h, s[t], w_h.t(), out=u[t])
            x = recurrences.add_product(words[t], contexts[t], w_c.t())
            recurrences.gru_step(x, u[t], s[t], gates=gate[t], h_new=s[t + 1])  # A.2.2
        ctx.save_for_backward(s, u, gate, q, alphas, contexts, values, keys, v, w_s, w_c, w_h)
        return s[1:], contexts, alphas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_contexts: Tensor, d_alphas: Tensor) -> tuple[Tensor | None, ...]:
        s, u, gate, q, alphas, contexts, values, keys, v, w_s, w_c, w_h = ctx.saved_tensors
        dx, du, dc, dq = (torch.empty_like(tensor) for tensor in (gate, gate, contexts, q))
        w_q = (4 * v[:, None] * w_s).to(w_s.dtype)
        ds, dv, dk = torch.zeros_like(s[0]), torch.zeros_like(v), torch.zeros_like(keys)
        for t in reversed(range(len(gate))):
            ds = recurrences.gru_back(ds.add_(d_states[t]), u[t], s[t], gate[t], dx=dx[t], du=du[t])
            recurrences.add_product(d_contexts[t], dx[t], w_c, out=dc[t])
            d_alpha = d_alphas[t] + torch.bmm(dc[t, :, None], values.transpose(1, 2)).squeeze(1)
            de = through_softmax(d_alpha, alphas[t], -1, alphas.dtype)
            additive_back(de[:, None], q[t], keys, q_gradient=dq[t], k_gradient=dk, v_gradient=dv)
            ds = recurrences.add_product(ds, du[t], w_h)
            ds = recurrences.add_product(ds, dq[t, :, 0], w_q)
        dq *= 4 * v  # w_q has this factor already; Σ_a v_a, added to every score, cancels in the softmax
        d_values = alphas.permute(1, 2, 0).to(dc.dtype) @ dc.transpose(0, 1)
        d_context = dx.flatten(0, 1).to(w_c.dtype).t() @ contexts.flatten(0, 1)
        d_query = recurrences.weight_and_bias_gradients(dq.squeeze(2), s[:-1], w_s.dtype)
        d_recurrent = recurrences.weight_and_bias_gradients(du, s[:-1], w_h.dtype)
        return dx, ds, d_values, dk.mul_(4 * v), None, *d_query, dv, d_context, *d_recurrent
