"""One gradient for all time steps: the fast path of every recurrence.

A matrix that a recurrence multiplies by at each of T steps gets T gradients from autograd: T products as thin as the
batch, and T sums of whole matrices. Of an operand that is shared, each step's backward pass only notes what went in and
what came back; when the last one is through, one product over all steps is the gradient. Forward nothing changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_on = True


@contextmanager
def plain() -> Iterator[None]:
    """Leave all gradients to autograd: what the fast path is compared with."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


def is_plain() -> bool:
    return not _on


def is_on() -> bool:
    """Whether there will be a backward pass to make faster."""
    return _on and torch.is_grad_enabled()


class Ledger:
    """What the steps' backward passes have left of an operand's gradient."""

    def __init__(self) -> None:
        self.products: list[tuple[Tensor, Tensor]] = []
        self.sum: Tensor | None = None

    def sum_for(self, operand: Tensor) -> Tensor:
        """To add to, in place: the gradients of steps that are no products. In single precision at least."""
        if self.sum is None:
            self.sum = torch.zeros_like(operand, dtype=torch.promote_types(operand.dtype, torch.float32))
        return self.sum

    def close(self) -> tuple[Tensor | None, Tensor | None]:
        """Σ_t x_tᵀ g_t, the sum being part of one product, and what was added; and the g_t, one below the other."""
        total, self.sum = self.sum, None
        if not self.products:
            return total, None
        x, g = (one[0] if len(one) == 1 else torch.cat(one, -2) for one in zip(*self.products, strict=True))
        self.products.clear()
        # Of a matrix, which is a weight's transpose, in the weight's own order: no copy when the weight takes it.
        outer = (g.t() @ x).t() if x.dim() == 2 else x.transpose(-2, -1) @ g
        return (outer if total is None else total + outer), g


def share(operand: Tensor) -> Tensor:
    """The operand, K×J or B×K×J, for `product` at every step; itself where there will be no backward pass, or where it
    is shared already.
    """
    return operand if not is_on() or ledger_of(operand) else _share(operand, None)[0]


def ledger_of(operand: Tensor) -> Ledger | None:
    """None where the operand is not shared."""
    return getattr(operand, "ledger", None)


def product(x: Tensor, operand: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ operand; `x` …×K. A bias, J, is one that was shared with its operand."""
    ledger = ledger_of(operand)
    if ledger is None:
        return x @ operand
    y: Tensor = _Product.apply(x, operand, bias, ledger)
    return y


class StepLinear(nn.Linear):
    """A linear map inside a recurrence."""

    shared: tuple[Tensor, Tensor | None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.shared is None:
            return super().forward(x)
        return product(x, *self.shared)


@contextmanager
def one_gradient(module: nn.Module) -> Iterator[None]:
    """Share the weights and biases of all of a module's `StepLinear` for one pass forward."""
    found = [one for one in module.modules() if isinstance(one, StepLinear) and is_on()]
    for one in found:
        one.shared = _share(one.weight.t(), one.bias)
    try:
        yield
    finally:
        for one in found:
            one.shared = None


def _share(operand: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    ledger = Ledger()
    shared, shared_bias = _Share.apply(operand, bias, ledger)
    shared.ledger = ledger
    return shared, shared_bias


class _Share(torch.autograd.Function):
    """Of what it returns, the gradients of products are in the ledger, and only others come back to it."""

    @staticmethod
    def forward(ctx: Any, operand: Tensor, bias: Tensor | None, ledger: Ledger) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.ledger, ctx.dtype = ledger, operand.dtype
        shared = operand.view_as(operand).to(product_dtype(operand))
        return shared, None if bias is None else bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        """Autograd calls this after every step's."""
        total, g = ctx.ledger.close()
        if total is not None:
            gradient = total if gradient is None else total + gradient
        sums = g.flatten(0, -2).sum(0, dtype=ctx.dtype) if g is not None and ctx.needs_input_grad[1] else None
        return (None if gradient is None else gradient.to(ctx.dtype)), sums, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operand: Tensor, bias: Tensor | None, ledger: Ledger) -> Tensor:
        x = x.to(operand.dtype)
        ctx.ledger = ledger
        ctx.save_for_backward(x, operand)
        y = x @ operand
        if bias is None:
            return y
        return y.add_(bias) if y.dtype == bias.dtype else y + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, operand = ctx.saved_tensors
        pair = (x.detach(), gradient.to(operand.dtype))
        ctx.ledger.products.append(pair if operand.dim() == 3 else tuple(one.flatten(0, -2) for one in pair))
        return (pair[1] @ operand.transpose(-2, -1) if ctx.needs_input_grad[0] else None), None, None, None


def product_dtype(operand: Tensor) -> torch.dtype:
    """What autocast takes matrix products in."""
    device = operand.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else operand.dtype
