"""Corpora of sentence pairs: the user's own files, and the built-in corpus."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora import toy
from seqtool.data.corpora.corpus import Digest, FileCorpus, Files, Names, TextCorpus, check_sizes
from seqtool.data.text.languages import SCRIPTS, code_of
from seqtool.data.text.words import words_and_punctuation
from seqtool.errors import InputError
from seqtool.runtime.files import read_tsv, read_two_files

MAX_PAIRS = {"train": 10_000_000, "valid": 100_000, "test": 100_000}  # in a split of the built-in corpus


class PairFiles(FileCorpus, TextCorpus):
    """Sentence pairs in files: for each split, a source and a target file, or one file of tab-separated pairs."""

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        files = self.files[split]
        return read_tsv(files[0]) if len(files) == 1 else read_two_files(files[0], files[1])


@final
class ParallelFiles(PairFiles):
    """Your own files, plain or .gz: for each split, a source and a target file, or one TSV file."""

    name = "parallel"

    def __init__(
        self, *, train: Names, valid: Names | None, test: Names | None, source_language: str, target_language: str
    ) -> None:
        self.source_language = source_language
        self.target_language = target_language
        names = {"train": train, "valid": valid, "test": test}
        self.files = {split: _files(split, value or []) for split, value in names.items() if value or split == "train"}

    @property
    def languages(self) -> tuple[str, str]:
        return languages(self.source_language, self.target_language, list(map(str, self.files["train"])))


@final
class Toy(TextCorpus):
    """The built-in corpus: English sentences from a grammar and their Spanish translations, with alignments.

    The arguments are those of `toy.generate`.
    """

    name = "toy"
    source_language = "en"
    target_language = "es"

    def __init__(self, *, seed: int, train: int, valid: int, test: int, longest: int, continuous: bool = False) -> None:
        if not toy.MAX_WORDS <= longest <= toy.MAX_LONG_WORDS:
            raise InputError(f"data.longest must be from {toy.MAX_WORDS} to {toy.MAX_LONG_WORDS} words, not {longest}.")
        self._seed, self._longest, self._continuous = seed, longest, continuous
        self._sizes = {"train": train, "valid": valid, "test": test}
        check_sizes(self._sizes, "pair", maximum=MAX_PAIRS)
        self._generated: dict[str, list[toy.Pair]] = {}

    def _pairs(self, split: str) -> list[toy.Pair]:
        """The split's pairs, which the first call generates. If it is `train`, all splits are generated at once."""
        if split not in self._generated:
            sizes = self._sizes if split == "train" else {**self._sizes, "train": 0}
            splits = toy.generate(seed=self._seed, longest=self._longest, continuous=self._continuous, **sizes)
            self._generated |= {name: pairs for name, pairs in splits.items() if pairs}
        return self._generated[split]

    def splits(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return ((pair.source, pair.target) for pair in self._pairs(split))

    def alignments(self, split: str) -> list[str] | None:
        return [pair.alignment for pair in self._pairs(split)]

    def words(self, text: str) -> list[str]:
        """The words and punctuation marks, which the alignments link."""
        return words_and_punctuation(text)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        inputs = {"seed": self._seed, **self._sizes, "grammar": list(toy.GRAMMAR)}
        if self._longest != toy.MAX_WORDS:
            inputs |= {"longest": self._longest, "long": toy.LONG_VERSION}
        return {**inputs, "continuous": toy.CONTINUOUS_VERSION} if self._continuous else inputs


def languages(source: str, target: str, train: Names) -> tuple[str, str]:
    """The names of the two languages. If there are two training files that do not end alike, a language that has only
    the default name, `source` or `target`, is read off its file's name, if that ends in a code, as train.de.gz does.
    """
    if not isinstance(train, list) or [*map(type, train)] != [str, str]:
        return source, target
    first, second = (Path(name.removesuffix(".gz")).suffix[1:] for name in train)
    if code_of(first) == code_of(second):
        return source, target
    return (
        first if source == "source" and code_of(first) in SCRIPTS else source,
        second if target == "target" and code_of(second) in SCRIPTS else target,
    )


def _files(split: str, value: Names) -> Files:
    """The one or two files that the setting of a split names."""
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"data.{split} must be one or two file names, not {value}.")
    if len(names) not in (1, 2):
        count = len(names) or "no"
        raise InputError(f"data.{split} names {count} files: it takes a source and a target file, or one TSV file.")
    return tuple(Path(name) for name in names)
