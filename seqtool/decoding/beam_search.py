"""Beam search; greedy decoding is a beam of 1.

It uses only a memory, a state and a step function. At every step the 2·beam best continuations of a sentence are
taken (for a beam of 1 the best: when that ends, the sentence is finished). Those among the first `beam` that end are
set aside; the best `beam` that do not end live on. A sentence is finished, and leaves the batch, when `beam` hypotheses
have ended, when no live one can enter its n best any more, or at its maximum length.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqtool.decoding.common import Hypothesis, Prefix, StepFunction, hypotheses, log_probabilities
from seqtool.decoding.tree import device_of, keep, select
from seqtool.models.tokens import BOS, EOS
from seqtool.settings.classes import chosen

LengthPenalty = Callable[[float], float]
LEAST_COVERED = torch.finfo(torch.float32).tiny  # the coverage of a position: 0 after underflow has no logarithm
BLOCK = 64  # size of the blocks whose maxima `highest` takes first


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
    trace: "Lattice | None" = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first; always at least one, even if no beam ends.

    maximum: the greatest length of each sentence's hypotheses, in tokens with EOS
    minimum: the length before which none ends
    coverage: β of Wu et al. 2016, equation 14: the score of an ended hypothesis gains β Σ_j log min(Σ_i α_ij, 1), j
        over the real positions of its source according to `mask` (None: all)
    prefix: how each begins (`common.read_prefix`); lengths and probabilities count only what follows
    trace: records every continuation that is considered
    """
    active = torch.arange(len(maximum))  # the sentences still searched
    first = active.repeat_interleave(beam)
    prefix = prefix or Prefix(torch.full((len(active), 1), BOS), None)
    pointers = BackPointers(prefix, first)
    to_device = partial(Tensor.to, device=device_of((state, memory)), non_blocking=True)
    state = keep(state, first, len(active))
    token = prefix.tokens[first, -1].cpu()
    total = torch.full((len(active), beam), -math.inf)  # on the CPU like all but the model: one GPU wait per step
    total[:, 0] = 0.0  # the beams of a sentence start alike: only the first may be continued
    finished: list[list[Hypothesis]] = [[] for _ in maximum]
    limit = torch.tensor(maximum)
    divisor = torch.tensor([penalty(length) for length in maximum], dtype=torch.float64)
    bar = torch.full((len(maximum),), -math.inf, dtype=torch.float64)  # to matter, a further score must exceed it
    real = mask.cpu() if coverage and mask is not None else None

    def set_aside(sentences: Int[Tensor, "n"], length: int, last: Continuations) -> None:
        """`last`: for each of these sentences, the last step of one of its hypotheses."""
        bars = {}
        for i, hypothesis in zip(sentences.tolist(), pointers.trace(last), strict=True):
            score = hypothesis.log_probability / penalty(length)
            if coverage and hypothesis.attention is not None and hypothesis.ended:
                covered = hypothesis.attention.sum(0)
                covered = covered if real is None else covered[real[i]]
                score += coverage * float(covered.clamp(LEAST_COVERED, 1).log().sum())
            done = finished[i]
            done.append(hypothesis._replace(score=score))
            if len(done) >= beam:
                bars[i] = math.inf
            elif len(done) >= n_best:
                bars[i] = sorted((h.score for h in done), reverse=True)[n_best - 1]
        bar[list(bars)] = torch.tensor(list(bars.values()), dtype=torch.float64)

    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha, location = step(memory, state, to_device(token))
        if alpha is not None and (keep_attention or coverage):
            pointers.attend(alpha, location)
        log_p = log_probabilities(logits, may_end=length >= minimum).add_(to_device(total.view(-1, 1)))
        vocabulary = log_p.shape[1]
        width = 1 if beam == 1 else min(2 * beam, beam * vocabulary)
        values, index = (tensor.cpu() for tensor in highest(log_p.view(len(active), -1), width))
        del logits, log_p  # so that the next ones reuse their memory
        row = index // vocabulary + beam * torch.arange(len(active))[:, None]
        best = Continuations(row, index % vocabulary, values)
        ends = best.token == EOS
        ended = (ends & (values != -math.inf))[:, :beam]
        values, kept = values.masked_fill(ends, -math.inf).topk(beam, -1)  # of probability 0 if there are too few
        live = Continuations(best.row.gather(1, kept), best.token.gather(1, kept), values)
        if trace is not None:
            trace.add(active, best, kept)
        owner, place = ended.nonzero(as_tuple=True)
        if len(owner):
            set_aside(active[owner], length, best.at(owner, place))
        if length in maximum:  # live ones of these sentences are set aside while there is room among the n best
            done = torch.tensor([len(finished[i]) for i in active.tolist()])
            alive = (live.log_p != -math.inf).sum(1).maximum((done == 0).long())  # at least one
            room = alive.minimum(n_best - done).masked_fill(limit[active] != length, 0)
            owner, place = (torch.arange(beam) < room[:, None]).nonzero(as_tuple=True)
            if len(owner):
                set_aside(active[owner], length, live.at(owner, place))
        attainable = live.log_p[:, 0].double() / divisor[active]  # −∞ if none is live
        hopeless = attainable <= bar[active]
        unfinished = ((limit[active] > length) & ~hopeless).nonzero().flatten()
        if not len(unfinished):
            break
        if len(unfinished) < len(active):
            memory = select(memory, to_device(unfinished))
            active, live = active[unfinished], live.at(unfinished)
        row = live.row.flatten()
        state = keep(state, row, len(token))
        token, total = live.token.flatten(), live.log_p
        pointers.extend(row, token)
    ranked = [sorted(done, key=lambda h: (not h.ended, -h.score)) for done in finished]
    return [done[:n_best] for done in ranked]


def highest(x: Float[Tensor, "N V"], k: int) -> tuple[Float[Tensor, "N {k}"], Int[Tensor, "N {k}"]]:
    """The k highest of each row and their indices, like `topk` but in a quarter of its time on long rows: they lie in
    the k blocks with the highest maxima, or after the last whole block.
    """
    whole = x.shape[1] // BLOCK * BLOCK
    if whole < 8 * k * BLOCK:
        return x.topk(k, -1)
    blocks = x[:, :whole].reshape(len(x), -1, BLOCK)
    first = BLOCK * blocks.amax(-1).topk(k, -1).indices[:, :, None]
    index = (first + torch.arange(BLOCK, device=x.device)).flatten(1)
    index = torch.cat([index, torch.arange(whole, x.shape[1], device=x.device).expand(len(x), -1)], 1)
    values, chosen = x.gather(1, index).topk(k, -1)
    return values, index.gather(1, chosen)


def length_penalty(name: str, alpha: float) -> LengthPenalty:
    """The divisor of a log-probability, given the length in tokens, EOS included.

    `none` 1; `average` the length; `gnmt` ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    """
    penalties: dict[str, LengthPenalty] = {
        "none": lambda length: 1.0,
        "average": lambda length: length,
        "gnmt": lambda length: float(((5 + length) / 6) ** alpha),
    }
    return chosen(name, penalties, kind="length_penalty")


class Continuations(NamedTuple):
    """Continuations of a search's rows, all on the CPU. Those of a step are B×W, W for each sentence; others have one
    dimension.

    row: the row of the search that each continues
    token: its id
    log_p: in nats, summed from the first step
    """

    row: Int[Tensor, "..."]
    token: Int[Tensor, "..."]
    log_p: Float[Tensor, "..."]

    def at(self, *places: Tensor) -> "Continuations":
        """Those at these indices."""
        return Continuations(*(column[places] for column in self))


class BackPointers:
    """For every step of a search: the row that each new row continues, its token, and the attention as computed in that
    step, for the rows before it. Nothing is copied when rows are reordered; `trace` follows the pointers back.
    """

    def __init__(self, prefix: Prefix, sentences: Int[Tensor, "N"]) -> None:
        """`sentences`: the sentence of each of the first rows. The prefix counts as steps that changed no row."""
        self._tokens: list[list[int]] = prefix.tokens[sentences, 1:].T.tolist()
        self._rows = [list(range(len(sentences)))] * len(self._tokens)
        self._attention, self._locations = (
            [] if steps is None else [*steps[sentences].cpu().unbind(1)]
            for steps in (prefix.attention, prefix.location)
        )

    def attend(self, alpha: Float[Tensor, "N S"], location: Int[Tensor, "N"] | None) -> None:
        """Add a step's attention, and location if there is one; call this at every step or at none."""
        self._attention.append(alpha.cpu())
        if location is not None:
            self._locations.append(location.cpu())

    def extend(self, rows: Int[Tensor, "N"], tokens: Int[Tensor, "N"]) -> None:
        """Add a step: the rows that the new ones continue, and the tokens they add."""
        self._rows.append(rows.tolist())
        self._tokens.append(tokens.tolist())

    def trace(self, last: Continuations) -> list[Hypothesis]:
        """The hypotheses whose last step this is."""
        path, ids = [last.row.tolist()], [last.token.tolist()]
        for parents, added in zip(reversed(self._rows), reversed(self._tokens), strict=True):
            ids.append([added[row] for row in path[-1]])
            path.append([parents[row] for row in path[-1]])
        attention, locations = (_followed(steps, path[::-1]) for steps in (self._attention, self._locations))
        return hypotheses([list(reversed(row)) for row in zip(*ids, strict=True)], attention, locations, last.log_p)


def _followed(steps: list[Tensor], path: list[list[int]]) -> Tensor | None:
    """What each step has for the n rows of a path, n×T×…; None if not every step has something."""
    if len(steps) < len(path):
        return None
    return torch.stack([step.index_select(0, rows) for step, rows in zip(steps, torch.tensor(path), strict=True)], 1)


class Candidate(NamedTuple):
    """A continuation that was considered.

    parent: its place among those of the step before, −1 at the first step
    log_probability: in nats, summed from the first step
    fate: `kept` in the beam, `ended` (with EOS, set aside) or `pruned`
    """

    parent: int
    token: int
    log_probability: float
    fate: str


class Lattice:
    """`steps[sentence][t]` are the candidates of step t, best first; pass it to a search as its `trace`. A sentence
    gets no more steps once its search is over.
    """

    def __init__(self) -> None:
        self.steps: defaultdict[int, list[list[Candidate]]] = defaultdict(list)
        self._beams: dict[int, list[int]] = {}  # the places of the last step's beams among its candidates

    def add(self, sentences: Tensor, best: Continuations, kept: Tensor) -> None:
        """One step of n sentences: the continuations considered, n×W, and the places of those kept, n×beam."""
        beam = kept.shape[1]
        columns = (column.tolist() for column in (sentences, *best, kept))
        for sentence, rows, tokens, log_p, places in zip(*columns, strict=True):
            parents = self._beams.get(sentence, [-1] * beam)
            self._beams[sentence] = places
            step = []
            for place, (row, token, value) in enumerate(zip(rows, tokens, log_p, strict=True)):
                survived = place < beam if token == EOS else place in places
                fate = ("ended" if token == EOS else "kept") if survived else "pruned"
                if value != -math.inf:
                    step.append(Candidate(parents[row % beam], token, value, fate))
            self.steps[sentence].append(step)
