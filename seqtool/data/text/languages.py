"""Recognises the language of a line, if it is clear: by its script and by frequent words (languages.yaml)."""

import re
import unicodedata
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from seqtool.data.text.words import words

TABLES: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
SCRIPTS: dict[str, list[str]] = TABLES["scripts"]  # of each language
LANGUAGES: dict[str, set[str]] = {}  # of each frequent word
for code, text in TABLES["words"].items():
    for word in text.split():
        LANGUAGES.setdefault(word, set()).add(code)

# In another script are so many letters, and at most this share of them in its own; in another language, so many of its
# frequent words, and more than twice as many as of its own.
MIN_LETTERS, MAX_SHARE, MIN_WORDS = 10, 0.2, 3


def code_of(name: str) -> str:
    """The beginning of a language's name that may be its code, such as pt of pt-BR."""
    return re.split("[-_]", name.lower())[0]


def language_of(text: str, declared: str) -> str | None:
    """The language that a line is clearly in, as its code, or its script if its language is not written in that.

    declared: the code of the language that it should be in, one of `SCRIPTS`. None if nothing is clear.
    """
    text, scripts = text[:1_000], SCRIPTS[declared]
    if "Latin" not in scripts or 2 * len(text.encode("ascii", "ignore")) <= len(text):
        letters = Counter(_script(character) for character in text if character.isalpha())
        own_letters = sum(letters[script] for script in scripts)
        if letters.total() >= MIN_LETTERS and own_letters <= MAX_SHARE * letters.total():
            return letters.most_common(1)[0][0]
    is_listed = declared in TABLES["words"]
    frequent = [LANGUAGES[word] for word in set(words(text)) if is_listed and word in LANGUAGES]
    own = frequent.count({declared})  # the words that are frequent in no other language
    others = Counter(chain.from_iterable(languages for languages in frequent if declared not in languages))
    other, number = max(others.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    if number >= MIN_WORDS and number > 2 * own:
        return other
    return declared if own else None


@cache
def _script(letter: str) -> str:
    """The first word of the letter's Unicode name, such as Latin, Cyrillic or Cjk."""
    return unicodedata.name(letter, "").partition(" ")[0].title()
