"""Splits text into words, and identifies the scripts in which a text is written.

There are functions that keep punctuation marks as words and, for counting, functions that drop them. `analyse_writing`
finds out whether a text has spaces between its words; Chinese, Japanese and Thai have none.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

TABLES: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]

# With punctuation

PUNCTUATION = '.,;:!?¿¡"()[]«»„“”…'
OTHER_PUNCTUATION = "".join(TABLES["other_punctuation"])


def _word_pattern(punctuation: str) -> re.Pattern[str]:
    """A pattern for runs of punctuation, and for words that neither begin nor end with punctuation."""
    return re.compile(rf"[{punctuation}]+|[^\s{punctuation}](?:\S*[^\s{punctuation}])?")


WORD_OR_MARK = _word_pattern(re.escape(PUNCTUATION))
WORD_OR_ANY_MARK = _word_pattern(re.escape(PUNCTUATION) + OTHER_PUNCTUATION)


def words_and_punctuation(text: str) -> list[str]:
    """Split a sentence at white space, and split leading and trailing punctuation off its words.

    ¿Tienes un gato? → ¿ | Tienes | un | gato | ?  Words and runs of punctuation are not split further, so that text
    that is already tokenised keeps its words. Vocabularies of words consist of these words, and only the marks in
    `PUNCTUATION` are split off.
    """
    return WORD_OR_MARK.findall(text)


def words_and_characters(text: str) -> list[str]:
    """Split a text into words and marks. Each character of `SCRIPTS`, with its combining marks, is a separate word."""
    parts: list[str] = []
    takes_letters = takes_marks = False  # whether a letter, or a combining mark, would continue the last word
    for character in text:
        is_alone = bool(_script(character))
        if not _is_word_character(character):
            takes_letters = takes_marks = False
            parts += character.split()  # leaves out white space
        elif (takes_letters and not is_alone) or (takes_marks and unicodedata.category(character)[0] == "M"):
            parts[-1] += character
        else:
            parts.append(character)
            takes_letters, takes_marks = not is_alone, True
    return parts


SPLITS: dict[str, Callable[[str], list[str]]] = {
    "spaces": str.split,
    "marks": WORD_OR_ANY_MARK.findall,  # like `words_and_punctuation`, with any script's marks: هل أنت؟ → هل | أنت | ؟
    "characters": words_and_characters,
}
"""How each value of the setting `words` splits a text into the words that alignment links number."""

# Without punctuation, for counting

JOINERS = "\u200c\u200d"  # zero-width (non-)joiners occur inside words of Persian and of Indic scripts
PLAIN_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")  # for text without marks and joiners; several times as fast


class CombiningMarks(NamedTuple):
    """Unicode's combining marks, which Python's \\w leaves out, and patterns that include them."""

    characters: frozenset[str]  # the combining marks and the joiners
    word: re.Pattern[str]  # words without punctuation
    verbatim: re.Pattern[str]  # words and other symbols, with the space before them, and white space


@cache
def combining_marks() -> CombiningMarks:
    """Make the combining marks and their patterns. This waits until they are needed, since it takes a few hundredths
    of a second.
    """
    codes = (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0))
    marks = "".join(character for character in map(chr, codes) if unicodedata.category(character)[0] == "M")
    return CombiningMarks(
        frozenset(marks + JOINERS),
        re.compile(rf"[^\W_]+(?:['’{JOINERS}][^\W_]+|[{marks}]+[^\W_]*)*"),
        re.compile(rf" ?\w+(?:[{marks}]+\w*|[{JOINERS}]\w+)*| ?[^\w\s][{marks}]*|\s"),
    )


def words(text: str) -> list[str]:
    """The words of a text in lower case and NFC: letters and digits with their combining marks, in any script."""
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        if not combining_marks().characters.isdisjoint(text):
            return combining_marks().word.findall(text)
    return PLAIN_WORD.findall(text)


def characters(text: str) -> list[str]:
    """The words of `words_and_characters` in lower case, without punctuation."""
    return [token for token in words_and_characters(text.lower()) if _is_word_character(token[0])]


# Scripts

SCRIPTS = {script: tuple(beginnings) for script, beginnings in TABLES["scripts"].items()}
WITHOUT_SPACES = frozenset({"Han", "kana", "other"})
# Text that was segmented into words has about 2 letters per space in Chinese, and up to 6 in other scripts. Text that
# has spaces only between phrases has more.
MAX_LETTERS_PER_WORD, MAX_LETTERS_PER_CHINESE_WORD = 8, 5
MAX_CHARACTERS_PER_SPACE = 30  # languages with spaces between words stay below it
# The least fraction of unspaced or Hangul letters, chosen without a measurement: other text only quotes them.
MIN_UNSPACED_OR_HANGUL = Fraction(1, 10)
MAX_KANA_PER_HAN = Fraction(1, 20)
SPACED_MARKS = frozenset("。，、！？；：.,!?;:")  # a space precedes them only in text that was segmented into words
TSHEG = "\u0f0b"  # the mark that ends a Tibetan syllable


class Writing(NamedTuple):
    """Counts that show how a text is written.

    word_breaks counts the spaces after a letter of a script without spaces and before another such letter or a mark.
    They show segmentation: unsegmented text has spaces only beside foreign words and numbers, and after marks.
    """

    scripts: Counter[str]  # letters by script
    lines: int  # lines that are not empty
    characters: int  # characters other than white space
    spaces: int  # spaces inside lines
    word_breaks: int

    @property
    def has_no_spaces(self) -> bool:
        """Whether words are not separated by spaces.

        Text mostly in scripts without spaces: true unless it has been segmented into words. Other text: true if over a
        tenth of its letters are unspaced or Hangul, it has hardly any spaces, and its lines are longer than a word.
        """
        if self.is_mostly_unspaced:
            word_length = MAX_LETTERS_PER_CHINESE_WORD if self.is_chinese else MAX_LETTERS_PER_WORD
            return word_length * self.word_breaks <= self._unspaced
        unspaced_or_hangul = self._unspaced + self.scripts["Hangul"]
        return (
            unspaced_or_hangul > MIN_UNSPACED_OR_HANGUL * self.scripts.total()
            and self.has_hardly_any_spaces
            and self.characters > MAX_LETTERS_PER_WORD * self.lines
        )

    @property
    def is_mostly_unspaced(self) -> bool:
        """Whether most letters belong to scripts without spaces."""
        return 2 * self._unspaced > self.scripts.total()

    @property
    def has_hardly_any_spaces(self) -> bool:
        """Whether there are hardly any spaces, whatever the script is."""
        return MAX_CHARACTERS_PER_SPACE * self.spaces < self.characters

    @property
    def is_chinese(self) -> bool:
        """Whether most letters are Chinese characters, with hardly any kana, which would make it Japanese."""
        han = self.scripts["Han"]
        return 2 * han > self.scripts.total() and self.scripts["kana"] < MAX_KANA_PER_HAN * han

    @property
    def _unspaced(self) -> int:
        """The number of letters of scripts without spaces."""
        return sum(self.scripts[name] for name in WITHOUT_SPACES)


def analyse_writing(lines: Iterable[str]) -> Writing:
    """Count scripts and spaces in these lines, which are one text."""
    counts: Counter[str] = Counter()
    nonempty = spaces = word_breaks = 0
    for line in lines:
        parts = line.split()
        if parts:
            nonempty += 1
        spaces += max(0, len(parts) - 1)
        if not line.isascii():
            for before, after in pairwise(parts):
                end, start = before[-1], after[0]
                word_breaks += _is_unspaced(end) and (_is_unspaced(start) or start in SPACED_MARKS)
        counts.update("".join(parts))
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if _is_letter(character):
            scripts[_script(character)] += count
    return Writing(scripts, nonempty, counts.total(), spaces, word_breaks)


@cache
def _script(character: str) -> str:
    """The character's script, one of `SCRIPTS`; an empty string for any other script."""
    name = unicodedata.name(character, "")
    return next((script for script, beginnings in SCRIPTS.items() if name.startswith(beginnings)), "")


@cache
def _is_letter(character: str) -> bool:
    """Whether the character is a letter or a combining mark."""
    return unicodedata.category(character)[0] in "LM"


def _is_word_character(character: str) -> bool:
    """Whether the character can be part of a word: a letter, combining mark or number."""
    return _is_letter(character) or character.isnumeric()


@cache
def _is_unspaced(character: str) -> bool:
    """Whether the character belongs to a script without spaces between words."""
    return character == TSHEG or (_is_letter(character) and _script(character) in WITHOUT_SPACES)
