"""Plots of alignments, of attention over images and of scores, as PNG files, and what all plots share.

They are drawn without a window system, written whole or not at all, with fonts that have the words' characters.
matplotlib is imported when a figure is made. Neither its files nor the environment decide how a figure looks, and the
settings of a caller who uses matplotlib too stay as they are.
"""

import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from seqtool.errors import InputError, printable
from seqtool.runtime.files import beside

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


@contextmanager
def or_left_out(path: Path) -> Iterator[None]:
    """Draw a figure that the work does without: if that fails, a sentence on standard error says so."""
    try:
        yield
    except (InputError, OSError) as error:
        reason = f"{error.strerror or error}." if isinstance(error, OSError) else str(error)
        tqdm.write(printable(f"{path} is left out: {reason}"), file=sys.stderr)


@contextmanager
def matplotlib_drawing() -> Iterator[None]:
    """Lets a function draw (`@matplotlib_drawing()`) with matplotlib's default settings and without its messages about
    fonts and cache folders; afterwards the settings are the caller's again. Raises InputError if matplotlib fails.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        matplotlib = _matplotlib()
        settings = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        with matplotlib.rc_context(settings):
            yield
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


@matplotlib_drawing()
def alignment(attention: NDArray[np.floating], source: Sequence[str], target: Sequence[str], path: Path) -> None:
    """A heat map of attention (target words × source words), like Figure 3 of Bahdanau et al. 2015.

    Source on top, target downwards; black is 0 and white is 1. The words are set in fonts that have their
    characters, if such fonts are installed. Raises ValueError if the shape does not match or there
    are no words.
    """
    if attention.shape != (len(target), len(source)) or attention.size == 0:
        raise ValueError(f"attention is {attention.shape} for {len(target)} target and {len(source)} source words")
    cell = min(CELL, LARGEST / max(len(source), len(target)))
    figure = make_figure(cell * len(source), cell * len(target))
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
    save_figure(figure, path)


@matplotlib_drawing()
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
    from matplotlib.patches import Rectangle
    from PIL.Image import Resampling, fromarray

    side = image.shape[0]
    across = min(PANELS, len(words) + 1)
    down = math.ceil((len(words) + 1) / across)
    figure = make_figure(PANEL * across, (PANEL + 0.28) * down)
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
    save_figure(figure, path)


@matplotlib_drawing()
def bleu_by_length(systems: "Mapping[str, Sequence[LengthScore]]", path: Path, *, unit: str = "words") -> None:
    """BLEU by source length with 95 % intervals, one line for each system: Figure 2 of Bahdanau et al. 2015.

    Every system has the same bins. Bins without sentences leave a gap.
    """
    figure = make_figure(7, 4)
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
    save_figure(figure, path)


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


def make_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that needs no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write the PNG; no reader ever sees part of it."""
    with beside(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight", pad_inches=0.1, facecolor="white")


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
