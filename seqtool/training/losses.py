"""The loss that training minimises.

For a sentence or caption, the loss is the sum of −log p of its words (`models/parts.py`). Attention over images adds
the doubly stochastic penalty (Xu et al. 2015, section 4.2.1). Hard attention adds terms whose gradient estimates the
gradient of the bound (section 4.1). The estimate is unbiased if λ_r = 1 and there is no entropy term, doubly stochastic
penalty, label smoothing or row that takes the expected context.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from seqtool.data.batches import Batch
from seqtool.models import tree
from seqtool.models.contract import EncoderDecoder, Output
from seqtool.models.hard_attention import DrawnLocations, Rows, hard_attention_terms
from seqtool.models.tokens import PAD
from seqtool.training.scheduled_sampling import Teacher

Scalar = Float[Tensor, ""]


class Loss(NamedTuple):
    """A batch's loss: sums over its examples, in nats."""

    total: Scalar  # the sum to minimise
    nll: Scalar  # −log p(target), averaged over an image's samples
    reward: Scalar | None = None  # Σ_t log p(y_t) of the rows that drew their attention; with sequences, their rewards
    rewarded: int = 0  # the number of these rows, or sequences
    state: Any = None  # where the streams' next batch starts, without gradient; None if examples are independent

    def sums(self) -> Float[Tensor, "3"]:
        """−log p, the reward and the number of rewards; reward and number are 0 unless the reward is finite."""
        reward = torch.zeros_like(self.nll) if self.reward is None else self.reward.to(self.nll.dtype)
        rewards = torch.stack([reward, torch.full_like(reward, self.rewarded)])
        return torch.cat([self.nll[None], rewards.where(reward.isfinite(), torch.zeros_like(rewards))])


class TrainingLoss(nn.Module):
    """A batch's loss under teacher forcing; the only module that data-parallel training wraps. `teacher` chooses what
    the decoder reads in training; None is the reference.
    """

    baseline: Scalar  # the moving average of the reward, NaN before the first; the training loop moves and saves it
    mean_reward: Scalar | None = None  # with sequences, the mean reward of the last update
    graphs: Callable[..., Loss] | None = None  # in the place of `compute` in compiled training (`compiling.Graphs`)

    def __init__(self, model: EncoderDecoder[Any], smoothing: float, teacher: Teacher | None = None) -> None:
        super().__init__()
        self.model, self.smoothing, self.teacher = model, smoothing, teacher
        self.update = 0  # the number of the update, on which random draws depend; the training loop sets it
        self.register_buffer("baseline", torch.tensor(math.nan))

    def forward(self, batch: Batch, state: Any = None) -> Loss:
        """Compute the loss. For streams that continue, `state` is the last state of the previous batch."""
        inputs = batch.inputs
        if self.teacher is not None and self.training:
            batch = replace(batch, source=self.model.augmented(batch.source))
            inputs = self.teacher.inputs(self.model, batch, self.update)
        compute = self.graphs if self.graphs is not None and self.training else self.compute
        return compute(batch.source, inputs, batch.labels, state, carries=batch.continues is not None)

    def compute(
        self, source: Any, inputs: Tensor, labels: Tensor, state: Any, rows: Rows | None = None, *, carries: bool
    ) -> Loss:
        """Compute the loss from what the decoder reads, B×T, and what it should predict, B×T.

        rows: the rows of hard attention if they have been drawn
        carries: whether the last state is returned
        """
        output = self.model(source, inputs, state) if rows is None else self.model(source, inputs, state, rows)
        if output.sampled is not None:
            return self._sampled_loss(output, output.sampled, labels)
        loss = self._loss_without_samples(output.features, output.attention, labels)
        return loss._replace(state=tree.map_tensors(Tensor.detach, output.state)) if carries else loss

    @torch.no_grad()
    def observe(self, reward: Scalar) -> None:
        """Move the baseline towards a reward: b ← 0.9 b + 0.1 R, where 0.9 is `decay`. The first reward initialises the
        baseline; a reward that is not finite leaves it unchanged.
        """
        b, decay = self.baseline, self.model.penalties.decay
        new_baseline = torch.where(b.isnan(), reward, decay * b + (1 - decay) * reward)
        b.copy_(torch.where(reward.isfinite(), new_baseline, b))

    def _loss_without_samples(
        self, features: Float[Tensor, "N T R"], attention: Float[Tensor, "N T S"] | None, labels: Int[Tensor, "N T"]
    ) -> Loss:
        """The loss without sampled attention: −log p and the doubly stochastic penalty."""
        total, nll = self.model.loss(features, labels, self.smoothing)
        penalty = self.model.penalties.doubly_stochastic
        if penalty and attention is not None:
            total = total + penalty * doubly_stochastic(attention, labels).sum()
        return Loss(total, nll.sum())

    def _sampled_loss(self, output: Output, sampled: DrawnLocations, labels: Int[Tensor, "B T"]) -> Loss:
        """The loss of hard attention: −log p(y|s) and `hard_attention_terms`, averaged over an image's samples. A row
        that took the expected context has only −log p(y). The doubly stochastic penalty applies to every row.
        """
        penalty, M = self.model.penalties.doubly_stochastic, sampled.samples  # noqa: N806
        assert output.attention is not None
        labels = labels[sampled.image]
        soft, hard = slice(sampled.expected_rows), slice(sampled.expected_rows, None)  # rows without and with draws
        soft_loss = self._loss_without_samples(output.features[soft], output.attention[soft], labels[soft])
        loss, nll = self.model.loss(output.features[hard], labels[hard], self.smoothing)
        real = labels[hard] != PAD
        loss = loss + hard_attention_terms(self.model.penalties, sampled, nll, real, self.baseline)
        if penalty:
            loss = loss + penalty * doubly_stochastic(output.attention[hard], labels[hard]).sum()
        return Loss(soft_loss.total + loss / M, soft_loss.nll + nll.sum() / M, -nll.sum(), len(nll))


def doubly_stochastic(alpha: Float[Tensor, "N T S"], labels: Int[Tensor, "N T"]) -> Float[Tensor, "N"]:
    """Σ_i (1 − Σ_t α_ti)² of each row (Xu et al. 2015, (14)), over locations i and the steps t that are not padding."""
    attended = (alpha * (labels != PAD)[:, :, None]).sum(1)
    return (1 - attended).square().sum(1)
