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

import yaml

VERSION = "3.4.1"  # the version of CoreNLP that coco-caption ships
# coco-caption's list of tokens to remove, without its brackets such as -LRB-, which never match lower-cased tokens
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

NO_BREAK_SPACE = "\u00a0"  # replaces a space inside a token, such as `22 3/4`
_BRACKETS = str.maketrans({"(": "-lrb-", ")": "-rrb-"})  # replaced anywhere in a token
_WHOLE_TOKENS = {"[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}  # replaced only as whole tokens
_WHOLE_TOKENS |= {"&nbsp;": "''", "&ndash;": "--", "&mdash;": "--", "&md;": "--"}
_WHOLE_TOKENS |= {"£": "#", "€": "$", "¤": "$", "¢": "cents", "&amp;": "&", "&lt;": "<", "&gt;": ">"}
_WHOLE_TOKENS |= {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_CODE_PAGE_1252 = str.maketrans("\x80\x85\x91\x92\x93\x94\x96\x97", "€…‘’“”–—", "\u00ad")  # deletes soft hyphens

# Named parts of patterns: {L} in a pattern is replaced by a letter, and so on.
_NUMERALS = (  # fractions, and raised, lowered and circled digits, which are symbols
    r"\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
)
_PARTS = {
    "L": rf"(?:[^\W\d_{_NUMERALS}\U00010000-\U0010ffff]|[\u0300-\u036f])",  # a letter or combining accent
    "W": rf"(?:[^\W_{_NUMERALS}\U00010000-\U0010ffff]|[\u0300-\u036f])",  # a letter, digit or combining accent
    "D": r"[0-9]",  # a decimal digit
    "Q": r"(?:['’]|(?i:&apos;))",  # an apostrophe
    "S": r"[ \t\u00a0\u2000-\u200a\u3000]",  # a space within a line
    "ACRONYM": r"[A-Za-z](?:\.[A-Za-z])+",
    "WORD": r"{L}{W}*(?:[.!?]{L}{W}*)*",
    "NUMBER": r"(?:{D}*(?:[.:,]{D}+)+|{D}+)",
    "LABEL": r"[^]\s\"$'(),./0-9A-Z:;<=>?@[\\^_`{|}!-]+",  # part of a host name: foo in foo.com, but not Foo in Foo.com
    "PATH": r"[^\s\"<>|(){}]+[^\s\"<>|(){}.!?,;-]",
    "ATTRIBUTE": r"(?:{S}+[A-Za-z][A-Za-z0-9:._-]*(?:=(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_:.-]+))?)",
    "TAG": r"(?:</?[A-Za-z][A-Za-z0-9:._-]*{ATTRIBUTE}*{S}*/?>|<[!?][A-Za-z-][^>]*>)",
    "SLASHED": r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}",
    "ELIDED": r"[dDlLoO]{Q}{W}{2,}",  # d'oeuvre, o'lantern
    "HYPHENED": r"[A-Za-z0-9][A-Za-z0-9.,]*(?:-(?:{ACRONYM}\.|{W}+))+",
    "JOINED": r"(?:{ELIDED}|{W}+)(?:[-‐‑_](?:{ELIDED}|{W}+))+",
}

_WORDS: dict[str, str] = yaml.load(Path(__file__).with_name("ptb_words.yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
for _name, _list in _WORDS.items():
    _longest_first = sorted(_list.split(), key=len, reverse=True)  # as `|` takes the first alternative that matches
    _PARTS[_name] = f"(?:{'|'.join(map(re.escape, _longest_first))})"


def _expand(pattern: str) -> str:
    """Replace {L} and so on by the named parts of patterns, which may contain further names."""
    while (expanded := re.sub(r"\{([A-Z]+)\}", lambda part: _PARTS[part[1]], pattern)) != pattern:
        pattern = expanded
    return pattern


# Group 1, if a pattern has it, is the token; what matches after it is lookahead.
_PATTERNS = (
    # words that are split in two, and contractions
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
    # markup, web addresses and file names
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
    # words that keep their period
    # Abbreviations. The first lookahead avoids trying them one by one unless a word has at most six letters, and the
    # second rules out spellings that the Java tokenizer does not recognise.
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
