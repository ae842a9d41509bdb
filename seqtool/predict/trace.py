"""`Trace`: what a model computed inside for one text, pair or image, as named arrays."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqtool.models.contract import EncoderDecoder
from seqtool.models.inputs import Annotations, Source
from seqtool.models.tokens import BOS, END
from seqtool.models.tracing import trace
from seqtool.runtime.files import write_whole
from seqtool.view import plots

if TYPE_CHECKING:
    from seqtool.predict.predictor import EncodedText

BEGIN = "<begin>"  # how BOS is shown
UNITS = 32  # of a cell that are drawn: those that vary most
SATURATED = 0.1, 0.9  # a gate below or above is saturated (Karpathy, Johnson and Li 2016, Figure 3)


class Example(NamedTuple):
    """A text and, except for language models, a source that a model is to read."""

    text: "EncodedText"
    source: Tensor | None = None  # the ids of a sentence, S, EOS included; or the annotation vectors of an image, S×D
    source_text: "EncodedText | None" = None  # the source if it is a sentence
    grid: tuple[int, int] | None = None  # rows and columns of an image's locations, which are in reading order
    pixels: NDArray[np.uint8] | None = None  # the pixels that the model saw, size × size × 3


def as_input(sources: Tensor | None) -> Any:
    """The input of `encode` for N sources without padding: ids, N×S, or annotation vectors, N×S×D."""
    if sources is None:
        return None
    lengths = torch.full(sources.shape[:1], sources.shape[1], device=sources.device)
    return Annotations(sources) if sources.is_floating_point() else Source(sources, lengths)


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
    def of(cls, model: EncoderDecoder[Any], example: Example) -> "Trace":
        """Trace a model while it reads an example."""
        tokens = torch.tensor([BOS, *example.text.ids], device=next(model.parameters()).device)
        traced = trace(model, as_input(None if example.source is None else example.source[None]), tokens)
        arrays = {name: values.float().cpu().numpy() for name, (values, _) in traced.items()}
        axes = {name: names for name, (_, names) in traced.items()}
        labels = {"target": [BEGIN, *example.text.pieces]}
        if example.source_text is not None:
            labels["source"] = [*example.source_text.pieces, END]
        return cls(arrays, axes, labels, example.grid)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def gate_rates(self, name: str) -> NDArray[np.floating] | None:
        """How far a gate is open at each of T steps, 3×T: its mean over all its units, and the shares of units that are
        closed and open (`SATURATED`). None for an array that is no gate; a gate lies between 0 and 1.
        """
        gate = self[name]
        if name.endswith((".h", ".c")) or gate.min() < 0 or gate.max() > 1:
            return None
        return np.stack([gate.mean(1), (gate < SATURATED[0]).mean(1), (gate > SATURATED[1]).mean(1)])

    def record(self) -> dict[str, Any]:
        """The record for pages: the labels, the grid, and the name, the axes and the values of each array but logits.

        Of the units of a cell, only those that vary most are included, with their numbers in `units`. `gate` has the
        mean of a gate over all its units at each step, and the shares of units that are closed and open (`SATURATED`).
        """
        records = []
        for name, values in self.items():
            record: dict[str, Any] = {"name": name, "axes": list(self.axes[name])}
            if self.axes[name][-1] == "symbol":
                continue
            if self.axes[name][-1] == "unit":
                if (rates := self.gate_rates(name)) is not None:
                    record["gate"] = rates.round(3).tolist()
                units = varying_units(values)
                record["units"], values = units.tolist(), values[:, units]
            records.append({**record, "values": values.round(3).tolist()})
        return {"labels": self.labels, "grid": self.grid, "arrays": records}

    def heads(self) -> dict[str, list[str]]:
        """The names of the arrays of multi-head attention, from the first layer on, by the kind of attention."""
        kinds: dict[str, list[str]] = {}
        for name, axes in self.axes.items():
            if "head" in axes:
                kind = {"source": "encoder", "target": "decoder"}[axes[0]] + "-self-attention"
                kinds.setdefault(kind if axes[-1] == "key" else "cross-attention", []).append(name)
        return kinds

    def written(self) -> list[str]:
        """The labels of the axis `target` with the token that follows: cross-attention is to what helps to write it."""
        target = self.labels["target"]
        return [f"{token} → {following}" for token, following in zip(target, [*target[1:], "…"], strict=True)]

    def plot_heads(self, folder: str | Path, figures: str = "png", *, number: int = 1) -> list[Path]:
        """Draw each kind of attention in a figure, such as cross-attention-0001.png, with a map for each head.

        figures: png, svg or pdf
        number: the number in the names of the files

        Returns the files: none if the model has no heads.
        """
        files = []
        for kind, names in self.heads().items():
            rows, _, columns = self.axes[names[0]]
            weights = np.stack([self[name].swapaxes(0, 1) for name in names])
            labels = self.labels.get(rows if columns == "key" else columns, [""] * weights.shape[-1])
            files.append(Path(folder) / f"{kind}-{number:04d}.{figures}")
            plots.heads(weights, labels, self.labels[rows] if columns == "key" else self.written(), files[-1])
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

    def plot(self, folder: str | Path, figures: str = "png") -> list[Path]:
        """Draw each recurrent cell, by tokens, into two figures in a folder, and return their files.

        CELL.c.png: tanh c, or h if there is no c, of the units that vary most, with their numbers
        CELL.gates.png: the `gate_rates`
        attention.png: the attention to a sentence, unless `plot_heads` draws it
        """
        files: list[Path] = []
        if "source" in self.labels and self.axes.get("attention") == ("target", "source") and not self.heads():
            files.append(Path(folder) / f"attention.{figures}")
            plots.alignment(self["attention"], self.labels["source"], self.written(), files[-1])
        for cell in dict.fromkeys(name.rpartition(".")[0] for name in self if self.axes[name][-1] == "unit"):
            names = [name for name in self if name.rpartition(".")[0] == cell]
            state = f"{cell}.c" if f"{cell}.c" in names else names[0]
            values, axis = np.tanh(self[state]) if state.endswith(".c") else self[state], self.axes[state][0]
            units = varying_units(values)
            side = f"unit ({len(units)} of {values.shape[1]}, which vary most)"
            drawings = [(state, values[:, units].T, list(map(str, units)), side, plots.signed(values))]
            gates = {name: rates for name in names if (rates := self.gate_rates(name)) is not None}
            if gates:
                rows = [name.rpartition(".")[2] + kind for name in gates for kind in (": mean", " < 0.1", " > 0.9")]
                drawings.append((f"{cell}.gates", np.vstack([*gates.values()]), rows, "gate", plots.WEIGHTS))
            for name, values, rows, side, look in drawings:
                files.append(Path(folder) / f"{name}.{figures}")
                sides, bar = {"xlabel": axis, "ylabel": side}, {"label": f"{'tanh ' * name.endswith('.c')}{name}"}
                tokens = [label.replace("\n", "↵") for label in self.labels[axis]]
                plots.heat_map(values, tokens, rows, files[-1], sides=sides, look=look, bar=bar)
        return files


def varying_units(values: NDArray[np.floating]) -> NDArray[np.intp]:
    """The numbers of the `UNITS` units, of values T×units, that vary most."""
    return np.sort(np.argsort(-values.std(0), kind="stable")[:UNITS])
