"""Cross-entropy of a projection to the vocabulary, without ever holding the logits of a whole batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqtool.data.vocabulary import PAD
from seqtool.models import sharing

AT_ONCE = 2**22  # logits


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
        weight_gradient, bias_gradient = (torch.zeros_like(one, dtype=single) for one in (weight, bias))
        nll = torch.empty(len(x), dtype=single, device=x.device)
        total = torch.zeros((), dtype=single, device=x.device)
        size = max(1, AT_ONCE // vocabulary)
        # Made once, for new memory is dear: the logits, and what becomes of them, log p and then the gradient.
        logits = torch.empty(min(size, len(x)), vocabulary, dtype=dtype, device=x.device)
        logs = logits if dtype == single else torch.empty_like(logits, dtype=single)
        for rows in (slice(start, start + size) for start in range(0, len(x), size)):
            label, real = labels[rows], labels[rows] != PAD
            z, log_p = logits[: len(label)], logs[: len(label)]
            torch.addmm(offset, features[rows], matrix.t(), out=z)
            torch.log_softmax(z, -1, dtype=single, out=log_p)
            nll[rows] = F.nll_loss(log_p, label, ignore_index=PAD, reduction="none")
            total += (1 - smoothing) * nll[rows].sum()
            if smoothing:
                total -= smoothing * (log_p.mean(-1) * real).sum()
            if not wanted:
                continue
            gradient = log_p.exp_()  # ∂/∂logits: p − (1 − ε) · one-hot − ε / V
            if smoothing:
                gradient -= smoothing / vocabulary
            gradient.scatter_add_(1, label[:, None], gradient.new_full((len(label), 1), smoothing - 1))
            gradient *= real[:, None]
            bias_gradient += gradient.sum(0)
            if dtype == single:  # z is the gradient
                weight_gradient.addmm_(z.t(), features[rows])
            else:
                weight_gradient += z.copy_(gradient).t() @ features[rows]
            torch.mm(z, matrix, out=x_gradient[rows])
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
