"""The loss that training minimises.

For a sentence or caption: −log p of its words (`models/parts.py`), summed; with attention over images, the
doubly stochastic penalty (Xu et al. 2015, section 4.2.1). Hard attention adds terms whose gradient estimates the
bound's (section 4.1). The estimate is unbiased if λ_r = 1 and there is no entropy term, doubly stochastic penalty,
label smoothing or soft row.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from seqtool.data.batches import Batch
from seqtool.decoding import tree
from seqtool.models.contract import EncoderDecoder, Output
from seqtool.models.hard_attention import Sampled, hard_attention_terms
from seqtool.models.tokens import PAD

Scalar = Float[Tensor, ""]


class Loss(NamedTuple):
    """Sums over a batch, in nats: `total` is minimised, `nll` is −log p(target), a mean over an image's samples.

    `reward` updates the moving average of hard attention: Σ_t log p(y_t), a mean over the rows that drew their
    attention; NaN if none did, None without hard attention. `state` is the first state of the same streams' next
    batch, None if examples are independent; no gradient flows back through it.
    """

    total: Scalar
    nll: Scalar
    reward: Scalar | None = None
    state: Any = None

    def sums(self) -> Float[Tensor, "3"]:
        """−log p; the reward, and 1 to count it, both 0 without a finite one."""
        reward = torch.full_like(self.nll, math.nan) if self.reward is None else self.reward
        finite = reward.isfinite()
        return torch.stack([self.nll, reward.where(finite, torch.zeros_like(reward)), finite.to(reward.dtype)])


class TrainingLoss(nn.Module):
    """A batch's loss from teacher forcing; the one module that data-parallel training wraps.

    `baseline` is the moving average of the reward, NaN before the first. The training loop updates it (`observe`) and
    saves it.
    """

    baseline: Scalar

    def __init__(self, model: EncoderDecoder, smoothing: float) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.register_buffer("baseline", torch.tensor(math.nan))

    def forward(self, batch: Batch, state: Any = None) -> Loss:
        """For streams that continue, `state` is the last state of the batch before."""
        inputs, labels = batch.inputs, batch.labels
        output = self.model(batch.source, inputs, state)
        if output.sampled is not None:
            return self._of_samples(output, output.sampled, labels)
        loss = self._of_expected(output.features, output.attention, labels)
        return loss if batch.continues is None else loss._replace(state=tree.each(Tensor.detach, output.state))

    @torch.no_grad()
    def observe(self, reward: Scalar) -> None:
        """Move the baseline towards a reward, b ← 0.9 b + 0.1 R (`decay`); the first one initialises it, and NaN or ∞
        leaves it.
        """
        b, decay = self.baseline, self.model.penalties.decay
        after = torch.where(b.isnan(), reward, decay * b + (1 - decay) * reward)
        b.copy_(torch.where(reward.isfinite(), after, b))

    def _of_expected(
        self, features: Float[Tensor, "N T R"], attention: Float[Tensor, "N T S"] | None, labels: Int[Tensor, "N T"]
    ) -> Loss:
        """−log p and the doubly stochastic penalty."""
        total, nll = self.model.loss(features, labels, self.smoothing)
        penalty = self.model.penalties.doubly_stochastic
        if penalty and attention is not None:
            total = total + penalty * doubly_stochastic(attention, labels).sum()
        return Loss(total, nll.sum())

    def _of_samples(self, output: Output, sampled: Sampled, labels: Int[Tensor, "B T"]) -> Loss:
        """Hard attention: −log p(y|s) and its own terms, then the mean over an image's rows. A row that took the
        expected context has only −log p(y); the doubly stochastic penalty applies to every row.
        """
        penalty, M = self.model.penalties.doubly_stochastic, sampled.samples  # noqa: N806
        assert output.attention is not None
        labels = labels[sampled.image]
        first, drew = slice(sampled.expected), slice(sampled.expected, None)
        expected = self._of_expected(output.features[first], output.attention[first], labels[first])
        loss, nll = self.model.loss(output.features[drew], labels[drew], self.smoothing)
        real = labels[drew] != PAD
        loss = loss + hard_attention_terms(self.model.penalties, sampled, nll, real, self.baseline)
        if penalty:
            loss = loss + penalty * doubly_stochastic(output.attention[drew], labels[drew]).sum()
        return Loss(expected.total + loss / M, expected.nll + nll.sum() / M, -nll.sum(1).mean())


def doubly_stochastic(alpha: Float[Tensor, "N T S"], labels: Int[Tensor, "N T"]) -> Float[Tensor, "N"]:
    """Σ_i (1 − Σ_t α_ti)² of each row (Xu et al. 2015, (14)): a sum over locations; padded steps do not count."""
    seen = (alpha * (labels != PAD)[:, :, None]).sum(1)
    return (1 - seen).square().sum(1)
