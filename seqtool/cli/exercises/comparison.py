"""An answer beside ours: the first tensor that differs, and the likely mistake."""

import re
import traceback
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import seqtool
from seqtool.cli.exercises.answers import ANSWERS
from seqtool.cli.exercises.exercise import CASES, EXERCISES, Answer, Case, Exercise, described

TOLERANCE = 1e-8  # far above the rounding of float64, and below that of float32
FOREIGN = (str(Path(torch.__file__).parent), str(Path(seqtool.__file__).parent), "<")  # not the files of an answer

CUT = "the gradient is cut off: by .detach(), .data, .item(), numpy or torch.no_grad()"
SINGLE = "a tensor is made in single precision: give it the type of the inputs, as torch.zeros_like does"
RAISED = {  # by what an exception says
    r"requires grad|does not have a grad_fn": CUT,
    r"dtype|Float .*Double|Double .*Float": SINGLE,
    r"in-?place operation": "a number that the gradient still needs is changed in place (+=, x[…] = …, relu_)",
    r"out of (bounds|range)": "positions are counted from 0, so the last of n is n − 1",
    r"size|shape|[Dd]imension|multiplied": "an axis is missing, one too many, or in another's place",
}
ONLY: Sequence[tuple[Callable[[Case], bool], str]] = (  # by the cases which alone are wrong
    (lambda case: case.scale > 1, "exp overflows for large numbers, or a logarithm is of 0: use softmax or log_softmax"),
    (lambda case: case.padded, "it is right without padding, so what stands at padding still counts somewhere"),
    (lambda case: case.B > 1, "it is right for a batch of one, so the rows of a batch influence each other"),
    (lambda case: case.B == 1, "only a batch of one is wrong: squeeze() without an axis removes every axis of length 1"),
    (lambda case: case.T == 1, "only a length of 1 is wrong: squeeze() without an axis removes every axis of length 1"),
)

Results = tuple[Tensor, ...]


class Difference(NamedTuple):
    """What differs from ours, and the likely mistake, or nothing, as clauses; the exception, if there was one."""

    what: str
    mistake: str = ""
    error: Exception | None = None


def compare(name: str, answer: Answer) -> Difference | None:
    """The first difference between an answer and ours: of their results in every case, then of their gradients."""
    exercise, ours = EXERCISES[name], ANSWERS[name]
    right, given = ([_results(each, exercise, case) for case in CASES] for each in (ours, answer))
    wrong = [i for i in range(len(CASES)) if not _equal(right[i], given[i])]
    if wrong:
        first, expected = given[wrong[0]], right[wrong[0]]
        assert not isinstance(expected, Difference)
        known = _known(exercise, right, given)
        if not isinstance(first, Difference):
            first = _between(exercise, expected, first, [CASES[i] for i in wrong])
            first = first._replace(mistake=known or first.mistake)
        elif first.error is not None:
            first = first._replace(mistake=known or first.mistake)
        return first._replace(what=f"{first.what} ({exercise.sizes(CASES[wrong[0]])})")
    for case in CASES if exercise.differentiable else ():
        difference = _of_gradients(*(_gradients(each, exercise, case) for each in (ours, answer)))
        if difference is not None and case.scale == 1:
            return difference._replace(what=f"{difference.what} ({exercise.sizes(case)})")
    return None


def raised(error: Exception) -> Difference:
    """An exception in somebody's code, with its line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(FOREIGN)]
    place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, {frames[-1].line}: " if frames else ""
    if isinstance(error, SyntaxError):
        place = f"{Path(error.filename or '').name}, line {error.lineno}: "
    message = str(error).strip().partition("\n")[0]
    mistake = next((mistake for pattern, mistake in RAISED.items() if re.search(pattern, message)), "")
    return Difference(f"{place}{type(error).__name__}: {message.rstrip('.')}", mistake, error)


def _results(answer: Answer, exercise: Exercise, case: Case) -> Results | Difference:
    """What an answer returns, twice: of results that count nowhere, 0."""
    before, calls = exercise.drawn(case), []
    for _ in range(2):
        arguments = exercise.drawn(case)
        try:
            returned = answer(**arguments)
        except Exception as error:  # somebody's code may raise anything
            return raised(error)
        results = _tuple(returned)
        if len(results) != len(exercise.results) or not all(isinstance(result, Tensor) for result in results):
            kinds = " and ".join(type(result).__name__ for result in results)
            return Difference(f"it returns {kinds}, but is asked for {described(exercise.results)}")
        for name, argument in before.items():
            if isinstance(argument, Tensor) and not torch.equal(argument, arguments[name]):
                return Difference(f"it changes its argument {name}", "an operation works in place (+=, …_): use a copy")
        for name, result in zip(exercise.results, results, strict=True):
            if result.is_floating_point() and result.dtype != torch.float64:
                return Difference(f"{name} has the type {result.dtype}, but all inputs have torch.float64", SINGLE)
        calls.append(tuple(_where_it_counts(exercise, before, result) for result in results))
    if not _equal(*calls, but_nan=True):
        return Difference("two calls with the same numbers give different results", "it draws random numbers")
    return calls[0]


def _tuple(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def _where_it_counts(exercise: Exercise, arguments: dict[str, Any], result: Tensor) -> Tensor:
    mask = arguments.get(exercise.real)
    if mask is None or result.shape[: mask.ndim] != mask.shape:
        return result
    return result.where(mask.view(*mask.shape, *[1] * (result.ndim - mask.ndim)), torch.zeros_like(result))


def _equal(ours: Results | Difference, theirs: Results | Difference, *, but_nan: bool = False) -> bool:
    """Whether results are equal to rounding, or are both exceptions; with `but_nan`, wherever ours is a number."""
    if isinstance(ours, Difference) or isinstance(theirs, Difference):
        return all(isinstance(each, Difference) and each.error is not None for each in (ours, theirs))
    return all(
        our.shape == their.shape
        and our.is_floating_point() == their.is_floating_point()
        and bool((_close(our, their) | (our.isnan() & but_nan)).all())
        for our, their in zip(ours, theirs, strict=True)
    )


def _close(ours: Tensor, theirs: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    return torch.isclose(ours.double(), theirs.double(), tolerance, tolerance)


def _known(
    exercise: Exercise, right: Sequence[Results | Difference], given: Sequence[Results | Difference]
) -> str | None:
    """The known mistake that gives the same, if there is one. Large numbers are left out: they may overflow as well."""
    usual = [i for i, case in enumerate(CASES) if case.scale == 1]
    for mistake, wrong in exercise.wrong():
        results = {i: _results(wrong, exercise, CASES[i]) for i in usual}
        tells = any(not _equal(results[i], right[i], but_nan=True) for i in usual if type(results[i]) is tuple)
        if tells and all(_equal(results[i], given[i], but_nan=True) for i in usual):
            return mistake
    return None


def _between(exercise: Exercise, ours: Results, theirs: Results, wrong: Sequence[Case]) -> Difference:
    """The first of the results that differs."""
    pairs = zip(exercise.results, ours, theirs, strict=True)
    name, our, their = next(pair for pair in pairs if not _equal(pair[1:2], pair[2:]))
    if len(theirs) > 1 and any(_equal((our,), (other,)) for other in theirs):
        expected = f"the results are in another order: they should be {', '.join(exercise.results)}"
        return Difference(f"{name} is another result", expected)
    if their.shape != our.shape:
        shapes = f"{_shape(their)}, but {exercise.results[name] or 'a number'} is {_shape(our)}"
        return Difference(f"{name} has the shape {shapes}", _of_shape(our, their))
    if their.is_floating_point() != our.is_floating_point():
        return Difference(f"{name} has the type {their.dtype}, but ours {our.dtype}")
    only = next((why for alone, why in ONLY if all(map(alone, wrong))), "")
    mistake = only if wrong[0].scale > 1 else _of_values(our, their) or only or _of_pattern(our, their)
    return Difference(f"{name} {_most(our, their)}", mistake)


def _most(ours: Tensor, theirs: Tensor) -> str:
    """Where two tensors differ most."""
    apart = (ours.double() - theirs.double()).abs().nan_to_num(torch.inf, torch.inf).where(~_close(ours, theirs), -1.0)
    place = torch.unravel_index(apart.argmax(), ours.shape)
    index, count = [int(i) for i in place], int((apart >= 0).sum())
    start = f"({_shape(ours)}) differs" + (f" in {count} of {ours.numel()} numbers, most" if count > 1 else "")
    return f"{start} at {index}, where yours is {theirs[place]:.4g} and ours {ours[place]:.4g}"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _of_shape(ours: Tensor, theirs: Tensor) -> str:
    axes = combinations(range(theirs.ndim), 2)
    if any(theirs.transpose(*pair).shape == ours.shape for pair in axes):
        return "two axes are exchanged"
    if theirs.squeeze().shape == ours.squeeze().shape:
        return "an axis of length 1 is missing or one too many: squeeze() without an axis removes every one, keepdim keeps one"
    few = theirs.ndim < ours.ndim
    return "an axis is summed or lost that belongs to the result" if few else "an axis is left, or is one too many"


def _of_values(ours: Tensor, theirs: Tensor) -> str:
    if theirs.isnan().any():
        return "NaN comes of 0 / 0 or ∞ − ∞, as in the softmax of a row where everything is masked"
    if bool(_close(ours, theirs, 1e-5).all()):
        return "so little is rounding in single precision, or a small number that is added, such as 1e-6"
    return ""


def _of_pattern(ours: Tensor, theirs: Tensor) -> str:
    known = ours.isfinite() & (ours.abs() > 1e-3)
    factors, summands = (theirs / ours)[known], (theirs - ours)[ours.isfinite()]
    for numbers, is_what in ((factors, "is ours times"), (summands, "is ours plus")):
        if len(numbers) > 1 and bool(_close(numbers[:1], numbers).all()):
            return f"every number {is_what} {numbers[0]:.4g}"
    for pair in combinations(range(ours.ndim), 2):
        if theirs.transpose(*pair).shape == ours.shape and _equal((ours,), (theirs.transpose(*pair),)):
            return "two axes are exchanged"
    return ""


def _gradients(answer: Answer, exercise: Exercise, case: Case) -> dict[str, Tensor | None] | Difference:
    """Those of a weighted sum of the results, by the arguments' names; None where none arrives."""
    arguments, generator = exercise.drawn(case), torch.Generator().manual_seed(2)
    leaves = {name: a for name, a in arguments.items() if isinstance(a, Tensor) and a.is_floating_point()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    try:
        returned = answer(**arguments)
        results = [_where_it_counts(exercise, arguments, result) for result in _tuple(returned)]
        weights = [torch.randn(result.shape, generator=generator, dtype=torch.float64) for result in results]
        total = torch.stack([(weight * result).sum() for weight, result in zip(weights, results, strict=True)]).sum()
        if not total.requires_grad:
            return dict.fromkeys(leaves)
        return dict(zip(leaves, torch.autograd.grad(total, tuple(leaves.values()), allow_unused=True), strict=True))
    except Exception as error:  # as in `_results`
        return raised(error)


def _of_gradients(
    ours: dict[str, Tensor | None] | Difference, theirs: dict[str, Tensor | None] | Difference
) -> Difference | None:
    """The first gradient that differs."""
    assert not isinstance(ours, Difference)
    if isinstance(theirs, Difference):
        return theirs._replace(what=f"with gradients, {theirs.what}")
    for name, our in ours.items():
        their = theirs[name]
        if our is not None and their is None and bool(our.any()):
            return Difference(f"no gradient reaches {name}", CUT)
        if our is not None and their is not None and not _equal((our,), (their,)):
            mistake = _of_values(our, their) or f"a part of it has no gradient, although the results are right: {CUT}"
            return Difference(f"the gradient of {name} {_most(our, their)}", mistake)
    return None
