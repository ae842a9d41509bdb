"""What an exercise is, read from `catalogue.yaml`, and the numbers with which an answer is compared with ours."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
import yaml
from torch.nn import functional as F

from seqtool.models.tokens import EOS, PAD

Answer = Callable[..., Any]  # of named arguments: a tensor, or a tuple of tensors

PARAMETERS = ("W", "U", "v", "b")
NUMBERS = {"smoothing": 0.1, "length": 5, "eos": EOS}
NAMES = {  # which textbook solutions use
    **{"torch": torch, "sqrt": math.sqrt, "log": math.log, "inf": math.inf, "tanh": torch.tanh},
    **{"sigmoid": torch.sigmoid, "relu": torch.relu, "normalize": F.normalize, "one_hot": F.one_hot},
}
WIDTHS = {"H": 6, "D": 7, "E": 8, "A": 9, "V": 13}


@dataclass(frozen=True)
class Case:
    """The sizes of arguments; whether there is padding (or, for a beam, only one hypothesis yet); a factor that makes the
    inputs large, but not the parameters; whether all sizes but B and V are T.
    """

    B: int
    T: int
    S: int
    padded: bool = False
    scale: int = 1
    square: bool = False

    def shape(self, axes: str) -> list[int]:
        """That of `B×4H`. K is T."""
        sizes = {**WIDTHS, "B": self.B, "T": self.T, "K": self.T, "S": self.S}
        sizes |= dict.fromkeys("DEHA", self.T) if self.square else {}
        return [int(axis[:-1] or 1) * sizes[axis[-1]] for axis in axes.split("×") if axis]


CASES = (
    Case(3, 4, 5),
    Case(3, 4, 5, padded=True),
    Case(3, 3, 3, padded=True, square=True),  # no shape tells one axis from another
    Case(1, 4, 5),
    Case(3, 1, 1),
    Case(1, 1, 1),
    Case(3, 4, 5, scale=1000),
)


def described(axes: Mapping[str, str]) -> str:
    """Arguments or results, with their axes."""
    return ", ".join(f"{name} ({shape})" if shape else name for name, shape in axes.items())


@dataclass(frozen=True)
class Exercise:
    """What is asked for, as `catalogue.yaml` describes its fields."""

    equation: str
    arguments: Mapping[str, str]
    results: Mapping[str, str]
    textbook: str
    mistakes: Mapping[str, str]
    orders: str = ""
    real: str = ""
    differentiable: bool = True

    def drawn(self, case: Case) -> dict[str, Any]:
        """Arguments at random, but always the same."""
        generator = torch.Generator().manual_seed(1)
        return {name: _drawn(name, case.shape(axes), case, generator) for name, axes in self.arguments.items()}

    def sizes(self, case: Case) -> str:
        """The sizes in a case, in words."""
        axes = "".join(self.arguments.values())
        sizes = [f"{axis}={case.shape(axis)[0]}" for axis in "BTKS" if axis in axes]
        return ", ".join(sizes + case.padded * ["with padding"] + (case.scale > 1) * ["with large numbers"])

    def wrong(self) -> Iterator[tuple[str, Answer]]:
        """What each known mistake is, and its answer."""
        for mistake, replacements in self.mistakes.items():
            yield mistake, self.solution(replacements)
            if "-1e9" in self.textbook:  # where everything is masked, −∞ gives something else
                yield mistake, self.solution(f"{replacements} ; -1e9 ⇒ -inf")
        for order in list(permutations(self.orders.split(", ")))[1:] if self.orders else []:
            own = ", ".join(order)
            clause = f"the gates are expected in the order {self.orders}, but yours are {own}"
            yield clause, self.solution(f"lambda {self.orders}: ⇒ lambda {own}:")

    def solution(self, replacements: str = "") -> Answer:
        """The textbook solution with pieces of it replaced."""
        source = self.textbook
        for replacement in filter(None, replacements.split(" ; ")):
            piece, _, by = replacement.partition(" ⇒")
            source = source.replace(piece, by.strip(" "))
        names: dict[str, Any] = dict(NAMES)
        exec(f"def answer({', '.join(self.arguments)}):\n{indent(source, '    ')}", names)  # text of this package
        answer: Answer = names["answer"]
        return answer


def _drawn(name: str, shape: list[int], case: Case, generator: torch.Generator) -> Any:
    """An argument of this name and shape."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if name in NUMBERS:
        return NUMBERS[name]
    if name in ("mask", "labels", "lengths"):
        rows, longest = shape if len(shape) == 2 else (*shape, case.T)
        lengths = longest - torch.arange(rows) % longest if case.padded else torch.full((rows,), longest)
        mask = torch.arange(longest) < lengths[:, None]
        if name == "mask":
            return torch.cat([mask[:1], mask[1:2].flip(1), mask[2:]])  # the second row is padded in front
        labels = torch.randint(1, WIDTHS["V"], (rows, longest), generator=generator)
        return lengths if name == "lengths" else labels.masked_fill(~mask, PAD)
    if name == "total":
        unused = (torch.arange(shape[1]) > 0) & case.padded
        return normal.sort(1, descending=True).values.masked_fill(unused, -math.inf)
    if name == "log_p":
        normal[..., EOS] += 2.5 if case.T > 1 else -10.0  # some hypotheses end, but not a beam's only one
    if name in ("log_p", "alpha"):
        return normal.log_softmax(-1) if name == "log_p" else normal.softmax(-1)
    return normal if name in PARAMETERS else case.scale * normal


CATALOGUE = yaml.safe_load(Path(__file__).with_name("catalogue.yaml").read_bytes())  # type: ignore[no-untyped-call]
EXERCISES = {name: Exercise(**fields) for name, fields in CATALOGUE.items() if name != "shared"}
