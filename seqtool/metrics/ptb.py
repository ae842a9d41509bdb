"""The tokenizer of coco-caption without Java: Stanford's PTBTokenizer 3.4.1, lower-cased, punctuation left out.

Written rule by rule from the tokenizer's behaviour (`-preserveLines -lowerCase`): at each place the rule with the
longest match wins, including what it looks at beyond its token; in a tie, the first. Captions are tokenised separately:
a single letter at the very end never keeps its period, whereas in Java the next line of the file decides. Outside
Latin, Greek, Cyrillic and CJK text, and for symbols that captions do not contain, it is close but not exact.
"""

import re
from functools import lru_cache
from pathlib import Path

import yaml

VERSION = "3.4.1"  # of the CoreNLP that coco-caption ships
# coco-caption's list, after lower-casing: brackets are lower-cased before it is applied and so stay
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

NO_BREAK_SPACE = "\u00a0"  # stands for a space inside a token: `22 3/4` is one
_BRACKETS = str.maketrans({"(": "-lrb-", ")": "-rrb-"})  # in every token
_WHOLE = {"[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}  # where they are the token
_WHOLE |= {"&nbsp;": "''", "&ndash;": "--", "&mdash;": "--", "&md;": "--"}
_WHOLE |= {"£": "#", "€": "$", "¤": "$", "¢": "cents", "&amp;": "&", "&lt;": "<", "&gt;": ">"}
_WHOLE |= {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_WINDOWS = str.maketrans("\x80\x85\x91\x92\x93\x94\x96\x97", "€…‘’“”–—", "\u00ad")  # code page 1252; no soft hyphen

# Parts of rules. D: a decimal digit; L: a letter or a combining accent; Q: an apostrophe.
_NUMERALS = (
    r"\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
)
_PARTS = {
    "L": rf"(?:[^\W\d_{_NUMERALS}\U00010000-\U0010ffff]|[\u0300-\u036f])",
    "W": rf"(?:[^\W_{_NUMERALS}\U00010000-\U0010ffff]|[\u0300-\u036f])",  # a letter or digit
    "D": r"[0-9]",
    "Q": r"(?:['’]|(?i:&apos;))",
    "S": r"[ \t\u00a0\u2000-\u200a\u3000]",  # a space inside a line
    "ACRONYM": r"[A-Za-z](?:\.[A-Za-z])+",
    "WORD": r"{L}{W}*(?:[.!?]{L}{W}*)*",
    "NUMBER": r"(?:{D}*(?:[.:,]{D}+)+|{D}+)",
    "LABEL": r"[^]\s\"$'(),./0-9A-Z:;<=>?@[\\^_`{|}!-]+",  # of a host: foo in foo.com, but not Foo in Foo.com
    "PATH": r"[^\s\"<>|(){}]+[^\s\"<>|(){}.!?,;-]",
    "ATTRIBUTE": r"(?:{S}+[A-Za-z][A-Za-z0-9:._-]*(?:=(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_:.-]+))?)",
    "TAG": r"(?:</?[A-Za-z][A-Za-z0-9:._-]*{ATTRIBUTE}*{S}*/?>|<[!?][A-Za-z-][^>]*>)",
    "SLASHED": r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}",
    "ELIDED": r"[dDlLoO]{Q}{W}{2,}",  # d'oeuvre, o'lantern
    "HYPHENED": r"[A-Za-z0-9][A-Za-z0-9.,]*(?:-(?:{ACRONYM}\.|{W}+))+",
    "JOINED": r"(?:{ELIDED}|{W}+)(?:[-‐‑_](?:{ELIDED}|{W}+))+",
}

_WORDS: dict[str, str] = yaml.load(Path(__file__).with_name("ptb_words.yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
for _name, _text in _WORDS.items():  # the longest first
    _PARTS[_name] = f"(?:{'|'.join(re.escape(word) for word in sorted(_text.split(), key=len, reverse=True))})"


def _expand(pattern: str) -> str:
    """A pattern with the parts it names, {L} and so on, filled in."""
    while (expanded := re.sub(r"\{([A-Z]+)\}", lambda part: _PARTS[part[1]], pattern)) != pattern:
        pattern = expanded
    return pattern


# Group 1, if there is one, is the token; the rest is only looked at.
_PATTERNS = (
    # words taken apart, and contractions
    r"(?i:(can)not)(?!{Q})",
    r"(?i:(gon|wan)na)(?!{Q})",
    r"(?i:(got)ta)(?!{Q})",
    r"(?i:(lem|gim)me)(?!{Q})",
    r"('[tT])(?i:is|was)",
    r"({W}*(?![nN]){L})[nN]{Q}[tT]",
    r"[nN]{Q}[tT]",
    r"({WORD}){Q}(?i:[smd]|re|ve|ll)(?![A-Za-z])",
    r"{Q}(?i:[smd]|re|ve|ll)(?![A-Za-z])",
    r"(?:’|(?i:&apos;))(?i:[smdn]|re|ve|ll)",
    # apostrophes inside tokens
    r"{Q}(?i:em|till?|cause)",
    r"{Q}[nN](?:{Q}|(?=\s|$))",
    r"{Q}{D}0[sS]|{Q}{D}{D}(?=\s|$)",
    r"(?:[dlno]|[A-HJ-XZ]){Q}{L}{L}+",
    r"(?i:[a-z]+[aeiouy]){Q}[aeiouA-Z][A-Za-z]*",
    r"(?i:[djl]{Q}|y{Q}(?={L})|ol{Q}|dunkin{Q}|somethin{Q})",
    r"(?i:[eo]'er|ma'am|c'mon|cap{Q}n|ev'ry|li'l|nat'l|nor'easter|s'mores)",
    # marks of the web
    r"{TAG}",
    r"(?i:https?)://{PATH}",
    r"(?:(?i:www)\.(?:[^\s\"<>|.!?(){},]+\.)+[A-Za-z]{2,4}|(?:{LABEL}\.)+(?i:com|net|org|edu))(?:/{PATH})?",
    r"<?[A-Za-z0-9][^\s\"<>|(){}]*@(?:[^\s\"<>|(){}.]+\.)*[^\s\"<>|(){}.]+>?",
    r"{W}+(?:\.{W}+)*\.(?i:{FILES})(?=[\s.,;:?!\"<]|$)",
    r"@[A-Za-z_][A-Za-z0-9_]*|#{L}+",
    r"&(?i:amp|lt|gt|quot|apos|nbsp|[mn]dash|md|ht|[tq]l|[ulq]r|qc|[oc]dq);|&#{D}+;",
    r"(?i:-[lr][rcs]b-)",
    # emoticons
    r"[<>]?[:;=][-o*']?[()\\{@|\[\]ODdPp](?![A-Za-z0-9])",
    r"[-^x=~<>']_[-^x=~<>']|\((?:[-^x=~<>'][_.]?[-^x=~<>']|\^-\^)\)",
    # numbers
    r"[-+]?{NUMBER}",
    r"(?:{D}{1,4}(?:-|{S}))?{D}{1,4}\\?[/⁄]{D}{1,4}",
    r"(?:\({D}{2,3}\){S}?|\+{0,2}(?:{D}{2,4}(?:-|{S}))?{D}{2,4}(?:-|{S})){D}{3,4}(?:-|{S})?{D}{3,5}",
    r"[A-Z]{1,2}\$",
    # words
    r"{WORD}|{W}+",
    r"{HYPHENED}",
    r"{JOINED}",
    r"{SLASHED}(?:\\?/{SLASHED}){1,2}",
    r"[A-Z]+(?:(?:(?i:&amp;)|[&+])[A-Z]+)+",
    # periods that stay
    # of abbreviations, which are tried one by one only where a word has at most six letters
    r"(?=\w{2,6}\.)(?!(?=[a-z])(?i:{CAPITAL})\.|[mM][FT][gG]|[pP]+[tT][EY])(?i:{ABBREVIATIONS})\.",
    r"(?i:(pt[ey]\.){S}*(?:ltd|limited))",
    r"((?i:{NUMBERED})\.){S}*{D}",
    r"((?:{HYPHENED}|{JOINED}|{WORD}|{W}+|{NUMBER})\.)[,;:]",
    r"{ACRONYM}\.|(?i:ph\.d\.)",
    r"[A-Za-z]\.(?!\s+(?:(?=[A-Z])(?i:{STARTERS})|{TAG})(?:\s|$)|\s*$)",
    # symbols and punctuation
    r"[cC]\+\+|[cCfF]#",
    r"\.{3,}|-{2,}|''|``|’’|[?!]{2,}|@+|#+|\\?\*+|_+|<<|>>",
    r"[][(){}$%&+/<=>\\^|~¡-ª¬®-¹¼-¿×÷‖‗‚„-•‰-‸※‾-⁂⁄⁰-⁾₀-₎€℀-⅞←-⯿、。〒・！-／：-＠［-｀｛-･]",
)
_RULES = tuple(re.compile(_expand(pattern)) for pattern in _PATTERNS)
_CONTRACTION = re.compile(_expand(r"[nN]{Q}[tT]|{Q}(?i:[smd]|re|ve|ll)"))
_SILENT = re.compile(r"\.{3,}|-{2,4}|''|``|’’")
_SPACES = re.compile(r"\s")
# A part between spaces cannot be tokenised alone if it has a number, a tag or a period that depends on what follows.
_DEPENDENT = re.compile(_expand(r"[0-9<]|’.*\.\s*$|(?<!{W})(?:{L}|(?i:{NUMBERED}|pt[ey]))\.\s*$"))


def tokenize(caption: str) -> list[str]:
    """The tokens that coco-caption scores: lower case, without the punctuation that it leaves out."""
    tokens: list[str] = []
    for part in caption.split(" "):
        alone = _tokens_alone(part)
        if alone is None:
            return _lex(caption)
        tokens += alone
    return tokens


@lru_cache(maxsize=1 << 16)
def _tokens_alone(part: str) -> tuple[str, ...] | None:
    """The tokens of a part between spaces, or None if they depend on the text around it."""
    return None if _DEPENDENT.search(part) else tuple(_lex(part))


def _lex(text: str) -> list[str]:
    text = text.translate(_WINDOWS).replace("&nbsp;", " ").replace("&quot;", '"')
    text = text.replace("&ndash;", "–").replace("&mdash;", "–")
    tokens, place = [], 0
    while place < len(text):
        token, length = "", 0
        for rule in _RULES:
            match = rule.match(text, place)
            if match and match.end() - place > length:
                length = match.end() - place
                token = match[1] if rule.groups else match[0]
        place += len(token) or 1  # characters that no rule matches are left out: spaces, quotes, single marks, emoji
        if token and (written := _write(token)) not in PUNCTUATION:
            tokens.append(written)
    return tokens


def _write(token: str) -> str:
    """A token as the tokenizer prints it; runs of periods and dashes as the punctuation they are."""
    if _SILENT.fullmatch(token) or token == "&apos;":
        return "''"
    if _CONTRACTION.fullmatch(token):
        token = token.replace("’", "'").replace("&apos;", "'")  # but &APOS; stays
    token = token.lower()
    if token in _WHOLE:
        return _WHOLE[token]
    return _SPACES.sub(NO_BREAK_SPACE, token.translate(_BRACKETS)).replace("&amp;", "&")
