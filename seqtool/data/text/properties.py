"""Properties of a text, such as being inside quotation marks, at each of the pieces that a model reads.

A rule takes the pieces of a text or sentence, with ▁ for a space as in a vocabulary, and returns a value for each: what
is so after the piece has been read. So the value is true at an opening mark and false at the closing one. Values are
truth values or numbers.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from numbers import Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.alignment import SPACE
from seqtool.errors import InputError
from seqtool.settings.classes import import_class

Rule = Callable[[Sequence[str]], Sequence[Any] | NDArray[Any]]

QUOTED = re.compile(r'"(?:\\.|(?!\n\s*\n)[^"\\])*"|“[^”]*”|«[^»]*»', re.DOTALL)
STRING = (  # an apostrophe within a word begins no string, but r'…' is one
    r'(?P<string>"""(?:\\.|[^\\])*?"""|' + r"'''(?:\\.|[^\\])*?'''|" + r'"(?:\\.|[^"\\\n])*"|'
    r"(?:(?<!\w)|(?<=\b[bfruBFRU]))'(?:\\.|[^'\\\n])*')|"
)
WITH_HASHES = re.compile(STRING + r"(?P<comment>#[^\n]*)", re.DOTALL)
WITH_SLASHES = re.compile(STRING + r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))", re.DOTALL)
HASH, SLASH = re.compile(r"(?:^|\s)#[ !]", re.MULTILINE), re.compile(r"//|/\*")
OPENING = {")": "(", "]": "[", "}": "{"}


def lexemes(text: str) -> Iterable[re.Match[str]]:
    """The strings and comments of source code. Comments begin with # if `# ` is more frequent in the text than
    // and /*, and otherwise with // or /*.
    """
    has_hashes = len(HASH.findall(text)) > len(SLASH.findall(text))
    return (WITH_HASHES if has_hashes else WITH_SLASHES).finditer(text)


def inside(text: str, matches: Iterable[re.Match[str]]) -> NDArray[np.bool_]:
    """Whether each character is in one of the matches. The last character of a match is not, since it closes what was
    open, except that of a comment up to the end of its line.
    """
    result = np.zeros(len(text), np.bool_)
    for match in matches:
        result[match.start() : match.end() - (not match[0].startswith(("#", "//")))] = True
    return result


def quotes(text: str) -> NDArray[Any]:
    """Whether a character is inside "…", “…” or «…» within a paragraph. \\" is not a mark."""
    return inside(text, QUOTED.finditer(text))


def string(text: str) -> NDArray[Any]:
    """Whether a character is inside a string of source code; quotation marks in comments begin none."""
    return inside(text, (match for match in lexemes(text) if match["string"]))


def comment(text: str) -> NDArray[Any]:
    """Whether a character is inside a comment of source code (`lexemes`)."""
    return inside(text, (match for match in lexemes(text) if match["comment"]))


def depth(text: str) -> NDArray[Any]:
    """The number of pairs of brackets, ( ), [ ] and { }, around each character. Brackets without a partner do not
    count, nor those in the strings and comments of source code.
    """
    hidden, change = inside(text, lexemes(text)), np.zeros(len(text) + 1, np.int64)
    waiting: list[int] = []
    counts: Counter[str] = Counter()
    for match in re.finditer(r"[()\[\]{}]", text):
        bracket, i = match[0], match.start()
        if hidden[i]:
            continue
        if bracket not in OPENING:
            waiting.append(i)
            counts[bracket] += 1
        elif counts[OPENING[bracket]]:
            opening = None
            while opening != OPENING[bracket]:
                start = waiting.pop()
                opening = text[start]
                counts[opening] -= 1
            change[[start, i]] += 1, -1
    return change.cumsum()[:-1]


def brackets(text: str) -> NDArray[Any]:
    """Whether a character is inside brackets (`depth`)."""
    return depth(text) > 0


def column(text: str) -> NDArray[Any]:
    """The number of characters of the line up to each character; 0 at the line's end."""
    return _since([character == "\n" for character in text])


def number(text: str) -> NDArray[Any]:
    """Whether the last noun of the built-in corpus, English or Spanish, was in the plural; false before the first."""
    from seqtool.data.corpora.toy_words import NOUNS

    is_plural: dict[str, bool] = {}
    for noun in (noun for nouns in NOUNS.values() for noun in nouns):
        for singular, *plural in (noun.english, noun.spanish):
            is_plural |= {singular: False} | dict.fromkeys(plural, True)
    result = np.zeros(len(text), np.bool_)
    for word in re.finditer(r"\w+", text):
        if word[0].lower() in is_plural:
            result[word.end() - 1 :] = is_plural[word[0].lower()]
    return result


def position(pieces: Sequence[str]) -> NDArray[Any]:
    """The number of pieces of the sentence, or of the line of a longer text, up to each piece."""
    return _since(["\n" in piece for piece in pieces])


def _since(breaks: Sequence[bool]) -> NDArray[Any]:
    """The number of steps since the last break, or since the beginning."""
    steps = np.arange(1, len(breaks) + 1)
    return steps - np.maximum.accumulate(np.where(breaks, steps, 0))


def by_piece(rule: Callable[[str], NDArray[Any]]) -> Rule:
    """Turn a rule for characters into one for pieces, whose values are those at their last characters."""

    def rule_by_piece(pieces: Sequence[str]) -> NDArray[Any]:
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        return rule("".join(pieces).replace(SPACE, " "))[ends - 1]

    return rule_by_piece


RULES: dict[str, Rule] = {
    **{rule.__name__: by_piece(rule) for rule in (quotes, string, comment, brackets, depth, column, number)},
    "position": position,
}


def find_rule(name: str) -> Rule:
    """The rule with this name, or the user's function with this dotted name, such as `mine.rule`, whose module is run.

    Raises InputError for any other name.
    """
    if name not in RULES and "." not in name:
        own = "a function of your own, such as mine.rule"
        raise InputError(f"Unknown property '{name}'; choose from {', '.join(RULES)}, or {own}.")
    return RULES.get(name) or cast(Rule, import_class(name, object, setting="property"))


def values_of(rule: str | Rule, texts: Iterable[Sequence[str]]) -> NDArray[Any]:
    """The values of a property at the pieces of several texts, one after another.

    rule: the property's name (`find_rule`), or its rule

    Raises InputError unless the rule gives a truth value or a finite number for each piece.
    """
    rule = find_rule(rule) if isinstance(rule, str) else rule
    results: list[Any] = []
    for pieces in texts:
        values = list(rule(pieces))
        if len(values) != len(pieces):
            raise InputError(
                f"The property has {len(values):,} values for {len(pieces):,} pieces: return one for each."
            )
        results += values
    wrong = [value for value in results if not (isinstance(value, Real | np.bool_) and isfinite(value))]
    if wrong:
        raise InputError(f"A value of the property is {wrong[0]!r:.40}, not a truth value or a finite number.")
    return np.asarray(results)
