"""The recurrent encoder that the translation models share."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from seqtool.models.cells import Cell, Recurrence, State, States
from seqtool.models.parts import PLAIN, Parts


@dataclass(frozen=True)
class Encoding:
    """What an encoder makes of a batch.

    annotations: D = H·directions
    forward, backward: each layer's final state in that direction; the backward one ends at the first word and is None
        with one direction
    """

    annotations: Float[Tensor, "N S D"]
    forward: tuple[State, ...]
    backward: tuple[State, ...] | None


class Encoder(nn.Module):
    """A stack of recurrent layers over embedded words, reading in one direction or in both."""

    def __init__(
        self,
        cell: str | type[Cell],
        inputs: int,
        hidden: int,
        *,
        layers: int,
        bidirectional: bool,
        dropout: float,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        self.size = directions * hidden
        sizes = [inputs] + [self.size] * (layers - 1)
        self.ahead = nn.ModuleList(Recurrence(cell, size, hidden, parts) for size in sizes)
        self.back = nn.ModuleList(Recurrence(cell, size, hidden, parts) for size in sizes) if bidirectional else None
        self.dropout = parts.dropout(dropout)

    def forward(self, x: Float[Tensor, "B S E"], lengths: Int[Tensor, "B"]) -> Encoding:
        """Each direction reads the words first and padding last, so no state ever passes through padding: the backward
        one reads a copy of each row, reversed within the row's length.
        """
        reverse = reversal(lengths, x.shape[1])
        forward, backward = [], []
        for i, ahead in enumerate(self.ahead):
            x = self.dropout(x) if i else x
            states: States = ahead(x, lengths=lengths)
            forward.append(states.last)
            h = [states.h]
            if self.back is not None:
                states = self.back[i](_gather(x, reverse), lengths=lengths)
                backward.append(states.last)
                h.append(_gather(states.h, reverse))
            x = torch.cat(h, -1)
        return Encoding(x, tuple(forward), tuple(backward) or None)


def reversal(lengths: Int[Tensor, "B"], size: int) -> Int[Tensor, "B {size}"]:
    """Indices that reverse each row within its length and leave the rest in place; its own inverse."""
    positions = torch.arange(size, device=lengths.device)[None]
    return torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)


def _gather(x: Float[Tensor, "B S D"], index: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
    """x[b, index[b, s]]: each vector is copied whole, which `gather` does not do."""
    flat = index + x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return x.flatten(0, 1).index_select(0, flat.flatten()).view(x.shape)
