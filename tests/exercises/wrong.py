"""Wrong solutions, as learners write them, each with the exercise that it is meant for and the mistake to be named."""
# ruff: noqa: N803, N806

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CATALOGUE: dict[str, tuple[str, str]] = {}


def entering(catalogue: dict[str, tuple[str, str]]) -> Callable[[str, str], Callable[[Any], Any]]:
    """A decorator that enters a solution in a catalogue, with its exercise and a part of what is to be said of it."""

    def wrong(exercise: str, mistake: str) -> Callable[[Any], Any]:
        def enter(solution: Any) -> Any:
            catalogue[solution.__name__] = exercise, mistake
            return solution

        return enter

    return wrong


wrong = entering(CATALOGUE)


# Scores.


@wrong("dot", "the scores are divided by √d")
def dot_scaled(queries, annotations):
    return torch.einsum("bth,bsh->bts", queries, annotations) * queries.size(-1) ** -0.5


@wrong("dot", "their softmax over the source positions")
def dot_weights(queries, annotations):
    return F.softmax(torch.bmm(queries, annotations.transpose(1, 2)), dim=2)


@wrong("dot", "two axes are exchanged")
def dot_transposed(queries, annotations):
    return torch.bmm(annotations, queries.transpose(1, 2))


@wrong("dot", "squeeze() without an axis")
def dot_squeezed(queries, annotations):
    return (queries[:, :, None] * annotations[:, None]).sum(-1).squeeze()


@wrong("dot", "single precision")
def dot_in_single_precision(queries, annotations):
    scores = torch.zeros(queries.shape[0], queries.shape[1], annotations.shape[1], dtype=torch.float32)
    for t in range(queries.shape[1]):
        for s in range(annotations.shape[1]):
            scores[:, t, s] = (queries[:, t] * annotations[:, s]).sum(-1)
    return scores


@wrong("scaled_dot", "divided by d instead of √d")
class ScaledByD(nn.Module):
    def forward(self, queries, annotations):
        d = annotations.shape[2]
        return torch.matmul(queries, annotations.transpose(-2, -1)) / d


@wrong("scaled_dot", "the division by √d is missing")
def unscaled(queries, annotations):
    return queries.matmul(annotations.transpose(1, 2))


@wrong("scaled_dot", "the root of the number of source positions")
def scaled_by_length(queries, annotations):
    return torch.bmm(queries, annotations.transpose(1, 2)) / math.sqrt(annotations.size(1))


@wrong("scaled_dot", "an operation works in place")
def scaled_in_place(queries, annotations):
    queries /= math.sqrt(queries.shape[-1])
    return torch.einsum("bth,bsh->bts", queries, annotations)


@wrong("general", "W is used transposed")
def general_transposed(queries, annotations, W):
    return torch.einsum("btd,dh,bsh->bts", queries, W, annotations)


@wrong("general", "a part of it has no gradient")
def general_detached(queries, annotations, W):
    return (queries @ W.T + 0 * queries.sum()) @ annotations.detach().mT + (annotations.sum() * 0)


@wrong("additive", "tanh is applied after the product with v")
def additive_tanh_last(queries, annotations, W, U, v):
    hidden = (queries @ W.T).unsqueeze(2) + (annotations @ U.T).unsqueeze(1)
    return torch.tanh((hidden * v).sum(-1))


@wrong("additive", "tanh is missing")
def additive_linear(queries, annotations, W, U, v):
    return (queries @ W.T @ v)[:, :, None] + (annotations @ U.T @ v)[:, None, :]


@wrong("additive", "softmax over the queries instead of the source positions")
class SoftmaxOverQueries:
    def __call__(self, queries, annotations, W, U, v):
        e = torch.einsum("btsa,a->bts", torch.tanh((queries @ W.T)[:, :, None] + (annotations @ U.T)[:, None]), v)
        return torch.softmax(e, dim=1)


@wrong("additive", "the gradient is cut off")
def additive_with_numpy(queries, annotations, W, U, v):
    hidden = np.tanh((queries @ W.T)[:, :, None].numpy() + (annotations @ U.T)[:, None].numpy())
    return torch.from_numpy(hidden) @ v


# Attention.


@wrong("attention", "the mask is applied after the softmax")
def attention_masked_late(queries, annotations, mask):
    weights = torch.softmax(queries @ annotations.mT, -1)
    weights = weights * mask.unsqueeze(1).double()
    return torch.bmm(weights, annotations), weights


@wrong("attention", "the softmax is over the queries")
def attention_over_queries(queries, annotations, mask):
    scores = queries @ annotations.mT + torch.where(mask, 0.0, -1e9)[:, None].double()
    weights = scores.softmax(dim=-2)
    return weights @ annotations, weights


@wrong("attention", "the mask is not used")
def attention_unmasked(queries, annotations, mask):
    weights = F.softmax(torch.einsum("bth,bsh->bts", queries, annotations), dim=-1)
    return torch.einsum("bts,bsh->bth", weights, annotations), weights


@wrong("attention", "padded scores are set to 0")
def attention_with_zeros(queries, annotations, mask):
    scores = torch.einsum("bth,bsh->bts", queries, annotations) * mask[:, None]
    weights = scores.softmax(-1)
    return weights @ annotations, weights


@wrong("attention", "the mask is used the wrong way round")
def attention_mask_inverted(queries, annotations, mask):
    weights = (queries @ annotations.mT).masked_fill(mask.unsqueeze(1), -1e30).softmax(-1)
    return weights @ annotations, weights


@wrong("attention", "the results are in another order")
def attention_results_exchanged(queries, annotations, mask):
    weights = (queries @ annotations.mT).masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)
    return weights, weights @ annotations


@wrong("attention", "exp overflows")
def attention_overflowing(queries, annotations, mask):
    e = torch.exp(queries @ annotations.mT) * mask[:, None]
    weights = e / e.sum(-1, keepdim=True)
    return weights @ annotations, weights


@wrong("causal_attention", "the causal mask is missing")
def not_causal(queries, keys, values, mask):
    return F.scaled_dot_product_attention(queries, keys, values, mask[:, None].expand(-1, keys.shape[1], -1))


@wrong("causal_attention", "padding is not masked")
def padding_seen(queries, keys, values, mask):
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@wrong("causal_attention", "a position does not see itself")
def strictly_past(queries, keys, values, mask):
    length = queries.shape[1]
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=0)
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(future, -1e9).masked_fill(~mask[:, None], -1e9)
    return scores.softmax(-1) @ values


@wrong("causal_attention", "a row where everything is masked")
def nan_where_all_is_masked(queries, keys, values, mask):
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    past = torch.ones(mask.shape[1], mask.shape[1]).tril() == 1
    return scores.masked_fill(~(past & mask[:, None]), float("-inf")).softmax(-1) @ values


# Cells.


@wrong("rnn", "the bias b is missing")
def rnn_without_bias(x, h, W, U, b):
    return torch.tanh(F.linear(x, W) + F.linear(h, U))


@wrong("rnn", "U is used transposed")
def rnn_transposed(x, h, W, U, b):
    return torch.tanh(torch.addmm(b, x, W.t()) + torch.mm(h, U))


@wrong("lstm", "order i, f, g, o, but yours are i, f, o, g")
def lstm_other_order(x, h, c, W, U, b):
    n = h.shape[1]
    gates = F.linear(x, W, b) + F.linear(h, U)
    i, f, o = gates[:, : 3 * n].sigmoid().chunk(3, dim=1)
    c = f * c + i * gates[:, 3 * n :].tanh()
    return o * c.tanh(), c


@wrong("lstm", "the old state c is used where the new one belongs")
def lstm_old_cell(x, h, c, W, U, b):
    i, f, g, o = torch.chunk(x @ W.T + h @ U.T + b, 4, dim=1)
    return torch.sigmoid(o) * torch.tanh(c), torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)


@wrong("lstm", "the tanh around the new c is missing")
def lstm_without_tanh(x, h, c, W, U, b):
    i, f, g, o = (F.linear(x, W, b) + F.linear(h, U)).split(h.shape[1], dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * c, c


@wrong("gru", "z and 1 − z are exchanged")
def gru_exchanged(x, h, W, U, b):
    wr, wz, wn = F.linear(x, W, b).chunk(3, 1)
    ur, uz, un = F.linear(h, U).chunk(3, 1)
    r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
    n = torch.tanh(wn + r * un)
    return h + z * (n - h)


@wrong("gru", "r is applied to the old state before the product with U")
def gru_reset_first(x, h, W, U, b):
    H = h.shape[1]
    r = torch.sigmoid(x @ W[:H].T + h @ U[:H].T + b[:H])
    z = torch.sigmoid(x @ W[H : 2 * H].T + h @ U[H : 2 * H].T + b[H : 2 * H])
    n = torch.tanh(x @ W[2 * H :].T + (r * h) @ U[2 * H :].T + b[2 * H :])
    return z * h + (1 - z) * n


@wrong("gru_cho", "order r, z, n, but yours are z, r, n")
def gru_cho_other_order(x, h, W, U, b):
    H = h.shape[1]
    z, r = torch.sigmoid(x @ W[: 2 * H].T + h @ U[: 2 * H].T + b[: 2 * H]).chunk(2, -1)
    candidate = torch.tanh(x @ W[2 * H :].T + (r * h) @ U[2 * H :].T + b[2 * H :])
    return (1 - z) * h + z * candidate


# Search and losses.


@wrong("beam_step", "a finished hypothesis is extended")
def beam_extends_finished(total, log_p, length, eos):
    B, K, V = log_p.shape
    best, index = (total.unsqueeze(-1) + log_p).view(B, -1).topk(K, dim=-1)
    row, token = torch.div(index, V, rounding_mode="floor"), index % V
    score = torch.where(token == eos, best / length, torch.full_like(best, -torch.inf))
    return best, row, token, score


@wrong("beam_step", "the length penalty is not applied")
def beam_without_penalty(total, log_p, length, eos):
    K, V = log_p.shape[1:]
    sums, index = (total.unsqueeze(-1) + log_p).flatten(1).sort(dim=-1, descending=True)
    live, rows, tokens = torch.zeros_like(total), torch.zeros_like(index[:, :K]), torch.zeros_like(index[:, :K])
    for b, sentence in enumerate(index.tolist()):
        places = [place for place, continuation in enumerate(sentence) if continuation % V != eos][:K]
        live[b], rows[b], tokens[b] = sums[b, places], index[b, places] // V, index[b, places] % V
    return live, rows, tokens, sums[:, :K].masked_fill(index[:, :K] % V != eos, -math.inf)


@wrong("masked_loss", "the mean is over all positions")
def loss_over_all_positions(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0, reduction="none").mean()


@wrong("masked_loss", "the means of the sentences are averaged")
def loss_of_sentences(logits, labels):
    losses = [F.cross_entropy(row, label, ignore_index=0) for row, label in zip(logits, labels, strict=True)]
    return torch.stack(losses).mean()


@wrong("masked_loss", "the softmax is taken twice")
def loss_of_probabilities(logits, labels):
    return F.cross_entropy(logits.softmax(-1).flatten(0, 1), labels.flatten(), ignore_index=0)


@wrong("masked_loss", "padding is not left out")
def loss_of_padding(logits, labels):
    return nn.CrossEntropyLoss()(logits.view(-1, logits.shape[-1]), labels.view(-1))


@wrong("label_smoothing", "over the V − 1 other words")
def smoothed_over_others(logits, labels, smoothing):
    log_p = F.log_softmax(logits, -1)
    target = torch.full_like(log_p, smoothing / (logits.shape[-1] - 1)).scatter(-1, labels[..., None], 1 - smoothing)
    return -(target * log_p).sum(-1)[labels != 0].mean()


@wrong("last_state", "the state of the last column")
def state_of_last_column(states, lengths):
    return states[:, -1, :]


@wrong("doubly_stochastic", "padded words count")
def penalty_with_padding(alpha, labels):
    return ((1 - torch.sum(alpha, dim=1)) ** 2).sum(-1)
