"""What models read: sentences, annotation vectors of images, or images themselves."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """tokens: B×S ids, each row a sentence, EOS and then padding; lengths: B, EOS included."""

    tokens: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """B×S: true at real positions."""
        return torch.arange(self.tokens.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def to(self, device: torch.device | str) -> "Source":
        return Source(self.tokens.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True))


@dataclass(frozen=True)
class Annotations:
    """values: B×S×D annotation vectors of images in float16, as `data/images/image_store.py` keeps them."""

    values: Tensor

    def to(self, device: torch.device | str) -> "Annotations":
        return Annotations(self.values.to(device, non_blocking=True))


@dataclass(frozen=True)
class Pixels:
    """values: B×3×H×W uint8, images as a backbone reads them."""

    values: Tensor

    def to(self, device: torch.device | str) -> "Pixels":
        return Pixels(self.values.to(device, non_blocking=True))
