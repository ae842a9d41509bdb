"""Records of images and their captions in JSON, in a list, in lines, or as data sets are published."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from seqtool.errors import InputError
from seqtool.runtime.files import parse_json

T = TypeVar("T")
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


def _values(text: str, path: Path) -> tuple[Any, Mapping[int, str]]:
    """What a file of JSON holds; of JSON lines it is the list of their values, which have places of their own."""
    first = text.lstrip().partition("\n")[0].rstrip()
    try:
        return parse_json(text, _unique), {}
    except (ValueError, KeyError) as error:
        if isinstance(error, KeyError) or not first.endswith("}"):
            return _parsed(text, path), {}
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    places = {i: f"{path} line {number:,}" for i, (number, _) in enumerate(lines)}
    return [_parsed(line, path, number) for number, line in lines], places


def json_records(text: str, path: Path) -> Iterator[Record]:
    """The records in a file of JSON, whichever of the known shapes it has."""
    value, places = _values(text, path)
    return _records(value, path, places)


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


def plain_name(name: str) -> str:
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
        file = plain_name(_checked(fields[file_key], str, place, file_key))
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
    file_name = str(path)
    annotations = _field(value, "annotations", list, file_name)
    files: dict[str, str] = {}
    for number, image in enumerate(_field(value, "images", list, file_name)):
        place = f"{file_name} images[{number}]"
        identifier = _number(_checked(image, dict, place).get("id"), place, "id")
        file = _checked(image.get("file_name", identifier), str, place, "file_name")
        if files.setdefault(identifier, file) != file:
            raise InputError(f"{place} has the id {identifier} again.")
    captions: dict[str, list[Entry]] = {identifier: [] for identifier in files}
    rejected = 0
    for number, annotation in enumerate(annotations):
        place = f"{file_name} annotations[{number}]"
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
