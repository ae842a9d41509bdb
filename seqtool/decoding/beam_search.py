"""Beam search; greedy decoding is a beam of 1. It needs only a memory, a state and a step function.

A sentence has one row at first, <s>, and then `beam` rows. At every step, for each sentence:

1. The 2·beam best continuations are taken (only the best one for a beam of 1).
2. Continuations that end with EOS and are among the first `beam` are set aside as finished hypotheses.
3. The `beam` best continuations that do not end are kept as live hypotheses.

A sentence leaves the batch at its maximum length, or when no live hypothesis can enter its n best any more. This is
decided by the best log-probability of its live hypotheses, divided by the penalty of the maximum length, which gives
an upper bound of their scores. As soon as `beam` hypotheses have ended, it is divided by the penalty of the present
length.

The search does not stop just because `beam` hypotheses have ended: if a model is sure of one hypothesis, the others are
poor, and may all end before it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seqtool.decoding.common import Hypothesis, Prefix, StepFunction, hypotheses, log_probabilities
from seqtool.models.tokens import BOS, EOS
from seqtool.models.tree import device_of, keep, select
from seqtool.settings.classes import chosen

LengthPenalty = Callable[[float], float]
# The least coverage of a position: attention may underflow to 0, which has no logarithm.
MIN_COVERAGE = torch.finfo(torch.float32).tiny
BLOCK_SIZE = 64  # the number of scores in a block; `highest_sums` first computes the maximum of each block


def on_cpu(values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers and indices on the CPU, copied together, since each copy makes the host wait for a GPU."""
    if values.device.type == "cpu" or values.dtype != torch.float32:
        return values.cpu(), index.cpu()
    both = torch.stack([values.view(torch.int32), index.to(torch.int32)]).cpu()  # there are fewer than 2³¹ indices
    return both[0].view(torch.float32), both[1].long()


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
    """Return the n best hypotheses of each sentence, best first. There is at least one, even if none has ended.

    maximum, minimum: the limits of the length of each sentence's hypotheses and of all, in tokens with EOS
    penalty: the function from a hypothesis's length to the divisor of its log-probability (`length_penalty`)
    coverage: β of Wu et al. 2016, equation 14. It adds β Σ_j log min(Σ_i α_ij, 1) to the score of a hypothesis that
        ended, where j runs over the real positions of the source
    mask: true at the real positions of the sources; None if all are real
    prefix: the beginning of each sentence's hypotheses (`common.read_prefix`). Lengths and probabilities leave it out
    trace: records every continuation that is considered
    """
    active = torch.arange(len(maximum))  # the sentences that are not finished
    prefix = prefix or Prefix(torch.full((len(active), 1), BOS), None)
    pointers = BackPointers(prefix)
    to_device = partial(Tensor.to, device=device_of((state, memory)), non_blocking=True)
    token = prefix.tokens[:, -1].cpu()
    # the log-probability of each sentence's rows, one at first; on the CPU, so as to wait for a GPU once
    total = torch.zeros(len(active), 1)
    finished: list[list[Hypothesis]] = [[] for _ in maximum]
    limit = torch.tensor(maximum)
    divisor = torch.tensor([penalty(length) for length in maximum], dtype=torch.float64)
    beam_ended = torch.zeros(len(maximum), dtype=torch.bool)  # whether `beam` hypotheses or more have ended
    score_to_beat = torch.full((len(maximum),), -math.inf, dtype=torch.float64)  # −∞: fewer than n have ended
    is_real = mask.cpu() if coverage and mask is not None else None

    def set_aside(sentences: Int[Tensor, "n"], length: int, last: Continuations) -> None:
        """Add a finished hypothesis to each of these sentences; `last` holds the last steps of the hypotheses."""
        new_scores_to_beat = {}
        for i, hypothesis in zip(sentences.tolist(), pointers.hypotheses(last), strict=True):
            score = hypothesis.log_probability / penalty(length)
            if coverage and hypothesis.attention is not None and hypothesis.ended:
                coverages = hypothesis.attention.sum(0)
                coverages = coverages if is_real is None else coverages[is_real[i]]
                score += coverage * float(coverages.clamp(MIN_COVERAGE, 1).log().sum())
            done = finished[i]
            done.append(hypothesis._replace(score=score))
            beam_ended[i] = len(done) >= beam
            if len(done) >= n_best:
                new_scores_to_beat[i] = sorted((h.score for h in done), reverse=True)[n_best - 1]
        score_to_beat[list(new_scores_to_beat)] = torch.tensor(list(new_scores_to_beat.values()), dtype=torch.float64)

    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha, location = step(memory, state, to_device(token))
        if alpha is not None and (keep_attention or coverage):
            pointers.attend(alpha, location)
        log_p = log_probabilities(logits, may_end=length >= minimum)
        rows, vocabulary = total.shape[1], log_p.shape[1]
        width = 1 if beam == 1 else 2 * beam
        values, index = on_cpu(*highest_sums(log_p, to_device(total), min(width, rows * vocabulary)))
        del logits, log_p  # the next step reuses their memory
        if (missing := width - values.shape[1]) > 0:  # as there are at first, if the vocabulary is tiny
            values, index = F.pad(values, (0, missing), value=-math.inf), F.pad(index, (0, missing))
        row = index // vocabulary + rows * torch.arange(len(active))[:, None]
        best = Continuations(row, index % vocabulary, values)
        ends = best.token == EOS
        ended = (ends & (values != -math.inf))[:, :beam]
        # if fewer than `beam` continuations do not end, the others have log-probability −∞
        values, live_index = values.masked_fill(ends, -math.inf).topk(beam, -1)
        live = Continuations(best.row.gather(1, live_index), best.token.gather(1, live_index), values)
        if trace is not None:
            trace.add(active, best, live_index)
        owner, column = ended.nonzero(as_tuple=True)
        if len(owner):
            set_aside(active[owner], length, best.at(owner, column))
        if length in maximum:  # fill up the n best of sentences at their maximum length with live hypotheses
            finished_count = torch.tensor([len(finished[i]) for i in active.tolist()])
            live_count = (live.log_p != -math.inf).sum(1).maximum((finished_count == 0).long())  # at least one
            missing_count = live_count.minimum(n_best - finished_count).masked_fill(limit[active] != length, 0)
            owner, column = (torch.arange(beam) < missing_count[:, None]).nonzero(as_tuple=True)
            if len(owner):
                set_aside(active[owner], length, live.at(owner, column))
        # −∞ if no hypothesis is live
        bound = live.log_p[:, 0].double() / torch.where(beam_ended[active], penalty(length), divisor[active])
        hopeless = bound <= score_to_beat[active]
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


def highest_sums(
    log_p: Float[Tensor, "N V"], total: Float[Tensor, "B K"], k: int
) -> tuple[Float[Tensor, "B {k}"], Int[Tensor, "B {k}"]]:
    """Return the k highest sums of each sentence's continuations and their indices from 0 to K·V − 1; `log_p` may be
    overwritten. On a CPU this takes a quarter of the time of `topk` on long rows, and adds only to few of the numbers:
    the highest sums lie in the k blocks with the highest maxima, or after the last whole block of a row.
    """
    sentences, (beam, vocabulary) = len(total), (total.shape[1], log_p.shape[1])
    blocks = vocabulary // BLOCK_SIZE
    if log_p.device.type != "cpu" or beam * blocks < 8 * k:  # too few blocks to save time
        return log_p.add_(total.view(-1, 1)).view(sentences, -1).topk(k, -1)
    maxima = log_p[:, : blocks * BLOCK_SIZE].view(-1, blocks, BLOCK_SIZE).amax(-1) + total.view(-1, 1)
    best = maxima.view(sentences, -1).topk(k, -1).indices
    first = best // blocks * vocabulary + best % blocks * BLOCK_SIZE
    index = (first[:, :, None] + torch.arange(BLOCK_SIZE)).flatten(1)
    ends = torch.arange(beam)[:, None] * vocabulary + torch.arange(blocks * BLOCK_SIZE, vocabulary)
    index = torch.cat([index, ends.flatten().expand(sentences, -1)], 1)
    values, top = (log_p.view(sentences, -1).gather(1, index) + total.gather(1, index // vocabulary)).topk(k, -1)
    return values, index.gather(1, top)


def length_penalty(name: str, alpha: float) -> LengthPenalty:
    """Return the function from a length in tokens, EOS included, to the divisor of the log-probability."""
    penalties: dict[str, LengthPenalty] = {
        "none": lambda length: 1.0,
        "average": lambda length: length,
        "gnmt": lambda length: float(((5 + length) / 6) ** alpha),  # Wu et al. 2016, equation 14
    }
    return chosen(name, penalties, kind="length_penalty")


class Continuations(NamedTuple):
    """Continuations of a search's rows, on the CPU. All continuations of a step are B×W, W for each sentence; selected
    ones have one dimension.
    """

    row: Int[Tensor, "..."]  # the row of the search that each continuation extends
    token: Int[Tensor, "..."]  # the id that each continuation adds
    log_p: Float[Tensor, "..."]  # the log-probability of each continuation in nats, summed from the first step

    def at(self, *indices: Tensor) -> "Continuations":
        """The continuations at these indices, one tensor for each dimension."""
        return Continuations(*(field[indices] for field in self))


class BackPointers:
    """The history of a search. For every step it has the row that each new row continues and the token it adds, and the
    attention of the rows before the step. Nothing is copied when rows are reordered; `hypotheses` follows the pointers.
    """

    def __init__(self, prefix: Prefix) -> None:
        """Start with a row for each sentence. In the steps of a prefix every row continues itself."""
        self._tokens: list[list[int]] = prefix.tokens[:, 1:].T.tolist()
        self._rows = [list(range(len(prefix.tokens)))] * len(self._tokens)
        self._attention, self._locations = (
            [] if steps is None else [*steps.cpu().unbind(1)] for steps in (prefix.attention, prefix.location)
        )

    def attend(self, alpha: Float[Tensor, "N S"], location: Int[Tensor, "N"] | None) -> None:
        """Add the attention of a step, and the locations of hard attention; call this at every step or at none. They
        stay on their device until hypotheses end.
        """
        self._attention.append(alpha)
        if location is not None:
            self._locations.append(location)

    def extend(self, rows: Int[Tensor, "N"], tokens: Int[Tensor, "N"]) -> None:
        """Add a step: for each new row, the row that it continues and the token that it adds."""
        self._rows.append(rows.tolist())
        self._tokens.append(tokens.tolist())

    def hypotheses(self, last: Continuations) -> list[Hypothesis]:
        """The hypotheses that end in these continuations."""
        path, ids = [last.row.tolist()], [last.token.tolist()]
        for parents, step_tokens in zip(reversed(self._rows), reversed(self._tokens), strict=True):
            ids.append([step_tokens[row] for row in path[-1]])
            path.append([parents[row] for row in path[-1]])
        for steps in (self._attention, self._locations):
            steps[:] = [step.cpu() for step in steps]
        attention, locations = (_select_path(steps, path[::-1]) for steps in (self._attention, self._locations))
        return hypotheses([list(reversed(row)) for row in zip(*ids, strict=True)], attention, locations, last.log_p)


def _select_path(steps: list[Tensor], path: list[list[int]]) -> Tensor | None:
    """Select the values of each step along a path (T lists of n rows): n×T×…, or None if steps have no values."""
    if len(steps) < len(path):
        return None
    return torch.stack([step.index_select(0, rows) for step, rows in zip(steps, torch.tensor(path), strict=True)], 1)


class Candidate(NamedTuple):
    """A continuation that was considered."""

    parent: int  # the index of the candidate that it continues, in the previous step; −1 at the first step
    token: int  # the id that it adds
    log_probability: float  # its log-probability in nats, summed from the first step
    fate: str  # `kept` in the beam, `ended` (with EOS, set aside) or `pruned`


class Lattice:
    """A record of a search, filled by it if passed to it as `trace`. `steps[sentence][t]` are the candidates of step t,
    best first. A sentence gets no more steps once its search is over.
    """

    def __init__(self) -> None:
        self.steps: defaultdict[int, list[list[Candidate]]] = defaultdict(list)
        self._beams: dict[int, list[int]] = {}  # the indices of the last step's beams among its candidates

    def add(self, sentences: Tensor, best: Continuations, kept: Tensor) -> None:
        """Add a step of n sentences: the continuations considered, n×W, and the indices of the kept ones, n×beam."""
        beam = kept.shape[1]
        columns = (column.tolist() for column in (sentences, *best, kept))
        for sentence, rows, tokens, log_p, kept_indices in zip(*columns, strict=True):
            parents = self._beams.get(sentence, [-1] * beam)
            self._beams[sentence] = kept_indices
            step = []
            for index, (row, token, value) in enumerate(zip(rows, tokens, log_p, strict=True)):
                survives, fate = (index < beam, "ended") if token == EOS else (index in kept_indices, "kept")
                if value != -math.inf:
                    step.append(Candidate(parents[row % beam], token, value, fate if survives else "pruned"))
            self.steps[sentence].append(step)
