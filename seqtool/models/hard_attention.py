"""Hard attention (Xu et al. 2015): how it chooses locations, what it drew, and the terms of its loss with its baseline.
`training/losses.py` adds them to −log p, and keeps the moving average of the reward.
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
"""How the locations are weighted: (α, uniform noise in [0, 1)) → weights, which sum to 1."""


def expected(alpha: Alpha, uniform_noise: Noise) -> Alpha:
    """Soft attention: the context is its expectation under α."""
    return alpha


def argmax(alpha: Alpha, uniform_noise: Noise) -> Alpha:
    """Only the most likely location."""
    return F.one_hot(alpha.argmax(-1), alpha.shape[-1]).to(alpha.dtype)


def drawn(alpha: Alpha, uniform_noise: Noise) -> Alpha:
    """s ~ Categorical(α): the location where the cumulative distribution passes the random number."""
    return F.one_hot(categorical(alpha.detach(), uniform_noise), alpha.shape[-1]).to(alpha.dtype)


def drawn_after(rows: int) -> Choice:
    """The first rows take the expectation, the others draw."""
    return lambda alpha, noise: torch.cat([alpha[:rows], drawn(alpha[rows:], noise[rows:])])


CHOICES: dict[str, Choice] = {"expected": expected, "argmax": argmax, "sample": drawn}
BASELINES = ("moving_average", "leave_one_out", "none")
CREDITS = ("caption", "future")


@dataclass(frozen=True)
class Rows:
    """The N rows made from a batch of B images; `image` says which image of the batch each row belongs to.

    The first `expected` rows take the expected context. The other n draw theirs, `samples` adjacent rows per image,
    using `uniform_noise`, which has a random number in [0, 1) for each of these rows and steps.
    """

    image: Int[Tensor, "N"]
    expected: int
    samples: int
    uniform_noise: Float[Tensor, "n T"]

    @classmethod
    def draw(cls, images: int, steps: int, samples: int, soft_share: float, device: torch.device) -> "Rows":
        """A random share of the images takes the expected context, with one row each (section 4.1)."""
        first = math.floor(soft_share * images + float(torch.rand(1)))  # rounded at random: right on average
        image = torch.randperm(images, device=device) if first else torch.arange(images, device=device)
        image = torch.cat([image[:first], image[first:].repeat_interleave(samples)])
        return cls(image, first, samples, torch.rand(len(image) - first, steps, device=device))

    @classmethod
    def with_noise(cls, images: int, uniform_noise: Float[Tensor, "N T"]) -> "Rows":
        """Every image draws, once for each of its rows of `uniform_noise`."""
        samples = len(uniform_noise) // images
        image = torch.arange(images, device=uniform_noise.device).repeat_interleave(samples)
        return cls(image, 0, samples, uniform_noise)

    def sampled(self, alpha: Float[Tensor, "N T S"]) -> "Sampled":
        """What was drawn from these rows' α."""
        alpha = alpha[self.expected :]
        log_alpha = alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log()
        noise = self.uniform_noise
        location = categorical(alpha.detach().flatten(0, 1), noise.flatten()).view(*noise.shape, 1)
        entropy = -(alpha * log_alpha).sum(-1)
        return Sampled(self.image, self.expected, self.samples, log_alpha.gather(-1, location).squeeze(-1), entropy)


@dataclass(frozen=True)
class Sampled:
    """What hard attention drew for the N rows of an output (`Rows`).

    For the n rows that drew: log_probability, log α of each drawn location; entropy of α, in nats.
    """

    image: Int[Tensor, "N"]
    expected: int
    samples: int
    log_probability: Float[Tensor, "n T"]
    entropy: Float[Tensor, "n T"]


@dataclass(frozen=True)
class Penalties:
    """The terms of a model's loss besides −log p, all per caption and summed over its steps (`losses.TrainingLoss`).

    doubly_stochastic λ on Σ_i (1 − Σ_t α_ti)². For hard attention: reward λ_r on the advantage (R − b) · Σ_t log p(s_t)
    with R = Σ_t log p(y_t), entropy λ_e on Σ_t H[s_t], baseline b moving_average (with `decay`), leave_one_out or none
    (0), credit caption (R for every draw) or future (for each draw, its own word and those after it).
    """

    doubly_stochastic: float = 0.0
    reward: float = 0.0
    entropy: float = 0.0
    baseline: str = "moving_average"
    decay: float = 0.9
    credit: str = "caption"


def hard_attention_terms(
    penalties: Penalties,
    sampled: Sampled,
    nll: Float[Tensor, "n T"],
    real: Bool[Tensor, "n T"],
    average: Scalar,
) -> Scalar:
    """−λ_r (R − b) log p(s) − λ_e H, summed over the rows that drew and their real steps.

    R = Σ_t log p(y_t|s), not smoothed, and b are constants here. With credit=future each draw s_t has its own R, that
    of y_t and later words: earlier words do not depend on the draw, so the expected gradient is the same.
    """
    earned = -nll.flip(1).cumsum(1).flip(1) if penalties.credit == "future" else -nll.sum(1, keepdim=True)
    b = baseline(earned, sampled.samples, average, penalties.baseline)
    score = ((earned - b) * sampled.log_probability * real).sum()
    return -penalties.reward * score - penalties.entropy * (sampled.entropy * real).sum()


def baseline(earned: Float[Tensor, "n t"], samples: int, average: Scalar, name: str) -> Float[Tensor, "..."]:
    """b for each row's rewards (with credit=caption one number, t = 1): the moving average before these samples, the
    mean of the image's other samples, or 0.
    """
    if name == "none":
        return torch.zeros_like(average)
    if name == "leave_one_out":
        each = earned.view(-1, samples, earned.shape[1])
        others = (each.sum(1, keepdim=True) - each) / (samples - 1)
        return others.flatten(0, 1)
    return torch.where(average.isnan(), earned[:, 0].mean(), average)
