"""Words: how a text is split into them, with its punctuation or without, in scripts with spaces between words and in
those without, such as Chinese, Japanese and Thai; and which of these a text is written in.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

# With punctuation.

PUNCTUATION = '.,;:!?¿¡"()[]«»„“”…'
# Full-width marks, and those of other scripts; without ⁇, an unknown word, and ’, which ends words as ' does.
OTHER_PUNCTUATION = (
    "！，．：；？＂（）［］｛｝｟｠｡｢｣､、。〃〈〉《》「」『』【】〔〕〖〗〘〙〚〛〝〞〟﹐﹑﹒﹔﹕﹖﹗‥‹›‼‽⁈⁉⸘⸮"
    "\u037e\u00b7\u0387\u055b-\u055e\u0589\u05c3\u060c\u061b\u061d-\u061f\u06d4\u0700-\u070a"  # Greek to Syriac
    "\u0964\u0965\u0df4\u0e5a\u0e5b\u0f0d-\u0f12\u104a\u104b\u17d4-\u17d6\u17da"  # of India to Cambodia
    "\u1361-\u1368\u166e\u1802-\u1805\u1808\u1809\u1c3b-\u1c3f\u1c7e\u1c7f\ua4fe\ua4ff\ua60d-\ua60f"
    "\ua92e\ua92f\ua9c7-\ua9c9\uaaf0\uaaf1\uabeb"
)


def _words_and(punctuation: str) -> re.Pattern[str]:
    return re.compile(rf"[{punctuation}]+|[^\s{punctuation}](?:\S*[^\s{punctuation}])?")


WORD_OR_MARK = _words_and(re.escape(PUNCTUATION))
WORD_OR_ANY_MARK = _words_and(re.escape(PUNCTUATION) + OTHER_PUNCTUATION)


def words_and_punctuation(text: str) -> list[str]:
    """The words and marks of a sentence: split at white space, leading and trailing punctuation as separate words.

    Nothing inside a word is split, nor is a run of punctuation, so that text which is already tokenised keeps
    its words: ¿Tienes un gato? → ¿ | Tienes | un | gato | ?  Vocabularies of words are made of these, and know only the
    marks of `PUNCTUATION`.
    """
    return WORD_OR_MARK.findall(text)


def words_and_characters(text: str) -> list[str]:
    """The words and marks; a character of a script of `SCRIPTS` is a word of its own, with the marks that combine with
    it.
    """
    parts: list[str] = []
    is_open = has_begun = False  # whether a letter would continue the last word, and whether a combining mark would
    for character in text:
        is_alone = bool(_script(character))
        if not _is_of_word(character):
            is_open = has_begun = False
            parts += character.split()  # nothing of white space
        elif (is_open and not is_alone) or (has_begun and unicodedata.category(character)[0] == "M"):
            parts[-1] += character
        else:
            parts.append(character)
            is_open, has_begun = not is_alone, True
    return parts


SPLITS: dict[str, Callable[[str], list[str]]] = {
    "spaces": str.split,
    "marks": WORD_OR_ANY_MARK.findall,  # as `words_and_punctuation`, with those of any script: هل أنت؟ → هل | أنت | ؟
    "characters": words_and_characters,
}
"""The values of the setting `words`: how a text is split into the words that links number."""

# Without punctuation, for counting.

JOINERS = "\u200c\u200d"  # zero width (non-)joiners stand within words of Persian and of Indic scripts
PLAIN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")  # of a text without marks and joiners, where it is several times as fast


class CombiningMarks(NamedTuple):
    """Unicode's combining marks, which Python's \\w leaves out, and patterns with them."""

    characters: frozenset[str]  # the joiners too
    word: re.Pattern[str]  # as PLAIN
    verbatim: re.Pattern[str]  # a word, other symbol or white space, with the space before it


@cache
def combining_marks() -> CombiningMarks:
    """Compiled when a text first needs them: it takes some hundredths of a second."""
    codes = (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0))
    marks = "".join(character for character in map(chr, codes) if unicodedata.category(character)[0] == "M")
    return CombiningMarks(
        frozenset(marks + JOINERS),
        re.compile(rf"[^\W_]+(?:['’{JOINERS}][^\W_]+|[{marks}]+[^\W_]*)*"),
        re.compile(rf" ?\w+(?:[{marks}]+\w*|[{JOINERS}]\w+)*| ?[^\w\s][{marks}]*|\s"),
    )


def words(text: str) -> list[str]:
    """The words in lower case and in NFC: letters and digits with the marks that combine with them, in any script."""
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        if not combining_marks().characters.isdisjoint(text):
            return combining_marks().word.findall(text)
    return PLAIN.findall(text)


def characters(text: str) -> list[str]:
    """The words of `words_and_characters`, in lower case, without punctuation."""
    return [token for token in words_and_characters(text.lower()) if _is_of_word(token[0])]


# Scripts.

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


class Writing(NamedTuple):
    """How a text is written.

    scripts: its letters by script.
    lines: those that are not empty.
    characters: besides white space.
    spaces: inside lines.
    cuts: those of the spaces that stand after words of scripts without spaces, and not where such text has spaces too:
    beside foreign words and numbers, and after punctuation.
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
            ends = ((before[-1], after[0]) for before, after in pairwise(parts))
            cuts += sum(_is_unspaced(end) and (_is_unspaced(start) or start in AFTER_WORDS) for end, start in ends)
        counts.update("".join(parts))
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if _is_letter(character):
            scripts[_script(character)] += count
    return Writing(scripts, filled, counts.total(), spaces, cuts)


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


@cache
def _is_unspaced(character: str) -> bool:
    return character == TSHEG or (_is_letter(character) and _script(character) in WITHOUT_SPACES)
