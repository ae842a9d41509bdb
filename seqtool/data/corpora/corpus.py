"""The interface of corpora, which have sentence pairs, images with captions or plain text, in splits.

A new data set is a class in this directory and `configs/data/NAME.yaml`, whose `_target_` names it; see
docs/extending.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from seqtool.errors import InputError

Digest = Callable[[Path], str]  # a hash of a file's content
Files = tuple[Path, ...]
Names = str | list[str]  # a setting that names one file or several
SPLITS = ("train", "valid", "test")


class Corpus(ABC):
    """Data in the splits `train`, `valid` and possibly `test`."""

    name: str  # the name of the corpus in messages and in the names of caches
    task: ClassVar[str]  # the name of the task whose models are trained on it
    contents: ClassVar[str]  # the description of the corpus's content in messages
    example: ClassVar[str]  # a setting that chooses a corpus of this kind, for messages
    sides: ClassVar[tuple[str, ...]]  # its columns of text; captions and plain text are targets without a source
    verbatim: ClassVar[bool] = False  # whether white space is kept as it is

    def fetch(self) -> None:
        """Make sure that the files exist, possibly by downloading or making them. Raises InputError if they do not."""
        self.check()

    def check(self) -> None:  # noqa: B027 not every corpus has something to check
        """Raise InputError if the files do not exist. Writes nothing, since a checkpoint may have named the files."""

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, `train` first."""

    @abstractmethod
    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        """Return everything that the text depends on, with `digest(file)` for each file; images are not included.

        If the result changes, the corpus is prepared again.
        """


def check_sizes(sizes: Mapping[str, int], unit: str, *, maximum: Mapping[str, int]) -> None:
    """Raise InputError unless the size of each split of a built-in corpus, in `unit`s, is from 1 to its maximum."""
    for split, size in sizes.items():
        if size < 1:
            raise InputError(f"data.{split} is {size}: a split needs at least 1 {unit}.")
        if size > maximum[split]:
            raise InputError(f"data.{split} is {size:,}: it must be at most {maximum[split]:,} {unit}s.")


class FileCorpus(Corpus):
    """A corpus of text files."""

    files: dict[str, Files]  # by split

    def splits(self) -> tuple[str, ...]:
        return tuple(self.files)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {split: [digest(path) for path in files] for split, files in self.files.items()}


class TextCorpus(Corpus):
    """A corpus of sentence pairs. Its languages are names; `data.checking` uses those that are codes."""

    task = "translation"
    contents = "sentence pairs"
    example = "data=toy"
    sides = ("source", "target")
    source_language: str
    target_language: str

    @property
    def languages(self) -> tuple[str, str]:
        """The names of its languages for messages and checks."""
        return self.source_language, self.target_language

    @abstractmethod
    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the split's pairs of source and target sentences, which are read one by one."""

    def alignments(self, split: str) -> list[str] | None:
        """The split's gold alignments in Pharaoh format; None if the corpus has none."""
        return None

    def words(self, text: str) -> list[str]:
        """The words of a sentence that its gold alignment numbers."""
        return text.split()


class Captioned(NamedTuple):
    """An image and its captions.

    The file may be missing or damaged: preparation checks the images, reports bad ones and leaves them out.
    """

    file: Path
    identifier: str  # unique within a split: the image id in COCO, the file name in other corpora
    captions: tuple[str, ...]  # one or more captions; only their white space is normalised


class ImageCorpus(Corpus):
    """A corpus of images with captions."""

    task = "captioning"
    contents = "images with captions"
    example = "data=scenes"
    sides = ("target",)

    @abstractmethod
    def images(self, split: str) -> list[Captioned]:
        """The split's images in the order of its files. Raises InputError if an annotation file is wrong."""
