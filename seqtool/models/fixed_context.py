"""A fixed context: one vector c for the whole source, and the ways in which a decoder is given it.

initial_state   as the first state: s_0 = tanh(W c + b), for each layer and tensor of the state
every_step      beside the word in the lowest layer's input, as W_ih c in its pre-activations, as in Cho et al. 2014,
                whose output layer is given c as well
both            both
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import Memory
from seqtool.models.number_types import at_least_single
from seqtool.models.recurrent_decoder import StackDecoder

CONTEXTS = ("initial_state", "every_step", "both")


class FixedContext(StackDecoder):
    """A stack of cells over the words, and c; `context` is one of `CONTEXTS`, or another of a model's own."""

    context: str

    def make_decoder(
        self, cell: str | type[Cell], *, embedding: int, size: int, hidden: int, layers: int, learnt: bool
    ) -> None:
        """The decoder's parts for a c of this `size`; `learnt`: the first state is computed from c."""
        inputs = embedding + size if self._feeds else embedding
        self.decoder = Stack(cell, inputs, hidden, layers, self.parts)
        self.initial = None
        if learnt:
            tensors = sum(recurrence.cell.tensors for recurrence in self.decoder)
            self.initial = self.parts.linear(size, tensors * hidden)

    @property
    def _feeds(self) -> bool:
        return self.context in ("every_step", "both")

    def with_context(self, c: Float[Tensor, "B C"], state: Layers | None = None) -> tuple[Memory, Layers]:
        """The memory of c, and the first state that is computed from it unless `state` is given."""
        values = c[:, None] if self._feeds else c[:, None, :0]
        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=c.device)
        return Memory(values, values[:, :, :0], mask), self._first_state(c) if state is None else state

    def input_projection(self, memory: Memory, y: Tensor) -> Tensor:
        """[y, c], whose product is W y + W_ih c; y alone where c is not seen at every step."""
        if not self._feeds:
            return y
        c = memory.values[:, 0].repeat_interleave(y.shape[-2] // len(memory.values), 0)
        return torch.cat([y, c.expand(*y.shape[:-1], -1).to(y.dtype)], -1)

    def _first_state(self, c: Tensor) -> Layers:
        if self.initial is None:
            return self.decoder.start(c)
        s_0 = torch.tanh(at_least_single(self.initial(c)))
        return Layers.split(s_0, len(self.decoder), next(iter(self.decoder)).cell.tensors)


def mean(x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """The mean over the real positions."""
    return (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def maximum(x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """The greatest value of each dimension over the real positions."""
    return x.masked_fill(~mask[:, :, None], -torch.inf).amax(1)
