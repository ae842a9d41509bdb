"""RNNsearch's decoder over a whole target with one hand-written backward pass: the fast path of `bahdanau`.

For the common choice, one layer of GRUs with additive attention. Equations are those of `bahdanau`, `cells.GRU` and
`attention.Additive`; as in `gates`, the steps' tensors are written one below the other, and the gradient of every
matrix is one product.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqtool.models import gates
from seqtool.models.attention import Additive, additive, additive_back, exponential
from seqtool.models.encoder_decoder import Memory
from seqtool.models.sharing import Ledger, ledger_of, product_dtype

_through_softmax = torch.ops.aten._softmax_backward_data


class Passed(NamedTuple):
    """After every step: the state T×N×H, the context T×N×D and the alignment T×N×S it was made from."""

    states: Tensor
    contexts: Tensor
    alphas: Tensor


def attentive_gru(
    word: Tensor, state: Tensor, memory: Memory, score: Additive, context: nn.Linear, recurrent: nn.Linear
) -> Passed:
    """`word` is the words' share T×N×3H of the gates, `state` N×H the first; `context` and `recurrent` make the other
    shares. Where there will be a backward pass, for the keys' gradient goes to their ledger.
    """
    return Passed(
        *_AttentiveGRU.apply(
            word,
            state.to(word.dtype),
            memory.values,
            memory.keys,
            memory.mask,
            ledger_of(memory.keys),
            score.W.weight,
            score.W.bias,
            score.v.weight.squeeze(0),
            context.weight,
            recurrent.weight,
            recurrent.bias,
        )
    )


class _AttentiveGRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        word: Tensor,
        first: Tensor,
        values: Tensor,
        keys: Tensor,
        mask: Tensor,
        ledger: Ledger,
        w_s: Tensor,
        b_s: Tensor,
        v: Tensor,
        w_c: Tensor,
        w_h: Tensor,
        b_h: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = product_dtype(word)
        w_s, w_c, w_h, values = (one.to(dtype) for one in (w_s, w_c, w_h, values))
        b_s, b_h, v = b_s.to(word.dtype), b_h.to(word.dtype), v.to(keys.dtype)
        steps, size = len(word), len(first)
        away = torch.zeros_like(mask, dtype=keys.dtype).masked_fill_(~mask, -torch.inf)
        s, u, gate = gates.after(first, steps), torch.empty_like(word), torch.empty_like(word)
        q = keys.new_empty(steps, size, 1, len(w_s))
        alphas = keys.new_empty(steps, size, keys.shape[1])
        contexts = values.new_empty(steps, size, values.shape[2])
        for t in range(steps):
            q[t, :, 0] = exponential(gates.add_product(b_s, s[t], w_s.t()))
            torch.softmax(additive(q[t], keys, v).squeeze(1).add_(away), -1, out=alphas[t])
            torch.bmm(alphas[t, :, None].to(dtype), values, out=contexts[t, :, None])
            gates.add_product(b_h, s[t], w_h.t(), out=u[t])
            x = gates.add_product(word[t], contexts[t], w_c.t())
            gates.gru_step(x, u[t], s[t], gates=gate[t], h_new=s[t + 1])
        ctx.ledger = ledger
        ctx.save_for_backward(s, u, gate, q, alphas, contexts, values, keys, v, w_s, w_c, w_h)
        return s[1:], contexts, alphas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_contexts: Tensor, d_alphas: Tensor) -> tuple[Tensor | None, ...]:
        s, u, gate, q, alphas, contexts, values, keys, v, w_s, w_c, w_h = ctx.saved_tensors
        dx, du, dc, dq = (torch.empty_like(one) for one in (gate, gate, contexts, q))
        w_q = (4 * v[:, None] * w_s).to(w_s.dtype)
        ds, dv, dk = torch.zeros_like(s[0]), torch.zeros_like(v), ctx.ledger.sum_for(keys)
        for t in reversed(range(len(gate))):
            ds = gates.gru_back(ds.add_(d_states[t]), u[t], s[t], gate[t], dx=dx[t], du=du[t])
            gates.add_product(d_contexts[t], dx[t], w_c, out=dc[t])
            d_alpha = d_alphas[t] + torch.bmm(dc[t, :, None], values.transpose(1, 2)).squeeze(1)
            de = _through_softmax(d_alpha, alphas[t], -1, alphas.dtype)
            additive_back(de[:, None], q[t], keys, q_gradient=dq[t], k_gradient=dk, v_gradient=dv)
            ds = gates.add_product(ds, du[t], w_h)
            ds = gates.add_product(ds, dq[t, :, 0], w_q)
        dq *= 4 * v  # as w_q is; what Σ_a v_a adds to every score has no part in a softmax
        d_values = alphas.permute(1, 2, 0).to(dc.dtype) @ dc.transpose(0, 1)
        query, recurrent = gates.of_recurrent(dq.squeeze(2), s, w_s.dtype), gates.of_recurrent(du, s, w_h.dtype)
        context = dx.flatten(0, 1).to(w_c.dtype).t() @ contexts.flatten(0, 1)
        return dx, ds, d_values, None, None, None, *query, dv, context, *recurrent
