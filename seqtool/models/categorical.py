"""Draws from categorical distributions, by random numbers that are handed in."""

import torch
from torch import Tensor


def categorical(p: Tensor, uniform: Tensor) -> Tensor:
    """One index for each row of `p`, N×V, by the inverse of its cumulative distribution: the first at which that passes
    `uniform` (N, in [0, 1]) of the row's sum. None of probability 0 is ever drawn, however sums are rounded: cumulative
    sums on a GPU need not rise, and a number just below 1 may have been rounded to 1.
    """
    cumulative = p.cumsum(-1)
    passed = (cumulative > uniform[:, None] * cumulative[:, -1:]) & (p > 0)
    return torch.where(passed.any(-1), passed.byte().argmax(-1), p.argmax(-1))
