"""Plain text for language models: files as they are, with the end held out for validation."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora import toy
from seqtool.data.corpora.corpus import Digest, FileCorpus, Names
from seqtool.errors import InputError
from seqtool.runtime.files import read_lines
from seqtool.settings import names

BUILT_IN = {"seed": 1, "train": 20_000}  # sentences of the built-in grammar, if there is no file


@final
class PlainText(FileCorpus):
    """Anyone's text, plain or .gz; several files are joined in order. Without a file, the English sentences of the
    built-in grammar, one per line.

    If `valid` names no file, the last `valid_share` of the characters of `train` are used for validation and not for
    training.
    """

    name = "text"
    task = "language_modelling"
    contents = "plain text"
    example = "data=text"
    sides = ("target",)
    verbatim = True

    def __init__(self, *, train: Names | None, valid: Names | None, test: Names | None, valid_share: float) -> None:
        if not 0 < valid_share < 1:
            raise InputError(f"data.valid_share must be above 0 and below 1, not {valid_share:g}.")
        named = {split: tuple(map(Path, names(value))) for split, value in (("valid", valid), ("test", test)) if value}
        training = tuple(map(Path, names(train)))
        self._files = {"train": training, "valid": training, **named}
        self._share = None if valid else valid_share

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        inputs = {**super().fingerprint(digest), "valid_share": self._share}
        return inputs if self._files["train"] else {**inputs, "built_in": BUILT_IN, "grammar": list(toy.GRAMMAR)}

    def lines(self, split: str) -> Iterator[str]:
        """The text of a split as it is, line by line with line ends."""
        if self._share is None or split == "test":
            yield from self._lines(split)
            return
        before = 0
        for line in self._lines("train"):
            inside = min(max(self._end - before, 0), len(line))
            before += len(line)
            if part := line[:inside] if split == "train" else line[inside:]:
                yield part

    @cached_property
    def _end(self) -> int:
        """The number of characters to train on."""
        count = sum(map(len, self._lines("train")))
        end = int(count * (1 - (self._share or 0)))
        if end in (0, count):
            part = "train" if end == 0 else "validate"
            raise InputError(f"data.valid_share={self._share:g} of {count:,} characters leaves nothing to {part} on.")
        return end

    def _lines(self, split: str) -> Iterator[str]:
        for path in self._files[split]:
            yield from read_lines(path, with_ends=True)
        if not self._files[split]:
            yield from (f"{pair.source}\n" for pair in toy.generate(**BUILT_IN, valid=0, test=0)["train"])
