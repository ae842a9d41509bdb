"""Linear maps that only decode, on a CPU."""

import torch
from torch import Tensor, nn

ROWS = 64  # that the layout is chosen for


class Packed(nn.Module):
    """x Wᵀ + b, …×K → …×J, with W in oneDNN's own layout, by blocks, which is read from memory as it is needed: a
    product with few rows takes half the time. No gradients. Products are in the type of W, single precision or bf16.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().to(self.dtype)

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        """Whether torch has oneDNN here, and it multiplies in this type: bf16 needs AVX-512 or newer."""
        available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.matrix, self.bias, "none", [], "")
        return y
