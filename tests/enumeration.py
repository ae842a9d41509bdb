"""A case of hard attention so small that all its possible draws can be enumerated."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import DIMENSION, SHOW_ATTEND_TELL
from torch import Tensor

from seqtool.data.batches import Batch, make_target
from seqtool.models.inputs import Annotations
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.models.tree import select
from seqtool.training.losses import TrainingLoss


@dataclass(frozen=True)
class Enumerable:
    """One image of 3 locations, a caption of 2 words and <eos>: 27 possible draws."""

    model: ShowAttendTell
    batch: Batch

    @classmethod
    def make(cls, **settings: Any) -> "Enumerable":
        sizes = {"embedding": 2, "hidden": 2, "alignment": 2, "target_vocabulary": 6}
        hard = {"attention": "hard", "soft_share": 0.0, "doubly_stochastic": 0.0, "entropy": 0.0, "reward": 1.0}
        model = ShowAttendTell(**SHOW_ATTEND_TELL | sizes | hard | settings).double().train()
        torch.manual_seed(11)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_()
        a = torch.zeros(1, 3, DIMENSION)
        a[0, :, :2] = torch.tensor([[2.0, 0.5], [-1.5, 1.0], [0.0, -2.0]])  # other dimensions have no gradient
        return cls(model, Batch(Annotations(a.half()), make_target([[4, 5]]), np.arange(1), 3))

    def enumerated(self) -> tuple[Tensor, Tensor]:
        """log p(s|a) and log p(y|s, a) of all 27 draws."""
        draws = torch.tensor(list(itertools.product(range(3), repeat=3)))
        memory, first_state = self.model.encode(self.batch.source)
        state = select(first_state, torch.zeros(len(draws), dtype=torch.int64))
        log_p_s = log_p_y = torch.zeros(len(draws), dtype=torch.float64)
        for t in range(3):
            weights = F.one_hot(draws[:, t], 3).double()
            token = self.batch.inputs[0, t].expand(len(draws))
            memory_of_draw = replace(memory, choose=lambda alpha, noise, weights=weights: weights)
            step = self.model.step(memory_of_draw, state, token)
            log_p_s = log_p_s + step.attention.gather(1, draws[:, t : t + 1]).log().squeeze(1)
            log_p_y = log_p_y + step.logits.log_softmax(-1)[:, self.batch.labels[0, t]]
            state = step.state
        assert float(log_p_s.detach().exp().sum()) == pytest.approx(1.0, abs=1e-12)
        return log_p_s, log_p_y

    def exact(self) -> Tensor:
        """The gradient of −L_s = −Σ_s p(s|a) log p(y|s, a), by enumeration."""
        log_p_s, log_p_y = self.enumerated()
        self.model.zero_grad()
        (-(log_p_s.exp() * log_p_y).sum()).backward()
        return self._gradient()

    def estimates(self, count: int, *, baseline: float | None) -> Tensor:
        """`count` gradients of the training loss, each a mean over the model's samples: count × coordinates."""
        loss, gradients = TrainingLoss(self.model, 0.0), []
        if baseline is not None:
            loss.baseline.fill_(baseline)
        for _ in range(count):
            self.model.zero_grad()
            loss(self.batch).total.backward()
            gradients.append(self._gradient())
        return torch.stack(gradients)

    def _gradient(self) -> Tensor:
        return torch.cat(
            [parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None]
        )
