"""Files of captions to score and of their references, and how the images of the two are matched."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from seqtool.data.corpora.caption_files import captioned, field, read_captions
from seqtool.data.corpora.coco import image_id
from seqtool.errors import InputError
from seqtool.runtime.files import BOM, parse_json, read_lines, read_whole
from seqtool.runtime.outputs import NOT_ENDED

SHAPES = (
    'a list of {"image_id": …, "caption": …}, an object {"images": […], "annotations": […]}, '
    "or an object of image id to caption or list of captions"
)

# What `caption` writes.
SCORE = rf"\t(?P<score>-?([0-9]+(\.[0-9]+)?|inf|nan))(\t{NOT_ENDED})?"
LINE = re.compile(rf"(?P<image>[^\t]*)\t(?P<caption>[^\t]*)({SCORE})?")

C = TypeVar("C")
Captions = dict[str, list[str]]  # by image; ids are text: the number 42 and the text "42" are the same image


def read_hypotheses(path: Path) -> dict[str, str]:
    """Image → caption: COCO's results, or the best captions from the output of `caption` in any format.

    Two captions for an image raise InputError.
    """
    captions = _json_lines(path) if _is(path, ".jsonl") else read_references(path)
    for image, alternatives in captions.items():
        if len(alternatives) > 1:
            raise InputError(f"{path} has {len(alternatives)} captions for image {image}: expected one an image.")
    return {image: alternatives[0] for image, alternatives in captions.items() if alternatives}


def read_references(path: Path) -> Captions:
    """Image → captions: COCO's annotations, or the user's own captions as `prepare` reads them, .jsonl or .csv.

    A file with another suffix that does not begin like JSON has lines of an image, a tab and its caption.
    """
    if is_own(path):
        return _own(path)
    content = read_whole(path)
    begins = content.removeprefix(BOM).lstrip()[:1]
    return _json(path, content) if _is(path, ".json") or begins in (b"[", b"{", b"") else _lines(path)


def is_own(path: Path) -> bool:
    """Whether the file has the user's own format of captions, which may hold those of every split."""
    return _is(path, ".jsonl", ".csv")


def by_reference(file: str, references: Mapping[str, Any]) -> dict[str, str]:
    """The captions of a file of hypotheses, under the references' names of their images (`named`)."""
    return named(file, read_hypotheses(Path(file)), references)


def records(file: str, references: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """All that `caption format=jsonl` wrote of each image's best caption, under the references' names of their images,
    with the name in the file as `file`; nothing if the file has another format.
    """
    if not _is(Path(file), ".jsonl"):
        return {}
    found = {}
    for line in read_lines(Path(file)):
        record = parse_json(line) if line.strip() else {}
        if isinstance(record, dict) and isinstance(record.get("captions"), list) and "image" in record:
            best = record["captions"][0] if record["captions"] else {}
            found[str(record["image"])] = {**(best if isinstance(best, dict) else {}), "file": str(record["image"])}
    return named(file, found, references)


def named(file: str, captions: Mapping[str, C], references: Mapping[str, Any]) -> dict[str, C]:
    """What a file says of images, under the references' names of these images.

    An image may have the same name in both, or the end of its path (`photos/a.jpg` is `a.jpg`), or the number or name
    that it has in COCO's results. An image that is not among the references keeps its name.
    """
    short: dict[str, list[str]] = {}
    for image in references:
        short.setdefault(_short(image), []).append(image)
    found: dict[str, C] = {}
    called: dict[str, str] = {}
    for image, caption in captions.items():
        parts = PurePosixPath(image).parts
        ends = (PurePosixPath(*parts[i:]).as_posix() for i in range(len(parts)))
        alike = short.get(_short(image), [])
        own = next((end for end in (image, *ends) if end in references), alike[0] if len(alike) == 1 else image)
        if own in found:
            raise InputError(f"{file} has captions for {called[own]} and {image}, which are both image {own}.")
        found[own], called[own] = caption, image
    return found


def check_images(
    hypotheses: Mapping[str, Any],
    references: Mapping[str, Sequence[str]],
    *,
    hypotheses_name: str = "the hypotheses",
    references_name: str = "the references",
) -> None:
    """Refuse captions and references of different images, saying how many have no counterpart and naming one."""
    check_references(references, name=references_name)
    if missing := [image for image in references if image not in hypotheses]:
        raise InputError(
            f"{hypotheses_name} has no caption for {_some(missing)} of {references_name}: every image must have one."
        )
    if unknown := [image for image in hypotheses if image not in references]:
        raise InputError(
            f"{hypotheses_name} has captions for {_some(unknown)} that {references_name} does not have: "
            "remove them, or give the references of the same images."
        )


def check_references(references: Mapping[str, Sequence[str]], *, name: str) -> None:
    """Refuse references without images, and images without references."""
    if not references:
        raise InputError(f"{name} has no image: there is nothing to score.")
    if without := [image for image, captions in references.items() if not captions]:
        raise InputError(f"{name} has no caption for {_some(without)}: every image needs at least one.")


def _some(images: Sequence[str]) -> str:
    return f"image {images[0]}" if len(images) == 1 else f"{len(images):,} images, such as {images[0]},"


def _short(image: str) -> str:
    """COCO's number, or the name of the file without its directory."""
    return str(image_id(PurePosixPath(image).name))


def _is(path: Path, *suffixes: str) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(suffixes)


def _own(path: Path) -> Captions:
    return {image: list(captioned(Path(), found).captions) for image, found in read_captions(path).items()}


def _lines(path: Path) -> Captions:
    """Lines of an image, a tab and its caption; with scores at the end, n lines per image, best first."""
    captions: Captions = {}
    for number, line in enumerate(read_lines(path), 1):
        found = LINE.fullmatch(line)
        if found is None:
            raise InputError(
                f"{path} line {number:,} must be an image, a tab and its caption (of n best, also its score), or the "
                "file JSON."
            )
        if found["score"] is None or found["image"] not in captions:
            captions.setdefault(found["image"], []).append(found["caption"])
    return captions


def _json_lines(path: Path) -> Captions:
    """Output of `caption`, {"image": …, "captions": [{"text": …}, …]} with the best first, or the user's own format."""
    captions: Captions = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        place = f"{path} line {number:,}"
        try:
            record = parse_json(line)
        except ValueError as error:
            raise InputError(f"{place} is not JSON ({error}).") from error
        if isinstance(record, dict) and "file" in record:
            return _own(path)
        image, best = field(record, "image", str, place), field(record, "captions", list, place)[:1]
        captions.setdefault(image, []).extend(field(one, "text", str, place) for one in best)
    return captions


def _json(path: Path, content: bytes) -> Captions:
    data, name = _parsed(path, content), "entry {}"
    captions: Captions = {}
    if isinstance(data, dict) and "annotations" not in data:
        for image, value in data.items():
            values = value if isinstance(value, list) else [value]
            captions[image] = [_caption(caption, f"{path}: image {image}") for caption in values]
        return captions
    if isinstance(data, dict):
        images, data, name = data.get("images", []), data["annotations"], "annotations[{}]"
        if not isinstance(images, list) or not isinstance(data, list):
            raise InputError(f"{path}: images and annotations must be lists.")
        for place, entry in _objects(images, "images[{}]", path):
            captions.setdefault(_identifier(entry.get("id"), f"{place}.id"), [])
    if not isinstance(data, list):
        raise InputError(f"{path} holds no captions: expected {SHAPES}.")
    for place, annotation in _objects(data, name, path):
        image = _identifier(annotation.get("image_id"), f"{place}.image_id")
        captions.setdefault(image, []).append(_caption(annotation.get("caption"), f"{place}.caption"))
    return captions


def _parsed(path: Path, content: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object whose keys are all different: JSON readers silently keep the last of two equal ones."""
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputError(f"{path} has '{key}' twice in one object: every image must stand once.")
            found[key] = value
        return found

    try:
        return parse_json(content, unique)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start:,}): expected JSON.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {error.lineno:,} is not JSON ({error.msg}): expected {SHAPES}.") from error
    except ValueError as error:
        raise InputError(f"{path} cannot be read as JSON ({error}): expected {SHAPES}.") from error


def _objects(items: Sequence[Any], name: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a list with their places, each checked to be an object."""
    for number, item in enumerate(items):
        place = f"{path}: {name.format(number)}"
        if not isinstance(item, dict):
            raise InputError(f"{place} is not an object: expected {SHAPES}.")
        yield place, item


def _identifier(value: Any, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{place} is {json.dumps(value)}: expected an image id, a whole number or text.")
    return str(value)


def _caption(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{place} is {json.dumps(value)[:60]}: expected a caption.")
    return value
