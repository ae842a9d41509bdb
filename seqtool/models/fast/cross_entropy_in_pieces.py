"""Cross-entropy of a projection to the vocabulary that never holds the logits of a whole batch.

A few rows are projected at a time, and their contributions to the gradients are computed in the forward pass.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqtool.models.fast.deferred_gradients import DeferredGradientLinear
from seqtool.models.fast.packed import PackedLinear
from seqtool.models.fast.rounded_once import RoundedOnceLinear
from seqtool.models.parts import CrossEntropy, cross_entropy, product_dtype, single
from seqtool.models.tokens import PAD

MAX_ROWS = 512  # the number of rows that a CPU projects at a time: its libraries are slower with more
MAX_LOGITS = 2**23  # the number of logits that a CPU holds at a time: 32 MB in single precision
MAX_LOGITS_ON_GPU = 2**26  # 256 MB, since every piece costs about 30 launches of kernels
LINEAR_MAPS = (nn.Linear, DeferredGradientLinear, RoundedOnceLinear, PackedLinear)


def cross_entropy_in_pieces(
    features: Tensor, output: Any, labels: Tensor, smoothing: float, weights: Tensor | None = None
) -> CrossEntropy:
    """Compute `parts.cross_entropy`, in pieces if `output` is a linear map with a bias."""
    if type(output) not in LINEAR_MAPS or output.bias is None:
        return cross_entropy(features, output, labels, smoothing, weights)
    factor = None if weights is None else weights[:, None].expand_as(labels).flatten()
    x, dtype = features.flatten(0, -2), product_dtype(features)
    with torch.autocast(x.device.type, enabled=False):  # `_ProjectedCrossEntropy` casts explicitly
        total, nll = _ProjectedCrossEntropy.apply(
            x, output.weight, output.bias, labels.flatten(), factor, smoothing, dtype
        )
    return CrossEntropy(total, nll.view_as(labels))


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        factor: Tensor | None,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Any:
        vocabulary, needs_gradient, sum_dtype = len(weight), any(ctx.needs_input_grad), single(dtype)
        features, matrix, output_bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        x_gradient = torch.empty_like(features)
        weight_gradient: Tensor | None = None
        bias_gradient = torch.zeros_like(bias, dtype=sum_dtype)
        nll = torch.empty(len(x), dtype=sum_dtype, device=x.device)
        total = torch.zeros((), dtype=sum_dtype, device=x.device)
        is_on_cpu = x.device.type == "cpu"
        piece_rows = max(1, min(MAX_ROWS, MAX_LOGITS // vocabulary) if is_on_cpu else MAX_LOGITS_ON_GPU // vocabulary)
        # The logits and p, which later holds the gradient, are allocated only once, since new memory is expensive.
        logits = torch.empty(min(piece_rows, len(x)), vocabulary, dtype=dtype, device=x.device)
        probabilities = logits if dtype == sum_dtype else torch.empty_like(logits, dtype=sum_dtype)
        for start in range(0, max(1, len(x)), piece_rows):  # an empty batch is one empty piece
            rows = slice(start, start + piece_rows)
            label, real = labels[rows, None], labels[rows, None] != PAD
            z, p = logits[: len(label)], probabilities[: len(label)]
            torch.mm(features[rows], matrix.t(), out=z).add_(output_bias)
            max_logit, label_logit = z.amax(-1, keepdim=True), z.gather(1, label)
            mean = z.mean(-1, keepdim=True, dtype=sum_dtype) if smoothing else None
            if dtype != sum_dtype and is_on_cpu:
                torch.softmax(p.copy_(z), -1, out=p)  # softmax's own `dtype` would allocate the copy
            else:
                torch.softmax(z, -1, dtype=sum_dtype, out=p)
            log_sum = max_logit - p.amax(-1, keepdim=True).log()  # log Σ e^z
            nll[rows] = (log_sum - label_logit).where(real, 0).squeeze(1)
            scale = None if factor is None else factor[rows, None]
            total += (1 - smoothing) * (nll[rows] if scale is None else nll[rows] * scale.squeeze(1)).sum()
            if mean is not None:
                uniform_loss = (log_sum - mean).where(real, 0)
                total += smoothing * (uniform_loss if scale is None else uniform_loss * scale).sum()
            if not needs_gradient:
                continue
            gradient = p if mean is None else p.sub_(smoothing / vocabulary)  # p − (1 − ε) · one-hot − ε / V
            gradient.scatter_add_(1, label, gradient.new_full(label.shape, smoothing - 1))
            if scale is not None:
                gradient.mul_(scale)
            bias_gradient += (real.to(sum_dtype).t() @ gradient).squeeze(0)
            inputs = features[rows] * real
            if dtype != sum_dtype:
                z.copy_(gradient)  # if the types are equal, z is the tensor that holds the gradient
            if weight_gradient is None:
                weight_gradient = (z.t() @ inputs).to(sum_dtype)
            elif dtype == sum_dtype:
                weight_gradient.addmm_(z.t(), inputs)
            else:
                weight_gradient += z.t() @ inputs
            torch.mm(z, matrix, out=x_gradient[rows]).mul_(real)
        if needs_gradient:
            ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
            ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((upstream * gradient).to(dtype) for gradient, dtype in gradients), None, None, None, None
