"""Files of captions, told apart by their content: every error message names the file and the line or entry in it."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TypeVar

from seqtool.data.corpora.caption_records import FILE, NUMBER, Entry, Record, json_records
from seqtool.data.corpora.caption_tables import UnknownFormError, is_header, is_image, text_records
from seqtool.data.corpora.corpus import Captioned
from seqtool.errors import InputError
from seqtool.runtime.files import read_lines, read_text

JSON = re.compile(r'\s*[\[{]\s*(["\[{\]}]|\Z)')  # how a file of JSON begins
TRANSLATIONS = '{"source": '  # how a line of `translate format=jsonl` begins
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


def records(path: Path) -> list[Record]:
    """What a file says of images: captions as data sets are published, as `caption` writes them, or one's own."""
    text = read_text(path)
    if JSON.match(text):
        return list(json_records(text, path))
    try:
        return list(text_records(text, path))
    except UnknownFormError:
        if not path.name.lower().removesuffix(".gz").endswith((".json", ".jsonl")):
            raise
        return list(json_records(text, path))


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


def holds_captions(path: Path) -> bool:
    """Whether the file begins with a caption of an image, in JSON or under a header, rather than with a sentence."""
    lines = (line for line in read_lines(path, may_be_empty=True, with_ends=True) if line.strip())
    first, second = next(lines, ""), next(lines, "")
    if is_header(first):
        return any(is_image(cell.strip('" \n\r')) for cell in re.split(r"[,;\t|]", second))
    if JSON.match(first) and not first.startswith(TRANSLATIONS):
        for text in (first, read_text(path)):
            with suppress(InputError):
                record = next(json_records(text, path), None)
                names = any(f'"{key}"' in text for key in (*FILE, *NUMBER))
                return record is not None and (names or is_image(record.image))
    return False


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
