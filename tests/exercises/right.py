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
