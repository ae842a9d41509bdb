"""More wrong solutions, written after the table of mistakes: what it says about them shows how far it goes."""
# ruff: noqa: N803, N806

import math

import torch
from exercises.wrong import entering
from torch import nn
from torch.nn import functional as F

CATALOGUE: dict[str, tuple[str, str]] = {}
wrong = entering(CATALOGUE)


@wrong("dot", "divided by d")
def dot_mean(queries, annotations):
    return (queries[:, :, None, :] * annotations[:, None, :, :]).mean(-1)


@wrong("dot", "a cosine")
def dot_cosine(queries, annotations):
    return F.cosine_similarity(queries.unsqueeze(2), annotations.unsqueeze(1), dim=-1)


@wrong("dot", "the scores are multiplied by −1")
def dot_negative(queries, annotations):
    return -torch.bmm(queries, annotations.permute(0, 2, 1))


@wrong("dot", "the rows of a batch influence each other")
def dot_of_batch_mates(queries, annotations):
    return torch.bmm(queries, annotations.flip(0).transpose(1, 2))


@wrong("dot", "annotations is used where annotations.mT belongs")
def dot_without_transposing(queries, annotations):
    return queries @ annotations


@wrong("scaled_dot", "every number is ours times 2")
def scaled_twofold(queries, annotations):
    return 2 * torch.bmm(queries, annotations.mT) / queries.shape[-1] ** 0.5


@wrong("scaled_dot", "single precision")
def scaled_by_float(queries, annotations):
    return (queries.float() @ annotations.float().mT).double() / math.sqrt(queries.shape[-1])


@wrong("general", "none")
def general_forgets_w(queries, annotations, W):
    size = min(queries.shape[-1], annotations.shape[-1])
    return queries[..., :size] @ annotations[..., :size].mT


@wrong("additive", "a sigmoid is used in place of tanh")
def additive_sigmoid(queries, annotations, W, U, v):
    return (1 / (1 + torch.exp(-((queries @ W.T)[:, :, None] + (annotations @ U.T)[:, None])))) @ v


@wrong("additive", "an axis is missing, one too many, or in another's place")
def additive_not_broadcast(queries, annotations, W, U, v):
    return torch.tanh(queries @ W.T + annotations @ U.T) @ v


@wrong("additive", "an axis of length 1 is missing or one too many")
def additive_keeps_the_axis(queries, annotations, W, U, v):
    return torch.tanh((queries @ W.T)[:, :, None] + (annotations @ U.T)[:, None]) @ v[:, None]


@wrong("additive", "random numbers")
def additive_with_dropout(queries, annotations, W, U, v):
    return F.dropout(torch.tanh((queries @ W.T)[:, :, None] + (annotations @ U.T)[:, None]), 0.1) @ v


@wrong("additive", "U h is left out")
def additive_without_annotations(queries, annotations, W, U, v):
    return (torch.tanh(queries @ W.T) @ v)[:, :, None].repeat(1, 1, annotations.shape[1])


@wrong("attention", "over the batch")
def attention_over_batch(queries, annotations, mask):
    e = torch.einsum("bth,bsh->bts", queries, annotations).masked_fill(mask.logical_not()[:, None], -math.inf)
    alpha = F.softmax(e, 0)
    return alpha @ annotations, alpha


@wrong("attention", "the contexts are means of the annotations")
def attention_mean(queries, annotations, mask):
    alpha = (queries @ annotations.mT).masked_fill(~mask[:, None], -1e9).softmax(-1)
    mean = (annotations * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    return mean[:, None].expand_as(queries), alpha


@wrong("attention", "the highest score is used alone")
def attention_hard(queries, annotations, mask):
    best = (queries @ annotations.mT).masked_fill(~mask[:, None], -math.inf).argmax(-1)
    alpha = torch.zeros(*best.shape, annotations.shape[1], dtype=torch.float64).scatter_(2, best[..., None], 1.0)
    return torch.stack([h[i] for h, i in zip(annotations, best, strict=True)]), alpha


@wrong("attention", "it is right without padding")
def attention_masks_annotations(queries, annotations, mask):
    annotations = annotations * mask[..., None]
    alpha = (queries @ annotations.mT).softmax(-1)
    return alpha @ annotations, alpha * mask[:, None]


@wrong("attention", "what is asked for are tensors: contexts (B×T×H), weights (B×T×S)")
def attention_without_weights(queries, annotations, mask):
    return (queries @ annotations.mT).masked_fill(~mask[:, None], -1e9).softmax(-1) @ annotations


@wrong("attention", "the gradient is cut off")
def attention_without_gradient(queries, annotations, mask):
    with torch.no_grad():
        alpha = (queries @ annotations.mT).masked_fill(~mask[:, None], -1e9).softmax(-1)
    return alpha @ annotations, alpha


@wrong("causal_attention", "the division by √d is missing")
def causal_unscaled(queries, keys, values, mask):
    T = mask.shape[1]
    allowed = torch.tril(torch.ones(T, T, dtype=torch.bool)) & mask[:, None]
    return F.scaled_dot_product_attention(queries, keys, values, allowed, scale=1.0)


@wrong("causal_attention", "those after it instead of those before it")
def causal_backwards(queries, keys, values, mask):
    T = mask.shape[1]
    hidden = torch.ones(T, T, dtype=torch.bool).tril(-1) | ~mask[:, None]
    return (queries @ keys.mT / math.sqrt(keys.shape[-1])).masked_fill(hidden, -1e9).softmax(-1) @ values


@wrong("causal_attention", "padding is not masked")
def causal_masks_queries(queries, keys, values, mask):
    T = mask.shape[1]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() & mask[:, :, None]
    return (queries @ keys.mT / math.sqrt(keys.shape[-1])).masked_fill(~allowed, -1e9).softmax(-1) @ values


@wrong("rnn", "tanh is applied to W x + b alone")
def rnn_tanh_too_early(x, h, W, U, b):
    return h @ U.T + torch.tanh(x @ W.T + b)


@wrong("lstm", "the forget gate is used the wrong way round")
def lstm_forgets_the_wrong_way(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, 1)
    c = c - torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@wrong("lstm", "the results are in another order")
class ExchangesStates(nn.Module):
    def forward(self, x, h, c, W, U, b):
        i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return c, torch.sigmoid(o) * torch.tanh(c)


@wrong("lstm", "1 is added to the forget gate")
def lstm_with_forget_bias(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, 1)
    c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@wrong("gru", "order r, z, n, but yours are z, r, n")
def gru_gates_exchanged(x, h, W, U, b):
    x_z, x_r, x_n = (x @ W.T + b).chunk(3, 1)
    u_z, u_r, u_n = (h @ U.T).chunk(3, 1)
    z, r = torch.sigmoid(x_z + u_z), torch.sigmoid(x_r + u_r)
    return (1 - z) * torch.tanh(x_n + r * u_n) + z * h


@wrong("gru", "the bias b is missing")
def gru_without_bias(x, h, W, U, b):
    return torch.gru_cell(x, h, W, U)


@wrong("gru_cho", "this is gru")
def gru_cho_of_torch(x, h, W, U, b):
    return torch.gru_cell(x, h, W, U, b, torch.zeros_like(b))


@wrong("last_state", "positions are counted from 0")
def state_after_the_last(states, lengths):
    return states[torch.arange(len(states)), lengths]


@wrong("last_state", "the mean over all positions")
def state_mean(states, lengths):
    return states.mean(dim=1)


@wrong("beam_step", "the results are in another order")
def beam_exchanged(total, log_p, length, eos):
    B, K, V = log_p.shape
    best, index = torch.topk((total[..., None] + log_p).reshape(B, K * V), 2 * K)
    token, row = index // V, index % V
    ends = row == eos
    live, order = torch.where(ends, -math.inf, best).topk(K)
    score = torch.where(ends, best / length, -math.inf)[:, :K]
    return live, row.gather(1, order), token.gather(1, order), score


@wrong("beam_step", "the log-probabilities of the hypotheses so far are not added")
def beam_forgets(total, log_p, length, eos):
    B, K, V = log_p.shape
    best, index = torch.topk(log_p.reshape(B, K * V), 2 * K)
    row, token = index // V, index % V
    ends = token == eos
    live, order = torch.where(ends, -math.inf, best).topk(K)
    return live, row.gather(1, order), token.gather(1, order), torch.where(ends, best / length, -math.inf)[:, :K]


@wrong("masked_loss", "it returns float")
def loss_as_number(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0).item()


@wrong("masked_loss", "the sum is returned")
def loss_sum(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum")


@wrong("masked_loss", "a logarithm is of 0")
def loss_of_log_of_softmax(logits, labels):
    p = logits.softmax(-1).gather(-1, labels[..., None])[..., 0]
    return -(p.log() * (labels != 0)).sum() / (labels != 0).sum()


@wrong("masked_loss", "such as 1e-6")
def loss_with_epsilon(logits, labels):
    p = logits.softmax(-1).gather(-1, labels[..., None])[..., 0]
    return -((p + 1e-6).log() * (labels != 0)).sum() / (labels != 0).sum()


@wrong("label_smoothing", "the labels are not smoothed")
def not_smoothed(logits, labels, smoothing):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0)


@wrong("label_smoothing", "what is spread at padding counts too")
def smoothed_padding(logits, labels, smoothing):
    log_p, real = logits.log_softmax(-1), (labels != 0).sum()
    nll = F.nll_loss(log_p.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum")
    return ((1 - smoothing) * nll - smoothing * log_p.mean(-1).sum()) / real


@wrong("doubly_stochastic", "the sums are over the locations")
def penalty_of_words(alpha, labels):
    return ((1 - alpha.sum(-1)) ** 2 * (labels != 0)).sum(1)


@wrong("dot", "the axis S is summed or lost")
def dot_of_same_positions(queries, annotations):
    n = min(queries.shape[1], annotations.shape[1])
    return (queries[:, :n] * annotations[:, :n]).sum(-1)


@wrong("dot", "cut off")
def dot_of_data(queries, annotations):
    return queries.data @ annotations.mT


@wrong("scaled_dot", "softmax over the source positions")
def scaled_softmax(queries, annotations):
    return torch.softmax(queries @ annotations.mT / math.sqrt(queries.shape[-1]), -1)


@wrong("scaled_dot", "root of the number of queries")
def scaled_by_number_of_queries(queries, annotations):
    return queries @ annotations.mT / math.sqrt(queries.shape[1])


@wrong("general", "an axis is missing")
def general_without_transposing(queries, annotations, W):
    return queries @ W @ annotations


@wrong("general", "two axes are exchanged")
def general_exchanged(queries, annotations, W):
    return annotations @ W @ queries.mT


@wrong("general", "tanh")
def general_tanh(queries, annotations, W):
    return torch.tanh(torch.einsum("bth,dh,bsd->bts", queries, W, annotations))


@wrong("additive", "v is not used")
def additive_without_v(queries, annotations, W, U, v):
    return torch.tanh((queries @ W.T)[:, :, None] + (annotations @ U.T)[:, None]).sum(dim=3)


@wrong("additive", "the axis A stands in place of T and S")
def additive_concatenates_positions(queries, annotations, W, U, v):
    return torch.tanh(torch.cat([queries @ W.T, annotations @ U.T], 1)) @ v


@wrong("additive", "multiplied instead of added")
def additive_product(queries, annotations, W, U, v):
    return torch.einsum("btsa,a->bts", torch.tanh(torch.einsum("bta,bsa->btsa", queries @ W.T, annotations @ U.T)), v)


@wrong("attention", "the weights do not sum to 1")
def attention_with_where(queries, annotations, mask):
    w = F.softmax(torch.bmm(queries, annotations.transpose(1, 2)), dim=-1)
    w = torch.where(mask[:, None], w, torch.zeros_like(w))
    return w @ annotations, w


@wrong("attention", "scores are set to 0")
def attention_with_a_small_number(queries, annotations, mask):
    w = F.softmax(torch.bmm(queries, annotations.transpose(1, 2)).masked_fill(~mask[:, None], 1e-9), dim=-1)
    return w @ annotations, w


@wrong("attention", "an axis")
def attention_masks_queries(queries, annotations, mask):
    w = (queries @ annotations.mT).masked_fill(~mask[:, :, None], -1e9).softmax(-1)
    return w @ annotations, w


@wrong("attention", "their logarithms")
def attention_in_logarithms(queries, annotations, mask):
    w = (queries @ annotations.mT).masked_fill(~mask[:, None], -1e9).log_softmax(-1)
    return w @ annotations, w


@wrong("attention", "without a softmax")
def attention_of_maximum(queries, annotations, mask):
    i = (queries @ annotations.mT).masked_fill(~mask[:, None], -1e9).max(-1).indices
    w = F.one_hot(i, annotations.shape[1]).double()
    return w @ annotations, w


@wrong("causal_attention", "after the softmax")
def causal_weights_cut(queries, keys, values, mask):
    a = (queries @ keys.mT / math.sqrt(keys.shape[-1])).softmax(-1)
    return (a.tril() * mask[:, None]) @ values


@wrong("causal_attention", "sees one that comes after it")
def causal_by_one(queries, keys, values, mask):
    T = mask.shape[1]
    hidden = torch.triu(torch.ones(T, T), 2).bool() | ~mask[:, None]
    return (queries @ keys.mT / math.sqrt(keys.shape[-1])).masked_fill(hidden, -1e9).softmax(-1) @ values


@wrong("rnn", "the old state is not used")
def rnn_without_memory(x, h, W, U, b):
    return torch.tanh(F.linear(x, W, b))


@wrong("lstm", "g has a sigmoid")
def lstm_of_sigmoids(x, h, c, W, U, b):
    i, f, g, o = torch.sigmoid(F.linear(x, W, b) + F.linear(h, U)).chunk(4, 1)
    c = f * c + i * g
    return o * torch.tanh(c), c


@wrong("lstm", "have no sigmoid")
def lstm_without_sigmoids(x, h, c, W, U, b):
    i, f, g, o = (F.linear(x, W, b) + F.linear(h, U)).chunk(4, 1)
    c = f * c + i * torch.tanh(g)
    return o * torch.tanh(c), c


@wrong("lstm", "it returns Tensor")
def lstm_without_cell(x, h, c, W, U, b):
    return torch.lstm_cell(x, (h, c), W, U, b)[0]


@wrong("lstm", "is changed")
def lstm_in_place(x, h, c, W, U, b):
    i, f, g, o = (F.linear(x, W, b) + F.linear(h, U)).chunk(4, 1)
    c *= torch.sigmoid(f)
    c += torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@wrong("gru", "r is applied to W x + b too")
def gru_resets_all(x, h, W, U, b):
    x_r, x_z, x_n = (x @ W.T + b).chunk(3, 1)
    u_r, u_z, u_n = (h @ U.T).chunk(3, 1)
    r, z = torch.sigmoid(x_r + u_r), torch.sigmoid(x_z + u_z)
    n = torch.tanh(r * (x_n + u_n))
    return (1 - z) * n + z * h


@wrong("gru", "r is not used")
def gru_without_reset(x, h, W, U, b):
    _, z, n = (x @ W.T + h @ U.T + b).chunk(3, 1)
    z = torch.sigmoid(z)
    return (1 - z) * torch.tanh(n) + z * h


@wrong("gru_cho", "z and 1 − z are exchanged")
def gru_cho_exchanged(x, h, W, U, b):
    n = h.shape[1]
    r, z = torch.sigmoid(x @ W[: 2 * n].T + h @ U[: 2 * n].T + b[: 2 * n]).chunk(2, 1)
    return z * h + (1 - z) * torch.tanh(x @ W[2 * n :].T + (r * h) @ U[2 * n :].T + b[2 * n :])


@wrong("last_state", "the state of the first word")
def state_of_first_word(states, lengths):
    return states[:, 0]


@wrong("last_state", "the mean over the real positions")
def state_mean_of_real_words(states, lengths):
    m = (torch.arange(states.shape[1]) < lengths[:, None]).double()
    return (states * m[..., None]).sum(1) / lengths[:, None]


@wrong("beam_step", "only K continuations")
def beam_of_k(total, log_p, length, eos):
    K, V = log_p.shape[1:]
    best, i = (total[..., None] + log_p).flatten(1).topk(K)
    ends = i % V == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    return live, (i // V).gather(1, o), (i % V).gather(1, o), (best / length).masked_fill(~ends, -math.inf)


@wrong("beam_step", "all 2K")
def beam_ends_all(total, log_p, length, eos):
    K, V = log_p.shape[1:]
    best, i = (total[..., None] + log_p).flatten(1).topk(2 * K)
    ends = i % V == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    return live, (i // V).gather(1, o), (i % V).gather(1, o), (best / length).masked_fill(~ends, -math.inf)


@wrong("beam_step", "best continuation of each hypothesis")
def beam_greedy(total, log_p, length, eos):
    p = log_p.clone()
    p[..., eos] = -math.inf
    s, t = p.max(-1)
    B, K, V = log_p.shape
    best, i = (total[..., None] + log_p).flatten(1).topk(2 * K)
    score = (best / length).masked_fill(i % V != eos, -math.inf)[:, :K]
    return total + s, torch.arange(K).repeat(B, 1), t, score


@wrong("masked_loss", "each position is returned")
def loss_of_positions(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0, reduction="none")


@wrong("masked_loss", "number of sentences")
def loss_by_sentences(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0, reduction="sum") / logits.shape[0]


@wrong("masked_loss", "sign")
def loss_with_wrong_sign(logits, labels):
    p = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    return p[labels != 0].mean()


@wrong("masked_loss", "over the positions instead of the vocabulary")
def loss_over_positions(logits, labels):
    p = logits.log_softmax(1).gather(-1, labels[..., None])[..., 0]
    return -p[labels != 0].mean()


@wrong("label_smoothing", "ε and 1 − ε")
def smoothed_too_much(logits, labels, smoothing):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=0, label_smoothing=1 - smoothing)


@wrong("label_smoothing", "not over the real ones")
def smoothed_mean_of_all(logits, labels, smoothing):
    losses = F.cross_entropy(logits.mT, labels, ignore_index=0, label_smoothing=smoothing, reduction="none")
    return losses.mean()


@wrong("doubly_stochastic", "added up")
def penalty_of_batch(alpha, labels):
    return (1 - (alpha * (labels != 0)[..., None]).sum(1)).pow(2).sum()


@wrong("doubly_stochastic", "mean over locations")
def penalty_mean(alpha, labels):
    return (1 - (alpha * (labels != 0)[..., None]).sum(1)).pow(2).mean(1)


@wrong("label_smoothing", "Kullback–Leibler")
def smoothed_divergence(logits, labels, smoothing):
    V = logits.shape[-1]
    target = torch.full_like(logits, smoothing / V).scatter(-1, labels[..., None], 1 - smoothing + smoothing / V)
    return F.kl_div(logits.log_softmax(-1), target, reduction="none").sum(-1)[labels != 0].mean()


@wrong("beam_step", "whole numbers are asked for")
def beam_row_of_fractions(total, log_p, length, eos):
    K, V = log_p.shape[1:]
    best, i = (total[..., None] + log_p).flatten(1).topk(2 * K)
    ends = i % V == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    score = (best / length).masked_fill(~ends, -math.inf)[:, :K]
    return live, torch.floor(i.double() / V).gather(1, o), (i % V).gather(1, o), score
