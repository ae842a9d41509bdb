"""Recurrent cells, and a layer that runs one over a sequence.

A cell sees x, the input's share of its pre-activations (W x_t + b), so that the product with W is taken once for
all time steps; only the product with the recurrent matrix U is left inside the recurrence. Gate order, formulas and the
second bias of `rnn`, `lstm` and `gru` are torch's, so weights can be moved between the two.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models import gates, sharing
from seqtool.models.sharing import StepLinear

State = tuple[Tensor, ...]
"""The tensors a cell carries from step to step, each N×H; the first is its output h."""


class States(NamedTuple):
    """After every step: the state's tensors T×N×H, and h step by step; under `sharing.plain` gradients of later steps
    pass through these.
    """

    tensors: State
    outputs: tuple[Tensor, ...]

    @property
    def h(self) -> Tensor:
        """N×T×H."""
        return self.tensors[0].transpose(0, 1)


class Cell(nn.Module, ABC):
    """One step of a recurrence: `x` N×(gates·H), state of N×H tensors → the new state."""

    gates: int
    tensors: int = 1

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden

    @abstractmethod
    def forward(self, x: Tensor, state: State) -> State: ...

    def over(self, x: Tensor, state: State) -> States:
        """All steps of `x`, T×N×(gates·H)."""
        states = []
        for x_t in x.unbind(0):
            state = self(x_t, state)
            states.append(state)
        return States(tuple(map(torch.stack, zip(*states, strict=True))), tuple(one[0] for one in states))

    def start(self, x: Tensor) -> State:
        """The zero state for a batch like `x` (N×…)."""
        return tuple(x.new_zeros(x.shape[0], self.hidden) for _ in range(self.tensors))


class RNN(Cell):
    """h = tanh(x + U h)."""

    gates = 1

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.recurrent = StepLinear(hidden, hidden)

    def forward(self, x: Tensor, state: State) -> State:
        (h,) = state
        return (torch.tanh(x + self.recurrent(h)),)


class LSTM(Cell):
    """Gates i, f, g, o: c = f∘c + i∘g, h = o∘tanh(c)."""

    gates = 4
    tensors = 2

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.recurrent = StepLinear(hidden, 4 * hidden)

    def forward(self, x: Tensor, state: State) -> State:
        h, c = state
        a = x + self.recurrent(h)
        if not sharing.is_plain():
            return gates.lstm(a, c)
        i, f, g, o = a.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def over(self, x: Tensor, state: State) -> States:
        if not sharing.is_on():
            return super().over(x, state)
        h, c = gates.lstm_over(x, self.recurrent.weight, self.recurrent.bias, *state)
        return States((h, c), h.unbind(0))


class GRU(Cell):
    """torch's and cuDNN's GRU: r is applied after the recurrent product, z keeps the old state."""

    gates = 3

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.recurrent = StepLinear(hidden, 3 * hidden)

    def forward(self, x: Tensor, state: State) -> State:
        (h,) = state
        u = self.recurrent(h)
        if not sharing.is_plain():
            return (gates.gru(x, u, h),)
        sizes = [2 * self.hidden, self.hidden]
        (x_rz, x_n), (u_rz, u_n) = x.split_with_sizes(sizes, -1), u.split_with_sizes(sizes, -1)
        r, z = torch.sigmoid(x_rz + u_rz).chunk(2, -1)
        n = torch.tanh(x_n + r * u_n)
        return (n + z * (h - n),)

    def over(self, x: Tensor, state: State) -> States:
        if not sharing.is_on():
            return super().over(x, state)
        h = gates.gru_over(x, self.recurrent.weight, self.recurrent.bias, *state)
        return States((h,), h.unbind(0))


class GRUCho(Cell):
    """The gated unit of Cho et al. 2014 and Bahdanau et al. 2015 (A.1.1): r before U, z admits the candidate."""

    gates = 3

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.recurrent = StepLinear(hidden, 2 * hidden, bias=False)
        self.candidate = StepLinear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, state: State) -> State:
        (h,) = state
        x_rz, x_n = x.split_with_sizes([2 * self.hidden, self.hidden], -1)
        r, z = torch.sigmoid(x_rz + self.recurrent(h)).chunk(2, -1)
        candidate = torch.tanh(x_n + self.candidate(r * h))
        return (h + z * (candidate - h),)


CELLS: dict[str, type[Cell]] = {"rnn": RNN, "lstm": LSTM, "gru": GRU, "gru_cho": GRUCho}


def make_cell(name: str, hidden: int) -> Cell:
    if name not in CELLS:
        raise InputError(f"Unknown cell '{name}'; choose from {', '.join(CELLS)}.")
    return CELLS[name](hidden)


class Recurrence(nn.Module):
    """A cell with its input product, run left to right over a whole sequence."""

    def __init__(self, cell: str, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = make_cell(cell, hidden)
        self.input = StepLinear(inputs, self.cell.gates * hidden)

    def forward(self, x: Tensor, state: State | None = None) -> States:
        """The states after every step of `x` (N×T×inputs), from `state` or from zero."""
        x = self.input(x.transpose(0, 1))
        states: States = self.cell.over(x, self.cell.start(x[0]) if state is None else state)
        return states

    def step(self, x: Tensor, state: State) -> State:
        """One step: `x` N×inputs."""
        new: State = self.cell(self.input(x), state)
        return new


class Stack(nn.ModuleList):
    """Recurrences on top of each other, the lowest first."""

    def __iter__(self) -> Iterator[Recurrence]:
        return cast(Iterator[Recurrence], super().__iter__())
