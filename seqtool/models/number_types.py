"""Number types: states and attention in single precision at least, products in the type that autocast chooses."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from seqtool.runtime.precision import fp32_switches, restore


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
    """Compute convolutions and products in full fp32, without TF32, so that a GPU and a CPU agree. Afterwards torch's
    switches, the older ones and those of torch 2.9, are as they were.
    """
    before = [(switch, switch.fp32_precision) for switch in fp32_switches()]
    convolutions = products = None
    with suppress(RuntimeError):  # torch refuses to say where a newer switch says something else
        convolutions = torch.backends.cudnn.allow_tf32
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    try:
        if convolutions:
            torch.backends.cudnn.allow_tf32 = False
        if products not in (None, "highest"):
            torch.set_float32_matmul_precision("highest")
        for switch, _ in before:
            if switch.fp32_precision not in ("none", "ieee"):
                switch.fp32_precision = "ieee"
        yield
    finally:
        if convolutions:
            torch.backends.cudnn.allow_tf32 = True
        if products not in (None, "highest"):
            torch.set_float32_matmul_precision(products)
        for switch, precision in before:
            if switch.fp32_precision != precision:
                restore(switch, precision)
