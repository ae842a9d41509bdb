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
UNITS = 40  # of a cell that are drawn


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

    def save(self, path: str | Path) -> None:
        """Write an .npz file with each array and, as JSON in `about`, the axes, the labels and the grid.

        arrays = numpy.load("trace.npz")
        about = json.loads(str(arrays["about"]))
        """
        about = json.dumps({"axes": self.axes, "labels": self.labels, "grid": self.grid}, ensure_ascii=False)
        content = BytesIO()
        np.savez_compressed(content, allow_pickle=False, about=np.array(about), **self.arrays)
        write_whole(Path(path), content.getvalue())

    def plot(self, folder: str | Path, figures: str = "png") -> list[Path]:
        """Draw each recurrent cell, by tokens, into two figures in a folder, and return their files.

        CELL.c.png: tanh c, or h if there is no c, of the `UNITS` units that vary most, with their numbers
        CELL.gates.png: for each gate the mean over its units, and the shares of these that are below 0.1 and above 0.9,
            left- and right-saturated (Karpathy et al. 2016, Figure 3). A gate is what lies between 0 and 1.
        """
        files: list[Path] = []
        for cell in dict.fromkeys(name.rpartition(".")[0] for name in self if self.axes[name][-1] == "unit"):
            tensors = {name.rpartition(".")[2]: self[name] for name in self if name.rpartition(".")[0] == cell}
            letter = "c" if "c" in tensors else next(iter(tensors))
            values = np.tanh(tensors[letter]) if letter == "c" else tensors[letter]
            axis = self.axes[f"{cell}.{letter}"][0]
            units = np.sort(np.argsort(-values.std(0), kind="stable")[:UNITS])
            side = f"unit ({len(units)} of {values.shape[1]}, which vary most)"
            drawings = [(letter, values[:, units], list(map(str, units)), side, plots.signed(values))]
            gates = {g: x for g, x in tensors.items() if g not in (letter, "h") and x.min() >= 0 and x.max() <= 1}
            if gates:
                shares = [row.mean(1) for x in gates.values() for row in (x, x < 0.1, x > 0.9)]
                rows = [gate + kind for gate in gates for kind in (": mean", " < 0.1", " > 0.9")]
                look = {"cmap": "Blues", "vmin": 0, "vmax": 1}
                drawings.append(("gates", np.stack(shares, 1), rows, "share of units, or mean", look))
            tokens = [label.replace("\n", "↵") for label in self.labels[axis]]
            for name, values, rows, side, look in drawings:
                files.append(Path(folder) / f"{cell}.{name}.{figures}")
                sides, bar = {"xlabel": axis, "ylabel": side}, {"label": f"{'tanh ' * (name == 'c')}{cell}.{name}"}
                plots.heat_map(values.T, tokens, rows, files[-1], sides=sides, look=look, bar=bar)
        return files
