"""The tokeniser that fits the references, where none was chosen by hand."""

from collections.abc import Iterable

from seqtool.data.text.words import writing
from seqtool.errors import InputError
from seqtool.metrics.translation import make_bleu

BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}  # sacreBLEU's, for its test sets
OF_CHARACTERS = ("zh", "char")
CHARACTERS = "each character counts as a word"


def for_translations(references: Iterable[str], *, language: str | None = None) -> tuple[str, str]:
    """The tokeniser of BLEU for these references, of those that need no further package; and a sentence about it, empty
    where there is nothing to say about 13a. Any text with hardly any spaces, such as letters, counts characters, since
    a line of one word has no n-grams. `language`: of the references, if they are one of sacreBLEU's test sets.
    """
    text = writing(references)
    tokenize, why = "13a", ""
    if text.has_no_spaces and text.is_chinese:
        tokenize, why = "zh", "the references are Chinese; each of their characters counts as a word"
    elif text.has_no_spaces or text.has_hardly_any_spaces:
        tokenize, why = "char", f"the references have almost no spaces; {CHARACTERS}"
    elif text.is_mostly_unspaced:
        why = f"the references {_cut('zh' if text.is_chinese else 'char')}"
    if language is not None:
        usual = BY_LANGUAGE.get(language.partition("_")[0], "13a")
        if usual == tokenize or _is_installed(usual):
            return usual, f"tokenize={usual}, as sacreBLEU has it for this pair." if why or usual != "13a" else ""
    else:
        usual = "ja-mecab" if text.scripts["kana"] and tokenize == "char" else ""
        usual = "ko-mecab" if 2 * text.scripts["Hangul"] > text.scripts.total() else usual
    note = f"tokenize={tokenize}{why and ': '}{why}."
    if usual:
        note += f" tokenize={usual} finds words, with pip install 'sacrebleu[{usual.partition('-')[0]}]'."
    return tokenize, note if why or usual else ""


def for_captions(references: Iterable[str]) -> tuple[str, str]:
    """The tokeniser for captions with these references; and a sentence about it, empty where there is nothing to say
    about `ptb`.
    """
    text = writing(references)
    if text.has_no_spaces:
        return "char", f"tokenize=char: the captions have almost no spaces; {CHARACTERS}."
    return "ptb", f"tokenize=ptb: the captions {_cut('char')}." if text.is_mostly_unspaced else ""


def _cut(tokenize: str) -> str:
    return f"seem to be cut into words by spaces; tokenize={tokenize} counts characters"


def _is_installed(tokenize: str) -> bool:
    """Whether a tokeniser of sacreBLEU can be used."""
    try:
        make_bleu(tokenize, lowercase=False)
    except InputError:
        return False
    return True
