"""How a search records where its rows came from and, on request, which continuations it considered."""

import math
from collections import defaultdict
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.decoding.forced import Prefix
from seqtool.models.tokens import EOS


class Branches(NamedTuple):
    """Continuations, all on the CPU: row, the row of the search that each continues; token, its id; log_p, in nats,
    summed from the first step. Those of a step are B×W, W for each sentence; others have one dimension.
    """

    row: Int[Tensor, "..."]
    token: Int[Tensor, "..."]
    log_p: Float[Tensor, "..."]


class Pointers:
    """For every step of a search: the row that each new row continues, its token, and the attention as computed in that
    step, for the rows before it. Nothing is copied when rows are reordered; `trace` follows the pointers back.
    """

    def __init__(self, prefix: Prefix, sentences: Int[Tensor, "N"]) -> None:
        """`sentences`: the sentence of each of the first rows. The prefix counts as steps that changed no row."""
        known = prefix.tokens[sentences, 1:].T.tolist()
        self._rows = [list(range(len(sentences)))] * len(known)
        self._tokens: list[list[int]] = known
        self._attention = [] if prefix.attention is None else [*prefix.attention[sentences].cpu().unbind(1)]

    def attend(self, alpha: Float[Tensor, "N S"]) -> None:
        """Add a step's attention; call this at every step or at none."""
        self._attention.append(alpha.cpu())

    def extend(self, rows: Int[Tensor, "N"], tokens: Int[Tensor, "N"]) -> None:
        """Add a step: the rows that the new ones continue, and the tokens they add."""
        self._rows.append(rows.tolist())
        self._tokens.append(tokens.tolist())

    def trace(
        self, rows: Int[Tensor, "n"], tokens: Int[Tensor, "n"]
    ) -> tuple[list[list[int]], Float[Tensor, "n T S"] | None]:
        """For the hypotheses that continue `rows` with `tokens`: all ids after BOS, and attention or None."""
        path, ids = [rows.tolist()], [tokens.tolist()]
        for parents, fed in zip(reversed(self._rows), reversed(self._tokens), strict=True):
            ids.append([fed[row] for row in path[-1]])
            path.append([parents[row] for row in path[-1]])
        whole = [list(reversed(one)) for one in zip(*ids, strict=True)]
        if len(self._attention) < len(path):
            return whole, None
        steps = zip(self._attention, torch.tensor(path[::-1]), strict=True)
        return whole, torch.stack([alpha.index_select(0, attending) for alpha, attending in steps], 1)


class Candidate(NamedTuple):
    """A continuation that was considered. parent: its place among those of the step before, −1 at the first step;
    log_probability: in nats, summed from the first step; fate: `kept` in the beam, `ended` (with EOS, set aside) or
    `pruned`.
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

    def add(self, sentences: Tensor, best: Branches, kept: Tensor) -> None:
        """One step of the given n sentences: the branches considered, n×W, and the places of those kept, n×beam."""
        beam = kept.shape[1]
        columns = (one.tolist() for one in (sentences, *best, kept))
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
