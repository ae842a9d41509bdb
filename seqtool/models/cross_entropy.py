"""The cross-entropy of a batch's words, smoothed and not."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from seqtool.models.number_types import single
from seqtool.models.tokens import PAD


class CrossEntropy(NamedTuple):
    """The loss of a batch, in nats.

    total: the smoothed cross-entropy summed over the real tokens, to be minimised
    nll: −log p of each token, a constant, 0 at padding
    """

    total: Float[Tensor, ""]
    nll: Float[Tensor, "N T"]


def cross_entropy(
    features: Float[Tensor, "N T R"], output: Callable[[Tensor], Tensor], labels: Int[Tensor, "N T"], smoothing: float
) -> CrossEntropy:
    """−log softmax(output(features))[label]. The softmax is in single precision at least.

    With label smoothing ε the target distribution is (1 − ε) on the label and ε spread over the whole vocabulary
    (Szegedy et al. 2016).
    """
    logits: Float[Tensor, "N T V"] = output(features)
    log_p = F.log_softmax(logits, -1, dtype=single(logits.dtype))
    nll = F.nll_loss(log_p.flatten(0, -2), labels.flatten(), ignore_index=PAD, reduction="none").view_as(labels)
    spread = -log_p.mean(-1) * (labels != PAD)
    return CrossEntropy((1 - smoothing) * nll.sum() + smoothing * spread.sum(), nll.detach())
