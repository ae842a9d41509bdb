"""Number types: states and attention in single precision at least, products in the type that autocast chooses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def single(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, but at least single precision."""
    return torch.promote_types(dtype, torch.float32)


def at_least_single(x: Tensor) -> Tensor:
    return x.to(single(x.dtype))


def product_dtype(operand: Tensor) -> torch.dtype:
    """The type in which autocast multiplies."""
    device = operand.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else operand.dtype


def for_products(x: Tensor) -> Tensor:
    """`x` in the type in which autocast multiplies it, so that it is rounded once and not at every step."""
    return x.to(product_dtype(x))


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute a GPU's convolutions and products in full fp32, without TF32, so that they agree with a CPU's."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before
