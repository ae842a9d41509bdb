"""Right solutions, written otherwise than ours, each with its exercise."""
# ruff: noqa: N803, N806

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CATALOGUE: dict[str, str] = {}


def right(exercise: str) -> Callable[[Any], Any]:
    def enter(solution: Any) -> Any:
        CATALOGUE[solution.__name__] = exercise
        return solution

    return enter


@right("dot")
def dot_with_loops(queries, annotations):
    rows = []
    for b in range(len(queries)):
        rows.append(torch.stack([torch.stack([q.dot(h) for h in annotations[b]]) for q in queries[b]]))
    return torch.stack(rows)


@right("dot")
def dot_of_columns(queries, annotations):
    scores = torch.zeros(queries.shape[0], queries.shape[1], annotations.shape[1])
    for s in range(annotations.shape[1]):
        scores[:, :, s] = (queries * annotations[:, s : s + 1]).sum(-1)
    return scores


@right("scaled_dot")
class ScaledBeforehand(nn.Module):
    def forward(self, queries, annotations):
        root = queries.shape[-1] ** 0.25
        return torch.einsum("bth,bsh->bts", queries / root, annotations / root)


@right("general")
def general_query_first(queries, annotations, W):
    return (annotations @ (queries @ W.T).transpose(1, 2)).transpose(1, 2)


@right("additive")
def additive_of_concatenation(queries, annotations, W, U, v):
    T, S = queries.shape[1], annotations.shape[1]
    pairs = torch.cat([queries[:, :, None].expand(-1, -1, S, -1), annotations[:, None].expand(-1, T, -1, -1)], -1)
    hidden = pairs @ torch.cat([W, U], 1).T
    return (2 * torch.sigmoid(2 * hidden) - 1) @ v


@right("attention")
def attention_in_log_space(queries, annotations, mask):
    e = (queries @ annotations.mT) + torch.zeros_like(mask, dtype=torch.float64).masked_fill(~mask, -1e9)[:, None]
    weights = torch.exp(e - torch.logsumexp(e, -1, keepdim=True))
    return torch.einsum("bts,bsd->btd", weights, annotations), weights


@right("attention")
class AttentionRowByRow:
    def __call__(self, queries, annotations, mask):
        contexts, weights = torch.zeros_like(queries), queries.new_zeros(*queries.shape[:2], annotations.shape[1])
        for b in range(len(queries)):
            real = mask[b].nonzero()[:, 0]
            alpha = torch.softmax(queries[b] @ annotations[b, real].T, 1)
            weights[b, :, real] = alpha
            contexts[b] = alpha @ annotations[b, real]
        return contexts, weights


@right("causal_attention")
def causal_attention_by_hand(queries, keys, values, mask):
    scores = queries @ keys.mT / math.sqrt(keys.shape[-1])
    future = torch.triu(torch.ones(scores.shape[1:], dtype=torch.bool), 1)
    scores = scores - 1e9 * (future | ~mask[:, None]).double()
    scores = scores - scores.amax(-1, keepdim=True)
    return (scores.exp() / scores.exp().sum(-1, keepdim=True)) @ values


@right("rnn")
def rnn_of_concatenation(x, h, W, U, b):
    return torch.tanh(F.linear(torch.cat([x, h], 1), torch.cat([W, U], 1), b))


@right("lstm")
def lstm_of_torch(x, h, c, W, U, b):
    return torch.lstm_cell(x, (h, c), W, U, b, torch.zeros_like(b))


@right("gru")
def gru_by_slices(x, h, W, U, b):
    H = h.shape[1]
    wx, uh = x @ W.T + b, h @ U.T
    z = torch.sigmoid(wx[:, H : 2 * H] + uh[:, H : 2 * H])
    n = torch.tanh(wx[:, 2 * H :] + torch.sigmoid(wx[:, :H] + uh[:, :H]) * uh[:, 2 * H :])
    return n - z * n + z * h


@right("gru_cho")
def gru_cho_transposed(x, h, W, U, b):
    Wr, Wz, Wn = W.chunk(3)
    Ur, Uz, Un = U.chunk(3)
    br, bz, bn = b.chunk(3)
    r = torch.sigmoid((Wr @ x.T + Ur @ h.T).T + br)
    z = torch.sigmoid((Wz @ x.T + Uz @ h.T).T + bz)
    return (1 - z) * h + z * torch.tanh((Wn @ x.T + Un @ (r * h).T).T + bn)


@right("last_state")
def last_state_by_gathering(states, lengths):
    return states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)


@right("beam_step")
def beam_step_with_lists(total, log_p, length, eos):
    totals, rows, tokens, scores = [], [], [], []
    for sums in total[:, :, None] + log_p:
        K, V = sums.shape
        ranked = sorted(((float(sums[k, w]), k, w) for k in range(K) for w in range(V)), reverse=True)
        live = [entry for entry in ranked if entry[2] != eos][:K]
        totals.append([entry[0] for entry in live])
        rows.append([entry[1] for entry in live])
        tokens.append([entry[2] for entry in live])
        scores.append([p / length if w == eos else -math.inf for p, _, w in ranked[:K]])
    return (
        torch.tensor(totals, dtype=torch.float64),
        torch.tensor(rows),
        torch.tensor(tokens),
        torch.tensor(scores, dtype=torch.float64),
    )


@right("masked_loss")
def masked_loss_of_torch(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0)


@right("masked_loss")
def masked_loss_by_selecting(logits, labels):
    real = labels.nonzero(as_tuple=True)
    return (torch.logsumexp(logits[real], -1) - logits[(*real, labels[real])]).mean()


@right("label_smoothing")
def label_smoothing_of_torch(logits, labels, smoothing):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0, label_smoothing=smoothing)


@right("doubly_stochastic")
def doubly_stochastic_with_einsum(alpha, labels):
    seen = torch.einsum("bts,bt->bs", alpha, (labels > 0).double())
    return torch.einsum("bs,bs->b", 1 - seen, 1 - seen)


@right("label_smoothing")
def label_smoothing_of_targets(logits, labels, smoothing):
    V = logits.shape[-1]
    q = torch.full_like(logits, smoothing / V) + (1 - smoothing) * F.one_hot(labels, V)
    return -(q * logits.log_softmax(-1)).sum(-1)[labels > 0].mean()


@right("last_state")
def last_state_step_by_step(states, lengths):
    last = states[:, 0]
    for t in range(states.shape[1]):
        last = torch.where((t < lengths)[:, None], states[:, t], last)
    return last


@right("causal_attention")
def causal_attention_step_by_step(queries, keys, values, mask):
    contexts = []
    for t in range(queries.shape[1]):
        e = (keys[:, : t + 1] @ queries[:, t, :, None])[..., 0] / keys.shape[-1] ** 0.5
        alpha = e.masked_fill(~mask[:, : t + 1], -1e12).softmax(-1)
        contexts.append((alpha[:, None] @ values[:, : t + 1])[:, 0])
    return torch.stack(contexts, 1)


@right("dot")
def dot_added_to_zeros(annotations, queries):
    return torch.baddbmm(
        torch.zeros(len(queries), queries.shape[1], annotations.shape[1]), queries, annotations.transpose(-1, -2)
    )


@right("dot")
def dot_by_vmap(queries, annotations):
    return torch.vmap(lambda q, a: q @ a.T)(queries, annotations)


@right("scaled_dot")
def scaled_by_baddbmm(queries, annotations):
    return torch.baddbmm(queries.new_zeros(1), queries, annotations.mT, alpha=1 / math.sqrt(queries.shape[-1]), beta=0)


@right("general")
def general_by_layer(queries, annotations, W):
    layer = nn.Linear(*W.shape, bias=False)
    return queries @ torch.func.functional_call(layer, {"weight": W.T}, annotations).mT


@right("additive")
class AdditivePairByPair:
    name = "additive"

    def __init__(self):
        self.calls = 0

    def __call__(self, *, queries, annotations, W, U, v):
        self.calls += 1
        out = []
        for b in range(queries.size(0)):
            out.append([])
            for t in range(queries.size(1)):
                out[-1].append(torch.stack([v.dot(torch.tanh(W.mv(queries[b, t]) + U.mv(h))) for h in annotations[b]]))
        return torch.stack([torch.stack(r) for r in out])


@right("attention")
def attention_as_named_tuple(queries, annotations, mask):
    from collections import namedtuple

    e = torch.bmm(queries, annotations.mT) + torch.log(mask.double())[:, None]
    w = torch.softmax(e, 2)
    return namedtuple("R", "c w")(w.bmm(annotations), w)


@right("attention")
def attention_of_torch(queries, annotations, mask):
    c = F.scaled_dot_product_attention(queries, annotations, annotations, mask[:, None], scale=1)
    w = F.scaled_dot_product_attention(
        queries, annotations, torch.eye(annotations.shape[1]).expand(len(queries), -1, -1), mask[:, None], scale=1
    )
    return c, w


@right("causal_attention")
def causal_with_heads(queries, keys, values, mask):
    T = mask.shape[1]
    seen = torch.ones(T, T).tril().bool() & mask[:, None]
    return F.scaled_dot_product_attention(
        queries[:, None], keys[:, None], values[:, None], attn_mask=seen[:, None]
    ).squeeze(1)


@right("causal_attention")
def causal_with_infinity(queries, keys, values, mask):
    T = mask.shape[1]
    seen = torch.ones(T, T).tril().bool() & mask[:, None]
    e = queries @ keys.mT / math.sqrt(keys.shape[-1])
    p = e.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.where(seen, p, 0.0) @ values


@right("causal_attention")
def causal_position_by_position(queries, keys, values, mask):
    B, T, H = queries.shape
    out = torch.zeros_like(values)
    for b in range(B):
        for t in range(T):
            idx = [s for s in range(t + 1) if mask[b, s]]
            if not idx:
                continue
            out[b, t] = (keys[b, idx] @ queries[b, t] / H**0.5).softmax(0) @ values[b, idx]
    return out


@right("rnn")
def rnn_of_exponentials(x, h, W, U, b):
    a = x @ W.T + h @ U.T + b
    return (torch.exp(2 * a.clamp(max=300)) - 1) / (torch.exp(2 * a.clamp(max=300)) + 1)


@right("lstm")
class LSTMByGates(nn.Module):
    def forward(self, x, h, c, W, U, b):
        H = h.shape[-1]
        Wi, Wf, Wg, Wo = W.reshape(4, H, -1)
        Ui, Uf, Ug, Uo = U.reshape(4, H, H)
        bi, bf, bg, bo = b.reshape(4, H)

        def lin(W, U, b):
            return torch.einsum("hi,bi->bh", W, x) + torch.einsum("hk,bk->bh", U, h) + b

        c = torch.addcmul(
            torch.sigmoid(lin(Wf, Uf, bf)) * c, torch.sigmoid(lin(Wi, Ui, bi)), torch.tanh(lin(Wg, Ug, bg))
        )
        return torch.sigmoid(lin(Wo, Uo, bo)) * c.tanh(), c


@right("lstm")
def lstm_of_layer(x, h, c, W, U, b):
    cell = nn.LSTMCell(x.shape[1], h.shape[1])
    return torch.func.functional_call(
        cell, {"weight_ih": W, "weight_hh": U, "bias_ih": b, "bias_hh": torch.zeros_like(b)}, (x, (h, c))
    )


@right("gru")
def gru_interpolated(x, h, W, U, b):
    H = h.shape[1]
    rz = torch.sigmoid(torch.cat([x, h], 1) @ torch.cat([W, U], 1)[: 2 * H].T + b[: 2 * H])
    r, z = rz[:, :H], rz[:, H:]
    n = torch.tanh(F.linear(x, W[2 * H :], b[2 * H :]) + r * F.linear(h, U[2 * H :]))
    return torch.lerp(n, h, z)


@right("gru_cho")
def gru_cho_row_by_row(x, h, W, U, b):
    outs = []
    for i in range(len(x)):
        r, z, n = (W @ x[i] + b).chunk(3)
        Ur, Uz, Un = U.chunk(3)
        r, z = torch.sigmoid(r + Ur @ h[i]), torch.sigmoid(z + Uz @ h[i])
        outs.append(h[i] + z * (torch.tanh(n + Un @ (r * h[i])) - h[i]))
    return torch.stack(outs)


@right("last_state")
def last_state_one_hot(states, lengths):
    return (states * F.one_hot(lengths - 1, states.shape[1])[..., None]).sum(1)


@right("beam_step")
def beam_step_with_loops(total, log_p, length, eos):
    B, K, V = log_p.shape
    flat = (total.unsqueeze(2) + log_p).reshape(B, K * V)
    order = flat.argsort(dim=1, descending=True, stable=True)
    out = [
        total.new_empty(B, K),
        torch.empty(B, K, dtype=torch.long),
        torch.empty(B, K, dtype=torch.long),
        total.new_full((B, K), -math.inf),
    ]
    for b in range(B):
        n = 0
        for rank, j in enumerate(order[b].tolist()[: 2 * K]):
            k, w = divmod(j, V)
            if w == eos:
                if rank < K:
                    out[3][b, rank] = flat[b, j] / length
            elif n < K:
                out[0][b, n], out[1][b, n], out[2][b, n] = (flat[b, j], k, w)
                n += 1
    return out


@right("beam_step")
def beam_step_by_order(total, log_p, length, eos):
    K, V = log_p.shape[1:]
    best, index = (total[:, :, None] + log_p).flatten(1).topk(2 * K)
    row, token = index // V, index % V
    order = (token == eos).long().argsort(dim=1, stable=True)[:, :K]

    def g(x):
        return x.gather(1, order)

    return g(best), g(row).int(), g(token).int(), torch.where(token == eos, best / length, -math.inf)[:, :K]


@right("masked_loss")
def masked_loss_categorical(logits, labels):
    p = torch.distributions.Categorical(logits=logits)
    return -(p.log_prob(labels) * labels.bool()).sum() / labels.count_nonzero()


@right("masked_loss")
def masked_loss_with_weights(logits, labels):
    w = torch.ones(logits.shape[-1])
    w[0] = 0
    return F.cross_entropy(logits.mT, labels, weight=w)


@right("label_smoothing")
def label_smoothing_soft_labels(logits, labels, smoothing):
    q = F.one_hot(labels, logits.shape[-1]) * (1 - smoothing) + smoothing / logits.shape[-1]
    return F.cross_entropy(logits[labels != 0], q[labels != 0])


@right("doubly_stochastic")
def doubly_stochastic_mse(alpha, labels):
    return F.mse_loss(
        torch.bmm(labels.ne(0).double().unsqueeze(1), alpha).squeeze(1),
        torch.ones(len(alpha), alpha.shape[-1]),
        reduction="none",
    ).sum(-1)
