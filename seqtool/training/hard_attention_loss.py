"""What hard attention adds to −log p: terms whose gradient estimates the bound's (Xu et al. 2015, section 4.1), and its
baseline. The estimate is unbiased if λ_r = 1 and there is no entropy term, doubly stochastic penalty, label smoothing
or soft row.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from seqtool.models.hard_attention import Penalties, Sampled

Scalar = Float[Tensor, ""]


def terms(
    penalties: Penalties, sampled: Sampled, nll: Float[Tensor, "n T"], real: Bool[Tensor, "n T"], average: Scalar
) -> Scalar:
    """−λ_r (R − b) log p(s) − λ_e H, summed over the rows that drew and their real steps.

    R = Σ_t log p(y_t|s), not smoothed, and b are constants here. With credit=future each draw s_t has its own R, that
    of y_t and later words: earlier words do not depend on the draw, so the expected gradient is the same.
    """
    earned = -nll.flip(1).cumsum(1).flip(1) if penalties.credit == "future" else -nll.sum(1, keepdim=True)
    b = baseline(earned, sampled.samples, average, penalties.baseline)
    score = ((earned - b) * sampled.log_probability * real).sum()
    return -penalties.reward * score - penalties.entropy * (sampled.entropy * real).sum()


def baseline(earned: Float[Tensor, "n t"], samples: int, average: Scalar, name: str) -> Float[Tensor, "n t"] | Scalar:
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


def moved(average: Scalar, reward: Scalar, decay: float) -> Scalar:
    """The moving average after a reward, b ← 0.9 b + 0.1 R (`decay`); the first initialises it, NaN or ∞ leaves it."""
    after = torch.where(average.isnan(), reward, decay * average + (1 - decay) * reward)
    return torch.where(reward.isfinite(), after, average)
