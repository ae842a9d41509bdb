"""What an exercise is, read from `catalogue.yaml`, and the numbers with which an answer is compared with ours."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple, cast

import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from seqtool.models.tokens import EOS, PAD

Answer = Callable[..., Any]  # of named arguments: a tensor, or a tuple of tensors


class Case(NamedTuple):
    """Sizes of arguments; whether there is padding (for a beam, only one hypothesis so far); a factor of all inputs."""

    B: int
    T: int
    S: int
    padded: bool = False
    scale: int = 1

    def shape(self, axes: str) -> list[int]:
        """That of `B×4H`. K is T; if S is T, so is every other size but B and V."""
        sizes = {"B": self.B, "T": self.T, "K": self.T, "S": self.S, "H": 6, "D": 7, "E": 8, "A": 9, "V": 13}
        sizes |= dict.fromkeys("HDEA", self.T) if self.S == self.T > 1 else {}
        return [int(axis[:-1] or 1) * sizes[axis[-1]] for axis in axes.split("×") if axis]


CASES = (
    *(Case(3, 4, 5), Case(3, 4, 5, padded=True), Case(3, 3, 3, padded=True), Case(1, 4, 5)),
    *(Case(3, 1, 1), Case(1, 1, 1), Case(3, 4, 5, scale=1000)),
)


def _real(x: Tensor, case: Case) -> Tensor:
    """B×…: true at real positions."""
    return torch.arange(x.shape[1]) < x.shape[1] - torch.arange(case.B)[:, None] % x.shape[1] * case.padded


DRAWN: Mapping[str, Callable[[Tensor, Case], Any]] = {  # arguments, made of normal random numbers of their shape
    "mask": lambda x, case: _real(x, case).where(torch.arange(case.B)[:, None] != 1, _real(x, case).flip(1)),
    "labels": lambda x, case: torch.where(_real(x, case), 1 + (1e6 * x.abs()).long() % 12, PAD),
    "lengths": lambda x, case: case.T - torch.arange(case.B) % case.T * case.padded,
    "total": lambda x, case: x.sort(1, descending=True)[0].where(
        torch.arange(case.T) < 9 - 8 * case.padded, -torch.inf
    ),
    "log_p": lambda x, case: (x + (2.5 if case.T > 1 else -10) * F.one_hot(torch.tensor(EOS), 13)).log_softmax(-1),
    "alpha": lambda x, case: x.softmax(-1),
}


def described(axes: Mapping[str, str | float]) -> str:
    """Arguments or results, with their axes; a number has its value."""
    return ", ".join(f"{name} ({shape})" if shape else name for name, shape in axes.items())


@dataclass(frozen=True)
class Exercise:
    """What is asked for. `catalogue.yaml` describes the fields."""

    equation: str
    arguments: Mapping[str, str | float]
    results: Mapping[str, str]
    textbook: str
    mistakes: Mapping[str, str]
    orders: str = ""
    real: str = ""
    differentiable: bool = True

    def drawn(self, case: Case) -> dict[str, Any]:
        """Arguments at random, but always the same."""
        generator, drawn = torch.Generator().manual_seed(1), dict[str, Any](self.arguments)
        for name, axes in self.arguments.items():
            if isinstance(axes, str):
                normal = torch.randn(case.shape(axes), generator=generator, dtype=torch.float64)
                large = 1 if name in "WUvb" else case.scale  # parameters stay small
                drawn[name] = DRAWN[name](normal, case) if name in DRAWN else large * normal
        return drawn

    def sizes(self, case: Case) -> str:
        """A case in words."""
        axes = "".join(map(str, self.arguments.values()))
        sizes = [f"{axis}={case.shape(axis)[0]}" for axis in "BTKS" if axis in axes]
        return ", ".join(sizes + ["with padding"] * case.padded + ["with large numbers"] * (case.scale > 1))

    def wrong(self) -> Iterator[tuple[str, Answer]]:
        """What each known mistake is, and its answer."""
        for mistake, replacements in self.mistakes.items():
            for masked in ("", " ; -1e9 ⇒ -inf")[: 1 + ("-1e9" in self.textbook)]:  # differ if everything is masked
                yield mistake, self.solution(replacements + masked)
        for own in map(", ".join, list(permutations(self.orders.split(", ")))[1:]):
            mistake = f"the gates are expected in the order {self.orders}, but yours are {own}"
            yield mistake, self.solution(f"lambda {self.orders}: ⇒ lambda {own}:")

    def solution(self, replacements: str = "") -> Answer:
        """Ours, the textbook solution, or one with a mistake: with pieces of it replaced."""
        source, names = self.textbook, {**vars(F), **vars(torch), "torch": torch}
        for replacement in replacements.split(" ; "):
            piece, _, by = replacement.partition(" ⇒")
            source = source.replace(piece, by.strip(" "))
        exec(f"def answer({', '.join(self.arguments)}):\n{indent(source, '    ')}", names)  # text of this package
        return cast(Answer, names["answer"])


CATALOGUE = yaml.safe_load(Path(__file__).with_name("catalogue.yaml").read_bytes())  # type: ignore[no-untyped-call]
HINTS: Mapping[str, Mapping[str, str]] = CATALOGUE.pop("hints")
EXERCISES = {name: Exercise(**fields) for name, fields in CATALOGUE.items()}
