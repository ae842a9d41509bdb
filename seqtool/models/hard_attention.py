"""Hard attention (Xu et al. 2015): rules for choosing locations, the drawn locations, and the terms of its loss.
`training/losses.py` adds these terms to −log p, and keeps the moving average of the reward, a baseline.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from seqtool.models.categorical import categorical

Alpha = Float[Tensor, "N S"]
Noise = Float[Tensor, "N"]
Scalar = Float[Tensor, ""]
Choice = Callable[[Alpha, Noise], Alpha]
"""A rule for weighting the locations: (α, uniform noise in [0, 1)) → weights, which sum to 1."""
EXPECTED = -1  # in place of noise or of a location: the expected context


def expectation(alpha: Alpha, uniform_noise: Noise) -> Alpha:
    """Return α itself: the context is the expected annotation vector, as in soft attention."""
    return alpha


def argmax(alpha: Alpha, uniform_noise: Noise) -> Alpha:
    """Choose the most likely location."""
    return F.one_hot(alpha.argmax(-1), alpha.shape[-1]).to(alpha.dtype)


def draw(alpha: Alpha, uniform_noise: Noise) -> Alpha:
    """Draw s ~ Categorical(α) with the noise."""
    return F.one_hot(categorical(alpha.detach(), uniform_noise), alpha.shape[-1]).to(alpha.dtype)


def draw_or_expect(alpha: Alpha, noise: Noise) -> Alpha:
    """Draw with the noise, or take the expected context where the noise is `EXPECTED`."""
    return torch.where((noise == EXPECTED)[:, None], alpha, draw(alpha, noise.clamp_min(0)))


def at(alpha: Alpha, location: Tensor) -> Alpha:
    """Choose the given locations, which take the place of the noise, or the expected context where it is `EXPECTED`."""
    chosen = F.one_hot(location.long().clamp_min(0), alpha.shape[-1]).to(alpha.dtype)
    return torch.where((location == EXPECTED)[:, None], alpha, chosen)


def draw_after(expected_rows: int) -> Choice:
    """Return the rule by which the first rows take the expected context and the other rows draw."""
    return lambda alpha, noise: torch.cat([alpha[:expected_rows], draw(alpha[expected_rows:], noise[expected_rows:])])


CHOICES: dict[str, Choice] = {"expected": expectation, "argmax": argmax, "sample": draw}
BASELINES = ("moving_average", "leave_one_out", "none")
CREDITS = ("caption", "future")  # `Penalties` says what these do


@dataclass(frozen=True)
class Rows:
    """The N rows made from a batch of B images."""

    image: Int[Tensor, "N"]  # the index in the batch of each row's image
    expected_rows: int  # the first `expected_rows` rows take the expected context
    samples: int  # each of the remaining images has this number of adjacent rows, each of which draws its own context
    uniform_noise: Float[Tensor, "n T"]  # a random number in [0, 1) for each step of the n rows that draw

    @classmethod
    def draw(cls, images: int, steps: int, samples: int, soft_share: float, device: torch.device) -> "Rows":
        """Make rows. A random fraction of the images takes the expected context, each in a single row (section 4.1)."""
        expected_rows = math.floor(soft_share * images + float(torch.rand(1)))  # randomly rounded: exact on average
        image = torch.randperm(images, device=device) if expected_rows else torch.arange(images, device=device)
        image = torch.cat([image[:expected_rows], image[expected_rows:].repeat_interleave(samples)])
        return cls(image, expected_rows, samples, torch.rand(len(image) - expected_rows, steps, device=device))

    @classmethod
    def with_noise(cls, images: int, uniform_noise: Float[Tensor, "N T"]) -> "Rows":
        """Make rows in which every image draws, once for each of its rows of `uniform_noise`."""
        samples = len(uniform_noise) // images
        image = torch.arange(images, device=uniform_noise.device).repeat_interleave(samples)
        return cls(image, 0, samples, uniform_noise)

    def sample(self, alpha: Float[Tensor, "N T S"]) -> "DrawnLocations":
        """Return the locations drawn from these rows' α."""
        alpha = alpha[self.expected_rows :]
        log_alpha = alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log()
        location = categorical(alpha.detach().flatten(0, 1), self.uniform_noise.flatten()).view(*alpha.shape[:2], 1)
        log_probability = log_alpha.gather(-1, location).squeeze(-1)
        entropy = -(alpha * log_alpha).sum(-1)
        return DrawnLocations(self.image, self.expected_rows, self.samples, log_probability, entropy)


@dataclass(frozen=True)
class DrawnLocations:
    """The locations that hard attention drew for an output's N rows."""

    image: Int[Tensor, "N"]  # this and the next two as in `Rows`
    expected_rows: int
    samples: int
    log_probability: Float[Tensor, "n T"]  # log α of each drawn location, for the n rows that drew
    entropy: Float[Tensor, "n T"]  # the entropy of α at each step of these rows, in nats


@dataclass(frozen=True)
class Penalties:
    """The terms of a model's loss besides −log p, for each caption, summed over its steps (`losses.TrainingLoss`)."""

    doubly_stochastic: float = 0.0  # λ, the weight of Σ_i (1 − Σ_t α_ti)²; the other terms are for hard attention
    reward: float = 0.0  # λ_r, the weight of the advantage times log p, (R − b) · Σ_t log p(s_t); R = Σ_t log p(y_t)
    entropy: float = 0.0  # λ_e, the weight of Σ_t H[s_t]
    baseline: str = "moving_average"  # b: moving_average of R, leave_one_out (mean R of other samples) or none (0)
    decay: float = 0.9  # the decay of the moving average
    credit: str = "caption"  # R of a draw: of the whole caption, or future: log p of its own word and of later ones


def hard_attention_terms(
    penalties: Penalties, sampled: DrawnLocations, nll: Float[Tensor, "n T"], real: Bool[Tensor, "n T"], average: Scalar
) -> Scalar:
    """Return −λ_r (R − b) log p(s) − λ_e H, summed over the rows that drew and their real steps.

    nll: −log p of the words in the rows that drew, not smoothed
    real: true at real steps
    average: the moving average of the reward before this batch, NaN at first

    R = Σ_t log p(y_t|s) and b are constants here. With credit=future each draw s_t has its own R, the sum over y_t and
    later words: earlier words do not depend on the draw, so the expected gradient is the same.
    """
    reward = -nll.flip(1).cumsum(1).flip(1) if penalties.credit == "future" else -nll.sum(1, keepdim=True)
    b = baseline(reward, sampled.samples, average, penalties.baseline)
    score = ((reward - b) * sampled.log_probability * real).sum()
    return -penalties.reward * score - penalties.entropy * (sampled.entropy * real).sum()


def baseline(reward: Float[Tensor, "n t"], samples: int, average: Scalar, name: str) -> Float[Tensor, "..."]:
    """Return the baseline b of this name for each row's rewards; with credit=caption each row has one, t = 1."""
    if name == "none":
        return torch.zeros_like(average)
    if name == "leave_one_out":
        by_image = reward.view(-1, samples, reward.shape[1])
        mean_of_others = (by_image.sum(1, keepdim=True) - by_image) / (samples - 1)
        return mean_of_others.flatten(0, 1)
    return torch.where(average.isnan(), reward[:, 0].mean(), average)
