"""Properties of a text, such as being inside quotation marks, at each of the pieces that a model reads.

A rule takes the pieces of a text or sentence, with ▁ for a space as in a vocabulary, and returns a value for each: what
is so after the piece has been read. So the value is true at an opening mark and false at the closing one. Values are
truth values or numbers.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
    r"""(?P<string>("{3}|'{3})(?:\\.|[^\\])*?\2|"(?:\\.|[^"\\\n])*"|"""
    r"(?:(?<!\w)|(?<=\b[bfruBFRU]))'(?:\\.|[^'\\\n])*')|"
)
HASHES, SLASHES = r"(?P<comment>#[^\n]*)", r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
OPENING = {")": "(", "]": "[", "}": "{"}


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


def lexeme(text: str, kinds: Sequence[str]) -> NDArray[np.bool_]:
    """Whether a character is inside a string or comment of source code; `kinds` says which. Comments begin with # if
    `# ` is more frequent in the text than // and /*, and otherwise with // or /*.
    """
    has_hashes = len(re.findall(r"^#[ !]|\s#[ !]", text, re.MULTILINE)) > len(re.findall(r"//|/\*", text))
    matches = re.finditer(STRING + (HASHES if has_hashes else SLASHES), text, re.DOTALL)
    return inside(text, (match for match in matches if match.lastgroup in kinds))


def depth(text: str) -> NDArray[Any]:
    """The number of pairs of brackets, ( ), [ ] and { }, around each character. Brackets without a partner do not
    count, nor those in the strings and comments of source code.
    """
    hidden, change = lexeme(text, ("string", "comment")), np.zeros(len(text), np.int64)
    waiting, places = "", list[int]()  # the opening brackets without a partner so far, and where they are
    for match in re.finditer(r"[()\[\]{}]", text):
        bracket, i = match[0], match.start()
        if hidden[i]:
            continue
        if bracket not in OPENING:
            waiting += bracket
            places.append(i)
        elif (partner := waiting.rfind(OPENING[bracket])) >= 0:
            change[[places[partner], i]] += 1, -1
            waiting = waiting[:partner]
            del places[partner:]
    return change.cumsum()


def number(text: str) -> NDArray[Any]:
    """Whether the last noun of the built-in corpus, English or Spanish, was in the plural; false before the first."""
    from seqtool.data.corpora.toy_words import NOUNS

    pairs = (forms for nouns in NOUNS.values() for noun in nouns for forms in (noun.english, noun.spanish))
    is_plural = {form: i > 0 for forms in pairs for i, form in enumerate(forms)}
    result = np.zeros(len(text), np.bool_)
    for word in re.finditer(r"\w+", text):
        if word[0].lower() in is_plural:
            result[word.end() - 1 :] = is_plural[word[0].lower()]
    return result


def position(pieces: Sequence[str]) -> NDArray[Any]:
    """The number of pieces of the sentence, or of the line of a longer text, up to each piece; 0 at a line's end."""
    steps = np.arange(1, len(pieces) + 1)
    return steps - np.maximum.accumulate(np.where(["\n" in piece for piece in pieces], steps, 0))


def by_piece(rule: Callable[[str], NDArray[Any]]) -> Rule:
    """Turn a rule for characters into one for pieces, whose values are those at their last characters."""

    def rule_by_piece(pieces: Sequence[str]) -> NDArray[Any]:
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        return rule("".join(pieces).replace(SPACE, " "))[ends - 1]

    return rule_by_piece


RULES: dict[str, Rule] = {kind: by_piece(partial(lexeme, kinds=[kind])) for kind in ("string", "comment")}
RULES |= {rule.__name__: by_piece(rule) for rule in (quotes, depth, number)}
RULES |= {"position": position, "column": by_piece(position)}  # the column is in characters


def values_of(rule: str | Rule, texts: Iterable[Sequence[str]]) -> NDArray[Any]:
    """The values of a property at the pieces of several texts, one after another.

    rule: a rule, the name of one of `RULES`, or the dotted name of the user's own, such as mine.rule, whose module is
        run

    Raises InputError for any other name, and unless the rule gives a truth value or a finite number for each piece.
    """
    if isinstance(rule, str):
        if rule not in RULES and "." not in rule:
            raise InputError(f"Unknown property '{rule}'; choose from {', '.join(RULES)}, or your own, mine.rule.")
        rule = RULES.get(rule) or cast(Rule, import_class(rule, object, setting="property"))
    results: list[Any] = []
    for pieces in texts:
        values = list(rule(pieces))
        if len(values) != len(pieces):
            raise InputError(f"The property has {len(values)} values for {len(pieces)} pieces: return one for each.")
        results += values
    wrong = [value for value in results if not (isinstance(value, Real | np.bool_) and isfinite(value))]
    if wrong:
        raise InputError(f"A value of the property is {wrong[0]!r:.40}, not a truth value or a finite number.")
    return np.asarray(results)
