"""The weights of a Transformer's layers in half precision, rounded once a batch by one kernel of a GPU.

Autocast rounds every weight and bias by a kernel of its own, and so every gradient. A Transformer of 4 + 4 layers has
88 of them: with these parts an update in bf16 starts 637 kernels instead of 809, and 555 in single precision
(scripts/count_launches.py). Products and gradients are the same numbers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqtool.models.fast.deferred_gradients import DeferredGradientLinear
from seqtool.models.parts import product_dtype
from seqtool.models.transformer import DecoderLayer, EncoderLayer

_rounded: ContextVar[Mapping[nn.Module, tuple[Tensor, Tensor | None]]] = ContextVar(
    "rounded", default=MappingProxyType({})
)


@contextmanager
def rounded_once(model: nn.Module) -> Iterator[None]:
    """Within the context, which encloses the forward pass of a batch, the layers of a model use rounded weights, if
    they are Transformers' and autocast rounds.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, EncoderLayer | DecoderLayer)]
    maps = [module for layer in layers for module in layer.modules() if isinstance(module, RoundedOnceLinear)]
    parameters = [parameter for module in maps for parameter in (module.weight, module.bias) if parameter is not None]
    if not maps or (dtype := product_dtype(parameters[0])) == parameters[0].dtype:
        yield
        return
    rounded = iter(_Round.apply(dtype, *parameters))
    token = _rounded.set({m: (next(rounded), None if m.bias is None else next(rounded)) for m in maps})
    try:
        yield
    finally:
        _rounded.reset(token)


class RoundedOnceLinear(DeferredGradientLinear):
    """A linear map with the weights of `rounded_once` where it is among them."""

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, *_rounded.get().get(self, (self.weight, self.bias)))


class _Round(torch.autograd.Function):
    """Tensors in another type; their gradients come back in their own."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensors[0].dtype
        return _converted(tensors, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        converted = iter(_converted([g for g in gradients if g is not None], ctx.dtype))
        return None, *(None if g is None else next(converted) for g in gradients)


def _converted(tensors: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return tensors in another type, by as few kernels as possible."""
    converted = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    torch._foreach_copy_(converted, list(tensors))
    return converted
