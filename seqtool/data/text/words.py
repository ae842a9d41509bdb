"""The words of a text, for counting: how often each stands in the training data."""

import re

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words(text: str) -> list[str]:
    """In lower case, without punctuation."""
    return WORD.findall(text.lower())
