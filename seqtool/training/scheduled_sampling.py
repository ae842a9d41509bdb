"""Scheduled sampling: while training, a decoder reads some of its own words instead of the reference's.

Bengio et al. (2015), "Scheduled sampling for sequence prediction with recurrent neural networks"; for models that read
a whole target at once, Mihaylova & Martins (2019), "Scheduled sampling for Transformers".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.data.batches import Batch
from seqtool.models.categorical import categorical
from seqtool.models.tokens import BOS, EOS, PAD
from seqtool.runtime.precision import no_gradients


def random_numbers(
    seed: int, update: int, examples: Sequence[int], number: int, length: int
) -> Float[Tensor, "N length"]:
    """Uniform random numbers in [0, 1), a row for each example, which depend on nothing but the seed, the update, the
    example and the number of the draw: longer rows begin with the same numbers.
    """
    generators = (np.random.Philox(key=[seed, update], counter=[0, 0, number, example]) for example in examples)
    return torch.from_numpy(np.stack([np.random.Generator(g).random(length, np.float32) for g in generators]))


@dataclass(frozen=True)
class Teacher:
    """How often a decoder reads the reference's word rather than its own, by the update's number i (section 2.4)."""

    schedule: str  # linear, max(least, k − slope · i); exponential, k^i; inverse_sigmoid, k / (k + exp(i / k))
    k: float
    slope: float
    least: float
    seed: int

    def share(self, update: int) -> float:
        """The probability ε_i of the reference's word."""
        i, k = update, self.k
        if self.schedule == "linear":
            return min(1.0, max(self.least, k - self.slope * i))
        return k**i if self.schedule == "exponential" else k / (k + math.exp(min(i / max(k, 1e-9), 700)))

    @no_gradients()
    def inputs(self, model: Any, batch: Batch, update: int) -> Int[Tensor, "N T"]:
        """What the decoder reads: at each position a coin decides between the reference's word and one drawn from what
        the model predicted there, from the words that it has read so. A model that reads a whole target at once
        predicts from the reference's words instead. Padding, beginning and end are never drawn. No gradient
        flows through draws.
        """
        inputs, share, steps = batch.inputs, self.share(update), batch.inputs.shape[1] - 1
        if share >= 1 or not steps:
            return inputs
        numbers = (random_numbers(self.seed, update, batch.indices.tolist(), i, steps) for i in (-1, -2))
        coins, noise = (rows.to(inputs.device) for rows in numbers)
        model.eval()
        if not model.reads_at_once:
            memory, state = model.encode(batch.source)
            read = [inputs[:, 0]]
            for t in range(steps):
                logits, state, _, _ = model.step(memory, state, read[-1])
                read.append(_mixed(logits, noise[:, t], coins[:, t] < share, inputs[:, t + 1]))
            mixture = torch.stack(read, 1)
        else:
            logits = model.project(model(batch.source, inputs[:, :-1]).features)
            own = _mixed(logits.flatten(0, 1), noise.flatten(), (coins < share).flatten(), inputs[:, 1:].flatten())
            mixture = torch.cat([inputs[:, :1], own.view_as(noise)], 1)
        model.train()
        return mixture


def _mixed(logits: Tensor, noise: Tensor, is_reference: Tensor, reference: Tensor) -> Tensor:
    """The reference's words where `is_reference`, and drawn words elsewhere; padding stays."""
    logits = logits.float().index_fill(-1, torch.tensor([PAD, BOS, EOS], device=logits.device), -torch.inf)
    drawn = categorical(logits.softmax(-1), noise)
    return torch.where(is_reference | (reference == PAD), reference, drawn)
