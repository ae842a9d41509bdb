"""What models read: sentences, annotation vectors of images, or images themselves."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """tokens: ids, each row a sentence, EOS and then padding; lengths: EOS included."""

    tokens: Int[Tensor, "B S"]
    lengths: Int[Tensor, "B"]

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True at real positions."""
        return torch.arange(self.tokens.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def pinned(self) -> "Source":
        return Source(self.tokens.pin_memory(), self.lengths.pin_memory())

    def to(self, device: torch.device | str) -> "Source":
        return Source(self.tokens.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True))


@dataclass(frozen=True)
class Annotations:
    """Annotation vectors of images in float16, as `data/images/image_store.py` keeps them."""

    values: Float[Tensor, "B S D"]

    def pinned(self) -> "Annotations":
        return Annotations(self.values.pin_memory())

    def to(self, device: torch.device | str) -> "Annotations":
        return Annotations(self.values.to(device, non_blocking=True))


@dataclass(frozen=True)
class Pixels:
    """Images as a backbone reads them."""

    values: UInt8[Tensor, "B 3 height width"]

    def pinned(self) -> "Pixels":
        return Pixels(self.values.pin_memory())

    def to(self, device: torch.device | str) -> "Pixels":
        return Pixels(self.values.to(device, non_blocking=True))
