"""Scripts that are written without spaces between words: Chinese, Japanese, Thai and others."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

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
# Letters to a space between them: Chinese words that were cut apart have 2, others' up to 6; phrases have more.
DENSE, DENSE_CHINESE = 8, 5
HARDLY_ANY = 30  # characters to a space that no language with spaces reaches
AFTER_WORDS = frozenset("。，、！？；：.,!?;:")  # marks that have a space before them only where words are cut apart
TSHEG = "\u0f0b"  # ends a syllable of Tibetan


@dataclass(frozen=True)
class Writing:
    """How a text is written: its letters by script, its lines that are not empty, its characters besides white space,
    the spaces inside lines, and those of them that stand after words of scripts without spaces.
    """

    scripts: Counter[str]
    lines: int
    characters: int
    spaces: int
    cuts: int

    @property
    def has_no_spaces(self) -> bool:
        """Whether it is mostly in scripts without spaces and has not been cut into words; or partly, or in Korean, and
        with hardly any spaces in lines that are longer than words.
        """
        if self.is_mostly_unspaced:
            return (DENSE_CHINESE if self.is_chinese else DENSE) * self.cuts <= self._unspaced
        is_short_worded = 10 * (self._unspaced + self.scripts["Hangul"]) > self.scripts.total()
        return is_short_worded and self.has_hardly_any_spaces and self.characters > DENSE * self.lines

    @property
    def is_mostly_unspaced(self) -> bool:
        """Whether most letters are of scripts without spaces."""
        return 2 * self._unspaced > self.scripts.total()

    @property
    def has_hardly_any_spaces(self) -> bool:
        """Whether lines have hardly more than one word, as white space tells, in any script."""
        return HARDLY_ANY * self.spaces < self.characters

    @property
    def is_chinese(self) -> bool:
        """Whether most letters are Chinese, and hardly any Japanese."""
        return 2 * self.scripts["Han"] > self.scripts.total() and 20 * self.scripts["kana"] < self.scripts["Han"]

    @property
    def _unspaced(self) -> int:
        return sum(self.scripts[name] for name in WITHOUT_SPACES)


def writing(lines: Iterable[str]) -> Writing:
    """How the lines, all together, are written."""
    counts: Counter[str] = Counter()
    filled = spaces = cuts = 0
    for line in lines:
        parts = line.split()
        filled += bool(parts)
        spaces += max(0, len(parts) - 1)
        if not line.isascii():
            cuts += sum(_is_cut(before[-1], after[0]) for before, after in pairwise(parts))
        counts.update("".join(parts))
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if _is_letter(character):
            scripts[_script(character)] += count
    return Writing(scripts, filled, counts.total(), spaces, cuts)


def tokens(text: str) -> list[str]:
    """The words and marks; a character of a script of `SCRIPTS` is a word of its own, with the marks that combine with
    it.
    """
    parts: list[str] = []
    goes_on = begun = False  # whether a letter would go on with the last word, and whether a mark would
    for character in text:
        is_alone = bool(_script(character))
        if not _is_of_word(character):
            goes_on = begun = False
            parts += character.split()  # nothing of white space
        elif (goes_on and not is_alone) or (begun and unicodedata.category(character)[0] == "M"):
            parts[-1] += character
        else:
            parts.append(character)
            goes_on, begun = not is_alone, True
    return parts


def characters(text: str) -> list[str]:
    """The words of `tokens`, in lower case, without punctuation."""
    return [token for token in tokens(text.lower()) if _is_of_word(token[0])]


@cache
def _script(character: str) -> str:
    """One of `SCRIPTS`; empty for any other."""
    name = unicodedata.name(character, "")
    return next((script for script, begins in SCRIPTS.items() if name.startswith(begins)), "")


@cache
def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _is_of_word(character: str) -> bool:
    return _is_letter(character) or character.isnumeric()


def _is_cut(before: str, after: str) -> bool:
    """Whether a space between these characters stands after a word of a script without spaces, and not where such
    text has spaces too: beside foreign words and numbers, and after punctuation.
    """
    return _is_unspaced(before) and (_is_unspaced(after) or after in AFTER_WORDS)


@cache
def _is_unspaced(character: str) -> bool:
    return character == TSHEG or (_is_letter(character) and _script(character) in WITHOUT_SPACES)
