"""The tree of a beam search as a page draws it, and where a given translation left it."""

from collections.abc import Sequence
from typing import Any

from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.beam_search import Candidate, Lattice, LengthPenalty
from seqtool.models.tokens import EOS
from seqtool.predict.predictor import displayed

DIGITS = 6  # of a log-probability


def tree(
    lattice: Lattice, n_best: Sequence[Sequence[str]], penalty: LengthPenalty, vocabulary: Vocabulary
) -> dict[str, Any]:
    """The candidates of each step, best first: parent (a place in the step before, −1 at the first step), token,
    log_probability, score (by the length penalty), fate (`kept`, `ended`, `pruned`) and, for the last token of the n
    best, its rank from 0.

    n_best: the pieces of the n best, without those of a prefix.
    """
    steps, ranks = lattice.steps[0], {tuple(pieces): rank for rank, pieces in enumerate(n_best)}
    drawn = []
    for length, (step, paths) in enumerate(zip(steps, _paths(steps), strict=True), 1):
        candidates = []
        for candidate, path in zip(step, paths, strict=True):
            shown = {"parent": candidate.parent, **_described(candidate, vocabulary)}
            shown |= {"score": round(candidate.log_probability / penalty(length), DIGITS), "fate": candidate.fate}
            pieces = tuple(vocabulary.piece(token) for token in path if token != EOS)
            ends = candidate.fate == "ended" or (length == len(steps) and candidate.fate == "kept")
            if ends and pieces in ranks:
                shown["rank"] = ranks[pieces]
            candidates.append(shown)
        drawn.append(candidates)
    return {"steps": drawn}


def left(lattice: Lattice, ids: Sequence[int], vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Where the text of these ids (EOS included) left the beam: the step (from 0) at which it was not kept, its token
    there, and what was kept instead, best first; None if it stayed to its end. `over`: it was kept, but is longer than
    what ended the search.
    """
    steps = lattice.steps[0]
    for t, (step, paths) in enumerate(zip(steps, _paths(steps), strict=True)):
        place = next((i for i, path in enumerate(paths) if path == list(ids[: t + 1])), None)
        if place is None or step[place].fate == "pruned":
            return {
                "step": t,
                "token": displayed(ids[t], vocabulary),
                "considered": place is not None,
                "beaten_by": [_described(candidate, vocabulary) for candidate in step if candidate.fate != "pruned"],
            }
        if t + 1 == len(ids):
            return None
    token = displayed(ids[len(steps)], vocabulary)
    return {"step": len(steps), "token": token, "considered": False, "beaten_by": [], "over": True}


def _paths(steps: Sequence[Sequence[Candidate]]) -> list[list[list[int]]]:
    """For each step and candidate the ids up to it."""
    paths: list[list[list[int]]] = []
    for step in steps:
        before = paths[-1] if paths else []
        paths.append([[*(before[node.parent] if node.parent >= 0 else []), node.token] for node in step])
    return paths


def _described(candidate: Candidate, vocabulary: Vocabulary) -> dict[str, Any]:
    token = displayed(candidate.token, vocabulary)
    return {"token": token, "log_probability": round(candidate.log_probability, DIGITS)}
