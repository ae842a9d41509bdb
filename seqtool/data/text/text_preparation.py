"""Preparing plain text: one column of tokens, whose lines end to end are the text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from seqtool.data.cache import Cache
from seqtool.data.configuration import cache_settings, make_corpus
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.preparation import Steps, prepare
from seqtool.data.text.encoding import Texts, token_type
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.settings import Config


def prepare_text(config: Config) -> Cache:
    """The cache of the text that `config`, the settings under `data`, describes; see `prepare`."""
    settings = cache_settings(config)
    corpus = make_corpus(config, PlainText, trusted=True)
    return prepare(corpus, settings, lambda: TextSteps(corpus))


@final
class TextSteps(Steps):
    """Lines of text with their ends. Characters are counted: a loss by tokens says little across vocabularies."""

    corpus: PlainText
    unit = "lines"
    training = "lines of text"
    verbatim = True

    def __init__(self, corpus: PlainText) -> None:
        super().__init__(corpus, corpus.name, {})
        self._characters: dict[str, int] = {}

    def texts(self, split: str) -> Iterator[Texts]:
        characters = 0
        for line in self.corpus.lines(split):
            characters += len(line)
            yield (line,)
        self._characters[split] = characters

    def kept(self, directory: Path, split: str, texts: Iterator[Texts]) -> Iterator[Texts]:
        return texts

    def summary(self, directory: Path, vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
        known = vocabularies["target"]
        return {
            "holds": "text",
            "vocabulary": {"kind": known.kind, "size": len(known)},
            "token_type": token_type(known).str,
        }

    def split_summary(self, split: str, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        numbers = counts["target"]
        return {
            "characters": self._characters[split],
            "lines": numbers["sentences"],
            **{name: numbers[name] for name in ("tokens", "unknown")},
        }
