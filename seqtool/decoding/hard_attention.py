"""Decoding with hard attention: each word looks at one location, which random numbers of the image's own may choose."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from seqtool.decoding.batching import Pictures
from seqtool.models.contract import Step
from seqtool.models.hard_attention import Choice
from seqtool.models.inputs import Annotations, Pixels


@dataclass(frozen=True)
class Choosing:
    """A model whose attention chooses one location for each word. It reads images `WithUniforms`."""

    model: Any
    choice: Choice

    def encode(self, source: "WithUniforms") -> tuple[Any, Any]:
        memory, state = self.model.encode(source.images)
        return replace(memory, chances=source.uniforms, choose=self.choice), state

    def step(self, memory: Any, state: Any, token: Int[Tensor, "N"]) -> Step[Any]:
        step: Step[Any] = self.model.step(memory, state, token)
        return step

    def chosen(self, alpha: Float[Tensor, "T S"], uniforms: NDArray[np.float64]) -> list[int]:
        """The location of each word, given their attention and the numbers it was chosen by."""
        locations: list[int] = self.choice(alpha, torch.from_numpy(uniforms[: len(alpha)]).float()).argmax(-1).tolist()
        return locations


@dataclass(frozen=True)
class WithUniforms:
    """A batch of images with a random number in [0, 1) for each word that may be written."""

    images: Annotations | Pixels
    uniforms: Float[Tensor, "B T"]

    def to(self, device: torch.device) -> "WithUniforms":
        return WithUniforms(self.images.to(device), self.uniforms.to(device))


@dataclass(frozen=True)
class PicturesWithUniforms:
    """Images by row, each with the random numbers that are its own in whatever batch it is."""

    images: Pictures
    uniforms: Sequence[NDArray[np.float64]]

    def pictures(self, rows: Sequence[int]) -> WithUniforms:
        uniforms = torch.from_numpy(np.stack([self.uniforms[i] for i in rows])).float()
        return WithUniforms(self.images.pictures(rows), uniforms)
