"""Cells and layers with quicker steps: hand-written ones for a CPU, torch's own functions for a GPU.

torch's functions were tried on a CPU, too (one thread, forward and backward, 64 sequences of 24 steps). 512 units of
LSTM took 122 ms in fp32 where the hand-written pass took 126, but 95 where it took 68 in bf16; 256 units of GRU took 33
where it took 29. And what is fused on a CPU gives no cell state of an LSTM but the one behind the padding.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqtool.models.cells import GRU, LSTM, RNN, Cell, Recurrence, State, States
from seqtool.models.fast import gates
from seqtool.models.fast.gathering import one_pass
from seqtool.models.number_types import at_least_single, single


class QuickLSTM(LSTM):
    """A step whose gates have a backward pass written by hand."""

    def forward(self, x: Tensor, state: State) -> State:
        h, c = state
        return gates.lstm(at_least_single(x) + self.recurrent(h), c)


class QuickGRU(GRU):
    """A step whose gates have a backward pass written by hand."""

    def forward(self, x: Tensor, state: State) -> State:
        (h,) = state
        return (gates.gru(at_least_single(x), self.recurrent(h), h),)


class GatheredRecurrence(Recurrence):
    """The same steps, and one gradient for all of them."""

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, stepwise: bool = False
    ) -> States:
        with one_pass():
            return super().forward(x, state, lengths=lengths, stepwise=stepwise)


class HandWrittenRecurrence(GatheredRecurrence):
    """For a CPU: LSTMs and GRUs over a whole sequence have one backward pass, written by hand."""

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, stepwise: bool = False
    ) -> States:
        over = HAND_WRITTEN.get(type(self.cell))
        if over is None or stepwise or not torch.is_grad_enabled():
            return super().forward(x, state, lengths=lengths, stepwise=stepwise)
        x = self.input(x.transpose(0, 1))
        recurrent = self.cell.recurrent
        first = self.cell.start(x[0]) if state is None else state
        return States.of(over(x, recurrent.weight, recurrent.bias, *first), lengths)


class TorchRecurrence(GatheredRecurrence):
    """For a GPU: one call for a whole sequence, by cuDNN, packed where rows end at different steps. In the parameters'
    type also under autocast, so that states are. In fp32 cuDNN may round what it multiplies to TF32: torch's default.
    """

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, stepwise: bool = False
    ) -> States:
        function = OF_TORCH.get(type(self.cell))
        if function is None or stepwise:
            return super().forward(x, state, lengths=lengths, stepwise=stepwise)
        recurrent = self.cell.recurrent
        dtype = single(recurrent.bias.dtype)
        weights = [one.to(dtype) for one in (self.input.weight, recurrent.weight, self.input.bias, recurrent.bias)]
        first = tuple(one.to(dtype)[None] for one in (self.cell.start(x) if state is None else state))
        rest = weights, True, 1, 0.0, torch.is_grad_enabled(), False
        with torch.autocast(x.device.type, enabled=False), _without_advice():
            if lengths is None:
                h, *last = function(x.to(dtype), _as_taken(first), *rest, True)
                return States(h, tuple(one[0] for one in last), ())
            packed = pack_padded_sequence(x.to(dtype), lengths.cpu(), batch_first=True, enforce_sorted=False)
            first = tuple(one[:, packed.sorted_indices] for one in first)
            data, *last = function(packed.data, packed.batch_sizes, _as_taken(first), *rest)
            h, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
            return States(h, tuple(one[0, packed.unsorted_indices] for one in last), ())


def _as_taken(first: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """The first state, 1×N×H, as torch's functions take it: of a cell with one tensor, the tensor."""
    return first if len(first) > 1 else first[0]


@contextmanager
def _without_advice() -> Iterator[None]:
    """Without the warning that weights which do not lie side by side are copied at each call."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights")
        yield


HAND_WRITTEN: dict[type[Cell], Callable[..., State]] = {QuickLSTM: gates.lstm_over, QuickGRU: gates.gru_over}
OF_TORCH: dict[type[Cell], Callable[..., Any]] = {RNN: torch.rnn_tanh, QuickLSTM: torch.lstm, QuickGRU: torch.gru}
