"""coco-caption's tokenizer without Java: Stanford's PTBTokenizer 3.4.1, lower-cased and without punctuation.

The rules reproduce the behaviour of the tokenizer with `-preserveLines -lowerCase`. At each position, the rule with the
longest match wins, lookahead included, and of equally long matches the first rule, as in JFlex, which generated the
tokenizer. Two differences remain:

- Captions are tokenised separately. A single letter at the end of a caption never keeps its period, whereas in Java the
  next line of the file decides.
- Outside Latin, Greek, Cyrillic and CJK text, and for symbols that captions do not contain, results may differ.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

VERSION = "3.4.1"  # the version of CoreNLP that coco-caption ships
# coco-caption's list of tokens to remove, without its brackets such as -LRB-, which never match lower-cased tokens
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

NO_BREAK_SPACE = "\u00a0"  # replaces a space inside a token, such as `22 3/4`
_BRACKETS = str.maketrans({"(": "-lrb-", ")": "-rrb-"})  # replaced anywhere in a token
_CODE_PAGE_1252 = str.maketrans("\x80\x85\x91\x92\x93\x94\x96\x97", "€…‘’“”–—", "\u00ad")  # deletes soft hyphens

_LINES = Path(__file__).with_name("ptb_rules.txt").read_text("utf-8").splitlines()
_PATTERNS = [line for line in _LINES if line and not line.startswith("# ")]  # with a name, or the pattern of a rule
_PARTS = dict(pattern.split(" = ") for pattern in _PATTERNS if " = " in pattern)
_WORDS: dict[str, Any] = yaml.load(Path(__file__).with_name("ptb_words.yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
_WHOLE_TOKENS: dict[str, str] = _WORDS.pop("WHOLE_TOKENS")  # replaced only as whole tokens
for _name, _list in _WORDS.items():
    _longest_first = sorted(_list.split(), key=len, reverse=True)  # as `|` takes the first alternative that matches
    _PARTS[_name] = f"(?:{'|'.join(map(re.escape, _longest_first))})"


def _expand(pattern: str) -> str:
    """Replace {L} and so on by the named parts of patterns, which may contain further names."""
    while (expanded := re.sub(r"\{([A-Z]+)\}", lambda part: _PARTS[part[1]], pattern)) != pattern:
        pattern = expanded
    return pattern


_RULES = tuple(re.compile(_expand(pattern)) for pattern in _PATTERNS if " = " not in pattern)
_CONTRACTION = re.compile(_expand(r"[nN]{Q}[tT]|{Q}(?i:[smd]|re|ve|ll)"))
_PUNCTUATION_RUN = re.compile(r"\.{3,}|-{2,4}|''|``|’’")
_SPACES = re.compile(r"\s")
# The tokens of a part between spaces depend on the text around it if the part has a number, a tag or certain periods.
_DEPENDENT = re.compile(_expand(r"[0-9<]|’.*\.\s*$|(?<!{W})(?:{L}|(?i:{NUMBERED}|pt[ey]))\.\s*$"))


def tokenize(caption: str) -> list[str]:
    """The tokens that coco-caption scores, lower-cased and without `PUNCTUATION`."""
    tokens: list[str] = []
    for part in caption.split(" "):
        part_tokens = _tokens_of_part(part)
        if part_tokens is None:
            return _lex(caption)
        tokens += part_tokens
    return tokens


@lru_cache(maxsize=1 << 16)
def _tokens_of_part(part: str) -> tuple[str, ...] | None:
    """The tokens of a part between spaces, or None if they depend on the text around it."""
    return None if _DEPENDENT.search(part) else tuple(_lex(part))


def _lex(text: str) -> list[str]:
    """Split any text into tokens: at each position, the longest match of a rule."""
    text = text.translate(_CODE_PAGE_1252).replace("&nbsp;", " ").replace("&quot;", '"')
    text = text.replace("&ndash;", "–").replace("&mdash;", "–")
    tokens, position = [], 0
    while position < len(text):
        token, length = "", 0
        for rule in _RULES:
            match = rule.match(text, position)
            if match and match.end() - position > length:
                length = match.end() - position
                token = match[1] if rule.groups else match[0]
        position += len(token) or 1  # skip what no rule matches: spaces, quotes, single marks, emoji
        if token and (normalised := _normalise(token)) not in PUNCTUATION:
            tokens.append(normalised)
    return tokens


def _normalise(token: str) -> str:
    """The token as the tokenizer prints it; runs of periods, dashes and quotes become '', which is punctuation."""
    if _PUNCTUATION_RUN.fullmatch(token) or token == "&apos;":
        return "''"
    if _CONTRACTION.fullmatch(token):
        token = token.replace("’", "'").replace("&apos;", "'")  # the tokenizer keeps &APOS;
    token = token.lower()
    if token in _WHOLE_TOKENS:
        return _WHOLE_TOKENS[token]
    return _SPACES.sub(NO_BREAK_SPACE, token.translate(_BRACKETS)).replace("&amp;", "&")
