"""Words that stand in a row again and again, as a model writes them that does not know how to go on."""

from collections.abc import Sequence

from seqtool.data.text.scripts import characters, writing

LONGEST = 8  # words of a repeated sequence


def repeats(text: str) -> bool:
    """Whether a sequence of 2 to `LONGEST` words stands twice in a row, or one word three times; without spaces between
    words 4 to `LONGEST` characters twice, or fewer four times, since Chinese and others double words.
    """
    if writing([text]).has_no_spaces:
        return _in_a_row(characters(text), few=3, often=4)
    return _in_a_row(text.split(), few=1, often=3)


def _in_a_row(words: Sequence[str], *, few: int, often: int) -> bool:
    """Whether a sequence stands twice in a row, or `often` times if it has no more than `few` words."""
    for length in range(1, LONGEST + 1):
        times = often if length <= few else 2
        alike = 0  # words in a row that are equal to those `length` before
        for before, word in zip(words, words[length:], strict=False):
            alike = alike + 1 if word == before else 0
            if alike >= (times - 1) * length:
                return True
    return False
