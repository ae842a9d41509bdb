"""Images with captions: which image files each split has, and what people wrote about them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Digest = Callable[[Path], str]


@dataclass(frozen=True)
class Captioned:
    """An image and its captions, of which there is at least one, with white space normalised and nothing else.

    The file may be missing or damaged: preparation checks the images, reports those and leaves them out.
    """

    file: Path
    identifier: str  # COCO's image id, elsewhere the file name; one of its kind within a split
    captions: tuple[str, ...]


class ImageCorpus(ABC):
    """Captioned images in splits, of which `train` is one; the others are `valid` and, where there is one, `test`."""

    name: str

    def fetch(self) -> None:
        """Make sure that the files are there; may make them. Raises InputError where it cannot."""
        self.check()

    def check(self) -> None:  # noqa: B027 not every corpus has something to check
        """Raise InputError where the files are not there. Writes nothing: for settings out of a checkpoint."""

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, `train` first."""

    @abstractmethod
    def images(self, split: str) -> list[Captioned]:
        """The split's images in the order of its files. Raises InputError where an annotation file is wrong."""

    @abstractmethod
    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        """What the choice of images and the captions depend on, files as their digests: not the images' content."""
