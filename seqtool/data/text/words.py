"""The words of a text: letters and digits with the marks that combine with them, in any script."""

import re
import unicodedata
from functools import cache
from typing import NamedTuple

JOINERS = "\u200c\u200d"  # zero width (non-)joiners stand within words of Persian and of Indic scripts
PLAIN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")  # of a text without marks and joiners, where it is several times as fast


class Marks(NamedTuple):
    """Unicode's combining marks, which Python's \\w leaves out, and patterns with them."""

    characters: frozenset[str]  # the joiners too
    word: re.Pattern[str]  # as PLAIN
    verbatim: re.Pattern[str]  # a word, other symbol or white space, with the space before it


def words(text: str) -> list[str]:
    """For counting: in lower case and in NFC, without punctuation."""
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        if not marks().characters.isdisjoint(text):
            return marks().word.findall(text)
    return PLAIN.findall(text)


@cache
def marks() -> Marks:
    """Compiled when a text first needs them: it takes some hundredths of a second."""
    every = "".join(filter(_combines, map(chr, (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)))))
    return Marks(
        frozenset(every + JOINERS),
        re.compile(rf"[^\W_]+(?:['’{JOINERS}][^\W_]+|[{every}]+[^\W_]*)*"),
        re.compile(rf" ?\w+(?:[{every}]+\w*|[{JOINERS}]\w+)*| ?[^\w\s][{every}]*|\s"),
    )


def _combines(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
