"""The captions in files, by image: every error message names the file and the line or entry in it."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from seqtool.data.corpora.caption_records import Entry, records
from seqtool.data.corpora.corpus import Captioned
from seqtool.errors import InputError
from seqtool.runtime.files import read_lines

SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold half a pair, which cannot be written
LISTED = 10  # places that a message names

T = TypeVar("T")


class Captions(dict[str, Sequence[T]]):
    """The captions of each image, in the order of the file, as entries or text. Names of images are text: the number 42
    and the text "42" are the same image. others: further names of the images, such as those of their files.
    """

    def __init__(self, captions: Mapping[str, Sequence[T]], others: Mapping[str, str]) -> None:
        super().__init__(captions)
        self.others = others

    def only(self, images: Container[str]) -> "Captions[T]":
        """Those of these images."""
        return Captions({image: captions for image, captions in self.items() if image in images}, self.others)


def read_captions(path: Path) -> Captions[Entry]:
    """The captions in a file, by image. Several places may name the same image."""
    entries: dict[str, list[Entry]] = {}
    others: dict[str, str] = {}
    for image, captions, other, _ in records(path):
        entries.setdefault(image, []).extend(captions)
        if other is not None and other != image:
            others[other] = image
    if not entries:
        raise InputError(f"{path} has no captions.")
    return Captions(entries, others)


def read_list(path: Path) -> dict[str, str]:
    """The names in a list, one per line, and the place of each."""
    places: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if name := line.strip():
            if name in places:
                raise InputError(f"{path} line {number:,} names {name} again.")
            places[name] = f"{path} line {number:,}"
    return places


def captioned(
    directory: Path, entries: Mapping[str, Sequence[Entry]], paths: Mapping[str, str] | None = None
) -> list[Captioned]:
    """The images that these captions describe, by their identifiers. Captions are checked, and their white space is
    normalised. The name of an image, or its path in the directory if `paths` has one, cannot lead out of it.
    """
    check_captions(entry for of_image in entries.values() for entry in of_image)
    images = []
    for identifier, of_image in entries.items():
        name, place = of_image[0].image, of_image[0].place
        path = PurePosixPath(name if paths is None else paths[name])
        if not path.name or path.is_absolute() or ".." in path.parts or "\0" in name or SURROGATE.search(name):
            raise InputError(f"{place} names the image {name!r}: it must be the name of a file in {directory}.")
        captions = tuple(" ".join(entry.caption.split()) for entry in of_image)
        images.append(Captioned(directory / path, identifier, captions))
    return images


def check_captions(entries: Iterable[Entry]) -> None:
    """Raise InputError for captions that are empty, or no valid text."""
    empty = []
    for entry in entries:
        if not entry.caption.strip():
            empty.append(entry)
        elif SURROGATE.search(entry.caption):
            raise InputError(f"{entry.place} has a caption of {entry.image} that is not valid text: {entry.caption!r}.")
    if len(empty) == 1:
        raise InputError(f"{empty[0].place} has an empty caption of {empty[0].image}.")
    if empty:
        same, _, _ = empty[0].place.rpartition(" ")
        places = [empty[0].place, *(entry.place.removeprefix(f"{same} ") for entry in empty[1:])]
        images = list(dict.fromkeys(entry.image for entry in empty))
        raise InputError(f"{_listed(places)} have empty captions ({_listed(images)}): write them, or leave them out.")


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - LISTED
    return ", ".join([*texts[:LISTED], *([f"and {more:,} more"] if more > 0 else [])])
