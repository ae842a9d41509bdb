"""Models for decoding only, with the fastest parts and matrices; on a CPU, linear maps in oneDNN's own layout."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from seqtool.models.fast.quicken import own_modules, quicken
from seqtool.runtime.precision import PRECISIONS

ROWS = 64  # the number of rows for which the layout is chosen
M = TypeVar("M", bound=nn.Module)


def laid_out(model: M, precision: str, device: torch.device) -> M:
    """The model for decoding only: quickened, with each matrix of a linear map rounded once to the precision's type, as
    autocast would at every step, and stored in the layout that a CPU multiplies fastest. A matrix tied to an embedding
    becomes a copy. A map to a single number, such as a score's v, is also used without autocast, so it stays as it is.
    """
    dtype = PRECISIONS[precision]
    for parent in own_modules(quicken(model, device)):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.out_features > 1:
                child.weight = nn.Parameter(child.weight.detach().to(dtype or child.weight.dtype))
                if device.type == "cpu" and Packed.takes(child.weight.dtype):
                    setattr(parent, name, Packed(child))
    return model


class Packed(nn.Module):
    """x Wᵀ + b, …×K → …×J, with W in oneDNN's own blocked layout, which follows the order in which it is read: a
    product with few rows takes half the time. No gradients. Products are in the type of W, single precision or bf16.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().to(self.dtype)

    @property
    def weight(self) -> Tensor:
        """W in its ordinary layout, for what multiplies by it in another way: a copy."""
        weight: Tensor = self.matrix.to_dense()
        return weight

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        """Whether torch has oneDNN on this machine and can multiply in this type: bf16 needs AVX-512 or newer."""
        available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.matrix, self.bias, "none", [], "")
        return y
