"""What is conspicuous about a translation or caption: the flags by which a report's sentences can be chosen."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.scripts import characters, writing

EMPTY, REPEATED, CUT, COPIED = "empty", "repeated", "cut", "copied"
UNKNOWN, UNATTENDED = "unknown words", "source words not attended to"
LONGEST = 8  # words of a repeated sequence
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
    """The flags of a text. attention: target words × source words, and the source's words."""
    words = units = text.split()
    often: dict[str, int] = {}
    if writing([text]).has_no_spaces:
        units, often = characters(text), {"few": 3, "often": 4}  # Chinese and others double words
    found = {
        EMPTY: not words,
        REPEATED: repeats(units, **often),
        CUT: not ended,
        COPIED: source is not None and len(units) > 1 and words == source.split(),
        UNKNOWN: unknown,
        UNATTENDED: attention is not None and _misses(*attention),
    }
    return [flag for flag, holds in found.items() if holds]


def repeats(words: Sequence[str], *, few: int = 1, often: int = 3) -> bool:
    """Whether words stand in a row again and again (`EXPLAINED`): twice, or `often` if no more than `few`."""
    for length in range(1, LONGEST + 1):
        times = often if length <= few else 2
        alike = 0  # words in a row that are equal to those `length` before
        for before, word in zip(words, words[length:], strict=False):
            alike = alike + 1 if word == before else 0
            if alike >= (times - 1) * length:
                return True
    return False


def _misses(attention: NDArray[np.floating], words: Sequence[str]) -> bool:
    """Punctuation need not be looked at."""
    total = attention.sum(0)
    return any(re.search(r"\w", word) and weight < LEAST for word, weight in zip(words, total, strict=False))
