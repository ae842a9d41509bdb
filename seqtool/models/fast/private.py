"""What the fast parts use of torch that torch does not document, and may change with any release.

tests/models/test_private_interfaces.py fails if one of these changes, or if another file of the package uses more.
"""

from typing import Any

import torch
from torch import Tensor

# In aten: the gradient of the input, given that of the output and the output, written to `grad_input`.
through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
through_tanh = torch.ops.aten.tanh_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.default
through_softmax = torch.ops.aten._softmax_backward_data  # gradient, output, dimension, type of the input


def backward_pass() -> int:
    """A number of the backward pass that runs in this thread, −1 outside."""
    return torch._C._current_graph_task_id()


def packs(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN on this machine and can multiply in this type: bf16 needs AVX-512 or newer."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed(weight: Tensor, rows: int) -> Tensor:
    """W, J×K, in oneDNN's own layout, chosen for products with so many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def packed_linear(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b with W in oneDNN's own layout."""
    return torch.ops.mkldnn._linear_pointwise.default(x, matrix, bias, "none", [], "")


# Whole sequences and single steps, with arguments as in aten; `torch.nn` has the documented modules.
lstm: Any = torch.lstm
gru: Any = torch.gru
rnn_tanh: Any = torch.rnn_tanh
lstm_cell: Any = torch.lstm_cell
