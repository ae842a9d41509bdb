"""The gates of an LSTM and of a GRU with hand-written gradients: the fast path of `cells`.

Autograd puts the gradient of every gate into a matrix of its own, and those together, at every step. Here each is
written to its place. Equations, order of gates and biases are those of `cells.LSTM` and `cells.GRU`.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
_through_tanh = torch.ops.aten.tanh_backward.grad_input


def lstm(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Pre-activations N×4H of the gates i, f, g, o, and the cell N×H → h and c after the step."""
    h, c = _LSTM.apply(*_alike(a, c))
    return h, c


def gru(x: Tensor, u: Tensor, h: Tensor) -> Tensor:
    """The input's and the state's shares N×3H of the gates r, z, n, and the state N×H → the state after the step."""
    new: Tensor = _GRU.apply(*_alike(x, u, h))
    return new


def _alike(*tensors: Tensor) -> list[Tensor]:
    """In the widest type among them: under autocast only some are narrow."""
    dtype = reduce(torch.promote_types, (one.dtype for one in tensors))
    return [one.to(dtype) for one in tensors]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        size = c.shape[-1]
        i, f, g, o = torch.sigmoid(a).chunk(4, -1)
        g = torch.tanh(a[:, 2 * size : 3 * size], out=g)
        new = torch.addcmul(f * c, i, g)
        tanh = torch.tanh(new)
        ctx.save_for_backward(c, i, f, g, o, tanh)
        return o * tanh, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, h_gradient: Tensor, c_gradient: Tensor) -> tuple[Tensor, Tensor]:
        c, i, f, g, o, tanh = ctx.saved_tensors
        a_gradient = c.new_empty(len(c), 4 * c.shape[-1])
        da = a_gradient.chunk(4, -1)
        dc = torch.ops.aten.tanh_backward(h_gradient * o, tanh).add_(c_gradient)
        _through_sigmoid(dc * g, i, grad_input=da[0])
        _through_sigmoid(dc * c, f, grad_input=da[1])
        _through_tanh(dc * i, g, grad_input=da[2])
        _through_sigmoid(h_gradient * tanh, o, grad_input=da[3])
        return a_gradient, dc.mul_(f)


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor, h: Tensor) -> Tensor:
        sizes = [2 * h.shape[-1], h.shape[-1]]
        (x_rz, x_n), (u_rz, u_n) = x.split_with_sizes(sizes, -1), u.split_with_sizes(sizes, -1)
        r, z = (x_rz + u_rz).sigmoid_().chunk(2, -1)
        n = torch.addcmul(x_n, r, u_n).tanh_()
        change = h - n
        ctx.save_for_backward(r, z, n, u_n, change)
        return torch.addcmul(n, z, change)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r, z, n, u_n, change = ctx.saved_tensors
        x_gradient = n.new_empty(len(n), 3 * n.shape[-1])
        dr, dz, dn = x_gradient.chunk(3, -1)
        h_gradient = gradient * z
        _through_tanh(gradient - h_gradient, n, grad_input=dn)
        _through_sigmoid(gradient * change, z, grad_input=dz)
        _through_sigmoid(dn * u_n, r, grad_input=dr)
        u_gradient = x_gradient.clone()
        u_gradient[:, -n.shape[-1] :] *= r
        return x_gradient, u_gradient, h_gradient
