"""Words that stand in a row again and again, as a model writes them that does not know how to go on."""

from collections.abc import Sequence

LONGEST = 8  # words of a repeated sequence


def repeats(words: Sequence[str]) -> bool:
    """Whether a sequence of 2 to `LONGEST` words stands twice in a row, or one word three times."""
    for length in range(1, LONGEST + 1):
        times = 3 if length == 1 else 2
        alike = 0  # words in a row that are equal to those `length` before
        for before, word in zip(words, words[length:], strict=False):
            alike = alike + 1 if word == before else 0
            if alike >= (times - 1) * length:
                return True
    return False
