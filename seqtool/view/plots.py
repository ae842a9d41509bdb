"""Plots of alignments, of attention over images, of scores and of training runs, as PNG, SVG or PDF files.

- The suffix of a file's name is its format. A plot needs no window system, is written completely or not at all, and has
  fonts with the words' characters.
- matplotlib is imported when a figure is made. Its configuration files and the environment do not change how a figure
  looks, and the settings of a caller who uses matplotlib too are kept.
- The data of the plots of a run are `Panel`s, which `web/charts.js` draws on the page of a report.
"""

import logging
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from seqtool.data.text.alignment import SPACE
from seqtool.errors import InputError, printable
from seqtool.metrics.scores import SCORES, score
from seqtool.runtime.files import read_json_lines, replacement_path, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from seqtool.metrics.translation import LengthScore

DPI = 150
MAX_LABEL_LETTERS = 30  # longer words are cut in labels
# where the label of a point may be, the best place first: its offset in points, and which side of it is there
PLACES = (5, 0, "left", "center"), (-5, 0, "right", "center"), (0, 5, "center", "bottom"), (0, -5, "center", "top")
SYMBOL_FONTS = ("cm", "STIXSize", "STIXNon", "Last Resort")  # matplotlib's own fonts of symbols and boxes
COLOURS = ("#0072b2", "#c24e00", "#00794f", "#a34a80", "#8a6100", "#55595f")  # those of web/style.css, in order
MARKERS = ("o", "s", "^", "D", "v")  # one fewer than colours, so that more combinations differ
CELL_INCHES = 0.24  # the size of a cell of a heat map; 40 × 40 words are readable
MAX_INCHES = 60.0  # the maximum size of a heat map: with more words the cells and letters shrink
BAR_INCHES = 0.12, 1.2, 3.0  # the width of a colour bar, and its minimum and maximum height
WEIGHTS = {"cmap": "Blues", "vmin": 0, "vmax": 1}  # the colours of attention weights and shares
WEIGHT_BAR: dict[str, Any] = {"label": "attention weight", "ticks": [0, 0.5, 1]}
PANELS_PER_ROW, PANEL_INCHES = 7, 1.5  # the pictures in a row of attention over an image, and the size of each
TEXT_PAGE = (Path(__file__).with_name("web") / "text.html").read_text("utf-8")  # of a coloured text
GIF_DPI, GIF_TOKENS, GIF_MILLISECONDS = 80, 27, 800  # tokens that are drawn of each side; the time of a frame
LEARNING_RATE = "learning rate"
NORM = "‖gradient‖"
SINGULAR = "singular values"
LINE_STYLES = ("-", "--", ":", "-.")  # two for a run's curves, then two for runs beyond the colours

Series = Mapping[str, tuple[list[int], list[float]]]  # steps and values, by their names in metrics.jsonl

# A chart of lines: the label of its y axis; and the x and y values of each line, by its run and its name.
Panel = tuple[str, dict[tuple[str, str], tuple[list[int], list[float]]]]


class NothingToDrawError(InputError):
    """There are no numbers to draw in a figure."""


@contextmanager
def optional_figure(path: Path) -> Iterator[None]:
    """Draw an optional figure within the context: an error is reported on standard error, and the work continues. If
    there is nothing to draw, nothing is reported.
    """
    try:
        yield
    except NothingToDrawError:
        return
    except (InputError, OSError) as error:
        reason = f"{error.strerror or error}." if isinstance(error, OSError) else str(error)
        tqdm.write(printable(f"{path} is left out: {reason}"), file=sys.stderr)


@contextmanager
def drawing(path: str | Path | None, width: float, height: float, axes: Any = None) -> Iterator["Figure"]:
    """Yield an empty figure of `width` × `height` inches, and write it when the context ends, in the format of its
    suffix.

    path: the file, which is complete as soon as it exists; None writes nothing. Notebooks show the figure, and its
        `savefig` keeps what is drawn outside the axes.
    axes: the caller's axes: their figure is yielded instead, and keeps the caller's settings

    Within the context matplotlib has its default settings and does not log messages about fonts and cache folders; the
    caller's settings are restored afterwards. Raises InputError if matplotlib fails.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        matplotlib = _matplotlib()
        from matplotlib.figure import Figure

        settings = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        settings |= {"svg.hashsalt": "seqtool", "pdf.fonttype": 42}  # the same file each time; fonts that can be edited
        with matplotlib.rc_context(settings if axes is None else {}):
            figure: Any = Figure(figsize=(width, height), dpi=DPI) if axes is None else axes.figure.figure
            if axes is None:
                figure.savefig = partial(figure.savefig, bbox_inches="tight", pad_inches=0.1, facecolor="white")
                figure._repr_png_ = partial(_png, figure)
            yield figure
            if path is None and axes is None:
                figure.draw_without_rendering()  # makes the ticks, before the caller's settings are restored
            if path is None:
                return
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with replacement_path(Path(path)) as temporary:
                format_ = Path(path).suffix.removeprefix(".")
                metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format_)
                figure.savefig(temporary, format=format_, metadata=metadata)
    except (InputError, OSError):
        raise
    except Exception as error:  # matplotlib raises errors of all kinds
        raise InputError(f"matplotlib cannot draw it ({type(error).__name__}: {error}).") from error
    finally:
        logger.setLevel(level)


def _png(figure: "Figure") -> bytes:
    """The picture that a notebook shows."""
    figure.savefig(stream := BytesIO(), format="png")
    return stream.getvalue()


def _matplotlib() -> Any:
    """Import matplotlib without MPLBACKEND: the import fails if this names a backend that is not installed, as in a
    command that a notebook runs. An installed backend is kept for the caller's pyplot.
    """
    is_first_import, backend = "matplotlib" not in sys.modules, os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if is_first_import and backend:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend
    return matplotlib


def alignment(
    attention: NDArray[np.floating],
    source: Sequence[str],
    target: Sequence[str],
    path: str | Path | None,
    *,
    greyscale: bool = False,
    axes: Any = None,
) -> "Figure":
    """Draw a heat map of attention (target words × source words), like Figure 3 of Bahdanau et al. 2015.

    The source is at the top and the target at the left. White is 0 and dark blue is 1; with `greyscale`, as in the
    paper, black is 0 and white is 1. It is drawn into the `axes`, if they are given. Raises ValueError if the shape of
    the attention does not match the words or there are no words.
    """
    if attention.shape != (len(target), len(source)) or attention.size == 0:
        raise ValueError(f"attention is {attention.shape} for {len(target)} target and {len(source)} source words")
    look, grid = (WEIGHTS | {"cmap": "gray"}, "0.35") if greyscale else (WEIGHTS, "0.85")
    sides = {"xlabel": "source", "ylabel": "target"}
    return heat_map(attention, source, target, path, sides=sides, look=look, bar=WEIGHT_BAR, grid=grid, axes=axes)


def heads(weights: NDArray[Any], columns: Sequence[str], rows: Sequence[str], path: str | Path | None) -> "Figure":
    """Draw the attention of every head, a row of heat maps for each layer: the words at the left look at those above.

    weights: layers × heads × rows × columns
    """
    left, top = (1 + 0.4 * max(len(word_label(word)) for word in words) for words in (rows, columns))  # room, in cells
    width, height = left + len(columns), 2 + top + len(rows)  # of a map with its labels
    across, down = weights.shape[1] * width, weights.shape[0] * height
    cell = min(CELL_INCHES, MAX_INCHES / max(across, down))
    with drawing(path, cell * across, cell * down) as figure:
        for i, j in np.ndindex(weights.shape[:2]):
            corner = (j * width + left) / across, 1 - (i + 1) * height / down
            axes = figure.add_axes((*corner, len(columns) / across, len(rows) / down))
            title = {"xlabel": f"layer {i + 1}, head {j + 1}"}
            heat_map(weights[i, j], columns, rows, None, sides=title, look=WEIGHTS, bar=None, axes=axes, cell=cell)
        figure.colorbar(axes.images[0], cax=figure.add_axes((1.02, 1 - 5 / down, 0.5 / across, 5 / down)), **WEIGHT_BAR)
    return figure


def signed(values: NDArray[np.floating]) -> dict[str, Any]:
    """The colours of a heat map of positive values, which are blue, and negative ones, which are red."""
    largest = float(np.nanmax(np.abs(values), initial=1e-12))
    return {"cmap": "RdBu", "vmin": -largest, "vmax": largest}


def coloured_text(pieces: Sequence[str], values: Sequence[float], path: Path, *, title: str) -> None:
    """Write a page of HTML with a text whose pieces are coloured by values from -1, which is red, to 1, which is blue,
    like Figure 2 of Karpathy et al. 2016. The pointer shows the values.
    """
    spans = []
    for piece, value in zip(pieces, values, strict=True):
        colour = f"rgb({'0 114 178' if value > 0 else '194 78 0'} / {abs(value) * 0.7:.3f})"  # darker hides letters
        text = escape(piece.replace(SPACE, " "))
        spans.append(f'<span style="background: {colour}" title="{value:.3f}">{text}</span>')
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, TEXT_PAGE.format(title=escape(title), text="".join(spans)).encode())


def heat_map(
    values: NDArray[np.floating],
    columns: Sequence[str],
    rows: Sequence[str],
    path: str | Path | None,
    *,
    sides: Mapping[str, str],
    look: Mapping[str, Any],
    bar: Mapping[str, Any] | None,
    grid: str = "0.85",
    axes: Any = None,
    cell: float = CELL_INCHES,
) -> "Figure":
    """Draw a heat map with labels at the top and at the left, and a bar that explains the colours; NaN is grey.

    sides, look, bar: settings of the axes, the colours and the bar; None draws no bar
    grid: the colour of the lines between cells
    axes: the caller's axes to draw into
    cell: the greatest size of a cell in inches
    """
    cell = min(cell, MAX_INCHES / max(len(columns), len(rows)))
    width, height = cell * len(columns), cell * len(rows)
    with drawing(path, width, height, axes) as figure:
        bar_axes: dict[str, Any] = {"ax": axes}
        if axes is None:
            axes = figure.add_axes((0, 0, 1, 1))  # the labels lie outside; the saved picture grows to fit them
            bar_width, min_height, max_height = BAR_INCHES
            bar_height = min(max(height, min_height), max_height) / height
            bar_axes = {"cax": figure.add_axes((1 + 0.25 / width, 1 - bar_height, bar_width / width, bar_height))}
        image = axes.imshow(values, **look, aspect="auto", interpolation="nearest")
        axes.set(**sides, facecolor="0.8")
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.tick_params(length=0, pad=3)
        axes.set_xticks(np.arange(len(columns)), [word_label(word) for word in columns], rotation=90)
        axes.set_yticks(np.arange(len(rows)), [word_label(word) for word in rows])
        font_size = cell * 72 * 0.62  # points: 62 % of a cell
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(parse_math=False, fontfamily=families(label.get_text()), fontsize=font_size)
        axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
        axes.grid(which="minor", color=grid, linewidth=0.4)
        axes.tick_params(which="minor", length=0)
        if bar is not None:
            axes.figure.colorbar(image, **bar_axes, **bar)
    return figure


def attention_over_image(
    image: NDArray[np.uint8],
    words: Sequence[str],
    attention: NDArray[np.floating],
    path: str | Path | None,
    *,
    chosen: Sequence[int] | None,
    axes: Any = None,
    look: Mapping[str, Any] | None = None,
) -> "Figure":
    """Draw the image, then once more for each word, bright where attention is high, like Figure 2 of Xu et al. 2015; or
    under the colours of a `look`, with a bar that explains them.

    image: side × side × 3
    attention: words × rows × columns; words without attention leave empty places
    chosen: for each word, the location that hard attention chose, in reading order; it is marked by a frame
    axes: the caller's figure to draw into
    """
    from PIL.Image import Resampling, fromarray

    side = image.shape[0]
    panel_columns = min(PANELS_PER_ROW, len(words) + 1)
    panel_rows = math.ceil((len(words) + 1) / panel_columns)
    with drawing(path, PANEL_INCHES * panel_columns, (PANEL_INCHES + 0.28) * panel_rows, axes) as figure:
        from matplotlib.patches import Rectangle

        panels = figure.subplots(panel_rows, panel_columns, squeeze=False).ravel()
        for panel in panels:
            panel.axis("off")  # hides the frame and ticks
        panels[0].imshow(image)
        rows, columns = attention.shape[1:]
        grey = image.mean(-1, keepdims=True).repeat(3, -1) / 255
        extent = (0, side, side, 0)
        for t, (panel, word, alpha) in enumerate(zip(panels[1:], words, attention, strict=False)):
            if look is None:
                weights = alpha / max(float(alpha.max()), 1e-12)
                panel.imshow(0.35 * grey + 0.1, extent=extent)
                smooth = fromarray(weights.astype(np.float32)).resize((side, side), Resampling.BICUBIC)
                panel.imshow(image, extent=extent, alpha=np.asarray(smooth).clip(0, 1))
            else:
                panel.imshow(0.5 * grey + 0.5, extent=extent)
                shown = panel.imshow(alpha, extent=extent, alpha=0.7, **look)
            panel.set_title(word_label(word), fontsize=9, pad=3, parse_math=False, fontfamily=families(word))
            if chosen is not None and t < len(chosen):
                row, column = divmod(chosen[t], columns)
                height, width = side / rows, side / columns
                corner = (column * width, row * height)
                panel.add_patch(Rectangle(corner, width, height, fill=False, ec=COLOURS[1], lw=1.5, clip_on=False))
        figure.tight_layout(pad=0.3)
        if look is not None:
            figure.colorbar(shown, cax=figure.add_axes((1.01, 0.1, 0.01, 0.8)), label="attribution in nats")
    return figure


def principal_components(vectors: NDArray[np.floating], labels: Sequence[str], path: str | Path | None) -> "Figure":
    """Draw the first two principal components of vectors, N×D, like Figure 2 of Sutskever et al. 2014.

    The label of a point is beside it where it covers neither a point nor another label; a label for which there is no
    such place is left out. Raises InputError for fewer than three vectors.
    """
    if len(vectors) < 3:
        raise InputError(f"plot= needs at least three lines, not {len(vectors)}.")
    u, s, _ = np.linalg.svd(vectors - vectors.mean(0, dtype=float), full_matrices=False)
    points, shares = (u * s)[:, :2], s**2 / max((s**2).sum(), 1e-12)
    with drawing(path, 9, 7) as figure:
        from matplotlib.transforms import Bbox

        axes = figure.subplots()
        axes.plot(*points.T, ".", color=COLOURS[0])
        axes.margins(0.4, 0.1)
        style_axes(axes, xlabel=f"component 1: {shares[0]:.0%} of variance", ylabel=f"component 2: {shares[1]:.0%}")
        figure.draw_without_rendering()  # fixes the scales
        taken = [Bbox([centre - 6, centre + 6]) for centre in axes.transData.transform(points)]
        look: Any = {"textcoords": "offset points", "fontsize": 8, "parse_math": False}
        for label, point in zip(labels, points, strict=True):
            look["fontfamily"] = families(label)
            for x, y, side, height in PLACES:
                text = axes.annotate(word_label(label, 60), point, (x, y), ha=side, va=height, **look)
                if not (box := text.get_window_extent()).count_overlaps(taken):
                    taken.append(box)
                    break
                text.remove()
    return figure


def bleu_by_length(systems: "Mapping[str, Sequence[LengthScore]]", path: Path, *, unit: str = "words") -> None:
    """Draw BLEU by source length with 95 % intervals, one line for each system, like Figure 2 of Bahdanau et al. 2015.

    systems: the scores of each system, by its name, in the same bins; bins without sentences leave a gap
    unit: what the length of a source counts
    """
    with drawing(path, 7, 4) as figure:
        axes = figure.subplots()
        bins = next(iter(systems.values()))
        for index, (name, scores) in enumerate(systems.items()):
            shift = 0.06 * (index - (len(systems) - 1) / 2)  # so that intervals of different systems do not overlap
            points = [(bleu.value, bleu.low, bleu.high) if (bleu := score.bleu) else (np.nan,) * 3 for score in scores]
            values, low, high = np.array(points, float).T  # an interval that is None becomes NaN
            look: Any = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "capsize": 3}
            errors = np.maximum([values - low, high - values], 0)
            axes.errorbar(np.arange(len(points)) + shift, values, yerr=errors, **look, label=drawable(name))
        axes.set_xticks(np.arange(len(bins)), [f"{score.label}\n{score.sentences:,}" for score in bins])
        limits = {"xlim": (-0.5, len(bins) - 0.5), "ylim": (0, 1.05 * axes.get_ylim()[1])}
        style_axes(axes, xlabel=f"{unit} in the source sentence, and the number of sentences", ylabel="BLEU", **limits)
        if len(systems) > 1:
            draw_legend(axes, above=1.0)


def curve_panels(runs: Mapping[str, Series]) -> list[Panel]:
    """The panels of learning curves: losses, scores, the learning rate and the norm of the gradient before clipping."""
    recorded = dict.fromkeys(name for series in runs.values() for name in series)
    user_scores = [name.removeprefix("valid_") for name in recorded if "." in name]  # dotted names of users' classes
    scores = [score(name) for name in (*SCORES, *user_scores) if name != "loss"]
    panel_lines: list[tuple[str, dict[str, str]]] = [
        ("loss in nats per token\n(lower is better)", {"valid_loss": "validation loss", "loss": "training loss"}),
        *((metric.directed_heading, {f"valid_{metric.name}": f"validation {metric.label}"}) for metric in scores),
        ("mean reward", {"reward": "reward of samples"}),
        (LEARNING_RATE, {"learning_rate": LEARNING_RATE}),
        (NORM, {"gradient_norm": "norm of the gradient before clipping"}),
    ]
    panels: list[Panel] = []
    for label, names in panel_lines:
        pairs = [(run, name) for run, series in runs.items() for name in names if name in series]
        lines = {(run, names[name]): runs[run][name] for run, name in pairs}
        if lines and (not panels or _has_curve(lines.values(), label)):
            panels.append((label, lines))
    return panels


def _has_curve(lines: Collection[tuple[list[int], list[float]]], label: str) -> bool:
    """Whether there is a curve to see: a second step, and for the learning rate, a second value."""
    values = {value for _, values in lines for value in values}
    return any(len(steps) > 1 for steps, _ in lines) and (label != LEARNING_RATE or len(values) > 1)


def learning_curves(metrics: Mapping[str, Path], path: str | Path | None) -> "Figure":
    """Draw the learning curves of runs, given the metrics.jsonl of each by the run's name.

    If there are several runs, each has its own colour. Raises NothingToDrawError if the files have no values.
    """
    panels = curve_panels({name: read_metrics(file) for name, file in metrics.items()})
    if not panels:
        files = ", ".join(map(str, metrics.values()))
        raise NothingToDrawError(f"{files} holds no losses, scores or learning rates to draw.")
    has_several_runs = len(metrics) > 1
    columns = 2 if len(panels) > 2 else 1
    cells = [0] * (len(panels) % columns) + [*range(len(panels))]  # of an odd number, the losses fill a row
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    with drawing(path, 1.5 + 5 * columns, 2.4 * len(rows) + 0.4) as figure:
        grid = figure.subplot_mosaic(rows, sharex=True, gridspec_kw={"wspace": 0.25})
        for axes, (label, lines) in zip(grid.values(), panels, strict=True):
            titles = list(dict.fromkeys(title for _, title in lines))
            for (run, title), (steps, values) in lines.items():
                index = titles.index(title)
                look = line_look(list(metrics).index(run), index) if has_several_runs else line_look(index)
                look |= {"marker": "." if len(steps) <= 40 else None, "clip_on": False}  # dots on an axis are not cut
                axes.plot(steps, values, **look, label=drawable(f"{run}: {title}" if has_several_runs else title))
            if label == NORM:
                _scale_logarithmically(axes)
            elif not any(value < 0 for _, values in lines.values() for value in values):
                axes.set_ylim(0, None)
            style_axes(axes, ylabel=label)
            if len(titles) > 1 or (has_several_runs and axes is grid[0]):
                draw_legend(axes, above=1.0 if has_several_runs else None)
        grid[0].tick_params(labelbottom=True)
        for index in rows[-1]:
            grid[index].set_xlabel("updates")
        figure.align_ylabels()
    return figure


def line_look(run_index: int, curve: int = 0) -> dict[str, Any]:
    """The colour of the run (or the curve of a single run) with this index, and the style of a run's curve."""
    style = LINE_STYLES[(curve + 2 * (run_index // len(COLOURS))) % len(LINE_STYLES)]
    return {"color": COLOURS[run_index % len(COLOURS)], "linestyle": style}


def gradient_panels(measurements: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, list[Any]]]:
    """The panels of named measurements of the gradient flow (`training.gradient_flow.flow`).

    A panel is named by its kind and its stack, and has a line for each measurement, of the highest layer of the stack.
    For the kind "h" or "c", a tensor of the state, it is ‖∂loss/∂h_t‖ by time step; for SINGULAR, it is the singular
    values of ∂s_t/∂s_{t−1}.
    """
    panels: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for name, measurement in measurements.items():
        for layer, state in measurement["gradients"].items():  # a higher layer replaces a lower one
            for kind, values in {**state, SINGULAR: measurement["singular_values"][layer]}.items():
                panels.setdefault((kind, _stack(layer)), {})[name] = values
    return panels


def opacities(steps: int) -> list[float]:
    """The opacity of the line of each step of one run: the last step is opaque."""
    return [round(1 - 0.7 * (steps - step) / max(1, steps - 1), 2) for step in range(1, steps + 1)]


def _stack(layer: str) -> str:
    """The name of the stack that a layer belongs to: `decoder` for `decoder.1`."""
    return re.sub(r"\.\d+$", "", layer)


def learning(samples: Mapping[int, Mapping[str, Any]], picture: Callable[[str, str], Any], path: Path) -> None:
    """Write a GIF of the attention in one example at each validation.

    samples: what the model wrote and where it looked, by step (`training.validation.Sample`)
    picture: returns the pixels of the image with this name, fitted in this way; None if it cannot be read
    """
    from PIL import Image

    frames = []
    with drawing(None, 9, 7) as figure:
        for step, sample in samples.items():
            seen = sample["attention"]
            alpha, target = np.array(seen["weights"])[:GIF_TOKENS, :], seen["target"][:GIF_TOKENS]
            figure.clear()
            figure.suptitle(f"step {step:,}")
            if "source" in seen:
                source, axes = seen["source"][:GIF_TOKENS], figure.add_axes((0.18, 0.03, 0.8, 0.75))
                alignment(alpha[:, :GIF_TOKENS], source, target, None, axes=axes)
            elif (pixels := picture(sample["image"], seen["fit"])) is not None:
                words = target + [""] * (GIF_TOKENS - len(target))  # so that each panel stays in its place
                attention_over_image(pixels, words, alpha.reshape(-1, *seen["grid"]), None, chosen=None, axes=figure)
            figure.savefig(stream := BytesIO(), format="png", dpi=GIF_DPI, bbox_inches=None)
            frames.append(Image.open(stream).convert("RGB"))
    with replacement_path(path) as temporary:
        frames[0].save(temporary, "gif", save_all=True, append_images=frames[1:], duration=GIF_MILLISECONDS, loop=0)


def gradient_flow(
    measurements: Mapping[str, Mapping[str, Any]], path: Path, *, runs: Sequence[str] | None = None
) -> None:
    """Draw the `gradient_panels` on logarithmic scales, with a column for each stack.

    measurements: either several steps of one run, by a name for each step, drawn from light to dark; or one
        measurement for each run, by the run's name
    runs: None for steps of one run; otherwise the names of all runs, in the order of colours in `learning_curves`

    A gradient that is 0 or not finite leaves a gap. Raises NothingToDrawError if nothing else is left.
    """
    panels = gradient_panels(measurements)
    if not any(any(values) for lines in panels.values() for values in lines.values()):
        raise NothingToDrawError("No gradient and no singular value can be drawn.")
    shades = [{"color": COLOURS[0], "alpha": opacity} for opacity in opacities(len(measurements))]
    looks = [line_look(runs.index(name)) for name in measurements] if runs else shades
    layers = Counter(map(_stack, {layer for values in measurements.values() for layer in values["gradients"]}))
    kinds = [kind for kind in ("h", "c", SINGULAR) if any(kind == panel_kind for panel_kind, _ in panels)]
    stacks = list(dict.fromkeys(stack for _, stack in panels))
    with drawing(path, 4.2 * max(2, len(stacks)), 2.8 * len(kinds)) as figure:
        grid = figure.subplots(len(kinds), len(stacks), sharey="row", squeeze=False)
        for axes, (kind, stack) in zip(grid.flat, ((kind, stack) for kind in kinds for stack in stacks), strict=True):
            if (kind, stack) not in panels:
                axes.set_visible(False)
                continue
            for look, (name, measurement) in zip(looks, measurements.items(), strict=True):
                values = np.array(panels.get((kind, stack), {}).get(name, []), dtype=float)  # None becomes NaN
                values[~(np.isfinite(values) & (values > 0))] = np.nan
                label = drawable(f"{name}, step {measurement['step']:,}" if runs else name)
                axes.plot(np.arange(1, len(values) + 1), values, **look, linewidth=1.4, label=label)
            layer = f"{stack}, highest layer" if layers[stack] > 1 else stack
            quantity = "∂s$_t$/∂s$_{t-1}$" if kind == SINGULAR else f"‖∂loss/∂{kind}$_t$‖"
            _scale_logarithmically(axes)
            style_axes(axes, xlabel="rank" if kind == SINGULAR else "time step t")
            axes.set_title(f"{quantity}: {layer}", fontsize="medium", loc="left")
        for axes, kind in zip(grid[:, 0], kinds, strict=True):
            axes.set_ylabel("singular values (gain in a step)" if kind == SINGULAR else f"nats per unit of {kind}")
        figure.tight_layout()
        draw_legend(grid[0, 0], above=1.1)  # over the title


def _scale_logarithmically(axes: "Axes") -> None:
    """Make the y axis logarithmic, unless all values are 0. Over less than two decades, its labels are plain numbers.

    Values of 0 are left out: drawn outside of the axes, which pictures take in, they would make the picture endless.
    """
    from matplotlib import ticker

    if not any((np.asarray(line.get_ydata(), float) > 0).any() for line in axes.lines):
        return
    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    if high < 100 * low:
        locator = ticker.LogLocator(subs=(1, 2, 5))  # falls back to even steps if fewer than two of these fit
        axes.yaxis.set(major_locator=locator, major_formatter="{x:g}", minor_formatter=ticker.NullFormatter())


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Read the numbers in a metrics.jsonl: by name, their steps, in order, and their values.

    Each line is an object with `step` and any numbers. If a step occurs twice, as after resuming, the later line
    counts. An incomplete last line is left out. Raises InputError for any other invalid line.
    """
    series: dict[str, dict[int, float]] = {}
    problem = "is not a JSON object with a 'step'"
    for record in read_json_lines(path, lambda record: isinstance(record["step"], int), problem):
        step = record.pop("step")
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
                series.setdefault(name, {})[step] = float(value)
    return {name: (sorted(values), [values[s] for s in sorted(values)]) for name, values in series.items()}


def style_axes(axes: "Axes", **properties: Any) -> None:
    """Set properties of the axes, and draw them without a box, over a light grid."""
    axes.set(**properties)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def draw_legend(axes: "Axes", *, above: float | None = None) -> None:
    """Draw the legend inside the axes or, with `above`, over them at this height, where 1 is their top."""
    position: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, above), "ncols": 2} if above else {}
    for text in axes.legend(frameon=False, **position).get_texts():
        text.set(parse_math=False, fontfamily=families(text.get_text()))


def word_label(word: str, letters: int = MAX_LABEL_LETTERS) -> str:
    """The label of a word or a text without signs for spaces, cut to at most this many letters."""
    word = word.replace(SPACE, "")
    return drawable(word if len(word) <= letters else word[: letters - 1] + "…")


def drawable(text: str) -> str:
    """The text, with "�" in place of every character that no installed font has."""
    fonts = [characters(file) for _, file in fonts_for(frozenset(text))]
    return "".join(letter if any(ord(letter) in font for font in fonts) else "\ufffd" for letter in text)


def families(text: str) -> list[str]:
    """The names of the fonts that the text needs."""
    return [name for name, _ in fonts_for(frozenset(text))]


@cache
def fonts_for(letters: frozenset[str]) -> list[tuple[str, str]]:
    """The names and files of fonts for these characters: DejaVu Sans, and others if it lacks a character."""
    from matplotlib import font_manager

    fonts_and_files = [("DejaVu Sans", str(font_manager.findfont("DejaVu Sans")))]
    missing = {ord(letter) for letter in letters} - characters(fonts_and_files[0][1])
    fonts = font_manager.fontManager.ttflist if missing else []
    for font in sorted(fonts, key=lambda font: (abs(int(font.weight) - 400), font.name)):  # 400: regular
        is_text_font = font.style == "normal" and not font.name.startswith(SYMBOL_FONTS)
        if is_text_font and (added := missing & characters(font.fname)):
            fonts_and_files.append((font.name, font.fname))
            missing -= added
    return fonts_and_files


@cache
def characters(file: str) -> frozenset[int]:
    """The code points that a font has; empty if matplotlib cannot open the font."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
