"""Word alignments: makes links from attention over pieces, and reads and writes them in Pharaoh format, `i-j`.

Text is split into words at white space, unless a setting or a corpus chooses another way (`words.SPLITS`). A link is a
pair (source word, target word), both counted from 0. Matrices are target words × source words, as in attention.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from seqtool.errors import InputError

Link = tuple[int, int]
Matrix = NDArray[np.floating]

LINK = re.compile(r"([0-9]{1,9})([-?])([0-9]{1,9})")
SHADES = " ░▒▓█"  # the weights 0, 1/4, 1/2, 3/4 and 1 in a terminal
SPACE = "▁"  # U+2581: at the start of a piece, it marks the space before it


def join_pieces(pieces: Iterable[str]) -> str:
    """The text of these pieces."""
    return "".join(pieces).replace(SPACE, " ").strip()


def piece_words(pieces: Sequence[str], words: Sequence[str]) -> list[int]:
    """For each piece of a text, the index of the word in which it begins.

    Pieces and words must be spelt in the same way; white space is ignored. A piece that spans several words belongs to
    the first of them. A piece that is only a space belongs to the next word, and has the index -1 after the last word.
    """
    ends = list(accumulate(len("".join(word.split())) for word in words))
    indices, position = [], 0
    for piece in pieces:
        word = bisect_right(ends, position)
        indices.append(word if word < len(ends) else -1)
        position += len("".join(piece.replace(SPACE, " ").split()))
    return indices


def word_attention(
    attention: Matrix, source: Sequence[int], target: Sequence[int], shape: tuple[int, int], *, mean: bool = True
) -> Matrix:
    """Attention between words: attention between pieces, summed over source pieces and averaged over target pieces.

    attention: target pieces × source pieces, without the row and the column of EOS.
    source, target: the index of the word of each piece (`piece_words`).
    shape: the number of target words and the number of source words.
    mean: false sums over target pieces too.

    Rows sum to at most 1, since the attention to EOS is not redistributed. A word in which no piece begins has zeros.
    Raises ValueError if the shape of `attention` is not target × source pieces.
    """
    expected_shape = len(target), len(source)
    if attention.shape != expected_shape:
        raise ValueError(f"attention is {attention.shape} for {expected_shape} target and source pieces")
    target_membership, source_membership = (  # words × pieces: 1 where the piece belongs to the word
        np.equal.outer(np.arange(count), pieces).astype(np.float64)
        for count, pieces in zip(shape, (target, source), strict=True)
    )
    counts = np.maximum(target_membership.sum(axis=1, keepdims=True), 1) if mean else 1
    result: Matrix = (target_membership / counts) @ attention @ source_membership.T
    return result


def hard_alignment(matrix: Matrix) -> set[Link]:
    """Link each target word to the first source word with the largest weight. A row of zeros has no link."""
    if matrix.size == 0:
        return set()
    best = matrix.argmax(axis=1)
    return {(int(source), target) for target, source in enumerate(best) if matrix[target, source] > 0}


def diagonal(source_length: int, target_length: int) -> set[Link]:
    """A baseline that links each target word to the source word at the same relative position."""
    if source_length == 0:
        return set()
    return {((2 * j + 1) * source_length // (2 * target_length), j) for j in range(target_length)}


def uniform(source_length: int, target_length: int, generator: np.random.Generator) -> set[Link]:
    """A baseline that links each target word to a source word drawn uniformly, like uniform attention."""
    if source_length == 0:
        return set()
    return {(int(i), j) for j, i in enumerate(generator.integers(source_length, size=target_length))}


def parse_pharaoh(line: str, *, location: str = "Alignment") -> tuple[set[Link], set[Link]]:
    """The sure links (`i-j`) and the possible links (`i?j`) of a line in Pharaoh format.

    Raises InputError for anything else; its message begins with `location`, such as "gold.align line 3".
    """
    sure: set[Link] = set()
    possible: set[Link] = set()
    for item in line.split():
        match = LINK.fullmatch(item)
        if match is None:
            raise InputError(
                f"{location}: '{item}' is not an alignment link; expected i-j (sure) or i?j (possible), "
                "where i is the source word and j the target word, both counted from 0."
            )
        link = int(match[1]), int(match[3])
        (sure if match[2] == "-" else possible).add(link)
    return sure, possible


def format_pharaoh(links: Iterable[Link], possible: Iterable[Link] = ()) -> str:
    """A line in Pharaoh format with these sure and possible links, ordered by target word."""
    items = [(j, i, "-") for i, j in links] + [(j, i, "?") for i, j in possible]
    return " ".join(f"{i}{mark}{j}" for j, i, mark in sorted(items))


def format_grid(attention: Matrix, source: Sequence[str], target: Sequence[str]) -> str:
    """A picture for terminals, in lines: a row for each target word, and below each source word the weight as a shade.

    attention: target words × source words, from 0 to 1
    """
    label_width, widths = max(map(_width, target), default=0), [*map(_width, source)]
    lines = ["  ".join([" " * label_width, *source])]
    for word, weights in zip(target, attention, strict=True):
        shades = [SHADES[round(float(weight) * (len(SHADES) - 1))] for weight in weights]
        cells = [shade * width for shade, width in zip(shades, widths, strict=True)]
        lines.append("  ".join([word + " " * (label_width - _width(word)), *cells]).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _width(word: str) -> int:
    """The columns that a word takes up in a terminal: two for each Chinese character, none for combining marks."""
    letters = [letter for letter in word if unicodedata.category(letter) not in ("Mn", "Me", "Cf")]
    return len(letters) + sum(unicodedata.east_asian_width(letter) in "WF" for letter in letters)
