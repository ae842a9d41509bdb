"""Sampling from categorical distributions, using random numbers that the caller passes in."""

import torch
from torch import Tensor


def categorical(p: Tensor, uniform: Tensor) -> Tensor:
    """Draw one index for each row of `p`, N×V, by inverting its cumulative distribution.

    The index is the first whose cumulative sum exceeds `uniform` (N, in [0, 1]) times the row's sum; on a CPU, the
    first that reaches it. An index of probability 0 is never drawn, in spite of rounding: on a GPU cumulative sums may
    decrease, and a random number just below 1 may have become 1.
    """
    cumulative, uniform = p.cumsum(-1), uniform.to(p.dtype)
    if p.device.type == "cpu":  # cumulative sums never decrease here, so a binary search takes fewer operations
        # At least `tiny`, since a first p of 0 reaches 0. In a row with a NaN, searchsorted returns V, one too many.
        positive = (uniform[:, None] * cumulative[:, -1:]).clamp_min_(torch.finfo(p.dtype).tiny)
        return torch.searchsorted(cumulative, positive).squeeze(-1).clamp_max_(p.shape[-1] - 1)
    exceeds = (cumulative > uniform[:, None] * cumulative[:, -1:]) & (p > 0)
    return torch.where(exceeds.any(-1), exceeds.byte().argmax(-1), p.argmax(-1))
