"""Beam search; greedy decoding is a beam of 1.

It uses only a memory, a state and a step function. At every step the 2·beam best continuations of a sentence are
taken (for a beam of 1 the best: when that ends, the sentence is finished). Those among the first `beam` that end are
set aside; the best `beam` that do not end live on. A sentence is finished, and leaves the batch, when `beam` hypotheses
have ended, when no live one can enter its n best any more, or at its maximum length.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqtool.decoding.forced import Prefix, StepFunction
from seqtool.decoding.next_token import highest, log_probabilities
from seqtool.decoding.pointers import BackPointers, Continuations, Lattice
from seqtool.decoding.ranking import Hypothesis, LengthPenalty, covered, hypotheses
from seqtool.decoding.tree import device_of, keep, select
from seqtool.models.tokens import BOS, EOS


@torch.no_grad()
def beam_search(
    step: StepFunction,
    memory: Any,
    state: Any,
    *,
    beam: int,
    maximum: Sequence[int],
    minimum: int = 1,
    n_best: int,
    penalty: LengthPenalty,
    coverage: float,
    mask: Bool[Tensor, "B S"] | None = None,
    keep_attention: bool,
    prefix: Prefix | None = None,
    trace: Lattice | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first; always at least one, even if no beam ends.

    maximum: the greatest length of each sentence's hypotheses, in tokens with EOS
    minimum: the length before which none ends
    coverage: β of Wu et al. 2016, equation 14: the score of an ended hypothesis gains β Σ_j log min(Σ_i α_ij, 1), j
        over the real positions of its source according to `mask` (None: all)
    prefix: how each begins (`forced.read_prefix`); lengths and probabilities count only what follows
    trace: records every continuation that is considered
    """
    active = torch.arange(len(maximum))  # the sentences still searched
    first = active.repeat_interleave(beam)
    prefix = prefix or Prefix(torch.full((len(active), 1), BOS), None)
    pointers = BackPointers(prefix, first)
    finished = _Finished(beam, maximum, n_best, penalty, coverage, mask)
    to_device = partial(Tensor.to, device=device_of((state, memory)), non_blocking=True)
    state = keep(state, first, len(active))
    token = prefix.tokens[first, -1].cpu()
    total = torch.full((len(active), beam), -math.inf)  # on the CPU like all but the model: one GPU wait per step
    total[:, 0] = 0.0  # the beams of a sentence start alike: only the first may be continued
    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha, location = step(memory, state, to_device(token))
        if alpha is not None and (keep_attention or coverage):
            pointers.attend(alpha, location)
        log_p = log_probabilities(logits, may_end=length >= minimum).add_(to_device(total.view(-1, 1)))
        best = _best(log_p.view(len(active), beam, -1))
        del logits, log_p  # so that the next ones reuse their memory
        ended, kept, live = _divide(best, beam)
        if trace is not None:
            trace.add(active, best, kept)
        unfinished = finished.add(active, length, best, ended, live, pointers)
        if not len(unfinished):
            break
        if len(unfinished) < len(active):
            memory = select(memory, to_device(unfinished))
            active, live = active[unfinished], live.at(unfinished)
        row = live.row.flatten()
        state = keep(state, row, len(token))
        token, total = live.token.flatten(), live.log_p
        pointers.extend(row, token)
    return finished.best()


def _best(log_p: Float[Tensor, "B K V"]) -> Continuations:
    """The 2·beam best for each sentence; for a beam of 1, the best."""
    n, beam, vocabulary = log_p.shape
    width = 1 if beam == 1 else min(2 * beam, beam * vocabulary)
    best, index = (tensor.cpu() for tensor in highest(log_p.flatten(1), width))
    return Continuations(index // vocabulary + beam * torch.arange(n)[:, None], index % vocabulary, best)


def _divide(best: Continuations, beam: int) -> tuple[Bool[Tensor, "B K"], Int[Tensor, "B K"], Continuations]:
    """Which of the first `beam` end; the places of the `beam` best that do not, and these themselves, filled up with
    continuations of probability 0 if there are too few.
    """
    ends = best.token == EOS
    log_p, kept = best.log_p.masked_fill(ends, -math.inf).topk(beam, -1)
    live = Continuations(best.row.gather(1, kept), best.token.gather(1, kept), log_p)
    return (ends & (best.log_p != -math.inf))[:, :beam], kept, live


class _Finished:
    """The hypotheses set aside for each sentence, and whether they are enough."""

    def __init__(
        self,
        beam: int,
        maximum: Sequence[int],
        n_best: int,
        penalty: LengthPenalty,
        coverage: float,
        mask: Bool[Tensor, "B S"] | None,
    ) -> None:
        self._beam, self._n_best, self._penalty, self._coverage = beam, n_best, penalty, coverage
        self._real = mask.cpu() if coverage and mask is not None else None
        self._hypotheses: list[list[Hypothesis]] = [[] for _ in maximum]
        self._lengths = set(maximum)
        self._limit = torch.tensor(maximum)
        self._divisor = torch.tensor([penalty(length) for length in maximum], dtype=torch.float64)
        self._bar = torch.full((len(maximum),), -math.inf, dtype=torch.float64)

    def add(
        self,
        active: Int[Tensor, "B"],
        length: int,
        best: Continuations,
        ended: Bool[Tensor, "B K"],
        live: Continuations,
        pointers: BackPointers,
    ) -> Int[Tensor, "n"]:
        """Set aside hypotheses that have ended, and live ones at their sentence's maximum length while there is room
        among the n best. Returns which of the active sentences are not finished.
        """
        owner, place = ended.nonzero(as_tuple=True)
        if len(owner):
            self._set_aside(active[owner], length, best.at(owner, place), pointers)
        if length in self._lengths:
            done = torch.tensor([len(self._hypotheses[i]) for i in active.tolist()])
            alive = (live.log_p != -math.inf).sum(1).maximum((done == 0).long())  # at least one
            room = alive.minimum(self._n_best - done).masked_fill(self._limit[active] != length, 0)
            owner, place = (torch.arange(self._beam) < room[:, None]).nonzero(as_tuple=True)
            if len(owner):
                self._set_aside(active[owner], length, live.at(owner, place), pointers)
        attainable = live.log_p[:, 0].double() / self._divisor[active]  # −∞ if none is live
        hopeless = attainable <= self._bar[active]
        return ((self._limit[active] > length) & ~hopeless).nonzero().flatten()

    def _set_aside(self, sentences: Int[Tensor, "n"], length: int, last: Continuations, pointers: BackPointers) -> None:
        """`last`: for each of these sentences, the last step of one of its hypotheses."""
        ended = hypotheses(*pointers.trace(last.row, last.token), last.log_p)
        for i, hypothesis in zip(sentences.tolist(), ended, strict=True):
            score = hypothesis.log_probability / self._penalty(length)
            if self._coverage and hypothesis.attention is not None and hypothesis.ended:
                real = None if self._real is None else self._real[i]
                score += self._coverage * covered(hypothesis.attention, real)
            self._hypotheses[i].append(hypothesis._replace(score=score))
        bars = {i: self._to_beat(self._hypotheses[i]) for i in sentences.tolist()}
        self._bar[list(bars)] = torch.tensor(list(bars.values()), dtype=torch.float64)

    def _to_beat(self, done: Sequence[Hypothesis]) -> float:
        """The score that a further hypothesis must exceed to matter."""
        if len(done) >= self._beam:
            return math.inf
        if len(done) < self._n_best:
            return -math.inf
        return sorted((h.score for h in done), reverse=True)[self._n_best - 1]

    def best(self) -> list[list[Hypothesis]]:
        """The n best of each sentence, with those that ended before those that did not."""
        ranked = [sorted(done, key=lambda h: (not h.ended, -h.score)) for done in self._hypotheses]
        return [done[: self._n_best] for done in ranked]
