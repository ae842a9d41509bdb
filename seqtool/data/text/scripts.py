"""Scripts that are written without spaces between words: Chinese, Japanese, Thai and others."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

# How the Unicode names of their letters begin.
SCRIPTS = {
    "Han": ("CJK ", "IDEOGRAPHIC ", "BOPOMOFO "),
    "kana": ("HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA"),
    "other": (
        *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ", "TAI ", "NEW TAI ", "YI ", "JAVANESE ", "BALINESE "),
        *("BUGINESE ", "BATAK ", "TANGUT ", "NUSHU ", "CUNEIFORM ", "EGYPTIAN "),
    ),
    "Hangul": ("HANGUL ", "HALFWIDTH HANGUL "),  # Korean has spaces
}
WITHOUT_SPACES = frozenset({"Han", "kana", "other"})
DENSE = 8  # characters to a space: words that were cut apart have 2 (Chinese) to 6 (Burmese), phrases 10 to 40


@dataclass(frozen=True)
class Writing:
    """How a text is written: its letters by script, its characters besides white space, and the spaces inside lines."""

    scripts: Counter[str]
    characters: int
    spaces: int

    @property
    def has_no_spaces(self) -> bool:
        """Whether it is mostly in scripts without spaces, and has not been cut into words."""
        without = sum(self.scripts[name] for name in WITHOUT_SPACES)
        return 2 * without > self.scripts.total() and DENSE * self.spaces <= self.characters

    @property
    def is_chinese(self) -> bool:
        """Whether most letters are Chinese, and hardly any Japanese."""
        return 2 * self.scripts["Han"] > self.scripts.total() and 20 * self.scripts["kana"] < self.scripts["Han"]


def writing(lines: Iterable[str]) -> Writing:
    """How the lines, all together, are written."""
    counts: Counter[str] = Counter()
    spaces = 0
    for line in lines:
        parts = line.split()
        spaces += max(0, len(parts) - 1)
        counts.update("".join(parts))
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if _is_letter(character):
            scripts[_script(character)] += count
    return Writing(scripts, counts.total(), spaces)


def characters(text: str) -> list[str]:
    """The words in lower case, without punctuation; a character of a script without spaces is one, with its marks."""
    words: list[str] = []
    goes_on = begun = False  # whether a letter would go on with the last word, and whether a mark would
    for character in text.lower():
        is_alone = _script(character) in WITHOUT_SPACES
        if not (_is_letter(character) or character.isnumeric()):
            goes_on = begun = False
        elif (goes_on and not is_alone) or (begun and unicodedata.category(character)[0] == "M"):
            words[-1] += character
        else:
            words.append(character)
            goes_on, begun = not is_alone, True
    return words


@cache
def _script(character: str) -> str:
    """One of `SCRIPTS`; empty for any other."""
    name = unicodedata.name(character, "")
    return next((script for script, begins in SCRIPTS.items() if name.startswith(begins)), "")


@cache
def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"
