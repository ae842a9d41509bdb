"""The captions in files, by image: in JSON, in a list, in lines, or as data sets are published; in tables with a
header, in Flickr's two forms, and as `caption` writes them. Files are told apart by their content, and every error
message names the file and the line or entry in it.
"""

import json
import logging
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from seqtool.data.corpora.corpus import Captioned
from seqtool.data.images.finding import SUFFIXES
from seqtool.errors import InputError
from seqtool.runtime.files import NOT_ENDED, parse_json, read_lines, read_text

T = TypeVar("T")
Lines = Sequence[tuple[int, str]]  # numbered from 1, without empty ones

JSON = re.compile(r'\s*[\[{]\s*(["\[{\]}]|\Z)')  # how a file of JSON begins
TRANSLATIONS = '{"source": '  # how a line of `translate format=jsonl` begins
KINDS = {str: "text", list: "a list", dict: "an object", int: "a whole number"}

# The names that files give to what they hold: keys in JSON, columns in tables. The first that is there counts.
FILE = (
    *("file", "filename", "file_name", "image_path", "img_path", "file_path", "filepath", "path", "image_file"),
    *("image_filename", "image_name", "img_name", "image", "img", "photo", "picture"),
)
NUMBER = ("cocoid", "image_id", "img_id", "imgid", "id")
CAPTIONS = (
    *("caption", "captions", "reference_strs", "sentences", "caption_str", "comment", "description", "text"),
    *("sentence", "raw", "hypothesis", "prediction"),
)
LISTS = ("annotations", "images", "data", "predictions", "results")  # what an object may keep records under

SHAPES = (
    'a list of {"image_id": …, "caption": …} or {"image": …, "captions": […]}, such a list in an object, '
    '{"images": […], "annotations": […]} as of COCO, or an object of image to caption or captions'
)

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}

# Flickr8k.token.txt, and Flickr30k's results.csv, of which one published line lacks its second |.
TOKENS = re.compile(r"(?P<image>[^\t]+)#(?P<number>\d+)\t(?P<caption>.*)")
RESULTS = re.compile(r"(?P<image>[^|\t]+?)\s*\|\s*(?P<number>\d+)\s*\|?(?P<caption>.*)")
RESULTS_HEADER = re.compile(r"[^|]*image[^|]*\|[^|]*number[^|]*\|[^|]*", re.IGNORECASE)

# What `caption` writes.
SCORE = rf"\t(?P<score>-?([0-9]+(\.[0-9]+)?|inf|nan))(\t{NOT_ENDED})?"
WRITTEN = re.compile(rf"(?P<image>[^\t]*)\t(?P<caption>[^\t]*)({SCORE})?")

SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold half a pair, which cannot be written
LISTED = 10  # places that a message names

log = logging.getLogger("seqtool")


class Entry(NamedTuple):
    """A caption as it stands in a file, the name of its image's file, and its place in the file."""

    image: str
    caption: str
    place: str  # "captions.csv line 7"
    split: str | None = None  # if the file says
    own: bool = False  # in a form for anyone's own captions, in which white space means nothing


class Record(NamedTuple):
    """What a file says of an image.

    image: its name, which is the number that a data set gives it or the name of its file.
    captions: of several hypotheses only the best.
    other: any other name of it.
    best: all that `caption` wrote of the best hypothesis.
    """

    image: str
    captions: Sequence[Entry]
    other: str | None = None
    best: Mapping[str, Any] = {}


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


def records(path: Path) -> Iterator[Record]:
    """What a file says of images: captions as data sets are published, as `caption` writes them, or one's own. What is
    not JSON is told by its first line.
    """
    text = read_text(path)
    if JSON.match(text):
        return _json_records(text, path)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        return iter(())
    number, first = lines[0]
    separator = _separator(first)
    if separator and not RESULTS_HEADER.fullmatch(first):
        return _table(text, separator, path)
    if TOKENS.fullmatch(first):
        return _numbered(lines, TOKENS, "a file name, # and a number, one tab, a caption", path)
    if separator or RESULTS.fullmatch(first):
        return _numbered(lines[1:] if separator else lines, RESULTS, "a file name | a number | a caption", path)
    if "\t" in first:
        return _written(lines, path)
    if path.name.lower().removesuffix(".gz").endswith((".json", ".jsonl")):
        return _json_records(text, path)
    shown = first if len(first) <= 60 else f"{first[:60]}…"
    raise InputError(
        f"{path} line {number:,} is {shown!r}: a file of captions has a header that names columns of images and "
        "captions, as in file,caption; or lines of an image, a tab and its caption; or is JSON."
    )


def holds_captions(path: Path) -> bool:
    """Whether the file begins with a caption of an image, in JSON or under a header, rather than with a sentence."""
    lines = (line for line in read_lines(path, may_be_empty=True, with_ends=True) if line.strip())
    first, second = next(lines, ""), next(lines, "")
    if _separator(first):
        return any(_is_image(cell.strip('" \n\r')) for cell in re.split(r"[,;\t|]", second))
    if JSON.match(first) and not first.startswith(TRANSLATIONS):
        for text in (first, read_text(path)):
            with suppress(InputError):
                record = next(_json_records(text, path), None)
                names = any(f'"{key}"' in text for key in (*FILE, *NUMBER))
                return record is not None and (names or _is_image(record.image))
    return False


# JSON


def _json_records(text: str, path: Path) -> Iterator[Record]:
    """The records in a file of JSON, whichever of the known shapes it has. JSON lines are a list of their values, which
    have places of their own.
    """
    try:
        return _records(_parsed(text, path), path, {})
    except InputError as error:
        first = text.lstrip().partition("\n")[0].rstrip()
        if isinstance(error.__cause__, KeyError) or not first.endswith("}"):
            raise
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    places = {i: f"{path} line {number:,}" for i, (number, _) in enumerate(lines)}
    return _records([_parsed(line, path, number) for number, line in lines], path, places)


def _field(record: Any, key: str, kind: type[T], place: str) -> T:
    """record[key], which must be of the kind; `place` names the record in an error message."""
    fields = _checked(record, dict, place)
    if key not in fields:
        raise InputError(f"{place} has no '{key}'.")
    return _checked(fields[key], kind, place, key)


def _parsed(text: str, path: Path, line: int | None = None) -> Any:
    """The value of the JSON in a file, or in one line of it."""
    place = str(path) if line is None else f"{path} line {line:,}"
    try:
        return parse_json(text, _unique)
    except json.JSONDecodeError as error:
        number = error.lineno if line is None else line
        raise InputError(f"{path} line {number:,} is not JSON (column {error.colno:,}: {error.msg}).") from error
    except KeyError as error:
        raise InputError(f"{place} has {error} twice in one object: every image must stand once.") from error
    except ValueError as error:
        raise InputError(f"{place} cannot be read as JSON ({error}).") from error


def _checked(value: Any, kind: type[T], place: str, key: str | None = None) -> T:
    """The value, which must be of the kind; its place, or the record's and the key, name it in an error message."""
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    what = place if key is None else f"{place}: '{key}'"
    raise InputError(f"{what} must be {KINDS[kind]}, not {shown}.")


def _plain_name(name: str) -> str:
    """The name of a file without what means nothing: a/./b.jpg is a/b.jpg."""
    return name if "://" in name else str(PurePosixPath(name))


def _records(value: Any, path: Path, places: Mapping[int, str], name: str = "entry {}") -> Iterator[Record]:
    if isinstance(value, list):
        complete = set()
        for number, item in enumerate(value):
            record = _record(item, places.get(number) or f"{path} {name.format(number)}")
            if record.image not in complete:
                yield record
            if "reference_strs" in item:  # TextCaps has all of an image's captions with each of them
                complete.add(record.image)
    elif not isinstance(value, dict):
        raise InputError(f"{path} holds no captions: expected {SHAPES}.")
    elif "images" in value and ("annotations" in value or not _has_captions(value["images"])):
        yield from _annotations(value, path)
    elif key := next((key for key in LISTS if isinstance(value.get(key), list | dict)), None):
        yield from _records(value[key], path, {}, f"{key}[{{}}]")
    elif any(key in value for key in (*FILE, *NUMBER)):
        yield _record(value, f"{path} line 1")
    else:
        yield from _mapping(value, path)


def _record(record: Any, place: str) -> Record:
    """An object that names an image and has its captions. A data set's number of the image goes before a file's name,
    except for `file`, the key of anyone's own captions.
    """
    fields = _checked(record, dict, place)
    file_key, number_key, key = (next(filter(fields.__contains__, keys), None) for keys in (FILE, NUMBER, CAPTIONS))
    number = None if number_key is None else _number(fields[number_key], place, number_key)
    if file_key is not None and (number is None or isinstance(fields[file_key], str)):
        file = _plain_name(_checked(fields[file_key], str, place, file_key))
        folder = fields.get("filepath") if file_key == "filename" else None  # Karpathy's
        file = file if not folder or str(folder).endswith(file) else f"{folder}/{file}"
    elif number is not None:
        file = number
    else:
        raise InputError(f'{place} names no image, as in "file" or "image_id": it has {_keys(fields)}.')
    if file_key == "file" and "caption" in fields and "captions" in fields:
        raise InputError(f"{place} must have either 'caption' or 'captions'.")
    captions, best = ([], {}) if key is None else _texts(fields[key], place)
    if not captions:
        raise InputError(f"{place} has no caption of {file}: it has {_keys(fields)}.")
    split = str(fields["split"]) if key == "sentences" and "split" in fields else None  # Karpathy's
    is_numbered = number is not None and number_key in ("cocoid", "image_id") and file_key != "file"
    own = not is_numbered and not best
    entries = [Entry(file, " ".join(text.split()) if own else text, place, split, own) for text in captions]
    if number is not None and is_numbered:
        return Record(number, entries, file, best)
    return Record(file, entries, number if number_key != "id" else None, best)


def _annotations(value: dict[str, Any], path: Path) -> Iterator[Record]:
    """COCO's form, also nocaps' and VizWiz's, whose rejected captions are left out as its own tools do."""
    annotations = _field(value, "annotations", list, str(path))
    files: dict[str, str] = {}
    for number, image in enumerate(_field(value, "images", list, str(path))):
        place = f"{path} images[{number}]"
        identifier = _number(_checked(image, dict, place).get("id"), place, "id")
        file = _checked(image.get("file_name", identifier), str, place, "file_name")
        if files.setdefault(identifier, file) != file:
            raise InputError(f"{place} has the id {identifier} again.")
    captions: dict[str, list[Entry]] = {identifier: [] for identifier in files}
    rejected = 0
    for number, annotation in enumerate(annotations):
        place = f"{path} annotations[{number}]"
        identifier = _number(_checked(annotation, dict, place).get("image_id"), place, "image_id")
        caption = _field(annotation, "caption", str, place)
        if annotation.get("is_rejected") or annotation.get("is_precanned"):
            rejected += 1
        else:
            captions.setdefault(identifier, []).append(Entry(files.get(identifier, identifier), caption, place))
    if rejected:
        log.warning("%s has %s rejected or precanned captions, which are left out.", path, f"{rejected:,}")
    for identifier, entries in captions.items():
        yield Record(identifier, entries, files.get(identifier))


def _mapping(value: dict[str, Any], path: Path) -> Iterator[Record]:
    """An object of image to caption or captions."""
    for image, captions in value.items():
        texts = captions if isinstance(captions, list) else [captions]
        if not all(isinstance(text, str) or (isinstance(text, dict) and {*text} & {*CAPTIONS}) for text in texts):
            raise InputError(
                f"{path} holds no captions under '{image}': it is an object with {_keys(value)}. Expected {SHAPES}."
            )
        place = f"{path}: image {image}"
        yield Record(image, [Entry(image, caption, place) for caption in _texts(captions, place)[0]])


def _texts(value: Any, place: str) -> tuple[list[str], Mapping[str, Any]]:
    """One caption or several. Of objects with a `text`, which `caption` writes with the best first, the best."""
    values = value if isinstance(value, list) else [value]
    first = values[0] if values and isinstance(values[0], dict) else {}
    if "text" in first:
        return [_field(first, "text", str, place)], first
    if key := next((key for key in ("caption", "raw") if key in first), None):
        return [_field(caption, key, str, place) for caption in values], {}
    if not all(isinstance(caption, str) for caption in values):
        values = [_checked(caption, str, f"{place}: a caption") for caption in values]
    return values, {}


def _number(value: Any, place: str, key: str) -> str:
    """An image's id: 42 and "42" are the same image."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{place}: '{key}' must be a whole number or text, not {json.dumps(value)}.")
    return str(value)


def _has_captions(images: Any) -> bool:
    """Whether the images have their captions themselves, as in Karpathy's files."""
    first = images[0] if isinstance(images, list) and images else None
    return not isinstance(first, dict) or not {*CAPTIONS}.isdisjoint(first)


def _keys(fields: Mapping[str, Any]) -> str:
    shown = [repr(key) for key in fields][:8]
    return f"the keys {', '.join(shown)}{', …' if len(fields) > len(shown) else ''}" if fields else "no keys"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: JSON readers silently keep the last of two equal ones."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return fields


# Text


def _separator(header: str) -> str | None:
    """What stands between the columns of this header, if it names those of images and of captions."""
    for separator in SEPARATORS:
        names = _names(header.split(separator))
        if set(names) & {*FILE, *NUMBER} and set(names) & set(CAPTIONS):
            return separator
    return None


def _is_image(name: str) -> bool:
    """Whether this can only be the name or the number of an image."""
    return name.isdigit() or Path(name).suffix.casefold() in SUFFIXES


def _names(cells: Iterable[str]) -> list[str]:
    """The names of columns, in one spelling: "File Name" is file_name."""
    return [re.sub(r"[\s-]+", "_", cell.strip().strip('"').strip().casefold()) for cell in cells]


def _numbered(lines: Lines, form: re.Pattern[str], parts: str, path: Path) -> Iterator[Record]:
    """The lines of Flickr8k and Flickr30k, in which the captions of each image are numbered."""
    seen = set()
    for number, line in lines:
        place = f"{path} line {number:,}"
        match = form.fullmatch(line)
        if match is None:
            raise InputError(f"{place} must be {parts}.")
        image, digits, caption = match["image"], match["number"], match["caption"].strip()
        if (image, digits) in seen:
            raise InputError(f"{place} has caption {digits} of {image} again.")
        seen.add((image, digits))
        yield Record(image, [Entry(image, caption, place)])


def _written(lines: Lines, path: Path) -> Iterator[Record]:
    """Lines of an image, a tab and its caption; with scores at the end, n lines per image, best first. Refuses columns
    under names of which only that of the images or that of the captions is known.
    """
    first, header = lines[0]
    cells = [cell.strip() for cell in header.split("\t")]
    if not _is_image(cells[0]) and not {*_names(cells)}.isdisjoint([*FILE, *NUMBER, *CAPTIONS]):
        raise InputError(
            f"{path} line {first:,} has the columns {', '.join(cells)}: call that of the images file, and that of the "
            "captions caption; or leave this line out."
        )
    ranked = set()
    for number, line in lines:
        match = WRITTEN.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path} line {number:,} must be an image, a tab and its caption (of n best, also its score), or the "
                "file JSON."
            )
        image = match["image"]
        if match["score"] is None or image not in ranked:
            yield Record(image, [Entry(image, match["caption"], f"{path} line {number:,}")])
        ranked.add(image)


def _table(text: str, separator: str, path: Path) -> Iterator[Record]:
    """A table under a header, in which quotes may hold separators and line ends."""
    rows = _rows(text.replace("\r", "\n"), separator, path)
    header = _names(next(rows)[1])
    file, number, caption = (
        next((header.index(name) for name in names if name in header), None) for names in (FILE, NUMBER, CAPTIONS)
    )
    image = number if file is None else file
    assert image is not None and caption is not None  # as `_separator` found
    for line, row in rows:
        place = f"{path} line {line:,}"
        if len(row) > image:
            _check_lines(row, line, image, separator, path)
        if len(row) != len(header):
            raise InputError(
                f"{place} has {len(row)} columns but the header has {len(header)}: "
                f"a caption that has {SEPARATORS[separator]} must stand in double quotes."
            )
        name = _plain_name(row[image].strip())
        other = None if file is None or number is None or header[number] == "id" else row[number].strip()
        yield Record(name, [Entry(name, " ".join(row[caption].split()), place, own=True)], other)


def _rows(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not empty, each with the number of its first line."""
    mark = re.escape(separator)
    cell = re.compile(rf' *"((?:[^"]|"")*+)" *(?=[{mark}\n]|\Z)|([^{mark}\n]*)')
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


def _check_lines(row: Sequence[str], line: int, image: int, separator: str, path: Path) -> None:
    """Refuse a quoted text over several lines of which one looks like another record, with a name like this image's."""
    for cell in row:
        for number, inner in enumerate(cell.split("\n")[1:], line + 1):
            cells = inner.split(separator)
            if len(cells) > image and len(cells) > 1 and _alike(cells[image].strip(), row[image].strip()):
                raise InputError(
                    f'{path} line {line:,} opens a quote (") that has not closed in line {number:,}, which names '
                    f"{cells[image].strip()}: close it, or leave it out."
                )


def _alike(name: str, image: str) -> bool:
    """Whether the text could be the name of another image, in a file that has this name of one."""
    suffix, own = (Path(text).suffix.casefold() for text in (name, image))
    if suffix in SUFFIXES or suffix == own != "":
        return True
    return suffix == own and _shape(name) == _shape(image)


def _shape(name: str) -> str | int:
    """What names without a suffix have in common in a file: they are numbers, or paths, or have as many words."""
    return "number" if name.isdigit() else "path" if "/" in name or "\\" in name else len(name.split())
