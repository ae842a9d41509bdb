"""Cross-entropy of a projection to the vocabulary, without ever holding the logits of a whole batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqtool.data.vocabulary import PAD
from seqtool.models import sharing

ROWS, LOGITS = 512, 2**23  # at once, at most: with more rows CPUs' libraries are slower


class CrossEntropy(NamedTuple):
    """total: the smoothed cross-entropy summed over the real tokens, to be minimised; nll: −log p of each, N×T, a
    constant, 0 at padding.
    """

    total: Tensor
    nll: Tensor


def cross_entropy(features: Tensor, output: nn.Linear, labels: Tensor, smoothing: float) -> CrossEntropy:
    """−log softmax(output(features))[label] in nats; features N×T×R, labels N×T.

    With label smoothing ε the target distribution is (1 − ε) on the label and ε spread over the whole vocabulary
    (Szegedy et al. 2016). The softmax is in single precision at least. A few rows are projected at a time, and their
    share of the gradient is made at once.
    """
    if sharing.is_plain():
        return of_logits(output(features), labels, smoothing)
    total, nll = _Projected.apply(features.flatten(0, -2), output.weight, output.bias, labels.flatten(), smoothing)
    return CrossEntropy(total, nll.view_as(labels))


def of_logits(logits: Tensor, labels: Tensor, smoothing: float) -> CrossEntropy:
    """The same in plain equations; logits N×T×V."""
    log_p = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = F.nll_loss(log_p.flatten(0, -2), labels.flatten(), ignore_index=PAD, reduction="none").view_as(labels)
    spread = -log_p.mean(-1) * (labels != PAD)
    return CrossEntropy((1 - smoothing) * nll.sum() + smoothing * spread.sum(), nll.detach())


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Any:
        vocabulary = len(weight)
        wanted = any(ctx.needs_input_grad)
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        single = torch.promote_types(dtype, torch.float32)
        features, matrix, offset = x.to(dtype), weight.to(dtype), bias.to(dtype)
        x_gradient = torch.empty_like(features)
        weight_gradient: Tensor | None = None
        bias_gradient = torch.zeros_like(bias, dtype=single)
        nll = torch.empty(len(x), dtype=single, device=x.device)
        total = torch.zeros((), dtype=single, device=x.device)
        size = max(1, min(ROWS, LOGITS // vocabulary))
        # Made once, for new memory is dear: the logits, and what becomes of them, p and then the gradient.
        logits = torch.empty(min(size, len(x)), vocabulary, dtype=dtype, device=x.device)
        probabilities = logits if dtype == single else torch.empty_like(logits, dtype=single)
        for rows in (slice(start, start + size) for start in range(0, max(1, len(x)), size)):  # once for no rows
            label, real = labels[rows, None], labels[rows, None] != PAD
            z, p = logits[: len(label)], probabilities[: len(label)]
            torch.mm(features[rows], matrix.t(), out=z).add_(offset)
            highest, of_label = z.amax(-1, keepdim=True), z.gather(1, label)
            mean = z.mean(-1, keepdim=True, dtype=single) if smoothing else None
            if dtype != single and device == "cpu":
                torch.softmax(p.copy_(z), -1, out=p)  # with `dtype`, the copy would be new memory
            else:
                torch.softmax(z, -1, dtype=single, out=p)
            log_sum = highest - p.amax(-1, keepdim=True).log()  # of e^z
            nll[rows] = (log_sum - of_label).where(real, 0).squeeze(1)
            total += (1 - smoothing) * nll[rows].sum()
            if mean is not None:
                total += smoothing * (log_sum - mean).where(real, 0).sum()
            if not wanted:
                continue
            gradient = p if mean is None else p.sub_(smoothing / vocabulary)  # p − (1 − ε) · one-hot − ε / V
            gradient.scatter_add_(1, label, gradient.new_full(label.shape, smoothing - 1))
            bias_gradient += (real.to(single).t() @ gradient).squeeze(0)
            inputs = features[rows] * real
            if dtype != single:
                z.copy_(gradient)  # otherwise they are the same
            if weight_gradient is None:
                weight_gradient = (z.t() @ inputs).to(single)
            elif dtype == single:
                weight_gradient.addmm_(z.t(), inputs)
            else:
                weight_gradient += z.t() @ inputs
            torch.mm(z, matrix, out=x_gradient[rows]).mul_(real)
        if wanted:
            ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
            ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((upstream * one).to(dtype) for one, dtype in gradients), None, None
