"""Preparing sentence pairs, with one vocabulary or two, and plain text, a column of lines with their line ends."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

from seqtool.data.cache import Cache
from seqtool.data.configuration import CacheSettings
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.preparation import prepare
from seqtool.data.steps import Steps
from seqtool.data.text.encoding import Texts
from seqtool.runtime.files import write_lines
from seqtool.settings import Config


def prepare_pairs(config: Config, *, needs: Sequence[str] = ()) -> Cache:
    """The cache of the sentence pairs that `config`, the settings under `data`, describes; see `prepare`."""
    return prepare(config, TextCorpus, PairSteps, needs=needs)


def prepare_text(config: Config, *, needs: Sequence[str] = ()) -> Cache:
    """The cache of the text that `config`, the settings under `data`, describes; see `prepare`."""
    return prepare(config, PlainText, TextSteps, needs=needs)


@final
class PairSteps(Steps):
    """Sentence pairs; for splits other than train, the cache keeps the text and gold alignments."""

    corpus: TextCorpus
    unit = "pairs"
    training = "training pairs"

    def __init__(self, corpus: TextCorpus, settings: CacheSettings) -> None:
        languages = [corpus.source_language, corpus.target_language]
        super().__init__(corpus, settings, "-".join([corpus.name, *languages]), {"languages": languages})

    def texts(self, split: str) -> Iterator[Texts]:
        return self.corpus.pairs(split)

    def kept(self, directory: Path, split: str, texts: Iterator[Texts]) -> Iterator[Texts]:
        if split == "train":
            return texts
        alignments = self.corpus.alignments(split)
        if alignments is not None:
            write_lines(directory / f"{split}.alignments.txt", alignments)
        return _copied(texts, *(directory / f"{split}.{side}.txt" for side in self.corpus.sides))

    def summary(self, directory: Path) -> dict[str, Any]:
        return dict(self.inputs)


def _copied(texts: Iterator[Texts], *paths: Path) -> Iterator[Texts]:
    """Yields the same texts, writing each side to its file."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        for example in texts:
            for file, text in zip(files, example, strict=True):
                file.write(f"{text}\n")
            yield example


@final
class TextSteps(Steps):
    """Lines of text with their line ends. Characters are counted: vocabularies cannot be compared by loss per token."""

    corpus: PlainText
    unit = "lines"
    training = "lines of text"

    def __init__(self, corpus: PlainText, settings: CacheSettings) -> None:
        super().__init__(corpus, settings, corpus.name, {})
        self._characters: dict[str, int] = {}

    def texts(self, split: str) -> Iterator[Texts]:
        characters = 0
        for line in self.corpus.lines(split):
            characters += len(line)
            yield (line,)
        self._characters[split] = characters

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        return {"characters": self._characters[split], **counts}
