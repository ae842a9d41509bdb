"""What a beam search considered, for whoever asks: back-pointers, scores and pruned branches."""

import math
from collections import defaultdict
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from seqtool.decoding.pointers import Branches
from seqtool.models.tokens import EOS


class Candidate(NamedTuple):
    """A continuation that was considered. parent: its place among those of the step before, −1 at the first step;
    log_probability: in nats, from the first step on; fate: `kept` in the beam, `ended` (with EOS, set aside) or
    `pruned`.
    """

    parent: int
    token: int
    log_probability: float
    fate: str


class Lattice:
    """`steps[sentence][t]` are the candidates of step t, the best first: to be given to a search as its `trace`. There
    is no further step once the search of a sentence is over.
    """

    def __init__(self) -> None:
        self.steps: defaultdict[int, list[list[Candidate]]] = defaultdict(list)
        self._beams: dict[int, list[int]] = {}  # where the last step's beams are among its candidates

    def add(self, sentences: Int[Tensor, "B"], best: Branches, kept: Int[Tensor, "B K"]) -> None:
        """One step of the given sentences: the branches considered, B×W, and the places of those kept."""
        beam = kept.shape[1]
        columns = (one.tolist() for one in (sentences, *best, kept))
        for sentence, rows, tokens, log_p, places in zip(*columns, strict=True):
            before = self._beams.get(sentence, [-1] * beam)
            self._beams[sentence] = places
            fates = [_fate(place, token, beam, places) for place, token in enumerate(tokens)]
            candidates = zip((before[row % beam] for row in rows), tokens, log_p, fates, strict=True)
            self.steps[sentence].append([Candidate(*one) for one in candidates if one[2] != -math.inf])


def _fate(place: int, token: int, beam: int, kept: list[int]) -> str:
    if token == EOS:
        return "ended" if place < beam else "pruned"
    return "kept" if place in kept else "pruned"
