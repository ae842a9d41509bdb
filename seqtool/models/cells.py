"""Recurrent cells, the layer that runs a cell over a sequence, stacks of layers and the translation models' encoder.

A cell takes x, its input projection (W x_t + b), so that the product with W is computed once for all time steps; only
the product with the recurrent matrix U is left inside the recurrence. Gate order, formulas and the second bias of
`rnn`, `lstm` and `gru` are torch's, so weights can be moved between these cells and torch's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from seqtool.models.parts import PLAIN, Parts, at_least_single, single
from seqtool.settings.classes import chosen

State = tuple[Float[Tensor, "N H"], ...]
"""The tensors a cell carries from step to step; the first is its output h. They are in single precision at least, even
if products are not: rounding at every step adds up to large errors after a hundred steps.
"""

InputProjection = Float[Tensor, "N {self.gates*self.hidden}"]  # `self` is the cell


class Cell(nn.Module, ABC):
    """One step of a recurrence, from the input projection `x` and the state to the new state."""

    gates: int  # the number of gates; the input projection has gates·H numbers
    tensors: int = 1  # the number of tensors in the state
    recurrent: nn.Linear  # the map U from h to the gates
    letters: tuple[str, ...] = ("h", "c")  # the names of the state's tensors

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden

    @abstractmethod
    def forward(self, x: InputProjection, state: State) -> State: ...

    def activations(self, x: InputProjection, state: State) -> dict[str, Float[Tensor, "N H"]]:
        """Return a step's gates and candidate by their letters, after their activation; by default there are none."""
        return {}

    def start(self, x: Float[Tensor, "N ..."]) -> State:
        """Return the zero state for a batch like `x`."""
        return tuple(x.new_zeros(x.shape[0], self.hidden, dtype=single(x.dtype)) for _ in range(self.tensors))


class OneProductCell(Cell):
    """A cell that computes all its gates by one product U h with a bias, as torch's cells do."""

    def __init__(self, hidden: int, parts: Parts = PLAIN) -> None:
        super().__init__(hidden)
        self.recurrent = parts.linear(hidden, self.gates * hidden)


class RNN(OneProductCell):
    """h = tanh(x + U h)."""

    gates = 1

    def forward(self, x: InputProjection, state: State) -> State:
        (h,) = state
        return (torch.tanh(at_least_single(x) + self.recurrent(h)),)


class Linear(OneProductCell):
    """h = x + U h: an RNN without its tanh, whose gradients are exact powers of U."""

    gates = 1

    def forward(self, x: InputProjection, state: State) -> State:
        return (at_least_single(x) + self.recurrent(state[0]),)


class LSTM(OneProductCell):
    """Gates i, f, g, o: c = f∘c + i∘g, h = o∘tanh(c)."""

    gates = 4
    tensors = 2

    def forward(self, x: InputProjection, state: State) -> State:
        gates, (_, c) = self.activations(x, state), state
        c = gates["f"] * c + gates["i"] * gates["g"]
        return gates["o"] * torch.tanh(c), c

    def activations(self, x: InputProjection, state: State) -> dict[str, Tensor]:
        return self._activate(at_least_single(x) + self.recurrent(state[0]))

    def _activate(self, gates: InputProjection) -> dict[str, Tensor]:
        i, f, g, o = gates.chunk(4, -1)
        return {"i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    @property
    def bias(self) -> Tensor:
        """The bias of all gates, beside that of the input projection."""
        return self.recurrent.bias


class NormalisedLSTM(LSTM):
    """An LSTM with layer normalisation of W x, U h and c (Ba, Kiros & Hinton 2016, (20)–(22))."""

    def __init__(self, hidden: int, parts: Parts = PLAIN) -> None:
        super(OneProductCell, self).__init__(hidden)
        self.recurrent = parts.linear(hidden, self.gates * hidden, bias=False)
        self.shift = nn.Parameter(torch.zeros(self.gates * hidden))
        self.input_norm, self.recurrent_norm = nn.LayerNorm(4 * hidden), nn.LayerNorm(4 * hidden)
        self.cell_norm = nn.LayerNorm(hidden)

    @property
    def bias(self) -> Tensor:
        return self.shift

    def forward(self, x: InputProjection, state: State) -> State:
        gates, (_, c) = self.activations(x, state), state
        c = gates["f"] * c + gates["i"] * gates["g"]
        return gates["o"] * torch.tanh(self.cell_norm(c)), c

    def activations(self, x: InputProjection, state: State) -> dict[str, Tensor]:
        normalised = self.input_norm(at_least_single(x)) + self.recurrent_norm(self.recurrent(state[0]))
        return self._activate(normalised + self.shift)


class GRU(OneProductCell):
    """torch's and cuDNN's GRU: r is applied after the recurrent product, z keeps the old state."""

    gates = 3

    def forward(self, x: InputProjection, state: State) -> State:
        gates, (h,) = self.activations(x, state), state
        return (torch.lerp(gates["n"], h, gates["z"]),)  # (1 - z) n + z h

    def activations(self, x: InputProjection, state: State) -> dict[str, Tensor]:
        x_rz, x_n = at_least_single(x).split_with_sizes([2 * self.hidden, self.hidden], -1)
        u_rz, u_n = self.recurrent(state[0]).split_with_sizes([2 * self.hidden, self.hidden], -1)
        r, z = torch.sigmoid(x_rz + u_rz).chunk(2, -1)
        return {"r": r, "z": z, "n": torch.tanh(torch.addcmul(x_n, r, u_n))}


class GRUCho(Cell):
    """The gated unit of Cho et al. 2014 and Bahdanau et al. 2015 (A.1.1): r acts before U; z weighs the candidate."""

    gates = 3

    def __init__(self, hidden: int, parts: Parts = PLAIN) -> None:
        super().__init__(hidden)
        self.recurrent = parts.linear(hidden, 2 * hidden, bias=False)
        self.candidate = parts.linear(hidden, hidden, bias=False)

    def forward(self, x: InputProjection, state: State) -> State:
        gates, (h,) = self.activations(x, state), state
        return (h + gates["z"] * (gates["n"] - h),)

    def activations(self, x: InputProjection, state: State) -> dict[str, Tensor]:
        (h,) = state
        x_rz, x_n = at_least_single(x).split_with_sizes([2 * self.hidden, self.hidden], -1)
        r, z = torch.sigmoid(x_rz + self.recurrent(h)).chunk(2, -1)
        return {"r": r, "z": z, "n": torch.tanh(x_n + self.candidate(r * h))}  # n: h̃ in the paper


CELLS: dict[str, type[Cell]] = {
    "rnn": RNN,
    "linear": Linear,
    "lstm": LSTM,
    "lstm_norm": NormalisedLSTM,
    "gru": GRU,
    "gru_cho": GRUCho,
}


def make_cell(cell: str | type[Cell], hidden: int, parts: Parts = PLAIN) -> Cell:
    return parts.build(chosen(cell, CELLS, kind="cell"), hidden)


def cells_of(model: nn.Module) -> dict[str, Cell]:
    """Return a model's cells by the name of the module that contains each, such as decoder.0."""
    cells = {name: module for name, module in model.named_modules() if isinstance(module, Cell)}
    return {name.removesuffix("cell").rstrip(".") or "decoder": cell for name, cell in cells.items()}


class States(NamedTuple):
    """The result of a recurrence: h after every step, and the state after each row's last step."""

    h: Float[Tensor, "N T H"]
    last: State

    @classmethod
    def of(cls, tensors: tuple[Float[Tensor, "T N H"], ...], lengths: Int[Tensor, "N"] | None) -> "States":
        """Build the result from the state's tensors after every step; rows have `lengths` steps (None: all T)."""
        last_state = tuple(tensor[-1] for tensor in tensors)
        if lengths is not None:
            rows = torch.arange(len(lengths), device=lengths.device)
            last_state = tuple(tensor[lengths - 1, rows] for tensor in tensors)
        return cls(tensors[0].transpose(0, 1), last_state)


class Recurrence(nn.Module):
    """A cell and its input map, run left to right over a whole sequence."""

    def __init__(self, cell: str | type[Cell], inputs: int, hidden: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.cell = make_cell(cell, hidden, parts)
        self.input = parts.linear(inputs, self.cell.gates * hidden)
        self.parts = parts

    def forward(
        self, x: Float[Tensor, "N T inputs"], state: State | None = None, *, lengths: Int[Tensor, "N"] | None = None
    ) -> States:
        """Run all steps of `x` from `state` (None: zeros); rows have `lengths` steps (None: all T)."""
        state = self.cell.start(x) if state is None else state
        all_steps: States | None = self.parts.whole_sequence(self, x, state, lengths)
        if all_steps is not None:
            return all_steps
        with self.parts.around_steps():
            states = []
            for x_t in self.input(x.transpose(0, 1)).unbind(0):
                state = self.cell(x_t, state)
                states.append(state)
        return States.of(tuple(map(torch.stack, zip(*states, strict=True))), lengths)

    def step(self, x: Float[Tensor, "N inputs"], state: State) -> State:
        """Run one step."""
        return self.cell(self.input(x), state)


@dataclass(frozen=True)
class Layers:
    """The state of a stack of cells: the tensors of each layer, lowest first."""

    layers: tuple[State, ...]

    @classmethod
    def split(cls, state: Float[Tensor, "N ..."], layers: int, tensors: int) -> "Layers":
        """Split a tensor whose last dimension concatenates the states of all layers, `tensors` tensors for each."""
        return cls(tuple(layer.chunk(tensors, -1) for layer in state.chunk(layers, -1)))

    @property
    def top(self) -> Float[Tensor, "N H"]:
        return self.layers[-1][0]


class Stack(nn.ModuleList):
    """`layers` recurrences on top of each other, lowest first; the lowest has inputs of size `inputs`."""

    def __init__(self, cell: str | type[Cell], inputs: int, hidden: int, layers: int, parts: Parts = PLAIN) -> None:
        super().__init__(Recurrence(cell, hidden if i else inputs, hidden, parts) for i in range(layers))

    def __iter__(self) -> Iterator[Recurrence]:
        return cast(Iterator[Recurrence], super().__iter__())

    def start(self, x: Float[Tensor, "N ..."]) -> Layers:
        """Return the zero state of all layers for a batch like `x`."""
        return Layers(tuple(recurrence.cell.start(x) for recurrence in self))

    def step(
        self, x: Float[Tensor, "N inputs"], layers: tuple[State, ...], dropout: nn.Dropout
    ) -> tuple[Float[Tensor, "N H"], tuple[State, ...]]:
        """Run one step of all layers, with dropout after each; return the output and the new states."""
        new_states: list[State] = []
        for recurrence, old_state in zip(self, layers, strict=True):
            new_states.append(recurrence.step(x, old_state))
            x = dropout(new_states[-1][0])
        return x, tuple(new_states)


@dataclass(frozen=True)
class Encoding:
    """An encoder's output for a batch."""

    annotations: Float[Tensor, "N S D"]  # the annotation vectors h_j, D = H·directions
    forward: tuple[State, ...]  # the final state of each layer that reads left to right, after the last word
    backward: tuple[State, ...] | None  # the same right to left, after the first word; None with one direction


class Encoder(nn.Module):
    """A stack of recurrent layers that read embedded words in one direction or in both."""

    def __init__(
        self,
        cell: str | type[Cell],
        inputs: int,
        hidden: int,
        layers: int,
        *,
        bidirectional: bool,
        dropout: float,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__()
        self.size = 2 * hidden if bidirectional else hidden
        sizes = [inputs] + [self.size] * (layers - 1)
        self.ahead = nn.ModuleList(Recurrence(cell, size, hidden, parts) for size in sizes)
        self.back = nn.ModuleList(Recurrence(cell, size, hidden, parts) for size in sizes) if bidirectional else None
        self.dropout = parts.dropout(dropout)

    def forward(self, x: Float[Tensor, "B S E"], lengths: Int[Tensor, "B"]) -> Encoding:
        """Each direction reads the words first and padding last, so no state ever passes through padding: the backward
        layers read a copy of each row that is reversed within the row's length.
        """
        reverse = reversal(lengths, x.shape[1])[:, :, None]
        forward, backward = [], []
        for i, ahead in enumerate(self.ahead):
            x = self.dropout(x) if i else x
            states: States = ahead(x, lengths=lengths)
            forward.append(states.last)
            h = [states.h]
            if self.back is not None:
                states = self.back[i](x.take_along_dim(reverse, 1), lengths=lengths)
                backward.append(states.last)
                h.append(states.h.take_along_dim(reverse, 1))
            x = torch.cat(h, -1)
        return Encoding(x, tuple(forward), tuple(backward) or None)


def reversal(lengths: Int[Tensor, "B"], size: int) -> Int[Tensor, "B {size}"]:
    """Return indices that reverse each row within its length and leave padding in place; they are their own inverse."""
    positions = torch.arange(size, device=lengths.device)[None]
    return torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
