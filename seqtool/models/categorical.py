"""Draws from categorical distributions, using random numbers that the caller passes in."""

import torch
from torch import Tensor


def categorical(p: Tensor, uniform: Tensor) -> Tensor:
    """One index for each row of `p`, N×V, by inverting its cumulative distribution: the first whose cumulative sum
    exceeds `uniform` (N, in [0, 1]) times the row's sum, or on a CPU reaches it. No index of probability 0 is drawn: on
    a GPU cumulative sums need not increase, due to rounding, and a number just below 1 may have been rounded to 1.
    """
    cumulative, uniform = p.cumsum(-1), uniform.to(p.dtype)
    if p.device.type == "cpu":  # where the sums of a row never fall: in fewer operations
        # above 0, which a first p of 0 reaches; for a row that is not a number, searchsorted returns V
        above_zero = (uniform[:, None] * cumulative[:, -1:]).clamp_min_(torch.finfo(p.dtype).tiny)
        return torch.searchsorted(cumulative, above_zero).squeeze(-1).clamp_max_(p.shape[-1] - 1)
    passed = (cumulative > uniform[:, None] * cumulative[:, -1:]) & (p > 0)
    return torch.where(passed.any(-1), passed.byte().argmax(-1), p.argmax(-1))
