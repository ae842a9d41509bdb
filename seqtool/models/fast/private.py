"""Functions of torch that the fast parts use although torch does not document them: any release may change them.

tests/models/test_private_interfaces.py fails if one of them changes, or if another file of the package uses others.
"""

from typing import Any

import torch
from torch import Tensor

PACKED_FOR_ROWS = 64  # oneDNN chooses the layout that suits products with this number of rows

# aten functions of the output's gradient and the output; `through_sigmoid` and `through_tanh` write to `grad_input`.
through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
through_tanh = torch.ops.aten.tanh_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.default
through_softmax = torch.ops.aten._softmax_backward_data  # further arguments: dimension, type of the input
addmm_relu = torch.ops.aten._addmm_activation.default  # max(0, b + x W)
integer_product: Any = torch._int_mm  # N×K and K×J of int8 → N×J of int32


def backward_pass() -> int:
    """Return a number that identifies the backward pass running in this thread, or −1 outside a backward pass."""
    return torch._C._current_graph_task_id()


def supports_packed(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN on this machine and can multiply in this type: bf16 needs AVX-512 or newer."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    """Return W, J×K, in oneDNN's own layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)


def packed_linear(x: Tensor, matrix: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    """Return x Wᵀ + b, or `then` of it, `relu` or `none`, with W in oneDNN's own layout."""
    return torch.ops.mkldnn._linear_pointwise.default(x, matrix, bias, then, [], "")


def packed_linear_add(x: Tensor, matrix: Tensor, bias: Tensor | None, total: Tensor) -> Tensor:
    """Return `total` + x Wᵀ + b, all in one type, with W in oneDNN's own layout."""
    return torch.ops.mkldnn._linear_pointwise.binary(x, total, matrix, bias, "add")


def has_quantised_linear() -> bool:
    """Whether torch has oneDNN's linear map of 8-bit integers."""
    return hasattr(torch.ops.onednn, "qlinear_pointwise")


def pack_quantised(weight: Tensor) -> Tensor:
    """Return the int8 matrix W, J×K, in oneDNN's own layout."""
    return torch.ops.onednn.qlinear_prepack(weight, [PACKED_FOR_ROWS, weight.shape[1]])


def quantised_linear(x: Tensor, matrix: Tensor, scale: Tensor) -> Tensor:
    """Return x Wᵀ ∘ scale in single precision, for int8 numbers x and W in oneDNN's own layout; `scale` has J numbers.

    oneDNN is faster with unsigned numbers, so x is moved by their zero point, 128.
    """
    unsigned, no_offset = (x.view(torch.uint8) ^ 128), torch.zeros_like(scale, dtype=torch.int32)
    settings: Any = None, 1.0, 0, torch.float32, "none", [], ""
    return torch.ops.onednn.qlinear_pointwise(unsigned, 1.0, 128, matrix, scale, no_offset, *settings)


# Whole sequences and a single step, with the arguments of aten; the documented modules are in `torch.nn`.
lstm: Any = torch.lstm
gru: Any = torch.gru
rnn_tanh: Any = torch.rnn_tanh
lstm_cell: Any = torch.lstm_cell
