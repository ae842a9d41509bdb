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


@wrong("additive", "the axis of length 9 stands in place of T and S")
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


@wrong("causal_attention", "the axis H is summed or lost")
def causal_summed(queries, keys, values, mask):
    hidden = torch.triu(torch.ones(mask.shape[1], mask.shape[1]), 1).bool() | ~mask[:, None]
    a = (queries @ keys.mT / math.sqrt(keys.shape[-1])).masked_fill(hidden, -1e9).softmax(-1)
    return (a @ values).sum(-1)


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


def best_continuations(total, log_p):
    K, V = log_p.shape[1:]
    best, index = (total[..., None] + log_p).flatten(1).topk(2 * K)
    return best, index // V, index % V


@wrong("attention", "the size of the batch is fixed")
def attention_of_three_rows(queries, annotations, mask):
    e = torch.zeros(3, queries.shape[1], annotations.shape[1])
    for b in range(3):
        e[b] = queries[b] @ annotations[b].T
    w = e.masked_fill(~mask[:, None], -1e9).softmax(-1)
    return w @ annotations, w


@wrong("attention", "the mask is causal, too")
def attention_causal(queries, annotations, mask):
    e = queries @ annotations.mT
    m = mask[:, None] & torch.ones_like(e, dtype=torch.bool).tril()
    w = e.masked_fill(~m, -1e9).softmax(-1)
    return w @ annotations, w


@wrong("attention", "over all the queries and source positions")
def attention_over_everything(queries, annotations, mask):
    e = (queries @ annotations.mT).masked_fill(~mask[:, None], -1e9)
    w = e.flatten(1).softmax(-1).view_as(e)
    return w @ annotations, w


@wrong("causal_attention", "later positions get the score 0")
def causal_scores_of_zero(queries, keys, values, mask):
    e = (queries @ keys.mT).tril() / math.sqrt(keys.shape[-1])
    return e.masked_fill(~mask[:, None], -1e9).softmax(-1) @ values


@wrong("causal_attention", "divided by d instead of √d")
def causal_scaled_twice(queries, keys, values, mask):
    T = mask.shape[1]
    m = torch.ones(T, T).tril().bool() & mask[:, None]
    return F.scaled_dot_product_attention(queries / math.sqrt(queries.shape[-1]), keys, values, m)


@wrong("causal_attention", "the wrong way round")
def causal_inverted(queries, keys, values, mask):
    T = mask.shape[1]
    m = torch.ones(T, T).triu(1).bool() | ~mask[:, None]
    return F.scaled_dot_product_attention(queries, keys, values, m)


@wrong("causal_attention", "keys and values are exchanged")
def causal_keys_as_values(queries, keys, values, mask):
    T = mask.shape[1]
    m = torch.ones(T, T).tril().bool() & mask[:, None]
    return F.scaled_dot_product_attention(queries, values, keys, m)


@wrong("causal_attention", "the softmax is missing")
def causal_without_softmax(queries, keys, values, mask):
    e = (queries @ keys.mT / math.sqrt(keys.shape[-1])).tril() * mask[:, None]
    return e @ values


@wrong("dot", "minus a squared distance")
def dot_distance(queries, annotations):
    return -((queries[:, :, None] - annotations[:, None]) ** 2).sum(-1)


@wrong("scaled_dot", "rounded to a whole number")
def scaled_by_whole_number(queries, annotations):
    return queries @ annotations.mT / int(queries.shape[-1] ** 0.5)


@wrong("general", "reshape or view is used to transpose")
def general_reshaped(queries, annotations, W):
    B, S, D = annotations.shape
    return queries @ W.T @ annotations.reshape(B, D, S)


@wrong("additive", "before W and U")
def additive_tanh_first(queries, annotations, W, U, v):
    return ((torch.tanh(queries) @ W.T)[:, :, None] + (torch.tanh(annotations) @ U.T)[:, None]) @ v


@wrong("additive", "the difference of W s and U h")
def additive_difference(queries, annotations, W, U, v):
    return torch.tanh((queries @ W.T)[:, :, None] - (annotations @ U.T)[:, None]) @ v


@wrong("rnn", "one by one instead of to their sum")
def rnn_two_tanhs(x, h, W, U, b):
    return torch.tanh(x @ W.T + b) + torch.tanh(h @ U.T)


@wrong("rnn", "in another order than W and U")
def rnn_other_order(x, h, W, U, b):
    return torch.tanh(torch.cat([h, x], 1) @ torch.cat([W, U], 1).T + b)


@wrong("lstm", "the old h is used where the old c belongs")
def lstm_h_for_c(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, -1)
    c = f.sigmoid() * h + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@wrong("lstm", "yours are interleaved")
def lstm_interleaved(x, h, c, W, U, b):
    z = (x @ W.T + h @ U.T + b).view(len(x), -1, 4)
    i, f, g, o = z.unbind(-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@wrong("lstm", "the old c is returned")
def lstm_returns_old_cell(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, -1)
    new = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * new.tanh(), c


@wrong("lstm", "each gate's part of U is used transposed")
def lstm_gates_transposed(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + torch.cat([h @ u for u in U.chunk(4)], -1) + b).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@wrong("gru", "1 − r is used where r belongs")
def gru_reset_inverted(x, h, W, U, b):
    xr, xz, xn = F.linear(x, W, b).chunk(3, -1)
    ur, uz, un = F.linear(h, U).chunk(3, -1)
    r, z = (xr + ur).sigmoid(), (xz + uz).sigmoid()
    return (1 - z) * torch.tanh(xn + (1 - r) * un) + z * h


@wrong("gru", "each gate's part of U is used transposed")
def gru_parts_transposed(x, h, W, U, b):
    xr, xz, xn = F.linear(x, W, b).chunk(3, -1)
    ur, uz, un = [h @ u for u in U.chunk(3)]
    r, z = (xr + ur).sigmoid(), (xz + uz).sigmoid()
    return (1 - z) * torch.tanh(xn + r * un) + z * h


@wrong("gru_cho", "in the mixture, too")
def gru_cho_reset_everywhere(x, h, W, U, b):
    xr, xz, xn = F.linear(x, W, b).chunk(3, -1)
    Ur, Uz, Un = U.chunk(3)
    r, z = (xr + h @ Ur.T).sigmoid(), (xz + h @ Uz.T).sigmoid()
    return z * torch.tanh(xn + r * h @ Un.T) + (1 - z) * r * h


@wrong("gru_cho", "the bias of the candidate is missing")
def gru_cho_candidate_without_bias(x, h, W, U, b):
    br, bz, _ = b.chunk(3)
    xr, xz, xn = F.linear(x, W).chunk(3, -1)
    Ur, Uz, Un = U.chunk(3)
    r, z = (xr + h @ Ur.T + br).sigmoid(), (xz + h @ Uz.T + bz).sigmoid()
    return z * torch.tanh(xn + r * h @ Un.T) + (1 - z) * h


@wrong("last_state", "divided by the number of real ones")
def state_sum_by_length(states, lengths):
    return states.sum(1) / lengths[:, None]


@wrong("last_state", "read backwards")
def state_backwards(states, lengths):
    return states.flip(1)[torch.arange(len(states)), lengths - 1]


@wrong("beam_step", "continuations of different sentences are compared")
def beam_of_all_sentences(total, log_p, length, eos):
    B, K, V = log_p.shape
    s = (total[..., None] + log_p).flatten()
    best, i = s.topk(2 * K * B)
    best, i = best.view(B, -1), i.view(B, -1)
    row, token = i // V % K, i % V
    ends = token == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    return live, row.gather(1, o), token.gather(1, o), (best / length).masked_fill(~ends, -math.inf)[:, :K]


@wrong("beam_step", "row is counted through the whole batch")
def beam_rows_of_batch(total, log_p, length, eos):
    K = total.shape[1]
    best, row, token = best_continuations(total, log_p)
    ends = token == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    row = row + K * torch.arange(len(row))[:, None]
    return live, row.gather(1, o), token.gather(1, o), (best / length).masked_fill(~ends, -math.inf)[:, :K]


@wrong("beam_step", "token is the index among all")
def beam_flat_token(total, log_p, length, eos):
    _B, K, V = log_p.shape
    best, i = (total[..., None] + log_p).flatten(1).topk(2 * K)
    ends = i % V == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    return live, (i // V).gather(1, o), i.gather(1, o), (best / length).masked_fill(~ends, -math.inf)[:, :K]


@wrong("beam_step", "rows and tokens are the first K")
def beam_of_first_rows(total, log_p, length, eos):
    K = total.shape[1]
    best, row, token = best_continuations(total, log_p)
    ends = token == eos
    live, _o = best.masked_fill(ends, -math.inf).topk(K)
    return live, row[:, :K], token[:, :K], (best / length).masked_fill(~ends, -math.inf)[:, :K]


@wrong("beam_step", "the score is 0 where")
def beam_scores_of_zero(total, log_p, length, eos):
    K = total.shape[1]
    best, row, token = best_continuations(total, log_p)
    ends = token == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    return live, row.gather(1, o), token.gather(1, o), (best / length).masked_fill(~ends, 0)[:, :K]


@wrong("beam_step", "the scores are sorted")
def beam_scores_sorted(total, log_p, length, eos):
    K = total.shape[1]
    best, row, token = best_continuations(total, log_p)
    ends = token == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    sc = (best / length).masked_fill(~ends, -math.inf)[:, :K].sort(1, descending=True).values
    return live, row.gather(1, o), token.gather(1, o), sc


@wrong("masked_loss", "the perplexity is returned")
def loss_perplexity(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0).exp()


@wrong("masked_loss", "reshape or view is used to transpose")
def loss_reshaped(logits, labels):
    B, T, V = logits.shape
    return F.cross_entropy(logits.reshape(B, V, T), labels, ignore_index=0)


@wrong("masked_loss", "logits are set to 0 at padding")
def loss_of_zero_logits(logits, labels):
    return F.cross_entropy((logits * (labels != 0)[..., None]).flatten(0, 1), labels.flatten())


@wrong("masked_loss", "the squared error of probabilities")
def loss_squared(logits, labels):
    q = F.one_hot(labels, logits.shape[-1]).double()
    return ((logits.softmax(-1) - q)[labels != 0] ** 2).mean()


@wrong("label_smoothing", "neither the label nor padding")
def smoothed_without_padding(logits, labels, smoothing):
    V = logits.shape[-1]
    q = torch.full_like(logits, smoothing / (V - 2))
    q[..., 0] = 0
    q.scatter_(-1, labels[..., None], 1 - smoothing)
    return -(q * logits.log_softmax(-1)).sum(-1)[labels != 0].mean()


@wrong("label_smoothing", "the probabilities of the model are smoothed")
def smoothed_probabilities(logits, labels, smoothing):
    p = (1 - smoothing) * logits.softmax(-1) + smoothing / logits.shape[-1]
    return -p.gather(-1, labels[..., None])[..., 0].log()[labels != 0].mean()


@wrong("doubly_stochastic", "T / S times")
def penalty_of_shares(alpha, labels):
    n = (labels != 0).sum(1, keepdim=True)
    return ((n / alpha.shape[-1] - (alpha * (labels != 0).unsqueeze(-1)).sum(1)) ** 2).sum(-1)


@wrong("doubly_stochastic", "the root of the sum")
def penalty_root(alpha, labels):
    return (1 - (alpha * (labels != 0).unsqueeze(-1)).sum(1)).norm(dim=-1)


@wrong("scaled_dot", "a size is fixed in the code")
def scaled_by_root_of_six(queries, annotations):
    return queries @ annotations.mT / math.sqrt(6)


@wrong("causal_attention", "what is before it or real")
def causal_or_real(queries, keys, values, mask):
    T = mask.shape[1]
    m = torch.ones(T, T).tril().bool() | mask[:, None]
    return (queries @ keys.mT / keys.shape[-1] ** 0.5).masked_fill(~m, -1e9).softmax(-1) @ values


@wrong("lstm", "; and g has a sigmoid in place of tanh")
def lstm_sigmoids_alone(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + h @ U.T + b).sigmoid().chunk(4, 1)
    n = f * c + i * g
    return o * n, n


@wrong("gru", "z and 1 − z are exchanged: here z keeps the old state; and r is not used")
def gru_two_mistakes(x, h, W, U, b):
    _r, z, n = (x @ W.T + b + h @ U.T).chunk(3, 1)
    z = z.sigmoid()
    return z * n.tanh() + (1 - z) * h


@wrong("beam_step", "only the first hypothesis is continued")
def beam_of_first_hypothesis(total, log_p, length, eos):
    _B, K, _V = log_p.shape
    best, token = (total[:, :1] + log_p[:, 0]).topk(2 * K)
    row = torch.zeros_like(token)
    ends = token == eos
    live, o = best.masked_fill(ends, -math.inf).topk(K)
    return live, row.gather(1, o), token.gather(1, o), (best / length).masked_fill(~ends, -math.inf)[:, :K]


@wrong("additive", "in another order than W and U")
def additive_concatenated_otherwise(queries, annotations, W, U, v):
    T, S = queries.shape[1], annotations.shape[1]
    pairs = torch.cat([annotations[:, None].expand(-1, T, -1, -1), queries[:, :, None].expand(-1, -1, S, -1)], -1)
    return torch.tanh(pairs @ torch.cat([W, U], 1).T) @ v


@wrong("causal_attention", "comes after the softmax")
def causal_scaled_late(queries, keys, values, mask):
    T = mask.shape[1]
    m = torch.ones(T, T).tril().bool() & mask[:, None]
    return (queries @ keys.mT).masked_fill(~m, -1e9).softmax(-1) / math.sqrt(keys.shape[-1]) @ values


@wrong("lstm", "tanh(g) is used where tanh(new) belongs")
def lstm_candidate_for_cell(x, h, c, W, U, b):
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, 1)
    n = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * g.tanh(), n
