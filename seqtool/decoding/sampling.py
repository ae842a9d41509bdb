"""Ancestral sampling: every token is drawn from the model's distribution."""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from seqtool.decoding.common import Hypothesis, Prefix, StepFunction, excluded_ids, hypotheses, log_probabilities
from seqtool.models.categorical import categorical
from seqtool.models.contract import stack
from seqtool.models.tokens import BOS, EOS, PAD
from seqtool.models.tree import device_of, keep, select

MAX_VOCABULARY_IN_PYTHON = 128  # symbols; from a larger vocabulary torch draws a token faster than Python


@torch.no_grad()
def sample(
    step: StepFunction,
    memory: Any,
    state: Any,
    *,
    uniform_noise: Float[Tensor, "B K T"],
    maximum: Sequence[int],
    minimum: int = 1,
    temperature: float,
    top_k: int,
    top_p: float,
    keep_attention: bool,
    unknown: bool = True,
    prefix: Prefix | None = None,
    on_step: Callable[[list[int]], Sequence[bool]] | None = None,
) -> list[list[Hypothesis]]:
    """Draw K samples for each sentence; return them in the order of their random numbers.

    Logits are divided by the temperature; at temperature 0 the most probable token is taken. The distribution is cut to
    the `top_k` most probable tokens, then to the smallest set with a probability of `top_p` (Holtzman et al. 2020).
    The log-probabilities of samples are those of the distribution before these changes.

    A sentence's samples end at different steps. Whenever every sentence has at most half of its rows left, the ended
    ones are left out from then on, to save time; not if attention is kept.

    uniform_noise: random numbers in [0, 1), each of which selects a token by the inverse of the cumulative
        distribution; they are an argument so that samples depend on nothing else
    maximum, minimum: the limits of the length of each sentence's samples and of all, in tokens with EOS
    top_k: 0 leaves all tokens
    prefix: the beginning of each sentence's samples (`common.read_prefix`); lengths leave it out
    on_step: called with the tokens of every step, one per row and PAD for rows that have ended; returns which rows end
        with this step
    """
    n, samples, device = *uniform_noise.shape[:2], device_of((state, memory))
    prefix = prefix or Prefix(torch.full((n, 1), BOS), None)
    sampler = TokenSampler(uniform_noise.to(device).flatten(0, 1), temperature, top_k, top_p)
    sentence = torch.arange(n).repeat_interleave(samples)
    state = keep(state, sentence, n)
    prefix_tokens = prefix.tokens[sentence].to(device)
    token, sampled_tokens, log_p = prefix_tokens[:, -1], [], torch.zeros(n * samples, device=device)
    rows: Tensor | None = None  # the samples that are still computed, as many of each sentence; None: all
    may_leave_out = samples > 1 and not keep_attention and on_step is None
    alphas = [] if prefix.attention is None else list(prefix.attention[sentence].unbind(1))
    locations = [] if prefix.location is None else list(prefix.location[sentence].unbind(1))
    limit, limits = torch.tensor(maximum, device=device).repeat_interleave(samples), set(maximum)
    ended, any_ended = torch.zeros(n * samples, dtype=torch.bool, device=device), False
    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha, location = step(memory, state, token)
        token, token_log_p = sampler.draw(logits, length - 1, may_end=length >= minimum, unknown=unknown)
        if any_ended:
            token, token_log_p = token.masked_fill(ended, PAD), token_log_p.masked_fill(ended, 0.0)
        log_p = log_p + token_log_p if rows is None else log_p.index_add(0, rows, token_log_p.to(log_p.dtype))
        sampled_tokens.append(token if rows is None else token.new_full((n * samples,), PAD).index_copy(0, rows, token))
        if keep_attention and alpha is not None:
            alphas.append(alpha)
            locations += [] if location is None else [location]
        ends = []  # for one row, launching an operation costs more than the operation: skip what cannot end a row
        if length >= minimum:
            ends.append(token == EOS)
        if length in limits:
            ends.append(limit == length)
        if on_step is not None and any(stops := on_step(token.tolist())):
            ends.append(torch.tensor(stops, device=device))
        if ends:
            ended, any_ended = torch.stack([ended, *ends]).any(0), True
            left = (~ended).view(n, -1).sum(1).max().item()
            if not left:
                break
            if may_leave_out and 2 * n * left <= len(token):
                unended_first = ended.view(n, -1).byte().sort(dim=1, stable=True).indices[:, :left]
                kept = (unended_first + torch.arange(0, len(token), len(token) // n, device=device)[:, None]).flatten()
                state, rows = select(state, kept), kept if rows is None else rows[kept]
                token, ended, limit, sampler.noise = token[kept], ended[kept], limit[kept], sampler.noise[kept]
    ids = torch.cat([prefix_tokens, *(tokens[:, None] for tokens in sampled_tokens)], 1)[:, 1:].tolist()
    attention, location = (stack(steps) if keep_attention else None for steps in (alphas, locations))
    all_samples = hypotheses(ids, attention, location, log_p)
    return [all_samples[i * samples : (i + 1) * samples] for i in range(n)]


class TokenSampler:
    """Draws a token for each row of logits, using the random numbers of the row and the position, N×T."""

    def __init__(self, uniform_noise: Float[Tensor, "N T"], temperature: float, top_k: int, top_p: float) -> None:
        self.noise, self.temperature, self.top_k, self.top_p = uniform_noise, temperature, top_k, top_p
        is_uncut = not top_k and top_p == 1 and temperature > 0
        is_one_row_on_cpu = uniform_noise.device.type == "cpu" and len(uniform_noise) == 1
        self.row_noise: list[float] | None = uniform_noise[0].tolist() if is_uncut and is_one_row_on_cpu else None

    def draw(self, logits: Float[Tensor, "N V"], position: int, **constraints: bool) -> tuple[Tensor, Tensor]:
        """Return the tokens and their log-probabilities. `constraints`: arguments of `log_probabilities`."""
        if self.row_noise is not None and logits.shape[1] <= MAX_VOCABULARY_IN_PYTHON:
            return _draw_in_python(logits, self.row_noise[position], self.temperature, **constraints)
        log_p = log_probabilities(logits, **constraints)
        if self.temperature == 0:
            greedy = log_p.max(-1)
            return greedy.indices, greedy.values
        weights = log_p if self.temperature == 1 else log_p / self.temperature
        if self.top_k:
            threshold = weights.topk(min(self.top_k, weights.shape[-1]), -1).values[:, -1:]
            weights = weights.masked_fill(weights < threshold, -math.inf)
        p = weights.softmax(-1)
        if self.top_p < 1:
            sorted_p, order = p.sort(-1, descending=True)
            # the sum without the token itself, so that the first token is always kept
            sorted_p = sorted_p.masked_fill(sorted_p.cumsum(-1) - sorted_p >= self.top_p, 0.0)
            p = torch.zeros_like(p).scatter(-1, order, sorted_p)
        token = categorical(p, self.noise[:, position])
        return token, log_p.gather(1, token[:, None]).squeeze(1)


def _draw_in_python(
    logits: Float[Tensor, "1 V"], uniform: float, temperature: float, **constraints: bool
) -> tuple[Tensor, Tensor]:
    """Compute `TokenSampler.draw` in plain Python, for one row and a small vocabulary. For 65 symbols this saves 28 µs
    compared with twenty torch operations; a character of a 2×512 LSTM takes 420 µs in all.
    """
    x = logits[0].tolist()
    max_logit = max(x)
    p = [math.exp(logit - max_logit) for logit in x]
    log_total = max_logit + math.log(sum(p))
    for tokens in excluded_ids(**constraints):
        x[tokens] = [-math.inf] * len(x[tokens])
        p[tokens] = [0.0] * len(p[tokens])
    max_allowed = max(x)
    if temperature != 1 or max_allowed != max_logit:  # if an excluded token was far above the others, all p could be 0
        p = [math.exp((logit - max_allowed) / temperature) for logit in x]
    cumulative = list(accumulate(p))
    threshold = max(uniform * cumulative[-1], sys.float_info.min)
    token = len(x) - 1 if math.isnan(threshold) else bisect_left(cumulative, threshold)
    return torch.tensor([token]), torch.tensor([x[token] - log_total])
