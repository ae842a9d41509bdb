"""Draws from categorical distributions, using random numbers that the caller passes in."""

import torch
from torch import Tensor


def categorical(p: Tensor, uniform: Tensor) -> Tensor:
    """One index for each row of `p`, N×V, by inverting its cumulative distribution: the first whose cumulative sum
    exceeds `uniform` (N, in [0, 1]) times the row's sum. No index of probability 0 is ever drawn, despite rounding:
    cumulative sums on a GPU need not increase, and a number just below 1 may have been rounded to 1.
    """
    cumulative = p.cumsum(-1)
    if p.device.type == "cpu":  # where the sums of a row never fall: in fewer operations
        index = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True).squeeze(-1)
        found = index < p.shape[-1]
        return index if bool(found.all()) else torch.where(found, index, p.argmax(-1))
    passed = (cumulative > uniform[:, None] * cumulative[:, -1:]) & (p > 0)
    return torch.where(passed.any(-1), passed.byte().argmax(-1), p.argmax(-1))
