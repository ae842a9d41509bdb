"""Sequences of words that are repeated in a row, as models write them that have learnt too little."""

from collections.abc import Sequence

from seqtool.data.text.words import characters, writing

LONGEST = 8  # words of a repeated sequence


def repeats(text: str) -> bool:
    """Whether a sequence of words is repeated in a row (`is_repeated`)."""
    return is_repeated(*units(text))


def units(text: str) -> tuple[list[str], bool]:
    """The words of a text, or its characters where it has no spaces between words; and whether they are characters."""
    has_no_spaces = writing([text]).has_no_spaces
    return characters(text) if has_no_spaces else text.split(), has_no_spaces


def is_repeated(units: Sequence[str], are_characters: bool) -> bool:
    """Whether a sequence of 2 to `LONGEST` words stands twice in a row, or one word three times; of characters 4 to
    `LONGEST` twice, or fewer four times, since Chinese and others double words.
    """
    few, often = (3, 4) if are_characters else (1, 3)
    for length in range(1, LONGEST + 1):
        times = often if length <= few else 2
        alike = 0  # units in a row that are equal to those `length` before
        for before, unit in zip(units, units[length:], strict=False):
            alike = alike + 1 if unit == before else 0
            if alike >= (times - 1) * length:
                return True
    return False
