"""Runs cells over whole sequences in one call: with hand-written backward passes on a CPU, torch's functions on a GPU.

At every step autograd computes the gradient of each gate as a separate matrix and then joins them. The hand-written
passes write the gradients of all gates and steps into one tensor, so that the gradient of the recurrent matrix is one
product. The equations, the order of gates and the biases are those of `cells.LSTM` and `cells.GRU`. Gates and states
have the parameters' type; only products have autocast's type. This saves 12 % of an update of Sutskever's model.

On a CPU torch's functions are used for LSTMs in fp32 whose rows all have the same length, as in a language model:
64 rows of 100 steps of 512 units take 361 ms forward and backward (two threads), instead of 478 with the hand-written
pass. They were slower in bf16 (95 ms against 68 for 24 steps on one thread) and for GRUs (33 against 29, 256 units).
They are not used if some rows end earlier than others, since they return only the cell state after the padding.

Two changes were measured on an Intel Xeon with one thread and left out: hand-written backward passes of single steps
saved −4 to 1 % of an update of Luong's model and of Show, Attend and Tell, and −2 to 2 % of a decoding step; tanh as
2σ(2x) − 1 saved −5 to 2 %.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqtool.models.cells import GRU, LSTM, RNN, Cell, Recurrence, State, States
from seqtool.models.fast.private import gru, lstm, rnn_tanh, tanh_backward, through_sigmoid, through_tanh
from seqtool.models.parts import product_dtype, single


def run_on_cpu(recurrence: Recurrence, x: Tensor, first_state: State, lengths: Tensor | None) -> States | None:
    """Run all steps of an LSTM or a GRU, with torch's backward pass or a hand-written one; return None for other cells,
    and if no gradients are needed and torch has no faster function.
    """
    cell = recurrence.cell
    if lengths is None and type(cell) is LSTM and product_dtype(x) == torch.float32:
        weights = _weights(recurrence)
        if all(weight.dtype == torch.float32 for weight in weights):
            return run_by_torch(lstm, weights, x, first_state, None)
    run = HAND_WRITTEN_FUNCTIONS.get(type(cell))
    if run is None or not torch.is_grad_enabled():
        return None
    weight, bias = cell.recurrent.weight.to(product_dtype(x)), cell.recurrent.bias
    x = recurrence.input(x.transpose(0, 1)).to(bias.dtype)
    states = run(x, weight, bias, *(tensor.to(bias.dtype) for tensor in first_state))
    return States.of(states, lengths)


def run_on_gpu(recurrence: Recurrence, x: Tensor, first_state: State, lengths: Tensor | None) -> States | None:
    """Run all steps by cuDNN, packed if rows have different lengths; return None for a cell that cuDNN does not have.
    Steps are computed in the parameters' type, as states must be, even under autocast. In fp32 cuDNN may round operands
    to TF32, as torch does.
    """
    function = TORCH_FUNCTIONS.get(type(recurrence.cell))
    return None if function is None else run_by_torch(function, _weights(recurrence), x, first_state, lengths)


def run_by_torch(
    function: Callable[..., Any], weights: Sequence[Tensor], x: Tensor, first_state: State, lengths: Tensor | None
) -> States:
    """Run all steps of a layer by `private.lstm`, `gru` or `rnn_tanh`; `weights` are W, U, and the biases of both."""
    dtype = single(weights[-1].dtype)
    first_state = tuple(tensor.to(dtype).contiguous()[None] for tensor in first_state)  # cuDNN needs contiguous states
    # The weights, whether they include biases, the number of layers, dropout, whether to train, whether bidirectional.
    options = [weight.to(dtype) for weight in weights], True, 1, 0.0, torch.is_grad_enabled(), False
    with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights")  # weights that are not contiguous are copied
        if lengths is None:
            h, *last = function(x.to(dtype), _state_argument(first_state), *options, True)  # True: batch first
            return States(h, tuple(tensor[0] for tensor in last))
        packed = pack_padded_sequence(x.to(dtype), lengths.cpu(), batch_first=True, enforce_sorted=False)
        first_state = tuple(tensor[:, packed.sorted_indices] for tensor in first_state)
        data, *last = function(packed.data, packed.batch_sizes, _state_argument(first_state), *options)
        h, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        return States(h, tuple(tensor[0, packed.unsorted_indices] for tensor in last))


def _weights(recurrence: Recurrence) -> tuple[Tensor, ...]:
    """Return W, U, and the biases of both."""
    maps = recurrence.input, recurrence.cell.recurrent
    return *(linear.weight for linear in maps), *(linear.bias for linear in maps)


def _state_argument(first_state: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Return the first state as torch's functions expect it: the tensor alone if the cell has only one."""
    return first_state if len(first_state) > 1 else first_state[0]


class _LSTMSequence(torch.autograd.Function):
    """From input projections, T×N×4H, recurrent weight, 4H×H in the products' type, bias, 4H, and first state, N×H,
    to h and c after every step, T×N×H.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h_0: Tensor, c_0: Tensor) -> tuple[Tensor, Tensor]:
        h, c = room_after(h_0, len(x)), room_after(c_0, len(x))
        gates, tanh, a = torch.empty_like(x), torch.empty_like(c[1:]), torch.empty_like(x[0])
        for t in range(len(x)):
            add_product(bias, h[t], weight.t(), out=a).add_(x[t])
            i, f, g, o = torch.sigmoid(a, out=gates[t]).chunk(4, -1)
            torch.tanh(a.chunk(4, -1)[2], out=g)
            torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g)
            torch.mul(o, torch.tanh(c[t + 1], out=tanh[t]), out=h[t + 1])
        ctx.save_for_backward(weight, h, c, gates, tanh)
        return h[1:], c[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_outputs: Tensor, dc_outputs: Tensor) -> tuple[Tensor, ...]:
        weight, h, c, gates, tanh = ctx.saved_tensors
        da, zeros = torch.empty_like(gates), torch.zeros_like(h[0])
        dh, dc = dh_outputs[-1], zeros
        for t in reversed(range(len(gates))):
            (i, f, g, o), (di, df, dg, do) = gates[t].chunk(4, -1), da[t].chunk(4, -1)
            dc = tanh_backward(dh * o, tanh[t]).add_(dc + dc_outputs[t])
            through_sigmoid(dc * g, i, grad_input=di)
            through_sigmoid(dc * c[t], f, grad_input=df)
            through_tanh(dc * i, g, grad_input=dg)
            through_sigmoid(dh * tanh[t], o, grad_input=do)
            dc.mul_(f)
            dh = add_product(dh_outputs[t - 1] if t else zeros, da[t], weight)
        return da, *weight_and_bias_gradients(da, h[:-1], weight.dtype), dh, dc


class _GRUSequence(torch.autograd.Function):
    """From input projections, T×N×3H, recurrent weight, 3H×H in the products' type, bias, 3H, and first state, N×H,
    to h after every step, T×N×H.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h_0: Tensor) -> tuple[Tensor]:
        h, u, gates = room_after(h_0, len(x)), torch.empty_like(x), torch.empty_like(x)
        for t in range(len(x)):
            add_product(bias, h[t], weight.t(), out=u[t])
            gru_step(x[t], u[t], h[t], gates=gates[t], h_new=h[t + 1])
        ctx.save_for_backward(weight, h, u, gates)
        return (h[1:],)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_outputs: Tensor) -> tuple[Tensor, ...]:
        weight, h, u, gates = ctx.saved_tensors
        dx, du = torch.empty_like(gates), torch.empty_like(gates)
        dh = torch.zeros_like(h[0])
        for t in reversed(range(len(gates))):
            dh_direct = gru_back(dh.add_(dh_outputs[t]), u[t], h[t], gates[t], dx=dx[t], du=du[t])
            dh = add_product(dh_direct, du[t], weight)
        return dx, *weight_and_bias_gradients(du, h[:-1], weight.dtype), dh


def gru_step(x: Tensor, u: Tensor, h: Tensor, *, gates: Tensor, h_new: Tensor) -> None:
    """Write the gates, N×3H, and the new state, from the input projection x, the product u = U h + b and h."""
    size = h.shape[-1]
    r, z, n = gates.chunk(3, -1)
    torch.add(x[:, : 2 * size], u[:, : 2 * size], out=gates[:, : 2 * size]).sigmoid_()
    torch.addcmul(x[:, 2 * size :], r, u[:, 2 * size :], out=n).tanh_()
    torch.lerp(n, h, z, out=h_new)


def gru_back(dh: Tensor, u: Tensor, h: Tensor, gates: Tensor, *, dx: Tensor, du: Tensor) -> Tensor:
    """Write the gradients of x and u; return the gradient of h, the old state, without the part through u."""
    (r, z, n), (dr, dz, dn), u_n = gates.chunk(3, -1), dx.chunk(3, -1), u.chunk(3, -1)[2]
    dh_direct = dh * z
    through_tanh(dh - dh_direct, n, grad_input=dn)
    through_sigmoid((h - n).mul_(dh), z, grad_input=dz)
    through_sigmoid(dn * u_n, r, grad_input=dr)
    du.copy_(dx).chunk(3, -1)[2].mul_(r)
    return dh_direct


def room_after(first_state: Tensor, steps: int) -> Tensor:
    """Return a tensor that begins with the first state and has room for the state after each step."""
    states = first_state.new_empty(steps + 1, *first_state.shape)
    states[0] = first_state
    return states


def add_product(addend: Tensor, x: Tensor, matrix: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return addend + x @ matrix, with the product in the type of the matrix."""
    if addend.dtype == x.dtype == matrix.dtype:
        return torch.addmm(addend, x, matrix, out=out)
    return torch.add(addend, x.to(matrix.dtype) @ matrix, out=out)


def weight_and_bias_gradients(gradient: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the gradients of a linear map that was applied to x, T×N×K, at every step; the product is in `dtype`."""
    flat = gradient.flatten(0, 1)
    return flat.to(dtype).t() @ x.flatten(0, 1).to(dtype), flat.sum(0)


HAND_WRITTEN_FUNCTIONS: dict[type[Cell], Callable[..., State]] = {LSTM: _LSTMSequence.apply, GRU: _GRUSequence.apply}
TORCH_FUNCTIONS: dict[type[Cell], Callable[..., Any]] = {RNN: rnn_tanh, LSTM: lstm, GRU: gru}
