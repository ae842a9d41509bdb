"""The tree of a beam search as a page draws it, and where a translation of one's own left it."""

from collections.abc import Sequence
from typing import Any

from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.pointers import Candidate, Lattice
from seqtool.decoding.ranking import LengthPenalty
from seqtool.models.tokens import EOS
from seqtool.predict.predictor import END

SIX = 6  # digits of a log-probability


def tree(lattice: Lattice, found: Sequence[Sequence[str]], penalty: LengthPenalty, known: Vocabulary) -> dict[str, Any]:
    """The candidates of each step, best first: parent (a place in the step before, −1 at the first step), token,
    log_probability, score (by the length penalty), fate (`kept`, `ended`, `pruned`) and, for the last token of the n
    best, its rank from 0. `found`: the pieces of the n best, without what a prefix gave.
    """
    steps, paths = lattice.steps[0], _paths(lattice.steps[0])
    ranks = {tuple(pieces): rank for rank, pieces in enumerate(found)}
    drawn = []
    for length, (step, ways) in enumerate(zip(steps, paths, strict=True), 1):
        candidates = []
        for one, way in zip(step, ways, strict=True):
            shown = {
                "parent": one.parent,
                "token": _piece(one.token, known),
                "log_probability": round(one.log_probability, SIX),
                "score": round(one.log_probability / penalty(length), SIX),
                "fate": one.fate,
            }
            pieces = tuple(known.piece(token) for token in way if token != EOS)
            ends = one.fate == "ended" or (length == len(steps) and one.fate == "kept")
            if ends and pieces in ranks:
                shown["rank"] = ranks[pieces]
            candidates.append(shown)
        drawn.append(candidates)
    return {"steps": drawn}


def left(lattice: Lattice, ids: Sequence[int], known: Vocabulary) -> dict[str, Any] | None:
    """Where the text of these ids (EOS included) was last in the beam: the step (from 0) at which it was not among
    those kept, its token there, and what was kept instead, best first; None if it stayed to its end. `over`: it was
    kept, but longer than what ended the search.
    """
    paths = _paths(lattice.steps[0])
    for t, (step, ways) in enumerate(zip(lattice.steps[0], paths, strict=True)):
        place = next((i for i, way in enumerate(ways) if way == list(ids[: t + 1])), None)
        if place is not None and step[place].fate != "pruned":
            if t + 1 == len(ids):
                return None
            continue
        better = [one for one in step if one.fate != "pruned"]
        return {
            "step": t,
            "token": _piece(ids[t], known) if t < len(ids) else END,
            "considered": place is not None,
            "beaten_by": [
                {"token": _piece(one.token, known), "log_probability": round(one.log_probability, SIX)}
                for one in better
            ],
        }
    after = len(lattice.steps[0])
    return {"step": after, "token": _piece(ids[after], known), "considered": False, "beaten_by": [], "over": True}


def _paths(steps: Sequence[Sequence[Candidate]]) -> list[list[list[int]]]:
    """For each step and candidate the ids up to it."""
    paths: list[list[list[int]]] = []
    for step in steps:
        before = paths[-1] if paths else []
        paths.append([[*(before[one.parent] if one.parent >= 0 else []), one.token] for one in step])
    return paths


def _piece(token: int, known: Vocabulary) -> str:
    return END if token == EOS else known.piece(token)
