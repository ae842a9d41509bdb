"""Cells and layers with faster steps: hand-written ones for a CPU, torch's own functions for a GPU.

On a CPU torch's functions serve LSTMs in fp32 whose rows all end together, as those of a language model do: 64 rows of
100 steps of 512 units take 361 ms forward and backward (two threads), the hand-written pass 478. They were slower in
bf16 (95 ms against 68 for 24 steps on one thread) and for GRUs (33 against 29, 256 units); and for rows that end
earlier, a CPU's fused functions give no cell state but the one after the padding.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqtool.models.cells import RNN, Cell, Recurrence, State, States
from seqtool.models.fast.gates import QuickGRU, QuickLSTM, gru_over, lstm_over
from seqtool.models.fast.gathering import one_pass
from seqtool.models.number_types import product_dtype, single


class GatheredRecurrence(Recurrence):
    """The same steps, with one gradient for all of them, unless one call can run the whole sequence."""

    def forward(self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> States:
        found = self.at_once(x, state, lengths)
        if found is not None:
            return found
        with one_pass():
            return super().forward(x, state, lengths=lengths)

    def at_once(self, x: Tensor, state: State | None, lengths: Tensor | None) -> States | None:
        """All steps in one call, or None if there is no such call."""
        return None

    def by_torch(self, function: Callable[..., Any], x: Tensor, state: State | None, lengths: Tensor | None) -> States:
        """All steps in one call of torch's `function`."""
        both = self.input, self.cell.recurrent
        weights = *(one.weight for one in both), *(one.bias for one in both)
        return by_torch(function, weights, x, self.cell.start(x) if state is None else state, lengths)


class HandWrittenRecurrence(GatheredRecurrence):
    """For a CPU: LSTMs and GRUs over a whole sequence have one backward pass, written by hand, or torch's."""

    def at_once(self, x: Tensor, state: State | None, lengths: Tensor | None) -> States | None:
        if lengths is None and self._is_fused(x):
            return self.by_torch(torch.lstm, x, state, None)
        over = HAND_WRITTEN.get(type(self.cell))
        if over is None or not torch.is_grad_enabled():
            return None
        x = self.input(x.transpose(0, 1))
        recurrent = self.cell.recurrent
        first = self.cell.start(x[0]) if state is None else state
        return States.of(over(x, recurrent.weight, recurrent.bias, *first), lengths)

    def _is_fused(self, x: Tensor) -> bool:
        if type(self.cell) is not QuickLSTM or product_dtype(x) != torch.float32:
            return False
        return self.input.weight.dtype == self.cell.recurrent.weight.dtype == torch.float32


class TorchRecurrence(GatheredRecurrence):
    """For a GPU: one call for a whole sequence, by cuDNN, packed where rows end at different steps. It runs in the
    parameters' type, as states must, even under autocast. In fp32 cuDNN may round operands to TF32, torch's default.
    """

    def at_once(self, x: Tensor, state: State | None, lengths: Tensor | None) -> States | None:
        function = OF_TORCH.get(type(self.cell))
        return None if function is None else self.by_torch(function, x, state, lengths)


def by_torch(
    function: Callable[..., Any], weights: Sequence[Tensor], x: Tensor, first: State, lengths: Tensor | None
) -> States:
    """All steps of a layer by `torch.lstm` or its like; weights are W, U and the bias of each."""
    dtype = single(weights[-1].dtype)
    first = tuple(one.to(dtype).contiguous()[None] for one in first)  # cuDNN takes no others
    rest = [one.to(dtype) for one in weights], True, 1, 0.0, torch.is_grad_enabled(), False
    with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights")  # weights that are not contiguous are copied
        if lengths is None:
            h, *last = function(x.to(dtype), _as_taken(first), *rest, True)
            return States(h, tuple(one[0] for one in last))
        packed = pack_padded_sequence(x.to(dtype), lengths.cpu(), batch_first=True, enforce_sorted=False)
        first = tuple(one[:, packed.sorted_indices] for one in first)
        data, *last = function(packed.data, packed.batch_sizes, _as_taken(first), *rest)
        h, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        return States(h, tuple(one[0, packed.unsorted_indices] for one in last))


def _as_taken(first: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """The first state, 1×N×H, as torch's functions take it: just the tensor if the cell has only one."""
    return first if len(first) > 1 else first[0]


HAND_WRITTEN: dict[type[Cell], Callable[..., State]] = {QuickLSTM: lstm_over, QuickGRU: gru_over}
OF_TORCH: dict[type[Cell], Callable[..., Any]] = {RNN: torch.rnn_tanh, QuickLSTM: torch.lstm, QuickGRU: torch.gru}
