"""Preparing sentence pairs: two sides, encoded by one vocabulary or two."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

from seqtool.data.cache import Cache
from seqtool.data.configuration import cache_settings, make_corpus
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.preparation import Steps, prepare
from seqtool.data.text.encoding import Texts, token_type
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.runtime.files import write_lines
from seqtool.settings import Config


def prepare_pairs(config: Config) -> Cache:
    """The cache of the sentence pairs that `config`, the settings under `data`, describes; see `prepare`."""
    settings = cache_settings(config)
    corpus = make_corpus(config, TextCorpus, trusted=True)
    return prepare(corpus, settings, lambda: PairSteps(corpus))


@final
class PairSteps(Steps):
    """Sentence pairs; of those that are not trained on, the cache keeps the text and gold alignments."""

    corpus: TextCorpus
    unit = "pairs"
    training = "training pairs"

    def __init__(self, corpus: TextCorpus) -> None:
        languages = [corpus.source_language, corpus.target_language]
        super().__init__(corpus, "-".join([corpus.name, *languages]), {"languages": languages})

    def texts(self, split: str) -> Iterator[Texts]:
        return self.corpus.pairs(split)

    def kept(self, directory: Path, split: str, texts: Iterator[Texts]) -> Iterator[Texts]:
        if split == "train":
            return texts
        alignments = self.corpus.alignments(split)
        if alignments is not None:
            write_lines(directory / f"{split}.alignments.txt", alignments)
        return _copied(texts, *(directory / f"{split}.{side}.txt" for side in self.corpus.sides))

    def summary(self, directory: Path, vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
        source, target = vocabularies.values()
        sizes = {side: len(known) for side, known in vocabularies.items()}
        return {
            **self.inputs,
            "vocabulary": {"kind": source.kind, **sizes, "joint": source is target},
            "token_types": {side: token_type(known).str for side, known in vocabularies.items()},
        }

    def split_summary(self, split: str, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        sides = {side: {name: one[name] for name in ("tokens", "unknown")} for side, one in counts.items()}
        return {"pairs": counts["target"]["sentences"], **sides}


def _copied(texts: Iterator[Texts], *paths: Path) -> Iterator[Texts]:
    """The texts again, each side written into its file as it passes."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        for example in texts:
            for file, text in zip(files, example, strict=True):
                file.write(f"{text}\n")
            yield example
