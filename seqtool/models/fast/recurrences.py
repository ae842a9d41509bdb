"""A cell over a whole sequence in one call: with a hand-written backward pass on a CPU, by torch's functions on a GPU.

At every step autograd puts the gradient of each gate into a matrix of its own and then joins these. Here each is
written to its place; the steps' tensors are written one below the other, and the gradient of the recurrent matrix is
one product. Equations, order of gates and biases are those of `cells.LSTM` and `cells.GRU`. Gates and states have the
parameters' type, and only products have that of autocast. This saves 12 % of an update of Sutskever's model.

On a CPU torch's functions serve LSTMs in fp32 whose rows all end together, as those of a language model do: 64 rows of
100 steps of 512 units take 361 ms forward and backward (two threads), the hand-written pass 478. They were slower in
bf16 (95 ms against 68 for 24 steps on one thread) and for GRUs (33 against 29, 256 units); and for rows that end
earlier, a CPU's fused functions give no cell state but the one after the padding.

Left out: single steps with a hand-written backward pass (−4 to 1 % of an update of Luong's model and of Show, Attend
and Tell, −2 to 2 % of a decoding step), and tanh as 2σ(2x) − 1 (−5 to 2 %, both on an Intel Xeon with one thread).
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


def on_cpu(recurrence: Recurrence, x: Tensor, first: State, lengths: Tensor | None) -> States | None:
    """All steps of an LSTM or a GRU, whose backward pass is torch's or written by hand; None for other cells, and
    without gradients where torch has no faster way.
    """
    cell = recurrence.cell
    if lengths is None and type(cell) is LSTM and product_dtype(x) == torch.float32:
        weights = _weights(recurrence)
        if all(weight.dtype == torch.float32 for weight in weights):
            return by_torch(lstm, weights, x, first, None)
    over = HAND_WRITTEN.get(type(cell))
    if over is None or not torch.is_grad_enabled():
        return None
    weight, bias = cell.recurrent.weight.to(product_dtype(x)), cell.recurrent.bias
    x = recurrence.input(x.transpose(0, 1)).to(bias.dtype)
    states = over(x, weight, bias, *(tensor.to(bias.dtype) for tensor in first))
    return States.of(states, lengths)


def on_gpu(recurrence: Recurrence, x: Tensor, first: State, lengths: Tensor | None) -> States | None:
    """All steps by cuDNN, packed where rows end at different steps; None for a cell that it does not have. They run in
    the parameters' type, as states must, even under autocast; in fp32 cuDNN may round operands to TF32, as torch does.
    """
    function = OF_TORCH.get(type(recurrence.cell))
    return None if function is None else by_torch(function, _weights(recurrence), x, first, lengths)


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


def _weights(recurrence: Recurrence) -> tuple[Tensor, ...]:
    """W, U and the bias of each."""
    maps = recurrence.input, recurrence.cell.recurrent
    return *(linear.weight for linear in maps), *(linear.bias for linear in maps)


def _as_taken(first: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """The first state, 1×N×H, as torch's functions take it: just the tensor if the cell has only one."""
    return first if len(first) > 1 else first[0]


class _LSTMOver(torch.autograd.Function):
    """Input projections T×N×4H, recurrent weight 4H×H in the products' type, bias 4H, first state N×H → h and c of all
    steps, T×N×H.
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
    def backward(ctx: Any, dh_of: Tensor, dc_of: Tensor) -> tuple[Tensor, ...]:
        weight, h, c, gates, tanh = ctx.saved_tensors
        da, nothing = torch.empty_like(gates), torch.zeros_like(h[0])
        dh, dc = dh_of[-1], nothing
        for t in reversed(range(len(gates))):
            (i, f, g, o), (di, df, dg, do) = gates[t].chunk(4, -1), da[t].chunk(4, -1)
            dc = tanh_backward(dh * o, tanh[t]).add_(dc + dc_of[t])
            through_sigmoid(dc * g, i, grad_input=di)
            through_sigmoid(dc * c[t], f, grad_input=df)
            through_tanh(dc * i, g, grad_input=dg)
            through_sigmoid(dh * tanh[t], o, grad_input=do)
            dc.mul_(f)
            dh = add_product(dh_of[t - 1] if t else nothing, da[t], weight)
        return da, *weight_and_bias_gradients(da, h[:-1], weight.dtype), dh, dc


class _GRUOver(torch.autograd.Function):
    """Input projections T×N×3H, recurrent weight 3H×H in the products' type, bias 3H, first state N×H → h of all steps,
    T×N×H.
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
    def backward(ctx: Any, dh_of: Tensor) -> tuple[Tensor, ...]:
        weight, h, u, gates = ctx.saved_tensors
        dx, du = torch.empty_like(gates), torch.empty_like(gates)
        dh = torch.zeros_like(h[0])
        for t in reversed(range(len(gates))):
            kept = gru_back(dh.add_(dh_of[t]), u[t], h[t], gates[t], dx=dx[t], du=du[t])
            dh = add_product(kept, du[t], weight)
        return dx, *weight_and_bias_gradients(du, h[:-1], weight.dtype), dh


def gru_step(x: Tensor, u: Tensor, h: Tensor, *, gates: Tensor, h_new: Tensor) -> None:
    """Write the gates N×3H and the new state."""
    size = h.shape[-1]
    r, z, n = gates.chunk(3, -1)
    torch.add(x[:, : 2 * size], u[:, : 2 * size], out=gates[:, : 2 * size]).sigmoid_()
    torch.addcmul(x[:, 2 * size :], r, u[:, 2 * size :], out=n).tanh_()
    torch.lerp(n, h, z, out=h_new)


def gru_back(dh: Tensor, u: Tensor, h: Tensor, gates: Tensor, *, dx: Tensor, du: Tensor) -> Tensor:
    """Write the gradients of x and u; return that of `h`, the state before the step, less what reaches it through u."""
    (r, z, n), (dr, dz, dn), u_n = gates.chunk(3, -1), dx.chunk(3, -1), u.chunk(3, -1)[2]
    kept = dh * z
    through_tanh(dh - kept, n, grad_input=dn)
    through_sigmoid((h - n).mul_(dh), z, grad_input=dz)
    through_sigmoid(dn * u_n, r, grad_input=dr)
    du.copy_(dx).chunk(3, -1)[2].mul_(r)
    return kept


def room_after(first: Tensor, steps: int) -> Tensor:
    """Memory that begins with the first state and has room for a state after each step."""
    states = first.new_empty(steps + 1, *first.shape)
    states[0] = first
    return states


def add_product(added: Tensor, x: Tensor, matrix: Tensor, *, out: Tensor | None = None) -> Tensor:
    """added + x @ matrix, the product in the type of the matrix."""
    if added.dtype == x.dtype == matrix.dtype:
        return torch.addmm(added, x, matrix, out=out)
    return torch.add(added, x.to(matrix.dtype) @ matrix, out=out)


def weight_and_bias_gradients(gradient: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gradients of a linear map applied to x at every step, T×N×K; products in `dtype`."""
    flat = gradient.flatten(0, 1)
    return flat.to(dtype).t() @ x.flatten(0, 1).to(dtype), flat.sum(0)


HAND_WRITTEN: dict[type[Cell], Callable[..., State]] = {LSTM: _LSTMOver.apply, GRU: _GRUOver.apply}
OF_TORCH: dict[type[Cell], Callable[..., Any]] = {RNN: rnn_tanh, LSTM: lstm, GRU: gru}
