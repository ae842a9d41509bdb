"""Reading files of captions: every error message names the file and the line or entry in it."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from seqtool.data.corpora.corpus import Captioned
from seqtool.errors import InputError
from seqtool.runtime.files import check_file, parse_json, read_lines

T = TypeVar("T")
KINDS = {str: "text", list: "a list", dict: "an object", int: "a whole number"}
TOKENS_LINE = re.compile(r"([^\t]+)#(\d+)\t(.*)")
RESULTS_LINE = re.compile(r"([^|]+?)\s*\|\s*(\d+)\s*\|?(.*)")  # one published line lacks its second |
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold half a pair, which cannot be written


@dataclass(frozen=True)
class Entry:
    """A caption as it stands in a file, its image, and its place in the file."""

    image: str
    caption: str
    place: str  # "captions.csv line 7"


Entries = dict[str, list[Entry]]  # by image, in the order of the file


def read_numbered(path: Path) -> Entries:
    """Flickr8k's and Flickr30k's form, FILE#NUMBER, a tab and the caption on each line, or Flickr30k's results.csv:
    image_name| comment_number| comment, without quotes; the first line may be a header of just these names.
    """
    is_csv = path.suffix == ".csv"
    form = RESULTS_LINE if is_csv else TOKENS_LINE
    entries: Entries = {}
    seen = set()
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path} line {number:,}"
        if match := form.fullmatch(line):
            image, digits, caption = match.groups()
            if (image, digits) in seen:
                raise InputError(f"{place} has caption {digits} of {image} again.")
            seen.add((image, digits))
            entries.setdefault(image, []).append(Entry(image, caption, place))
        elif not (is_csv and number == 1):
            parts = (
                "a file name | a number | a caption" if is_csv else "a file name, # and a number, one tab, a caption"
            )
            raise InputError(f"{place} must be {parts}.")
    return entries


def read_captions(path: Path) -> Entries:
    """Your own captions: JSONL or CSV, by the suffix. Several lines may name the same image."""
    suffix = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if suffix not in ("jsonl", "csv"):
        raise InputError(f"{path} must be a .jsonl or .csv file, plain or .gz.")
    entries: Entries = {}
    for place, record in _jsonl(path) if suffix == "jsonl" else _csv(path):
        name = field(record, "file", str, place)
        if ("caption" in record) == ("captions" in record):
            raise InputError(f"{place} must have either 'caption' or 'captions'.")
        captions = field(record, "captions", list, place) if "captions" in record else [record["caption"]]
        if not captions:
            raise InputError(f"{place} has no caption of {name}.")
        image = str(PurePosixPath(name))  # a/./b.jpg is a/b.jpg
        found = [Entry(image, _checked(caption, str, f"{place}: a caption"), place) for caption in captions]
        entries.setdefault(image, []).extend(found)
    if not entries:
        raise InputError(f"{path} has no captions.")
    return entries


def read_list(path: Path) -> dict[str, str]:
    """The names in a list, one per line, and the place of each."""
    places: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if name := line.strip():
            if name in places:
                raise InputError(f"{path} line {number:,} names {name} again.")
            places[name] = f"{path} line {number:,}"
    return places


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    return _checked(_parsed(check_file(path).read_bytes(), str(path)), dict, str(path))


def field(record: Any, key: str, kind: type[T], place: str) -> T:
    """record[key], which must be of the kind; `place` names the record in an error message."""
    fields = _checked(record, dict, place)
    if key not in fields:
        raise InputError(f"{place} has no '{key}'.")
    return _checked(fields[key], kind, f"{place}: '{key}'")


def captioned(directory: Path, entries: list[Entry], *, identifier: str | None = None) -> Captioned:
    """The image that these captions describe; they are checked, and their white space is normalised. The image's name
    cannot lead out of the directory.
    """
    captions = []
    for entry in entries:
        caption = " ".join(entry.caption.split())
        if not caption:
            raise InputError(f"{entry.place} has an empty caption of {entry.image}.")
        if SURROGATE.search(caption):
            raise InputError(f"{entry.place} has a caption of {entry.image} that is no valid text: {caption!r}.")
        captions.append(caption)
    name, place = entries[0].image, entries[0].place
    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or "\0" in name or SURROGATE.search(name):
        raise InputError(f"{place} names the image {name!r}: it must be the name of a file in {directory}.")
    return Captioned(directory / path, identifier or name, tuple(captions))


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            place = f"{path} line {number:,}"
            yield place, _parsed(line, place)


def _csv(path: Path) -> Iterator[tuple[str, Any]]:
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        header = next(reader)
        if not {"file", "caption"} <= set(header):
            raise InputError(f"{path} line 1 must be a header with the columns file and caption, as in file,caption.")
        image, caption = header.index("file"), header.index("caption")
        for row in reader:
            place = f"{path} line {reader.line_num:,}"
            if row and len(row) != len(header):
                raise InputError(
                    f"{place} has {len(row)} columns but the header has {len(header)}: "
                    "a caption that has a comma must stand in double quotes."
                )
            if row:
                yield place, {"file": row[image], "caption": row[caption]}
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num:,} is not CSV ({error}).") from error


def _parsed(text: str | bytes, place: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno:,} column {error.colno:,}" if error.lineno > 1 else f"column {error.colno:,}"
        raise InputError(f"{place} is not JSON ({where}: {error.msg}).") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{place} line {line:,} is not valid UTF-8: convert the file to UTF-8.") from error
    except ValueError as error:
        raise InputError(f"{place} cannot be read as JSON ({error}).") from error


def _checked(value: Any, kind: type[T], what: str) -> T:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    raise InputError(f"{what} must be {KINDS[kind]}, not {shown}.")
