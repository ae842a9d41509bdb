"""Reads files of captions.

- JSON and JSON lines, as of COCO, Karpathy and others
- tables with a header
- the lines of Flickr8k and Flickr30k
- the output of `seqtool caption`

The content of a file decides how it is read. Every error message names the file and the line or entry in it.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import yaml

from seqtool.data.corpora.corpus import Captioned
from seqtool.data.images.finding import SUFFIXES
from seqtool.errors import InputError
from seqtool.runtime.files import NOT_ENDED, parse_json, read_lines, read_text
from seqtool.runtime.log import log

T = TypeVar("T")
Lines = Sequence[tuple[int, str]]  # the nonempty lines of a file, each with its number, from 1

JSON_START = re.compile(r'\s*[\[{]\s*(["\[{\]}]|\Z)')  # the beginning of a JSON file
TRANSLATION_START = '{"source": '  # the beginning of a line of `translate format=jsonl`
KIND_NAMES = {str: "text", list: "a list", dict: "an object", int: "a whole number"}

# The keys of records that hold an image's file, id and captions, and the records in an object; what a file may hold
TABLE: dict[str, str] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
FILE_KEYS, ID_KEYS, CAPTION_KEYS, LIST_KEYS = (TABLE[name].split() for name in ("file", "id", "caption", "list"))
EXPECTED = TABLE["expected"]

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}

# A line of Flickr8k.token.txt, and of Flickr30k's results.csv, in which one line is published without its second "|".
FLICKR8K_LINE = re.compile(r"(?P<image>[^\t]+)#(?P<number>\d+)\t(?P<caption>.*)")
FLICKR30K_LINE = re.compile(r"(?P<image>[^|\t]+?)\s*\|\s*(?P<number>\d+)\s*\|?(?P<caption>.*)")
FLICKR30K_HEADER = re.compile(r"[^|]*image[^|]*\|[^|]*number[^|]*\|[^|]*", re.IGNORECASE)

# A line that `seqtool caption` writes.
SCORE = rf"\t(?P<score>-?([0-9]+(\.[0-9]+)?|inf|nan))(\t{NOT_ENDED})?"
WRITTEN_LINE = re.compile(rf"(?P<image>[^\t]*)\t(?P<caption>[^\t]*)({SCORE})?")

SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may contain an unpaired surrogate, which is not valid text
MAX_LISTED = 10  # locations or images in an error message


class Entry(NamedTuple):
    """A caption in a file."""

    image: str  # the name of the image's file
    caption: str
    location: str  # where the caption is, for messages: "captions.csv line 7"
    split: str | None = None  # the split of the image, if the file gives one
    by_user: bool = False  # whether the user wrote the caption, so that its white space is not significant


class Record(NamedTuple):
    """An entry of an image in a file."""

    image: str  # the id that a data set gives it, or the name of its file
    captions: Sequence[Entry]  # only the best one if they are a model's hypotheses
    other_name: str | None = None  # another name of the image
    best: Mapping[str, Any] = {}  # the best hypothesis with all fields that `caption` wrote


class Captions(dict[str, Sequence[T]]):
    """The captions of each image, in the order of the file, as entries or text.

    Images are named by strings, so the number 42 and the string "42" are the same image. `other_names` maps further
    names, such as file names, to the images.
    """

    def __init__(self, captions: Mapping[str, Sequence[T]], other_names: Mapping[str, str]) -> None:
        super().__init__(captions)
        self.other_names = other_names

    def only(self, images: Container[str]) -> "Captions[T]":
        """The captions of these images."""
        return Captions({image: captions for image, captions in self.items() if image in images}, self.other_names)


def read_captions(path: Path) -> Captions[Entry]:
    """The captions in a file, by image. An image may have several entries."""
    entries: dict[str, list[Entry]] = {}
    other_names: dict[str, str] = {}
    for image, captions, other_name, _ in records(path):
        entries.setdefault(image, []).extend(captions)
        if other_name is not None and other_name != image:
            other_names[other_name] = image
    if not entries:
        raise InputError(f"{path} has no captions.")
    return Captions(entries, other_names)


def read_list(path: Path) -> dict[str, str]:
    """Read a list of names, one per line. Returns the location of each name: the file and the line."""
    locations: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if name := line.strip():
            if name in locations:
                raise InputError(f"{path} line {number:,} names {name} again.")
            locations[name] = f"{path} line {number:,}"
    return locations


def make_captioned(
    directory: Path, entries: Mapping[str, Sequence[Entry]], paths: Mapping[str, str] | None = None
) -> list[Captioned]:
    """Make the images that the entries describe, with normalised white space in their captions.

    directory: where the images are
    entries: the entries of each image, by its identifier
    paths: the path within the directory of each image, by its name in the entries; None if the names are paths

    Raises InputError for an invalid caption and for a path that leads out of the directory.
    """
    check_captions(entry for image_entries in entries.values() for entry in image_entries)
    images = []
    for identifier, image_entries in entries.items():
        name, location = image_entries[0].image, image_entries[0].location
        path = PurePosixPath(name if paths is None else paths[name])
        if not path.name or path.is_absolute() or ".." in path.parts or "\0" in name or SURROGATE.search(name):
            raise InputError(f"{location} names the image {name!r}: it must be the name of a file in {directory}.")
        captions = tuple(" ".join(entry.caption.split()) for entry in image_entries)
        images.append(Captioned(directory / path, identifier, captions))
    return images


def check_captions(entries: Iterable[Entry]) -> None:
    """Raise InputError for captions that are empty or not valid text."""
    empty = []
    for entry in entries:
        if not entry.caption.strip():
            empty.append(entry)
        elif SURROGATE.search(entry.caption):
            raise InputError(
                f"{entry.location} has a caption of {entry.image} that is not valid text: {entry.caption!r}."
            )
    if len(empty) == 1:
        raise InputError(f"{empty[0].location} has an empty caption of {empty[0].image}.")
    if empty:
        prefix, _, _ = empty[0].location.rpartition(" ")  # "captions.csv line", which is written only once
        locations = [empty[0].location, *(entry.location.removeprefix(f"{prefix} ") for entry in empty[1:])]
        images = list(dict.fromkeys(entry.image for entry in empty))
        raise InputError(
            f"{_list_first(locations)} have empty captions ({_list_first(images)}): write them, or leave them out."
        )


def _list_first(texts: Sequence[str]) -> str:
    """The first `MAX_LISTED` texts, separated by commas, and the number of the remaining ones."""
    more = len(texts) - MAX_LISTED
    return ", ".join([*texts[:MAX_LISTED], *([f"and {more:,} more"] if more > 0 else [])])


def records(path: Path) -> Iterator[Record]:
    """Read the records in a file. If it is not JSON, its first line decides how it is read."""
    text = read_text(path)
    if JSON_START.match(text):
        return _json_records(text, path)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        return iter(())
    number, first = lines[0]
    separator = _separator(first)
    if separator and not FLICKR30K_HEADER.fullmatch(first):
        return _table_records(text, separator, path)
    if FLICKR8K_LINE.fullmatch(first):
        return _numbered_records(lines, FLICKR8K_LINE, "a file name, # and a number, one tab, a caption", path)
    if separator or FLICKR30K_LINE.fullmatch(first):
        rows = lines[1:] if separator else lines
        return _numbered_records(rows, FLICKR30K_LINE, "a file name | a number | a caption", path)
    if "\t" in first:
        return _tab_records(lines, path)
    if path.name.lower().removesuffix(".gz").endswith((".json", ".jsonl")):
        return _json_records(text, path)
    excerpt = first if len(first) <= 60 else f"{first[:60]}…"  # keeps the message readable
    raise InputError(
        f"{path} line {number:,} is {excerpt!r}: expected a file of captions: JSON, a table whose header names "
        "columns of images and captions (file,caption), or lines of an image, a tab and its caption."
    )


def holds_captions(path: Path) -> bool:
    """Whether the file has captions in JSON or under a header, rather than sentences, judged by its beginning."""
    lines = (line for line in read_lines(path, may_be_empty=True, with_ends=True) if line.strip())
    first, second = next(lines, ""), next(lines, "")
    if _separator(first):
        return any(_is_image(cell.strip('" \n\r')) for cell in re.split(r"[,;\t|]", second))
    if JSON_START.match(first) and not first.startswith(TRANSLATION_START):
        for text in (first, read_text(path)):
            with suppress(InputError):
                record = next(_json_records(text, path), None)
                has_image_key = any(f'"{key}"' in text for key in (*FILE_KEYS, *ID_KEYS))
                return record is not None and (has_image_key or _is_image(record.image))
    return False


# JSON


def _json_records(text: str, path: Path) -> Iterator[Record]:
    """The records in the text of a JSON or JSON lines file. JSON lines are read as a list of their values."""
    try:
        return _records(_parse(text, path), path, {})
    except InputError as error:
        first = text.lstrip().partition("\n")[0].rstrip()
        if isinstance(error.__cause__, KeyError) or not first.endswith("}"):
            raise
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    locations = {i: f"{path} line {number:,}" for i, (number, _) in enumerate(lines)}
    return _records([_parse(line, path, number) for number, line in lines], path, locations)


def _field(record: Any, key: str, kind: type[T], location: str) -> T:
    """Return record[key] if it is of this kind. `location` names the record in an error message."""
    fields = _check_type(record, dict, location)
    if key not in fields:
        raise InputError(f"{location} has no '{key}'.")
    return _check_type(fields[key], kind, location, key)


def _parse(text: str, path: Path, line: int | None = None) -> Any:
    """Parse the JSON of a file, or of one line of it."""
    location = str(path) if line is None else f"{path} line {line:,}"
    try:
        return parse_json(text, _unique_keys)
    except json.JSONDecodeError as error:
        number = error.lineno if line is None else line
        raise InputError(f"{path} line {number:,} is not JSON (column {error.colno:,}: {error.msg}).") from error
    except KeyError as error:
        raise InputError(f"{location} has {error} twice in one object: keys must be unique.") from error
    except ValueError as error:
        raise InputError(f"{location} cannot be read as JSON ({error}).") from error


def _check_type(value: Any, kind: type[T], location: str, key: str | None = None) -> T:
    """Return the value if it is of this kind. In an error message, `location` names it or, with `key`, its record."""
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    text = json.dumps(value)
    excerpt = text if len(text) <= 40 else f"{text[:40]}…"  # keeps the message readable
    subject = location if key is None else f"{location}: '{key}'"
    raise InputError(f"{subject} must be {KIND_NAMES[kind]}, not {excerpt}.")


def _plain_name(name: str) -> str:
    """The normalised name of a file: a/b.jpg for a/./b.jpg. Web addresses stay as they are."""
    return name if "://" in name else str(PurePosixPath(name))


def _records(value: Any, path: Path, locations: Mapping[int, str], name: str = "entry {}") -> Iterator[Record]:
    """The records in the value of a JSON file. Messages name item i of a list locations[i], or otherwise by `name`."""
    if isinstance(value, list):
        complete_images = set()
        for number, item in enumerate(value):
            record = _record(item, locations.get(number) or f"{path} {name.format(number)}")
            if record.image not in complete_images:
                yield record
            if "reference_strs" in item:  # TextCaps repeats all captions of an image in each of its records
                complete_images.add(record.image)
    elif not isinstance(value, dict):
        raise InputError(f"{path} holds no captions: expected {EXPECTED}.")
    elif "images" in value and ("annotations" in value or not _has_captions(value["images"])):
        yield from _coco_records(value, path)
    elif key := next((key for key in LIST_KEYS if isinstance(value.get(key), list | dict)), None):
        yield from _records(value[key], path, {}, f"{key}[{{}}]")
    elif any(key in value for key in (*FILE_KEYS, *ID_KEYS)):
        yield _record(value, f"{path} line 1")
    else:
        yield from _object_records(value, path)


def _record(record: Any, location: str) -> Record:
    """The record in an object that names an image and has its captions.

    The image is named by its `file`, the key of the user's own captions, or by a data set's id, or by another key.
    """
    fields = _check_type(record, dict, location)
    file_key, id_key, caption_key = (
        next((key for key in keys if key in fields), None) for keys in (FILE_KEYS, ID_KEYS, CAPTION_KEYS)
    )
    identifier = None if id_key is None else _identifier(fields[id_key], location, id_key)

    if file_key is not None and (identifier is None or isinstance(fields[file_key], str)):
        file = _plain_name(_check_type(fields[file_key], str, location, file_key))
        folder = fields.get("filepath") if file_key == "filename" else None  # in Karpathy's files
        if folder and not str(folder).endswith(file):
            file = f"{folder}/{file}"
    elif identifier is not None:
        file = identifier
    else:
        raise InputError(
            f"{location} does not name an image, for example by 'file' or 'image_id': it has {_keys(fields)}."
        )
    if file_key == "file" and "caption" in fields and "captions" in fields:
        raise InputError(f"{location} must have either 'caption' or 'captions'.")

    captions, best = ([], {}) if caption_key is None else _texts(fields[caption_key], location)
    if not captions:
        raise InputError(f"{location} has no caption of {file}: it has {_keys(fields)}.")
    split = str(fields["split"]) if caption_key == "sentences" and "split" in fields else None  # in Karpathy's files
    is_named_by_id = identifier is not None and id_key in ("cocoid", "image_id") and file_key != "file"
    by_user = not is_named_by_id and not best
    entries = [Entry(file, " ".join(text.split()) if by_user else text, location, split, by_user) for text in captions]
    if identifier is not None and is_named_by_id:
        return Record(identifier, entries, file, best)
    return Record(file, entries, identifier if id_key != "id" else None, best)


def _coco_records(value: dict[str, Any], path: Path) -> Iterator[Record]:
    """The records in COCO's form. Captions that VizWiz marks as rejected are left out, as by VizWiz's own tools."""
    annotations = _field(value, "annotations", list, str(path))
    files: dict[str, str] = {}
    for number, image in enumerate(_field(value, "images", list, str(path))):
        location = f"{path} images[{number}]"
        identifier = _identifier(_check_type(image, dict, location).get("id"), location, "id")
        file = _check_type(image.get("file_name", identifier), str, location, "file_name")
        if files.setdefault(identifier, file) != file:
            raise InputError(f"{location} has the id {identifier} again.")
    captions: dict[str, list[Entry]] = {identifier: [] for identifier in files}
    rejected = 0
    for number, annotation in enumerate(annotations):
        location = f"{path} annotations[{number}]"
        identifier = _identifier(_check_type(annotation, dict, location).get("image_id"), location, "image_id")
        caption = _field(annotation, "caption", str, location)
        if annotation.get("is_rejected") or annotation.get("is_precanned"):
            rejected += 1
        else:
            captions.setdefault(identifier, []).append(Entry(files.get(identifier, identifier), caption, location))
    if rejected:
        log.warning("%s has %s rejected or precanned captions, which are left out.", path, f"{rejected:,}")
    for identifier, entries in captions.items():
        yield Record(identifier, entries, files.get(identifier))


def _object_records(value: dict[str, Any], path: Path) -> Iterator[Record]:
    """The records in an object whose keys are the names of images and whose values are their captions."""
    for image, captions in value.items():
        texts = captions if isinstance(captions, list) else [captions]
        if not all(isinstance(text, str) or (isinstance(text, dict) and {*text} & {*CAPTION_KEYS}) for text in texts):
            raise InputError(
                f"{path} holds no captions under '{image}': it is an object with {_keys(value)}. Expected {EXPECTED}."
            )
        location = f"{path}: image {image}"
        yield Record(image, [Entry(image, caption, location) for caption in _texts(captions, location)[0]])


def _texts(value: Any, location: str) -> tuple[list[str], Mapping[str, Any]]:
    """The captions in a value, a caption or a list. Of hypotheses, the best and its fields are returned."""
    values = value if isinstance(value, list) else [value]
    first_record = values[0] if values and isinstance(values[0], dict) else {}
    if "text" in first_record:  # hypotheses, the best first
        return [_field(first_record, "text", str, location)], first_record
    if key := next((key for key in ("caption", "raw") if key in first_record), None):
        return [_field(caption, key, str, location) for caption in values], {}
    if not all(isinstance(caption, str) for caption in values):
        values = [_check_type(caption, str, f"{location}: a caption") for caption in values]
    return values, {}


def _identifier(value: Any, location: str, key: str) -> str:
    """The id of an image as a string, since 42 and "42" are the same image."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{location}: '{key}' must be a whole number or text, not {json.dumps(value)}.")
    return str(value)


def _has_captions(images: Any) -> bool:
    """Whether the objects of images include their captions, as in Karpathy's files."""
    first_image = images[0] if isinstance(images, list) and images else None
    return not isinstance(first_image, dict) or not {*CAPTION_KEYS}.isdisjoint(first_image)


def _keys(fields: Mapping[str, Any]) -> str:
    """The first keys of an object, for an error message."""
    names = [repr(key) for key in fields][:8]  # keeps the message readable
    return f"the keys {', '.join(names)}{', …' if len(fields) > len(names) else ''}" if fields else "no keys"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a JSON object. Raises KeyError if a key occurs twice, in which case `json` would drop a value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return fields


# Text


def _separator(header: str) -> str | None:
    """The separator of the columns in a header; None if the line is not a header that names images and captions."""
    for separator in SEPARATORS:
        names = _column_names(header.split(separator))
        if set(names) & {*FILE_KEYS, *ID_KEYS} and set(names) & set(CAPTION_KEYS):
            return separator
    return None


def _is_image(name: str) -> bool:
    """Whether the text is a number, or a file name with the suffix of an image."""
    return name.isdigit() or Path(name).suffix.casefold() in SUFFIXES


def _column_names(cells: Iterable[str]) -> list[str]:
    """The normalised names of columns: file_name for "File Name"."""
    return [re.sub(r"[\s-]+", "_", cell.strip().strip('"').strip().casefold()) for cell in cells]


def _numbered_records(lines: Lines, form: re.Pattern[str], parts: str, path: Path) -> Iterator[Record]:
    """The records in lines of Flickr8k or Flickr30k, with a number for each caption. `parts` describes the form of a
    line in messages.
    """
    numbers = set()
    for number, line in lines:
        location = f"{path} line {number:,}"
        match = form.fullmatch(line)
        if match is None:
            raise InputError(f"{location} must be {parts}.")
        image, digits, caption = match["image"], match["number"], match["caption"].strip()
        if (image, digits) in numbers:
            raise InputError(f"{location} has caption {digits} of {image} again.")
        numbers.add((image, digits))
        yield Record(image, [Entry(image, caption, location)])


def _tab_records(lines: Lines, path: Path) -> Iterator[Record]:
    """The records in lines of an image, a tab and its caption.

    If scores follow the captions, the lines of an image are its n best captions, and only the first of them is used.
    Raises InputError for a header that names a column of images or of captions, but not both.
    """
    first, header = lines[0]
    cells = [cell.strip() for cell in header.split("\t")]
    if not _is_image(cells[0]) and not {*_column_names(cells)}.isdisjoint([*FILE_KEYS, *ID_KEYS, *CAPTION_KEYS]):
        raise InputError(
            f"{path} line {first:,} has the columns {', '.join(cells)}: call the column of images 'file' and that of "
            "captions 'caption', or remove this line."
        )
    earlier_images = set()
    for number, line in lines:
        match = WRITTEN_LINE.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path} line {number:,} must be an image, a tab and its caption (and for the n best, a tab and its "
                "score), or the file must be JSON."
            )
        image = match["image"]
        if match["score"] is None or image not in earlier_images:
            yield Record(image, [Entry(image, match["caption"], f"{path} line {number:,}")])
        earlier_images.add(image)


def _table_records(text: str, separator: str, path: Path) -> Iterator[Record]:
    """The records in a table with a header. Quoted cells may contain separators and line ends."""
    rows = _rows(text.replace("\r", "\n"), separator, path)
    header = _column_names(next(rows)[1])
    file_index, id_index, caption_index = (
        next((header.index(name) for name in names if name in header), None)
        for names in (FILE_KEYS, ID_KEYS, CAPTION_KEYS)
    )
    image_index = id_index if file_index is None else file_index
    assert image_index is not None and caption_index is not None  # since `_separator` recognised the header
    for line, row in rows:
        location = f"{path} line {line:,}"
        if len(row) > image_index:
            _check_lines(row, line, image_index, separator, path)
        if len(row) != len(header):
            raise InputError(
                f"{location} has {len(row)} columns but the header has {len(header)}: "
                f"a caption that has {SEPARATORS[separator]} must be in double quotes."
            )
        name = _plain_name(row[image_index].strip())
        other = None if file_index is None or id_index is None or header[id_index] == "id" else row[id_index].strip()
        yield Record(name, [Entry(name, " ".join(row[caption_index].split()), location, by_user=True)], other)


def _rows(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The nonempty rows of a table, each with the number of its first line. Raises InputError for an unclosed quote."""
    escaped = re.escape(separator)
    cell = re.compile(rf' *"((?:[^"]|"")*+)" *(?=[{escaped}\n]|\Z)|([^{escaped}\n]*)')
    start, line = 0, 1
    while start < len(text):
        row: list[str] = []
        first, end = line, start - 1
        while not row or text[end : end + 1] == separator:
            match = cell.match(text, end + 1)
            assert match is not None  # a cell may be empty
            quoted, plain = match.groups()
            if plain is not None and plain.startswith('"'):
                raise InputError(
                    f'{path} line {line:,} opens a quote (") that does not close at the end of a column: close it or '
                    'leave it out; within quotes a quote is written "".'
                )
            row.append(plain if quoted is None else quoted.replace('""', '"'))
            line += match[0].count("\n")
            end = match.end()
        if any(map(str.strip, row)):
            yield first, row
        start, line = end + 1, line + 1


def _check_lines(row: Sequence[str], line: int, index: int, separator: str, path: Path) -> None:
    """Raise InputError if a quoted cell contains a line that looks like another row: its quote was left open."""
    for cell in row:
        for number, inner_line in enumerate(cell.split("\n")[1:], line + 1):
            cells = inner_line.split(separator)
            name = cells[index].strip() if len(cells) > max(index, 1) else None
            if name is not None and _form(name) in ("image", _form(row[index].strip())):
                raise InputError(
                    f'{path} line {line:,} opens a quote (") that has not closed in line {number:,}, which names '
                    f"{name}: close it, or leave it out."
                )


def _form(name: str) -> str | int:
    """The form of an image's name: "image" for the suffix of one, any other suffix, "number", "path", or its number of
    words.
    """
    if suffix := Path(name).suffix.casefold():
        return "image" if suffix in SUFFIXES else suffix
    if name.isdigit():
        return "number"
    return "path" if "/" in name or "\\" in name else len(name.split())
