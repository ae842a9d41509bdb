"""Plots of training runs, one or several in a figure: learning curves, and how gradients flow through time. `Panel`s
hold what is drawn, here by matplotlib and on a report's page by `web/charts.js`.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqtool.errors import InputError
from seqtool.metrics.scores import SCORES, score
from seqtool.runtime.files import read_json_lines
from seqtool.view.plots import COLOURS, clean, drawable, legend, make_figure, matplotlib_drawing, save_figure

SHADES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")  # of one run's steps, light to dark
NORM = "‖gradient‖"
SINGULAR = "singular values"
LINES = ("-", "--")  # the first and the second curve of several runs in one panel

Series = Mapping[str, tuple[list[int], list[float]]]  # steps and values, by their names in metrics.jsonl


class NothingToDrawError(InputError):
    """Records that hold no number for a figure."""


# One chart of lines: what the y axis is called, and x and y of each line, by the run and by what it is called.
Panel = tuple[str, dict[tuple[str, str], tuple[list[int], list[float]]]]


def curve_panels(runs: Mapping[str, Series]) -> list[Panel]:
    """The panels of runs' learning curves: losses, scores, learning rate and the gradient's norm before clipping."""
    recorded = dict.fromkeys(name for series in runs.values() for name in series)
    own = [name.removeprefix("valid_") for name in recorded if "." in name]
    scores = [score(name) for name in (*SCORES, *own) if name != "loss"]
    titles: list[tuple[str, dict[str, str]]] = [
        ("nats per token", {"valid_loss": "validation loss", "loss": "training loss"}),
        *((metric.label, {f"valid_{metric.name}": f"validation {metric.label}"}) for metric in scores),
        ("learning rate", {"learning_rate": "learning rate"}),
        (NORM, {"gradient_norm": "norm of the gradient before clipping"}),
    ]
    panels: list[Panel] = []
    for label, names in titles:
        lines = {
            (run, title): series[name]
            for run, series in runs.items()
            for name, title in names.items()
            if name in series
        }
        panels += [(label, lines)] if lines else []
    return panels


@matplotlib_drawing()
def learning_curves(metrics: Mapping[str, Path], path: Path) -> None:
    """Draw the learning curves in the metrics.jsonl of runs by their names (`curve_panels`, `read_metrics`). Several
    runs have a colour each. NothingToDrawError where they hold no values.
    """
    panels = curve_panels({name: read_metrics(file) for name, file in metrics.items()})
    if not panels:
        places = ", ".join(map(str, metrics.values()))
        raise NothingToDrawError(f"{places} holds no losses, scores or learning rates to draw.")
    several, colours = len(metrics) > 1, {run: COLOURS[i % len(COLOURS)] for i, run in enumerate(metrics)}
    figure = make_figure(7, 2.3 * len(panels) + 0.4)
    plots = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
    for axes, (label, lines) in zip(plots, panels, strict=True):
        titles = list(dict.fromkeys(title for _, title in lines))
        for (run, title), (steps, values) in lines.items():
            place = titles.index(title)
            axes.plot(
                steps,
                values,
                color=colours[run] if several else COLOURS[place],
                linestyle=LINES[place] if several else "-",
                marker="." if len(steps) <= 40 else None,
                label=drawable(f"{run}: {title}" if several else title),
            )
        negative = any(value < 0 for _, values in lines.values() for value in values)
        scale = {"yscale": "log"} if label == NORM else {} if negative else {"ylim": (0, None)}
        clean(axes, ylabel=label, **scale)
        if len(titles) > 1 or (several and axes is plots[0]):
            legend(axes, above=several)
    plots[-1].set_xlabel("updates")
    figure.align_ylabels()
    save_figure(figure, path)


def gradient_panels(measurements: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, list[Any]]]:
    """What measurements (`training.gradient_flow.flow`, by their names) say of the highest layer of each stack: for the
    letter of a tensor of its state, ‖∂loss/∂h_t‖ by time step; for `SINGULAR`, the singular values of ∂s_t/∂s_{t−1}.
    """
    panels: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for name, measured in measurements.items():
        for layer, state in measured["gradients"].items():  # a higher layer takes the place of a lower one
            for kind, values in {**state, SINGULAR: measured["singular_values"][layer]}.items():
                panels.setdefault((kind, _stack(layer)), {})[name] = values
    return panels


def _stack(layer: str) -> str:
    """The name of the stack that a layer belongs to: `decoder` of `decoder.1`."""
    return re.sub(r"\.\d+$", "", layer)


@matplotlib_drawing()
def gradient_flow(measurements: Mapping[str, Mapping[str, Any]], path: Path, *, runs: bool = False) -> None:
    """Draw what `gradient_panels` gives on logarithmic scales: a column for each stack, one line per measurement. They
    are steps of one run, from light to dark, or different `runs`, in different colours. A gradient that vanished to 0
    or exploded leaves a gap. NothingToDrawError where all of them have.
    """
    panels = gradient_panels(measurements)
    if not any(any(values) for lines in panels.values() for values in lines.values()):
        raise NothingToDrawError("No gradient and no singular value can be drawn.")
    steps = max(1, len(measurements) - 1)
    shades = [SHADES[index * (len(SHADES) - 1) // steps] for index in range(len(measurements))]
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(measurements))] if runs else shades
    layers = Counter(map(_stack, {layer for measured in measurements.values() for layer in measured["gradients"]}))
    kinds = [kind for kind in ("h", "c", SINGULAR) if any(kind == other for other, _ in panels)]
    stacks = list(dict.fromkeys(stack for _, stack in panels))
    figure = make_figure(4.2 * max(2, len(stacks)), 2.8 * len(kinds))
    grid = figure.subplots(len(kinds), len(stacks), sharey="row", squeeze=False)
    for axes, (kind, stack) in zip(grid.flat, ((kind, stack) for kind in kinds for stack in stacks), strict=True):
        for colour, name in zip(colours, measurements, strict=True):
            values = np.array(panels.get((kind, stack), {}).get(name, []), dtype=float)  # None is NaN
            values[~(np.isfinite(values) & (values > 0))] = np.nan
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, linewidth=1.2, label=drawable(name))
        where = f"{stack}, highest layer" if layers[stack] > 1 else stack
        clean(axes, yscale="log")
        axes.set_xlabel(f"singular values of {where}, in order" if kind == SINGULAR else f"time step t of {where}")
    for axes, kind in zip(grid[:, 0], kinds, strict=True):
        axes.set_ylabel("of ∂s$_t$/∂s$_{t-1}$" if kind == SINGULAR else f"‖∂loss/∂{kind}$_t$‖ of the last token's loss")
    legend(grid[0, 0])
    figure.tight_layout()
    save_figure(figure, path)


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """The numbers of a metrics.jsonl by name: their steps, in order, and their values.

    Each line is an object with `step` and any numbers. If a step occurs twice, as after resuming, the
    later line counts. A last line that was cut short is left out; InputError names any other bad line.
    """
    series: dict[str, dict[int, float]] = {}
    problem = "is not a JSON object with a 'step'"
    for record in read_json_lines(path, lambda record: isinstance(record["step"], int), problem):
        step = record.pop("step")
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
                series.setdefault(name, {})[step] = float(value)
    return {name: (sorted(values), [values[s] for s in sorted(values)]) for name, values in series.items()}
