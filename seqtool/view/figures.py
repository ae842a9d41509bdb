"""Figures that are drawn without a window system, written whole or not at all, with words in fonts that have them.
matplotlib is imported when a figure is made, without its global state.
"""

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from seqtool.runtime.files import beside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
LONGEST_WORD = 30  # letters shown of a word
NOT_FOR_WORDS = ("cm", "STIXSize", "STIXNon", "Last Resort")  # matplotlib's own fonts of symbols and boxes


def make_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; matplotlib's messages about fonts and cache folders are kept quiet."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write the PNG, of which no half is ever seen."""
    with beside(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight", pad_inches=0.1, facecolor="white")


def word_label(word: str) -> str:
    """A word as it stands beside a heat map."""
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
        if suits and (found := missing & characters(font.fname)):
            chosen.append((font.name, font.fname))
            missing -= found
    return chosen


@cache
def characters(file: str) -> frozenset[int]:
    """The code points a font has; none for a font that matplotlib cannot open."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
