"""What is conspicuous about a translation or caption: the flags by which a report's sentences can be chosen."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqtool.metrics.repetition import LONGEST, is_repeated, units

EMPTY, REPEATED, CUT, COPIED = "empty", "repeated", "cut", "copied"
UNKNOWN, UNATTENDED = "unknown words", "source words not attended to"
LEAST = 0.02  # the attention that a source word gets from all target words together: 0.1 marks every other sentence

EXPLAINED = {
    EMPTY: "no word was written",
    REPEATED: f"a sequence of 2 to {LONGEST} words stands twice in a row, or one word three times; without "
    f"spaces, 4 to {LONGEST} characters twice, or fewer four times",
    CUT: "cut off at the maximum length",
    COPIED: "the translation is its source",
    UNKNOWN: "the source has words or pieces that the model does not know",
    UNATTENDED: f"a source word got less than {LEAST:g} of attention from all target words together",
}


def flags_of(
    text: str,
    *,
    source: str | None = None,
    ended: bool = True,
    unknown: bool = False,
    attention: tuple[NDArray[np.floating], Sequence[str]] | None = None,
) -> list[str]:
    """The flags of a text.

    source: None if there is none, or it is unknown
    ended: by itself, not cut off at its maximum length
    unknown: the source has pieces that the model does not know
    attention: target words × source words, and the source's words
    """
    words = text.split()
    counted, are_characters = units(text)
    holds = {
        EMPTY: not words,
        REPEATED: is_repeated(counted, are_characters),
        CUT: not ended,
        COPIED: source is not None and len(counted) > 1 and words == source.split(),
        UNKNOWN: unknown,
        UNATTENDED: attention is not None and _misses(*attention),
    }
    return [flag for flag, is_so in holds.items() if is_so]


def _misses(attention: NDArray[np.floating], words: Sequence[str]) -> bool:
    """Punctuation need not be looked at."""
    total = attention.sum(0)
    return any(re.search(r"\w", word) and weight < LEAST for word, weight in zip(words, total, strict=False))
