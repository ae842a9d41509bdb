"""LSTM and GRU over a whole sequence with a hand-written backward pass.

At every step autograd puts the gradient of each gate into a matrix of its own and then joins these. Here each is
written to its place; the steps' tensors are written one below the other, and the gradient of the recurrent matrix is
one product. Equations, order of gates and biases are those of `cells.LSTM` and `cells.GRU`. Gates and states have the
parameters' type, and only products have that of autocast. This saves 12 % of an update of Sutskever's model.

Left out: single steps with a hand-written backward pass (−4 to 1 % of an update of Luong's model and of Show, Attend
and Tell, −2 to 2 % of a decoding step), and tanh as 2σ(2x) − 1 (−5 to 2 %, both on an Intel Xeon with one thread).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqtool.models.fast.private import tanh_backward, through_sigmoid, through_tanh
from seqtool.models.number_types import product_dtype


def lstm_over(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Input projections T×N×4H, recurrent weight 4H×H and bias 4H, first state N×H → h and c of all steps, T×N×H."""
    h, c = _LSTMOver.apply(x.to(bias.dtype), weight, bias, h.to(bias.dtype), c.to(bias.dtype))
    return h, c


def gru_over(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor]:
    """Input projections T×N×3H, recurrent weight 3H×H and bias 3H, first state N×H → h of all steps, T×N×H."""
    return (_GRUOver.apply(x.to(bias.dtype), weight, bias, h.to(bias.dtype)),)


def _lstm_step(a: Tensor, c: Tensor, *, gates: Tensor, tanh: Tensor, h_new: Tensor, c_new: Tensor) -> None:
    """Write the gates N×4H, tanh of the new cell, and the new state."""
    i, f, g, o = torch.sigmoid(a, out=gates).chunk(4, -1)
    torch.tanh(a.chunk(4, -1)[2], out=g)
    torch.mul(f, c, out=c_new).addcmul_(i, g)
    torch.mul(o, torch.tanh(c_new, out=tanh), out=h_new)


def _lstm_back(dh: Tensor, dc: Tensor, c: Tensor, gates: Tensor, tanh: Tensor, *, da: Tensor) -> Tensor:
    """Write the gradient of the pre-activations; return that of the cell before the step, `c`."""
    (i, f, g, o), (di, df, dg, do) = gates.chunk(4, -1), da.chunk(4, -1)
    dc = tanh_backward(dh * o, tanh).add_(dc)
    through_sigmoid(dc * g, i, grad_input=di)
    through_sigmoid(dc * c, f, grad_input=df)
    through_tanh(dc * i, g, grad_input=dg)
    through_sigmoid(dh * tanh, o, grad_input=do)
    return dc.mul_(f)


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


class _LSTMOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h_0: Tensor, c_0: Tensor) -> tuple[Tensor, Tensor]:
        weight = weight.to(product_dtype(x))
        h, c = room_after(h_0, len(x)), room_after(c_0, len(x))
        gates, tanh, a = torch.empty_like(x), torch.empty_like(c[1:]), torch.empty_like(x[0])
        for t in range(len(x)):
            add_product(bias, h[t], weight.t(), out=a).add_(x[t])
            _lstm_step(a, c[t], gates=gates[t], tanh=tanh[t], h_new=h[t + 1], c_new=c[t + 1])
        ctx.save_for_backward(weight, h, c, gates, tanh)
        return h[1:], c[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_of: Tensor, dc_of: Tensor) -> tuple[Tensor, ...]:
        weight, h, c, gates, tanh = ctx.saved_tensors
        da, nothing = torch.empty_like(gates), torch.zeros_like(h[0])
        dh, dc = dh_of[-1], nothing
        for t in reversed(range(len(gates))):
            dc = _lstm_back(dh, dc + dc_of[t], c[t], gates[t], tanh[t], da=da[t])
            dh = add_product(dh_of[t - 1] if t else nothing, da[t], weight)
        return da, *weight_and_bias_gradients(da, h[:-1], weight.dtype), dh, dc


class _GRUOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h_0: Tensor) -> Tensor:
        weight = weight.to(product_dtype(x))
        h, u, gates = room_after(h_0, len(x)), torch.empty_like(x), torch.empty_like(x)
        for t in range(len(x)):
            add_product(bias, h[t], weight.t(), out=u[t])
            gru_step(x[t], u[t], h[t], gates=gates[t], h_new=h[t + 1])
        ctx.save_for_backward(weight, h, u, gates)
        return h[1:]

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
