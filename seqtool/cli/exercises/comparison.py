"""An answer beside ours: the first tensor that differs, and the likely mistake."""

import inspect
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import seqtool
from seqtool.cli.exercises.exercise import CASES, EXERCISES, HINTS, Answer, Case, Exercise, described

FOREIGN = ("<", *(str(Path(inspect.getfile(module)).parent) for module in (os, torch, seqtool)))  # no answer is there


class Difference(NamedTuple):
    """What differs from ours, and the likely mistake, or nothing, as clauses; the exception, if there was one."""

    what: str
    mistake: str = ""
    error: Exception | None = None


Tensors = dict[str, Tensor]  # results, or gradients, by their names


def compare(name: str, answer: Answer) -> Difference | None:
    """The first difference between an answer and ours: of the results in all cases, then of gradients."""
    exercise = EXERCISES[name]
    for gradients in (False, True)[: 1 + exercise.differentiable]:
        cases = [case for case in CASES if case.scale == 1 or not gradients]
        right = [_tensors(exercise.solution(), exercise, case, gradients) for case in cases]
        again, *given = [_tensors(answer, exercise, case, gradients) for case in (cases[0], *cases)]
        if not _equal(again, given[0]):
            return Difference("two calls with the same numbers differ", "it draws random numbers or keeps something")
        wrong = [i for i in range(len(cases)) if not _equal(right[i], given[i])]
        if wrong:
            known = "" if gradients else _known(exercise, right, given)
            first = _between(right[wrong[0]], given[wrong[0]], [cases[i] for i in wrong])
            return Difference(f"{first.what} ({exercise.sizes(cases[wrong[0]])})", known or first.mistake, first.error)
    return None


def raised(error: Exception) -> Difference:
    """An exception in somebody's code, with its line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(FOREIGN)]
    place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, {frames[-1].line}: " if frames else ""
    message = str(error).strip().partition("\n")[0].rstrip(".")
    return Difference(f"{place}{type(error).__name__}: {message}", _reason(message), error)


def _reason(message: str) -> str:
    """The likely mistake behind an exception that says this."""
    return next((mistake for pattern, mistake in HINTS["raised"].items() if re.search(pattern, message)), "")


def _tensors(answer: Answer, exercise: Exercise, case: Case, gradients: bool) -> Tensors | Difference:
    """An answer's results, 0 where they do not count; or the gradients of a weighted sum of them, for each argument."""
    inputs, before, usual = exercise.drawn(case), exercise.drawn(case), torch.get_default_dtype()
    leaves = {n: x.requires_grad_(gradients) for n, x in inputs.items() if torch.is_tensor(x) and x.is_floating_point()}
    torch.set_default_dtype(torch.float64)  # of what an answer makes without a type
    try:
        returned = answer(**inputs)
        results = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        if len(results) != len(exercise.results) or not all(isinstance(result, Tensor) for result in results):
            kinds = " and ".join(type(result).__name__ for result in results)
            return Difference(f"it returns {kinds}", f"what is asked for are tensors: {described(exercise.results)}")
        tensors: Tensors = dict(zip(exercise.results, results, strict=True))
        for name, argument in before.items():
            if isinstance(argument, Tensor) and not torch.equal(argument, inputs[name]):
                return Difference(f"the argument {name} is changed", _reason("in-place"))
        for name, result in tensors.items():
            if result.dtype != (expected := torch.int64 if name in ("row", "token") else torch.float64):
                return Difference(f"{name} is {result.dtype} instead of {expected}", _reason(str(result.dtype)))
            if exercise.real and result.shape[:2] == inputs[exercise.real].shape:
                tensors[name] = result.where(inputs[exercise.real][:, :, None], torch.zeros_like(result))
        if not gradients:
            return tensors
        flat = torch.cat([result.flatten() for result in tensors.values()])
        weighted = flat @ torch.arange(1, len(flat) + 1).cos()
        values = torch.autograd.grad(weighted, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return {f"the gradient of {name}": value for name, value in zip(leaves, values, strict=True)}
    except Exception as error:  # somebody's code may raise anything
        return raised(error)
    finally:
        torch.set_default_dtype(usual)


def _equal(ours: Tensors | Difference, theirs: Tensors | Difference) -> bool:
    """Whether tensors are equal to rounding, wherever the first is a number, or both are none."""
    if isinstance(ours, Difference) or isinstance(theirs, Difference):
        return isinstance(ours, Difference) and isinstance(theirs, Difference)
    return all(_same(our, theirs[name]) for name, our in ours.items())


def _same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-8) -> bool:
    """Whether two tensors are equal but for the rounding of float64, which is far below that of float32."""
    close = torch.isclose(ours.double(), theirs.double(), tolerance, tolerance) if ours.shape == theirs.shape else None
    return close is not None and bool((close | ours.isnan()).all())


def _known(exercise: Exercise, right: Sequence[Tensors | Difference], given: Sequence[Tensors | Difference]) -> str:
    """The known mistake that gives the same. Large numbers are left out, as they may overflow as well."""
    for mistake, wrong in exercise.wrong():
        results = [_tensors(wrong, exercise, case, gradients=False) for case in CASES if case.scale == 1]
        told = (not isinstance(r, Difference) and not _equal(r, ours) for r, ours in zip(results, right, strict=False))
        if any(told) and all(map(_equal, results, given)):
            return mistake
    return ""


def _between(ours: Tensors | Difference, theirs: Tensors | Difference, wrong: Sequence[Case]) -> Difference:
    """The first tensor that differs in the first of the cases that are wrong."""
    if isinstance(theirs, Difference):
        return theirs
    assert not isinstance(ours, Difference)
    name = next(name for name in ours if not _same(ours[name], theirs[name]))
    our, their = ours[name], theirs[name]
    mistake = next(_reasons(name, ours, theirs, wrong), "")
    shapes = ["×".join(map(str, tensor.shape)) or "a number" for tensor in (their, our)]
    if shapes[0] != shapes[1]:
        return Difference(f"{name} is {shapes[0]} instead of {shapes[1]}", mistake)
    apart = (our.double() - their.double()).abs().nan_to_num(torch.inf, torch.inf).where(our != their, 0)
    place = torch.unravel_index(apart.argmax(), our.shape)
    most = f"{apart.max():.4g} at {[*map(int, place)]}, where yours is {their[place]:.4g} and ours {our[place]:.4g}"
    return Difference(f"{name}, {shapes[0]}, differs by up to {most}".replace(" at []", ""), mistake)


def _reasons(name: str, ours: Tensors, theirs: Tensors, wrong: Sequence[Case]) -> Iterator[str]:
    """What may be the reason, the likeliest first."""
    our, their = ours[name], theirs[name]
    if any(_same(our, other) for other in theirs.values()):
        yield f"the results are in another order: they should be {', '.join(ours)}"
    if any(_same(our, their.transpose(*pair)) for pair in combinations(range(their.ndim), 2)):
        yield "two axes are exchanged"
    if our.squeeze().shape == their.squeeze().shape and our.shape != their.shape:
        yield "an axis of length 1 is missing or one too many: squeeze() without an axis removes each of them"
    if our.shape != their.shape:
        yield "an axis is summed or lost" if our.ndim > their.ndim else "an axis is left, or another's place is taken"
    if wrong[0].scale == 1 and their.isnan().any():
        yield "NaN comes of 0 / 0 or ∞ − ∞, as in the softmax of a row where everything is masked"
    if _same(our, their, 1e-5):
        yield "so little is rounding in single precision, or a small number that is added, such as 1e-6"
    if name.startswith("the gradient"):
        yield f"a part of it has no gradient, although the results are right: {_reason('requires grad')}"
    yield from (why for what, why in HINTS["only"].items() if all(eval(what, case._asdict()) for case in wrong))
    ratios = (their / our)[our.isfinite() & (our.abs() > 1e-3)]
    if len(ratios) > 1 and _same(ratios[:1].expand_as(ratios), ratios) and abs(ratios[0]) > 1e-6:
        yield f"every number is ours times {ratios[0]:.4g}"
