"""The exercises of `seqtool check`, and the comparison of an answer with the textbook solution.

exercises.yaml has a textbook solution of each exercise, and known mistakes, which are changes to its text. If an answer
gives the same numbers as a changed solution, that change is the likely mistake.
"""

import inspect
import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations, takewhile
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

import seqtool
from seqtool.models.tokens import EOS, PAD

Answer = Callable[..., Any]  # takes the arguments by name and returns a tensor or a tuple of tensors


class Case(NamedTuple):
    """A test case, for which the arguments of an exercise are drawn."""

    B: int  # the sizes of the axes B, T and S
    T: int
    S: int
    padded: bool = False  # whether there is padding; in beam search, whether there is only one hypothesis so far
    scale: int = 1  # the factor of all arguments but the parameters

    def shape(self, axes: str) -> list[int]:
        """The shape that axes such as `B×4H` describe. K equals T; if S equals T and exceeds 1, so do H, D, E and A."""
        sizes = {"B": self.B, "T": self.T, "K": self.T, "S": self.S, "H": 6, "D": 7, "E": 8, "A": 11, "V": 13}
        sizes |= dict.fromkeys("HDEA", self.T) if self.S == self.T > 1 else {}
        return [int(axis[:-1] or 1) * sizes[axis[-1]] for axis in axes.split("×") if axis]


CASES = (
    *(Case(3, 4, 5), Case(3, 4, 5, padded=True), Case(3, 3, 3, padded=True), Case(1, 4, 5)),
    *(Case(3, 1, 1), Case(1, 1, 1), Case(3, 4, 5, scale=1000)),
)


def _real_mask(x: Tensor, case: Case) -> Tensor:
    """Make a mask, B×T, that is true at real positions. With padding, row b ends with b mod T padded positions."""
    return torch.arange(x.shape[1]) < x.shape[1] - torch.arange(case.B)[:, None] % x.shape[1] * case.padded


CONVERSIONS: Mapping[str, Callable[[Tensor, Case], Any]] = {  # how some arguments are made from random numbers
    "mask": lambda x, case: _real_mask(x, case).where(torch.arange(case.B)[:, None] != 1, _real_mask(x, case).flip(1)),
    "labels": lambda x, case: torch.where(_real_mask(x, case), 1 + (1e6 * x.abs()).long() % 12, PAD),
    "lengths": lambda x, case: case.T - torch.arange(case.B) % case.T * case.padded,
    "total": lambda x, case: x.sort(1, descending=True)[0] + (torch.arange(case.T) < 9 - 8 * case.padded).log(),
    "log_p": lambda x, case: (x + (2.5 if case.T > 1 else -10) * F.one_hot(torch.tensor(EOS), 13)).log_softmax(-1),
    "alpha": lambda x, case: x.softmax(-1),
}


def described(axes: Mapping[str, str | float]) -> str:
    """List arguments or results, each with its axes or its value."""
    return ", ".join(f"{name} ({shape})" if shape else name for name, shape in axes.items())


@dataclass(frozen=True)
class Exercise:
    """An exercise: a function to write. exercises.yaml describes the fields."""

    equation: str
    arguments: Mapping[str, str | float]
    results: Mapping[str, str]
    textbook: str
    mistakes: Mapping[str, str]
    orders: str = ""
    real: str = ""
    differentiable: bool = True

    def draw(self, case: Case) -> dict[str, Any]:
        """Draw random arguments, the same at every call."""
        generator, arguments = torch.Generator().manual_seed(1), dict[str, Any](self.arguments)
        for name, axes in self.arguments.items():
            if isinstance(axes, str):
                normal = torch.randn(case.shape(axes), generator=generator, dtype=torch.float64)
                factor = 1 if name in "WUvb" else case.scale  # parameters stay small
                arguments[name] = CONVERSIONS[name](normal, case) if name in CONVERSIONS else factor * normal
        return arguments

    def axes(self, case: Case) -> dict[int, str]:
        """The axes of arguments and results, by size."""
        axes = "×".join(map(str, (*self.arguments.values(), *self.results.values()))).split("×")
        return {case.shape(axis)[0]: axis for axis in axes if axis[-1:].isalpha()}

    def sizes(self, case: Case) -> str:
        """Describe a case in words."""
        sizes = [f"{axis}={case.shape(axis)[0]}" for axis in "BTKS" if axis in str(self.arguments.values())]
        padded = "with one hypothesis so far" if "total" in self.arguments else "with padding"
        return ", ".join(sizes + [padded] * case.padded + ["with large numbers"] * (case.scale > 1))

    def known_mistakes(self) -> Iterator[tuple[str, Answer]]:
        """Yield the clause that describes each mistake, and the solution that makes it."""
        for mistake, replacements in self.mistakes.items():
            for mask_change in ("", " ; -1e9 ⇒ -inf")[: 1 + ("-1e9" in self.textbook)]:  # differ only if all is masked
                yield mistake, self.solution(replacements + mask_change)
        for order in map(", ".join, list(permutations(self.orders.split(", ")))[1:]):
            mistake = f"the gates are expected in the order {self.orders}, but yours are {order}"
            yield mistake, self.solution(f"lambda {self.orders}: ⇒ lambda {order}:")

    def small_changes(self) -> Iterator[tuple[str, Answer]]:
        """Yield a clause for each small change that exercises.yaml lists, and the solution with that change."""
        for pattern, replacements in CHANGES.items():
            for match in re.finditer(pattern, self.textbook):
                before, after = self.textbook[: match.start()], self.textbook[match.end() :]
                left, right = re.findall(r"\S*$", before)[0], re.findall(r"^\S*", after)[0]
                for text in map(match.expand, replacements):
                    yours, ours = (f"{left}{middle}{right}".strip(" ,:") or "nothing" for middle in (text, match[0]))
                    changed = replace(self, textbook=before + text + after)
                    yield f"{yours} is used where {ours} belongs", changed.solution()

    def pairs(self) -> Iterator[tuple[str, Answer]]:
        """Yield a clause for each two known mistakes, and the solution that makes both."""
        for (first, change), (second, other_change) in combinations(self.mistakes.items(), 2):
            yield f"{first}; and {second}", self.solution(f"{change} ; {other_change}")

    def solution(self, replacements: str = "") -> Answer:
        """The textbook solution, or a wrong one that is made by replacements in its text, `old ⇒ new ; old ⇒ new`."""
        source = self.textbook
        for replacement in replacements.split(" ; "):
            old, _, new = replacement.partition(" ⇒")
            source = source.replace(old, new.strip(" "))

        def answer(**arguments: Any) -> Any:  # compiled here, since a change may make it invalid
            names = {**vars(F), **vars(torch), "torch": torch}
            exec(f"def answer({', '.join(arguments)}):\n{indent(source, '    ')}", names)  # text of this package
            return names["answer"](**arguments)

        return answer


CATALOGUE = yaml.safe_load(Path(__file__).with_name("exercises.yaml").read_bytes())  # type: ignore[no-untyped-call]
HINTS: Mapping[str, Mapping[str, str]] = CATALOGUE.pop("hints")
CHANGES: Mapping[str, Sequence[str]] = CATALOGUE.pop("changes")
EXERCISES = {name: Exercise(**fields) for name, fields in CATALOGUE.items()}

# files that contain no answer: those of Python, torch and seqtool
LIBRARIES = ("<", *(str(Path(inspect.getfile(module)).parent) + os.sep for module in (os, torch, seqtool)))


class Difference(NamedTuple):
    """A difference from the textbook solution and the likely mistake, as clauses."""

    what: str  # what differs
    mistake: str = ""  # the likely mistake; empty if none is known
    error: Exception | None = None  # the exception that the answer raised, if it raised one


Tensors = dict[str, Tensor]  # results, or gradients, by their names
Results = Tensors | Difference


def compare(name: str, answer: Answer) -> Difference | None:
    """The first difference of an answer from the textbook solution: in all cases' results, then in the gradients."""
    exercise = EXERCISES[name]
    for gradients in (False, True)[: 1 + exercise.differentiable]:
        cases = [case for case in CASES if case.scale == 1 or not gradients]
        ours = [_tensors(exercise.solution(), exercise, case, gradients) for case in cases]
        repetition, *theirs = [_tensors(answer, exercise, case, gradients) for case in (cases[0], *cases)]
        if not _equal(repetition, theirs[0]):
            return Difference("two calls with the same numbers differ", "it draws random numbers or keeps something")
        if failures := [i for i in range(len(cases)) if not _equal(ours[i], theirs[i])]:
            mistake = "" if gradients else _find_mistake(exercise, ours, theirs)
            first = _find_difference(ours[failures[0]], theirs[failures[0]], exercise, [cases[i] for i in failures])
            what = f"{first.what} ({exercise.sizes(cases[failures[0]])})"
            return first._replace(what=what, mistake=mistake or first.mistake)
    return None


def raised(error: Exception) -> Difference:
    """Describe an exception in the user's code, with its line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(LIBRARIES)]
    place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, {frames[-1].line}: " if frames else ""
    message = str(error).strip().partition("\n")[0].rstrip(".")
    return Difference(f"{place}{type(error).__name__}: {message}", _reason(message), error)


def _reason(message: str) -> str:
    """The likely mistake behind an exception with this message."""
    return next((mistake for pattern, mistake in HINTS["raised"].items() if re.search(pattern, message)), "")


def _tensors(answer: Answer, exercise: Exercise, case: Case, gradients: bool) -> Results:
    """The results, with 0 where they do not count; or each argument's gradient of a weighted sum of the results."""
    inputs, originals, default_dtype = exercise.draw(case), exercise.draw(case), torch.get_default_dtype()
    leaves = {n: x.requires_grad_(gradients) for n, x in inputs.items() if torch.is_tensor(x) and x.is_floating_point()}
    torch.set_default_dtype(torch.float64)  # for tensors that the answer makes without a dtype
    try:
        output = answer(**inputs)
        results = tuple(output) if isinstance(output, tuple | list) else (output,)
        if len(results) != len(exercise.results) or not all(isinstance(result, Tensor) for result in results):
            kinds = " and ".join(type(result).__name__ for result in results)
            return Difference(f"it returns {kinds}", f"what is asked for are tensors: {described(exercise.results)}")
        tensors: Tensors = dict(zip(exercise.results, results, strict=True))
        for name, argument in originals.items():
            if isinstance(argument, Tensor) and not torch.equal(argument, inputs[name]):
                return Difference(f"the argument {name} is changed", _reason("in-place"))
        for name, result in tensors.items():
            types = (torch.int64, torch.int32) if name in ("row", "token") else (torch.float64,)
            if result.dtype not in types:
                return Difference(f"{name} is {result.dtype} instead of {types[0]}", _reason(str(result.dtype)))
            if exercise.real and result.ndim == 3 and result.shape[:2] == inputs[exercise.real].shape:
                tensors[name] = result.where(inputs[exercise.real][:, :, None], torch.zeros_like(result))
        if not gradients:
            return tensors
        flat = torch.cat([result.flatten() for result in tensors.values()])
        weighted_sum = flat @ torch.arange(1, len(flat) + 1).cos()
        values = torch.autograd.grad(weighted_sum, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return {f"the gradient of {name}": value for name, value in zip(leaves, values, strict=True)}
    except Exception as error:  # the user's code may raise anything
        return raised(error)
    finally:
        torch.set_default_dtype(default_dtype)


def _equal(ours: Results, theirs: Results) -> bool:
    """Whether all tensors are equal up to rounding, where ours is not NaN. Two differences count as equal."""
    if isinstance(ours, Difference) or isinstance(theirs, Difference):
        return isinstance(ours, Difference) and isinstance(theirs, Difference)
    return all(_same(our, theirs[name]) for name, our in ours.items())


def _same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-8) -> bool:
    """Whether two tensors are equal up to rounding in float64, whose errors are far below those of float32."""
    close = torch.isclose(ours.double(), theirs.double(), tolerance, tolerance) if ours.shape == theirs.shape else None
    return close is not None and bool((close | ours.isnan()).all())


def _find_mistake(exercise: Exercise, ours: Sequence[Results], theirs: Sequence[Results]) -> str:
    """The mistake that gives the answer's results, except in the cases with large numbers, which may overflow."""
    cases = [case for case in CASES if case.scale == 1]  # the first of CASES, as in `ours` and `theirs`
    pairs = [] if any(isinstance(their, Difference) for their in theirs) else exercise.pairs()
    for mistake, solution in chain(exercise.known_mistakes(), exercise.small_changes(), pairs):
        results = (_tensors(solution, exercise, case, gradients=False) for case in cases)
        triples = list(takewhile(lambda triple: _equal(*triple[:2]), zip(results, theirs, ours, strict=False)))
        if len(triples) == len(cases) and any(isinstance(x, dict) and not _equal(x, our) for x, _, our in triples):
            return mistake
    return ""


def _find_difference(ours: Results, theirs: Results, exercise: Exercise, wrong_cases: Sequence[Case]) -> Difference:
    """Describe the first tensor that differs in the first of the wrong cases."""
    names: dict[str, Any] = {field: {getattr(case, field) for case in wrong_cases} for field in Case._fields}
    names |= {"sizes": {case[:3] for case in wrong_cases}, "arguments": exercise.arguments}
    if isinstance(theirs, Difference):
        return theirs._replace(mistake=_hint("sizes", names) or theirs.mistake)
    assert not isinstance(ours, Difference)
    name = next(name for name in ours if not _same(ours[name], theirs[name]))
    our, their, axes = ours[name], theirs[name], exercise.axes(wrong_cases[0])
    missing, extra = Counter(our.shape) - Counter(their.shape), Counter(their.shape) - Counter(our.shape)
    lost, left = (" and ".join(axes.get(n, f"of length {n}") for n in sizes) for sizes in (missing, extra))
    names |= {"name": name, "our": our, "their": their, "ours": ours, "theirs": theirs, "lost": lost, "left": left}
    largest = our.double().nan_to_num(0, 0, 0).abs().argmax()
    ratio = float((their.double() / our).flatten()[largest]) if our.shape == their.shape else 0.0
    mistake = _hint("tensors", {**names, "same": _same, "ratio": ratio}) or _hint("sizes", names)
    shapes = ["×".join(map(str, tensor.shape)) or "a number" for tensor in (their, our)]
    if shapes[0] != shapes[1]:
        return Difference(f"{name} is {shapes[0]} instead of {shapes[1]}", mistake)
    distance = (our.double() - their.double()).abs().nan_to_num(torch.inf, torch.inf).where(our != their, 0)
    index = torch.unravel_index(distance.argmax(), our.shape)
    gap = f"{distance.max():.4g} at {[*map(int, index)]}, where yours is {their[index]:.4g} and ours {our[index]:.4g}"
    return Difference(f"{name}, {shapes[0]}, differs by up to {gap}".replace(" at []", ""), mistake)


def _hint(kind: str, names: dict[str, Any]) -> str:
    """The first hint of a kind whose condition is true of these variables; empty if there is none."""
    return next((hint.format(**names) for condition, hint in HINTS[kind].items() if eval(condition, names)), "")
