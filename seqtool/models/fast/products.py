"""Sums of a tensor and a product of matrices, where the product has a lower precision: one kernel on a GPU, not two."""

from functools import cache

import torch
from torch import Tensor


def add_product(addend: Tensor, x: Tensor, matrix: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return addend + x @ matrix, N×J, in the addend's type, with the product in the type of the matrix. No gradients
    unless all types are the same.
    """
    x = x.to(matrix.dtype)
    if addend.dtype == matrix.dtype:
        return torch.addmm(addend, x, matrix, out=out)
    if addend.dtype == torch.float32 and adds_to_single(matrix.device, matrix.dtype):
        return torch.addmm(addend, x, matrix, out_dtype=torch.float32, out=out)
    return torch.add(addend, x @ matrix, out=out)


@cache
def adds_to_single(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch adds a product of this type to single precision on this device by one kernel, tried with numbers:
    on NVIDIA's and AMD's GPUs it does since version 2.10, and earlier ones refuse or are wrong.
    """
    if device.type != "cuda":
        return False
    with torch.inference_mode():
        addend = torch.full((16, 16), 2**-12, device=device)
        x, out = torch.ones(16, 16, device=device, dtype=dtype), torch.zeros_like(addend)
        try:
            torch.addmm(addend, x, x, out_dtype=torch.float32, out=out)
            row = torch.addmm(addend[0], x, x, out_dtype=torch.float32)
        except (RuntimeError, TypeError):
            return False
        return torch.equal(out, 16 + addend) and torch.equal(row, out)
