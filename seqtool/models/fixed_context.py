"""A fixed context: one vector c for the whole source, and the ways in which a decoder is given it.

initial_state   as the first state: s_0 = tanh(W c + b), for each layer and tensor of the state
every_step      beside the word in the lowest layer's input, as W_ih c in its pre-activations, as in Cho et al. 2014,
                whose output layer is given c as well
both            both
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import Memory
from seqtool.models.number_types import at_least_single
from seqtool.models.recurrent_decoder import Reading, StackDecoder

CONTEXTS = ("initial_state", "every_step", "both")


class FixedContext(StackDecoder):
    """A stack of cells over the words, and c."""

    def make_decoder(
        self, cell: str | type[Cell], *, embedding: int, size: int, hidden: int, layers: int, learnt: bool
    ) -> None:
        """The decoder's parts for a c of this `size`; `learnt`: the first state is computed from c."""
        self.decoder = Stack(cell, embedding + size if self._feeds else embedding, hidden, layers)
        self.initial = None
        if learnt:
            self.initial = nn.Linear(size, sum(one.cell.tensors for one in self.decoder) * hidden)

    def use_context(self, context: str, *others: str) -> None:
        """Choose one of `CONTEXTS`, or of a model's `others`."""
        check_choice("context", context, (*others, *CONTEXTS))
        self.context = context

    @property
    def _feeds(self) -> bool:
        return self.context in ("every_step", "both")

    def given(self, c: Float[Tensor, "B C"], state: Layers | None = None) -> Reading[Layers]:
        """The decoder's memory, and its first state if not `state`."""
        kept = c[:, None] if self._feeds else c[:, None, :0]
        mask = torch.ones(kept.shape[:2], dtype=torch.bool, device=c.device)
        return Reading(Memory(kept, kept[:, :, :0], mask), self._first_state(c) if state is None else state)

    def shares(self, memory: Memory, y: Tensor) -> Tensor:
        """[y, c], whose product is W y + W_ih c; y alone where c is not seen at every step."""
        if not self._feeds:
            return y
        c = memory.values[:, 0].repeat_interleave(y.shape[-2] // len(memory.values), 0)
        return torch.cat([y, c.expand(*y.shape[:-1], -1).to(y.dtype)], -1)

    def _first_state(self, c: Tensor) -> Layers:
        if self.initial is None:
            return Layers(tuple(recurrence.cell.start(c) for recurrence in self.decoder))
        shares = torch.tanh(at_least_single(self.initial(c))).chunk(len(self.decoder), -1)
        cells = (recurrence.cell for recurrence in self.decoder)
        return Layers(tuple(share.chunk(cell.tensors, -1) for share, cell in zip(shares, cells, strict=True)))


def check_choice(setting: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(f"Unknown model.{setting} '{value}'; choose from {', '.join(choices)}.")


def mean(x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """Over the real positions."""
    return (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def maximum(x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """Of each number, over the real positions."""
    return x.masked_fill(~mask[:, :, None], -torch.inf).amax(1)
