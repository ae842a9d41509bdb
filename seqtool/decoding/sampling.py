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

from seqtool.decoding.common import Hypothesis, Prefix, StepFunction, hypotheses, impossible, log_probabilities
from seqtool.decoding.tree import device_of, keep
from seqtool.models.categorical import categorical
from seqtool.models.contract import stacked
from seqtool.models.tokens import BOS, EOS, PAD

FEW = 128  # symbols of a vocabulary, among which Python draws one faster than torch


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
    each: Callable[[list[int]], Sequence[bool]] | None = None,
) -> list[list[Hypothesis]]:
    """Ancestral sampling, the samples of a sentence in the order in which they are drawn.

    The distribution is sharpened by 1/temperature and cut to the `top_k` most probable tokens (0: all) and to the
    smallest set that holds `top_p` of the probability (Holtzman et al. 2020); at temperature 0 the most probable token
    is taken. Log-probabilities are the model's own.

    uniform_noise: random numbers in [0, 1) for K samples of each sentence; each picks a token by the inverse of the
        cumulative distribution. They are passed in so that samples depend on nothing else
    maximum, minimum: the greatest length of each sentence's samples, and the length before which none ends, in tokens
        with EOS
    unknown: whether the unknown token may be drawn
    prefix: how each begins (`common.read_prefix`); lengths count only what follows
    each: is called with the tokens of every step, one per row and PAD for rows that have ended, and returns which rows
        end with this step
    """
    n, samples, device = *uniform_noise.shape[:2], device_of((state, memory))
    prefix = prefix or Prefix(torch.full((n, 1), BOS), None)
    sampler = TokenSampler(uniform_noise.to(device).flatten(0, 1), temperature, top_k, top_p)
    sentence = torch.arange(n).repeat_interleave(samples)
    state = keep(state, sentence, n)
    beginning = prefix.tokens[sentence].to(device)
    token, sampled, log_p = beginning[:, -1], [], torch.zeros(n * samples, device=device)
    alphas = [] if prefix.attention is None else list(prefix.attention[sentence].unbind(1))
    locations = [] if prefix.location is None else list(prefix.location[sentence].unbind(1))
    limit, limits = torch.tensor(maximum, device=device).repeat_interleave(samples), set(maximum)
    over, some_over = torch.zeros(n * samples, dtype=torch.bool, device=device), False
    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha, location = step(memory, state, token)
        token, gained = sampler.draw(logits, length - 1, may_end=length >= minimum, unknown=unknown)
        if some_over:
            token, gained = token.masked_fill(over, PAD), gained.masked_fill(over, 0.0)
        log_p = log_p + gained
        sampled.append(token)
        if keep_attention and alpha is not None:
            alphas.append(alpha)
            locations += [] if location is None else [location]
        # An operation on one row costs more than it computes, so only what may end a row is looked at.
        ends = [*([token == EOS] if length >= minimum else []), *([limit == length] if length in limits else [])]
        if each is not None and any(ended := each(token.tolist())):
            ends.append(torch.tensor(ended, device=device))
        if ends:
            over, some_over = torch.stack([over, *ends]).any(0), True
            if bool(over.all()):
                break
    ids = torch.cat([beginning, *(tokens[:, None] for tokens in sampled)], 1)[:, 1:].tolist()
    attention, chosen = (stacked(steps) if keep_attention else None for steps in (alphas, locations))
    all_samples = hypotheses(ids, attention, chosen, log_p)
    return [all_samples[i * samples : (i + 1) * samples] for i in range(n)]


class TokenSampler:
    """Draws a token for each row of logits, by the random numbers of that position, N×T."""

    def __init__(self, uniform_noise: Float[Tensor, "N T"], temperature: float, top_k: int, top_p: float) -> None:
        self.noise, self.temperature, self.top_k, self.top_p = uniform_noise, temperature, top_k, top_p
        whole = not top_k and top_p == 1 and temperature > 0
        one_row = uniform_noise.device.type == "cpu" and len(uniform_noise) == 1
        self.row: list[float] | None = uniform_noise[0].tolist() if whole and one_row else None

    def draw(self, logits: Float[Tensor, "N V"], position: int, **may: bool) -> tuple[Tensor, Tensor]:
        """The tokens and their log-probabilities. `may`: see `log_probabilities`."""
        if self.row is not None and logits.shape[1] <= FEW:
            return _drawn_from_few(logits, self.row[position], self.temperature, **may)
        log_p = log_probabilities(logits, **may)
        if self.temperature == 0:
            greedy = log_p.max(-1)
            return greedy.indices, greedy.values
        weights = log_p if self.temperature == 1 else log_p / self.temperature
        if self.top_k:
            smallest = weights.topk(min(self.top_k, weights.shape[-1]), -1).values[:, -1:]
            weights = weights.masked_fill(weights < smallest, -math.inf)
        p = weights.softmax(-1)
        if self.top_p < 1:
            sorted_p, order = p.sort(-1, descending=True)
            sorted_p = sorted_p.masked_fill(sorted_p.cumsum(-1) - sorted_p >= self.top_p, 0.0)  # the first stays
            p = torch.zeros_like(p).scatter(-1, order, sorted_p)
        token = categorical(p, self.noise[:, position])
        return token, log_p.gather(1, token[:, None]).squeeze(1)


def _drawn_from_few(
    logits: Float[Tensor, "1 V"], uniform: float, temperature: float, **may: bool
) -> tuple[Tensor, Tensor]:
    """`TokenSampler.draw` for one row of few symbols, in Python's own numbers: for 65 it takes 28 µs less than
    torch's twenty operations, of the 420 for a character of a 2×512 LSTM.
    """
    x = logits[0].tolist()
    top = max(x)
    p = [math.exp(logit - top) for logit in x]
    log_total = top + math.log(sum(p))
    for tokens in impossible(**may):
        x[tokens] = [-math.inf] * len(x[tokens])
        p[tokens] = [0.0] * len(p[tokens])
    highest = max(x)
    if temperature != 1 or highest != top:  # beside an impossible token far above the others, all p could be 0
        p = [math.exp((logit - highest) / temperature) for logit in x]
    cumulative = list(accumulate(p))
    above_zero = max(uniform * cumulative[-1], sys.float_info.min)
    token = len(x) - 1 if math.isnan(above_zero) else bisect_left(cumulative, above_zero)
    return torch.tensor([token]), torch.tensor([x[token] - log_total])
