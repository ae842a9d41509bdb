"""The interface of a corpus: sentence pairs, images with captions, or plain text, in splits."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

Digest = Callable[[Path], str]
Files = tuple[Path, ...]
Names = str | list[str]  # of files, in settings
SPLITS = ("train", "valid", "test")


class Corpus(ABC):
    """Data in splits, of which `train` is one; the others are `valid` and possibly `test`.

    name: of the corpus, in messages and in the names of caches.
    task: the name of the task that it is for.
    contents, example: what it holds and a choice of such data, for messages.
    sides: the names of its columns of sentences; captions and text are targets without sources.
    verbatim: whether white space stays as it is.
    """

    name: str
    task: ClassVar[str]
    contents: ClassVar[str]
    example: ClassVar[str]
    sides: ClassVar[tuple[str, ...]]
    verbatim: ClassVar[bool] = False

    def fetch(self) -> None:
        """Make sure that the files exist; may download or make them. Raises InputError if it cannot."""
        self.check()

    def check(self) -> None:  # noqa: B027 not every corpus has something to check
        """Raise InputError if the files do not exist. Writes nothing: for settings from a checkpoint."""

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, `train` first."""

    @abstractmethod
    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        """All that the text depends on, with files as digests: equal for equal text. Excludes images' content."""


class FileCorpus(Corpus):
    """A corpus of files of text, `_files` by split."""

    _files: dict[str, Files]

    def files(self) -> dict[str, Files]:
        """The files of each split."""
        return self._files

    def splits(self) -> tuple[str, ...]:
        return tuple(self.files())

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {split: [digest(path) for path in files] for split, files in self.files().items()}


class TextCorpus(Corpus):
    """Sentence pairs. Languages are just names."""

    task = "translation"
    contents = "sentence pairs"
    example = "data=toy"
    sides = ("source", "target")
    source_language: str
    target_language: str

    @abstractmethod
    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Source and target sentences of the split, read as they are asked for."""

    def alignments(self, split: str) -> list[str] | None:
        """The split's gold alignments in Pharaoh format, if the corpus has them."""
        return None

    def words(self, text: str) -> list[str]:
        """The words that its alignments number."""
        return text.split()


class Captioned(NamedTuple):
    """An image and its captions, at least one, with only their white space normalised.

    The file may be missing or damaged: preparation checks the images, reports bad ones and leaves them out.
    """

    file: Path
    identifier: str  # COCO's image id, elsewhere the file name; unique within a split
    captions: tuple[str, ...]


class ImageCorpus(Corpus):
    """Images with captions."""

    task = "captioning"
    contents = "images with captions"
    example = "data=scenes"
    sides = ("target",)

    @abstractmethod
    def images(self, split: str) -> list[Captioned]:
        """The split's images in the order of its files. Raises InputError if an annotation file is wrong."""
