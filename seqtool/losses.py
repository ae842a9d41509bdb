"""What training minimises."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from seqtool.data.batches import Batch
from seqtool.data.vocabulary import PAD
from seqtool.models.encoder_decoder import EncoderDecoder


class Loss(NamedTuple):
    """Sums over a batch, in nats: `total` is minimised (smoothed where smoothing is on), `nll` is −log p(target)."""

    total: Tensor
    nll: Tensor


class TrainingLoss(nn.Module):
    """A batch's loss from teacher forcing; the one module that data-parallel training wraps."""

    def __init__(self, model: EncoderDecoder, smoothing: float) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> Loss:
        features = self.model(batch.source, batch.inputs).features
        return token_cross_entropy(self.model.project(features), batch.labels, self.smoothing)


def token_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Loss:
    """Cross-entropy summed over the real tokens; padding adds nothing.

    logits B×T×V, labels B×T. With label smoothing ε the target distribution is (1 − ε) on the label and ε spread over
    the whole vocabulary (Szegedy et al. 2016).
    """
    log_p = F.log_softmax(logits.float(), -1).flatten(0, 1)
    nll = F.nll_loss(log_p, labels.flatten(), ignore_index=PAD, reduction="sum")
    if not smoothing:
        return Loss(nll, nll.detach())
    spread = -(log_p.mean(-1) * (labels.flatten() != PAD)).sum()
    return Loss((1 - smoothing) * nll + smoothing * spread, nll.detach())
