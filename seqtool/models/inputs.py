"""The inputs of models: sentences, annotation vectors of images, or the images themselves."""

from dataclasses import dataclass
from typing import Self, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from seqtool.models import tree

M = TypeVar("M")
S = TypeVar("S")


@dataclass(frozen=True)
class Tensors:
    """A record of tensors that are moved to a device together."""

    def pinned(self) -> Self:
        """The tensors in pinned memory, from which a GPU can copy while the CPU computes."""
        return cast(Self, tree.map_tensors(Tensor.pin_memory, self))

    def to(self, device: torch.device | str) -> Self:
        """The tensors on a device."""
        return cast(Self, tree.map_tensors(lambda tensor: tensor.to(device, non_blocking=True), self))


@dataclass(frozen=True)
class Source(Tensors):
    """Sentences: each row of `tokens` (ids) is a sentence, EOS and then padding; `lengths` count EOS as well."""

    tokens: Int[Tensor, "B S"]
    lengths: Int[Tensor, "B"]

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True at real positions."""
        return torch.arange(self.tokens.shape[1], device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class Images(Tensors):
    """Images, of which a batch may have several captions, N = G·K: G groups of K captions of one image."""

    values: Tensor
    rows: Int[Tensor, "G"] | None = None  # the row of `values` with the image of each group; None: all rows, in order
    captions_each: int = 1  # K

    def each(self, values: Tensor) -> Tensor:
        """What was computed of each image, for each of the N captions."""
        values = values if self.rows is None else values[self.rows]
        return values if self.captions_each == 1 else values.repeat_interleave(self.captions_each, 0)

    def for_captions(self, memory: M, state: S) -> tuple[M, S]:
        """The memory and the first state of each image, for the N captions: a group shares one row of the memory, which
        is neither computed nor read again for each of its captions.
        """
        if (rows := self.rows) is not None:
            memory = tree.map_tensors(lambda x: x[rows], memory)  # unlike select's, its gradient has one order on a GPU
        return memory, tree.map_tensors(self.each, state)


@dataclass(frozen=True)
class Annotations(Images):
    """Annotation vectors, in float16 as `data/images/image_store.py` stores them, or as a model has computed them."""

    values: Float[Tensor, "B S D"]


@dataclass(frozen=True)
class Pixels(Images):
    """Pictures, resized for a backbone."""

    values: UInt8[Tensor, "B 3 height width"]
    may_mirror: Bool[Tensor, "B"] | None = None  # whether each may be mirrored in training; None if none may


@dataclass(frozen=True)
class Augmented(Pixels):
    """Pictures that were changed at random for training, with values from 0 to 255."""

    values: Float[Tensor, "B 3 height width"]
