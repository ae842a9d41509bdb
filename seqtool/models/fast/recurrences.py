"""A cell over a whole sequence in one call: hand-written for a CPU, torch's own functions for a GPU.

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

from seqtool.models.cells import GRU, LSTM, RNN, Cell, Recurrence, State, States
from seqtool.models.fast import private
from seqtool.models.fast.gates import gru_over, lstm_over
from seqtool.models.number_types import product_dtype, single

HAND_WRITTEN: dict[type[Cell], Callable[..., State]] = {LSTM: lstm_over, GRU: gru_over}
OF_TORCH: dict[type[Cell], Callable[..., Any]] = {RNN: private.rnn_tanh, LSTM: private.lstm, GRU: private.gru}


def on_cpu(recurrence: Recurrence, x: Tensor, state: State | None, lengths: Tensor | None) -> States | None:
    """All steps of an LSTM or a GRU, whose backward pass is torch's or written by hand; None for other cells, and
    without gradients where torch has no faster way.
    """
    cell = recurrence.cell
    if lengths is None and type(cell) is LSTM and _is_single(recurrence, x):
        return _by_torch(private.lstm, recurrence, x, state, None)
    over = HAND_WRITTEN.get(type(cell))
    if over is None or not torch.is_grad_enabled():
        return None
    x = recurrence.input(x.transpose(0, 1))
    first = cell.start(x[0]) if state is None else state
    return States.of(over(x, cell.recurrent.weight, cell.recurrent.bias, *first), lengths)


def on_gpu(recurrence: Recurrence, x: Tensor, state: State | None, lengths: Tensor | None) -> States | None:
    """All steps by cuDNN, packed where rows end at different steps; None for a cell that it does not have. They run in
    the parameters' type, as states must, even under autocast; in fp32 cuDNN may round operands to TF32, as torch does.
    """
    function = OF_TORCH.get(type(recurrence.cell))
    return None if function is None else _by_torch(function, recurrence, x, state, lengths)


def by_torch(
    function: Callable[..., Any], weights: Sequence[Tensor], x: Tensor, first: State, lengths: Tensor | None
) -> States:
    """All steps of a layer by `private.lstm` or its like; weights are W, U and the bias of each."""
    dtype = single(weights[-1].dtype)
    first = tuple(tensor.to(dtype).contiguous()[None] for tensor in first)  # cuDNN takes no others
    rest = [weight.to(dtype) for weight in weights], True, 1, 0.0, torch.is_grad_enabled(), False
    with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights")  # weights that are not contiguous are copied
        if lengths is None:
            h, *last = function(x.to(dtype), _as_taken(first), *rest, True)
            return States(h, tuple(tensor[0] for tensor in last))
        packed = pack_padded_sequence(x.to(dtype), lengths.cpu(), batch_first=True, enforce_sorted=False)
        first = tuple(tensor[:, packed.sorted_indices] for tensor in first)
        data, *last = function(packed.data, packed.batch_sizes, _as_taken(first), *rest)
        h, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        return States(h, tuple(tensor[0, packed.unsorted_indices] for tensor in last))


def _by_torch(
    function: Callable[..., Any], recurrence: Recurrence, x: Tensor, state: State | None, lengths: Tensor | None
) -> States:
    maps = recurrence.input, recurrence.cell.recurrent
    weights = *(linear.weight for linear in maps), *(linear.bias for linear in maps)
    return by_torch(function, weights, x, recurrence.cell.start(x) if state is None else state, lengths)


def _is_single(recurrence: Recurrence, x: Tensor) -> bool:
    """Whether all numbers and products are in fp32."""
    weights = recurrence.input.weight, recurrence.cell.recurrent.weight
    return product_dtype(x) == torch.float32 and all(weight.dtype == torch.float32 for weight in weights)


def _as_taken(first: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """The first state, 1×N×H, as torch's functions take it: just the tensor if the cell has only one."""
    return first if len(first) > 1 else first[0]
