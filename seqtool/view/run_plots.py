"""Plots of training runs, one or several in a figure: learning curves, and how gradients flow through time."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqtool.errors import InputError
from seqtool.metrics.scores import SCORES, score
from seqtool.view.plots import COLOURS, clean, drawable, drawn, legend, make_figure, save_figure

SHADES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")  # of one run's steps, light to dark
NORM = "‖gradient‖"
LINES = ("-", "--")  # the first and the second curve of several runs in one panel

Series = Mapping[str, tuple[list[int], list[float]]]


class NothingToDrawError(InputError):
    """Records that hold no number for a figure."""


@drawn
def learning_curves(metrics: Mapping[str, Path], path: Path) -> None:
    """Losses, scores, learning rate and the gradient's norm before clipping against steps, from the metrics.jsonl of
    runs by their names: see `read_metrics`. Several runs have a colour each. NothingToDrawError where they hold none.
    """
    runs = {name: read_metrics(file) for name, file in metrics.items()}
    panels = panels_of(runs)
    if not panels:
        places = ", ".join(map(str, metrics.values()))
        raise NothingToDrawError(f"{places} holds no losses, scores or learning rates to draw.")
    figure = make_figure(7, 2.3 * len(panels) + 0.4)
    plots = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
    for axes, (label, names) in zip(plots, panels, strict=True):
        _curves(axes, names, runs)
        negative = any(
            value < 0 for series in runs.values() for name in names for value in series.get(name, ([], []))[1]
        )
        clean(axes, ylabel=label, **({"yscale": "log"} if label == NORM else {} if negative else {"ylim": (0, None)}))
        if len(names) > 1 or (len(runs) > 1 and axes is plots[0]):
            legend(axes, above=len(runs) > 1)
    plots[-1].set_xlabel("updates")
    figure.align_ylabels()
    save_figure(figure, path)


def panels_of(runs: Mapping[str, Series]) -> list[tuple[str, dict[str, str]]]:
    """The panels of learning curves: what the y axis is called, and the series in it by what they are called."""
    known = dict.fromkeys(name for series in runs.values() for name in series)
    own = [name.removeprefix("valid_") for name in known if "." in name]
    scores = [score(name) for name in (*SCORES, *own) if name != "loss"]
    panels = [
        ("nats per token", {"valid_loss": "validation loss", "loss": "training loss"}),
        *((one.label, {f"valid_{one.name}": f"validation {one.label}"}) for one in scores),
        ("learning rate", {"learning_rate": "learning rate"}),
        (NORM, {"gradient_norm": "norm of the gradient before clipping"}),
    ]
    panels = [(label, {k: v for k, v in names.items() if k in known}) for label, names in panels]
    return [(label, names) for label, names in panels if names]


def _curves(axes: Any, names: Mapping[str, str], runs: Mapping[str, Series]) -> None:
    for run, (label, series) in enumerate(runs.items()):
        for index, (name, said) in enumerate(names.items()):
            steps, values = series.get(name, ([], []))
            axes.plot(
                steps,
                values,
                color=COLOURS[(run if len(runs) > 1 else index) % len(COLOURS)],
                linestyle=LINES[index] if len(runs) > 1 else "-",
                marker="." if len(steps) <= 40 else None,
                label=drawable(f"{label}: {said}" if len(runs) > 1 else said),
            )


@drawn
def gradient_flow(measurements: Mapping[str, Mapping[str, Any]], path: Path, *, runs: bool = False) -> None:
    """‖∂loss/∂h_t‖ and ‖∂loss/∂c_t‖ against the time step t, and the singular values of ∂s_t/∂s_{t−1}, on logarithmic
    scales: a column for the highest layer of each stack, one line per measurement (`training.gradient_flow.flow`). They
    are steps of one run, from light to dark, or different `runs`, in different colours. A gradient that vanished to 0
    or exploded leaves a gap. NothingToDrawError where all of them have.
    """
    if not any(map(_has_numbers, measurements.values())):
        raise NothingToDrawError("No gradient and no singular value can be drawn.")
    steps = max(1, len(measurements) - 1)
    shades = [SHADES[index * (len(SHADES) - 1) // steps] for index in range(len(measurements))]
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(measurements))] if runs else shades
    stacks: dict[str, list[str]] = {}  # by their name, their layers
    for measured in measurements.values():
        for name in measured["gradients"]:
            layers = stacks.setdefault(re.sub(r"\.\d+$", "", name), [])
            layers += [] if name in layers else [name]
    states = [set(state) for measured in measurements.values() for state in measured["gradients"].values()]
    rows = [letter for letter in "hc" if letter in set[str]().union(*states)]
    figure = make_figure(4.2 * max(2, len(stacks)), 2.8 * (len(rows) + 1))
    panels = figure.subplots(len(rows) + 1, len(stacks), sharey="row", squeeze=False)
    for column, (stack, layers) in enumerate(stacks.items()):
        where = stack if len(layers) == 1 else f"{stack}, highest layer"
        for row, axes in enumerate(panels[:, column]):
            for index, (label, measured) in enumerate(measurements.items()):
                top = [name for name in measured["gradients"] if name in layers][-1:]
                kind = "gradients" if row < len(rows) else "singular_values"
                values = [measured[kind][name] for name in top]
                values = [one.get(rows[row], []) for one in values] if row < len(rows) else values
                shown = np.array(values[0] if values else [], dtype=float)
                shown[~(np.isfinite(shown) & (shown > 0))] = np.nan
                places = np.arange(1, len(shown) + 1)
                axes.plot(places, shown, color=colours[index], linewidth=1.2, label=drawable(label))
            clean(axes, yscale="log")
            axes.set_xlabel(f"time step t of {where}" if row < len(rows) else f"singular values of {where}, in order")
    for axes, letter in zip(panels[:, 0], rows, strict=False):
        axes.set_ylabel(f"‖∂loss/∂{letter}$_t$‖ of the last token's loss")
    panels[-1, 0].set_ylabel("of ∂s$_t$/∂s$_{t-1}$")
    legend(panels[0, 0])
    figure.tight_layout()
    save_figure(figure, path)


def _has_numbers(measured: Mapping[str, Any]) -> bool:
    """Whether any value of a measurement can be drawn on a logarithmic scale."""
    columns = [column for state in measured["gradients"].values() for column in state.values()]
    return any(any(column) for column in (*columns, *measured["singular_values"].values()))


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """The numbers of a metrics.jsonl by name: their steps, in order, and their values.

    Each line is an object with `step` and any numbers. If a step occurs twice, as after resuming, the
    later line counts. A last line that was cut short is left out; InputError names any other bad line.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    series: dict[str, dict[int, float]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            step = int(record.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise InputError(f"{path} line {number} is not a JSON object with a 'step'.") from error
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
                series.setdefault(name, {})[step] = float(value)
    return {name: (sorted(values), [values[s] for s in sorted(values)]) for name, values in series.items()}
