"""Plots as PNG files: of alignments, of attention over images, of scores, and of training runs, one or several in a
figure. `Panel`s hold what is drawn of a run, here by matplotlib and on a report's page by `web/charts.js`.

They are drawn without a window system, written whole or not at all, with fonts that have the words' characters.
matplotlib is imported when a figure is made. Neither its files nor the environment decide how a figure looks, and the
settings of a caller who uses matplotlib too stay as they are.
"""

import logging
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from seqtool.errors import InputError, printable
from seqtool.metrics.scores import SCORES, score
from seqtool.runtime.files import beside, read_json_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from seqtool.metrics.translation import LengthScore

DPI = 150
LONGEST_WORD = 30  # letters shown of a word
NOT_FOR_WORDS = ("cm", "STIXSize", "STIXNon", "Last Resort")  # matplotlib's own fonts of symbols and boxes
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: colour-blind safe
MARKERS = ("o", "s", "^", "D", "v")  # one fewer than colours, so that more combinations differ
CELL = 0.24  # inches a word takes in a heat map, so that 40 × 40 words are readable
LARGEST = 60.0  # inches of a heat map at most: with more words the cells and letters shrink
PANELS, PANEL = 7, 1.5  # pictures in a row of attention over an image, and inches of each


SHADES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")  # of one run's steps, light to dark
NORM = "‖gradient‖"
SINGULAR = "singular values"
LINES = ("-", "--")  # the first and the second curve of several runs in one panel

Series = Mapping[str, tuple[list[int], list[float]]]  # steps and values, by their names in metrics.jsonl

# One chart of lines: what the y axis is called, and x and y of each line, by the run and by what it is called.
Panel = tuple[str, dict[tuple[str, str], tuple[list[int], list[float]]]]


class NothingToDrawError(InputError):
    """Records that hold no number for a figure."""


@contextmanager
def or_left_out(path: Path) -> Iterator[None]:
    """Draw a figure that the work does without: if that fails, a sentence on standard error says so, unless there is
    nothing to draw.
    """
    try:
        yield
    except NothingToDrawError:
        return
    except (InputError, OSError) as error:
        reason = f"{error.strerror or error}." if isinstance(error, OSError) else str(error)
        tqdm.write(printable(f"{path} is left out: {reason}"), file=sys.stderr)


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """An empty figure, in inches, that needs no window and is written as a PNG in the end; no reader ever sees part of
    it. It is drawn with matplotlib's default settings and without its messages about fonts and cache folders;
    afterwards the settings are the caller's again. Raises InputError if matplotlib fails.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        matplotlib = _matplotlib()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        settings = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        with matplotlib.rc_context(settings):
            figure = Figure(figsize=(width, height), dpi=DPI)
            FigureCanvasAgg(figure)
            yield figure
            with beside(path) as temporary:
                figure.savefig(temporary, format="png", bbox_inches="tight", pad_inches=0.1, facecolor="white")
    except (InputError, OSError):
        raise
    except Exception as error:  # matplotlib raises all kinds
        raise InputError(f"matplotlib cannot draw it ({type(error).__name__}: {error}).") from error
    finally:
        logger.setLevel(level)


def _matplotlib() -> Any:
    """The module. It refuses to be imported if MPLBACKEND names a backend that is not installed, as a notebook's often
    is not where a command runs; a backend that is installed stays the one of the caller's pyplot.
    """
    is_new, backend = "matplotlib" not in sys.modules, os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if is_new and backend:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend
    return matplotlib


def alignment(attention: NDArray[np.floating], source: Sequence[str], target: Sequence[str], path: Path) -> None:
    """A heat map of attention (target words × source words), like Figure 3 of Bahdanau et al. 2015.

    Source on top, target downwards; black is 0 and white is 1. The words are set in fonts that have their
    characters, if such fonts are installed. Raises ValueError if the shape does not match or there
    are no words.
    """
    if attention.shape != (len(target), len(source)) or attention.size == 0:
        raise ValueError(f"attention is {attention.shape} for {len(target)} target and {len(source)} source words")
    cell = min(CELL, LARGEST / max(len(source), len(target)))
    with drawing(path, cell * len(source), cell * len(target)) as figure:
        axes = figure.add_axes((0, 0, 1, 1))  # the words lie outside; the picture grows to fit them
        axes.imshow(attention, cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.xaxis.tick_top()
        axes.tick_params(length=0, pad=3)
        axes.set_xticks(np.arange(len(source)), [word_label(word) for word in source], rotation=90)
        axes.set_yticks(np.arange(len(target)), [word_label(word) for word in target])
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(parse_math=False, fontfamily=families(label.get_text()), fontsize=cell * 72 * 0.62)
        axes.set_xticks(np.arange(1, len(source)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(target)) - 0.5, minor=True)
        axes.grid(which="minor", color="0.35", linewidth=0.4)
        axes.tick_params(which="minor", length=0)


def attention_over_image(
    image: NDArray[np.uint8],
    words: Sequence[str],
    attention: NDArray[np.floating],
    path: Path,
    *,
    chosen: Sequence[int] | None,
) -> None:
    """The image (side × side × 3), then for each word the image overlaid with its attention, like Figure 2 of Xu et al.
    2015: bright where attention is high. attention is words × rows × columns; a frame marks a location that hard
    attention chose (its number in reading order).
    """
    from PIL.Image import Resampling, fromarray

    side = image.shape[0]
    across = min(PANELS, len(words) + 1)
    down = math.ceil((len(words) + 1) / across)
    with drawing(path, PANEL * across, (PANEL + 0.28) * down) as figure:
        from matplotlib.patches import Rectangle

        panels = figure.subplots(down, across, squeeze=False).flatten()
        for axes in panels:
            axes.axis("off")
        panels[0].imshow(image)
        rows, columns = attention.shape[1:]
        grey = image.mean(-1, keepdims=True).repeat(3, -1) / 255
        extent = (0, side, side, 0)
        for t, (axes, word) in enumerate(zip(panels[1:], words, strict=False)):
            weights = attention[t] / max(float(attention[t].max()), 1e-12)
            axes.imshow(0.35 * grey + 0.1, extent=extent)
            smooth = fromarray(weights.astype(np.float32)).resize((side, side), Resampling.BICUBIC)
            axes.imshow(image, extent=extent, alpha=np.asarray(smooth).clip(0, 1))
            axes.set_title(word_label(word), fontsize=9, pad=3, parse_math=False, fontfamily=families(word))
            if chosen is not None and t < len(chosen):
                row, column = divmod(chosen[t], columns)
                height, width = side / rows, side / columns
                corner = (column * width, row * height)
                axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=COLOURS[1], linewidth=1.5))
        figure.tight_layout(pad=0.3)


def bleu_by_length(systems: "Mapping[str, Sequence[LengthScore]]", path: Path, *, unit: str = "words") -> None:
    """BLEU by source length with 95 % intervals, one line for each system: Figure 2 of Bahdanau et al. 2015.

    Every system has the same bins. Bins without sentences leave a gap.
    """
    with drawing(path, 7, 4) as figure:
        axes = figure.subplots()
        bins = next(iter(systems.values()))
        for index, (name, scores) in enumerate(systems.items()):
            shift = 0.06 * (index - (len(systems) - 1) / 2)  # so that intervals stand side by side
            points = [(bleu.value, bleu.low, bleu.high) if (bleu := score.bleu) else (np.nan,) * 3 for score in scores]
            values, low, high = np.array(points, float).T  # None is NaN
            axes.errorbar(
                np.arange(len(points)) + shift,
                values,
                yerr=np.maximum([values - low, high - values], 0),
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                capsize=3,
                label=drawable(name),
            )
        axes.set_xticks(np.arange(len(bins)), [f"{score.label}\n{score.sentences:,}" for score in bins])
        limits = {"xlim": (-0.5, len(bins) - 0.5), "ylim": (0, 1.05 * axes.get_ylim()[1])}
        clean(axes, xlabel=f"{unit} in the source sentence, and the number of sentences", ylabel="BLEU", **limits)
        if len(systems) > 1:
            legend(axes)


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


def learning_curves(metrics: Mapping[str, Path], path: Path) -> None:
    """Draw the learning curves in the metrics.jsonl of runs by their names (`curve_panels`, `read_metrics`). Several
    runs have a colour each. NothingToDrawError where they hold no values.
    """
    panels = curve_panels({name: read_metrics(file) for name, file in metrics.items()})
    if not panels:
        places = ", ".join(map(str, metrics.values()))
        raise NothingToDrawError(f"{places} holds no losses, scores or learning rates to draw.")
    several, colours = len(metrics) > 1, {run: COLOURS[i % len(COLOURS)] for i, run in enumerate(metrics)}
    with drawing(path, 7, 2.3 * len(panels) + 0.4) as figure:
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
    with drawing(path, 4.2 * max(2, len(stacks)), 2.8 * len(kinds)) as figure:
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
            axes.set_ylabel(
                "of ∂s$_t$/∂s$_{t-1}$" if kind == SINGULAR else f"‖∂loss/∂{kind}$_t$‖ of the last token's loss"
            )
        legend(grid[0, 0])
        figure.tight_layout()


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


def clean(axes: "Axes", **properties: Any) -> None:
    """Set the axes' properties, and draw them without a box, over a light grid."""
    axes.set(**properties)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def legend(axes: "Axes", *, above: bool = False) -> None:
    """`above`: outside, where curves that fill the axes leave no room inside."""
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2} if above else {}
    for text in axes.legend(frameon=False, **place).get_texts():
        text.set(parse_math=False, fontfamily=families(text.get_text()))


def word_label(word: str) -> str:
    """A word as a label of a heat map."""
    return drawable(word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "…")


def drawable(text: str) -> str:
    """The text with � for every character that no installed font has."""
    fonts = [characters(file) for _, file in fonts_for(frozenset(text))]
    return "".join(letter if any(ord(letter) in font for font in fonts) else "\ufffd" for letter in text)


def families(text: str) -> list[str]:
    return [name for name, _ in fonts_for(frozenset(text))]


@cache
def fonts_for(letters: frozenset[str]) -> list[tuple[str, str]]:
    """Names and files of the fonts that have these characters: DejaVu Sans, and installed ones as needed."""
    from matplotlib import font_manager

    chosen = [("DejaVu Sans", str(font_manager.findfont("DejaVu Sans")))]
    missing = {ord(letter) for letter in letters} - characters(chosen[0][1])
    fonts = font_manager.fontManager.ttflist if missing else []
    for font in sorted(fonts, key=lambda font: (abs(int(font.weight) - 400), font.name)):  # 400: regular
        suits = font.style == "normal" and not font.name.startswith(NOT_FOR_WORDS)
        if suits and (added := missing & characters(font.fname)):
            chosen.append((font.name, font.fname))
            missing -= added
    return chosen


@cache
def characters(file: str) -> frozenset[int]:
    """The code points a font has; none for a font that matplotlib cannot open."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
