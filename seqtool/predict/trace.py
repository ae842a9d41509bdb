"""`Trace`: what a model computed inside for one text, pair or image, as named arrays."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqtool.models.contract import EncoderDecoder
from seqtool.models.tokens import BOS
from seqtool.models.tracing import trace
from seqtool.runtime.files import write_whole
from seqtool.view import plots

BEGIN = "<begin>"  # how BOS is shown


@dataclass(frozen=True)
class Trace(Mapping[str, NDArray[np.float32]]):
    """States, gates and attention as arrays, under the names that `models.tracing` explains.

    axes: the names of each array's axes
    labels: what the axes `source` (the source's pieces and <end>) and `target` (<begin> and the text's pieces) hold.
        Row t of a `target` axis is what the model computed when it read token t; its logits are of the token after it.
    grid: the numbers of rows and columns of an image's locations, which are in reading order; None for a text
    """

    arrays: dict[str, NDArray[np.float32]] = field(repr=False)
    axes: dict[str, tuple[str, ...]]
    labels: dict[str, list[str]]
    grid: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        model: EncoderDecoder[Any],
        source: Any,
        ids: Sequence[int],
        labels: Mapping[str, Sequence[str]],
        grid: tuple[int, int] | None = None,
    ) -> "Trace":
        """Trace a model.

        source: the input of its `encode`, of one row
        ids: the text, without BOS and EOS
        labels: the pieces of the text (`target`) and, if it is a text, of the source
        """
        device = model.target_embedding.weight.device
        traced = trace(model, source, torch.tensor([BOS, *ids], device=device))
        arrays = {name: values.float().cpu().numpy() for name, (values, _) in traced.items()}
        axes = {name: names for name, (_, names) in traced.items()}
        return cls(arrays, axes, {axis: list(pieces) for axis, pieces in labels.items()}, grid)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def heads(self) -> dict[str, list[str]]:
        """The names of the arrays of multi-head attention, from the first layer on, by the kind of attention."""
        kinds: dict[str, list[str]] = {}
        for name, axes in self.axes.items():
            if "head" in axes:
                kind = {"source": "encoder", "target": "decoder"}[axes[0]] + "-self-attention"
                kinds.setdefault(kind if axes[-1] == "key" else "cross-attention", []).append(name)
        return kinds

    def plot_heads(self, folder: str | Path, *, number: int = 1, suffix: str = "png") -> list[Path]:
        """Draw each kind of attention in a figure, such as cross-attention-0001.png, with a map for each head.

        number: the number in the names of the files
        suffix: png, svg or pdf

        Returns the files: none if the model has no heads.
        """
        files = []
        for kind, names in self.heads().items():
            rows, _, columns = self.axes[names[0]]
            weights = np.stack([self[name].swapaxes(0, 1) for name in names])
            labels = self.labels.get(rows if columns == "key" else columns, [""] * weights.shape[-1])
            files.append(Path(folder) / f"{kind}-{number:04d}.{suffix}")
            plots.heads(weights, labels, self.labels[rows], files[-1])
        return files

    def save(self, path: str | Path) -> None:
        """Write an .npz file with each array and, as JSON in `about`, the axes, the labels and the grid.

        arrays = numpy.load("trace.npz")
        about = json.loads(str(arrays["about"]))
        """
        about = json.dumps({"axes": self.axes, "labels": self.labels, "grid": self.grid}, ensure_ascii=False)
        content = BytesIO()
        np.savez_compressed(content, allow_pickle=False, about=np.array(about), **self.arrays)
        write_whole(Path(path), content.getvalue())
