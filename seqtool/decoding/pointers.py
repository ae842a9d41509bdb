"""How a search records where its rows came from and, on request, which continuations it considered."""

import math
from collections import defaultdict
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.decoding.forced import Prefix
from seqtool.models.tokens import EOS


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


class Traced(NamedTuple):
    """n hypotheses that were followed back: all ids after BOS; attention, and locations of hard attention, or None."""

    ids: list[list[int]]
    attention: Float[Tensor, "n T S"] | None
    locations: Int[Tensor, "n T"] | None


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

    def trace(self, rows: Int[Tensor, "n"], tokens: Int[Tensor, "n"]) -> Traced:
        """The hypotheses that continue `rows` with `tokens`."""
        path, ids = [rows.tolist()], [tokens.tolist()]
        for parents, added in zip(reversed(self._rows), reversed(self._tokens), strict=True):
            ids.append([added[row] for row in path[-1]])
            path.append([parents[row] for row in path[-1]])
        attention, locations = (_followed(steps, path[::-1]) for steps in (self._attention, self._locations))
        return Traced([list(reversed(row)) for row in zip(*ids, strict=True)], attention, locations)


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
