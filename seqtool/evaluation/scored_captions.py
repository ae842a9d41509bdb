"""Files of captions to score and of their references, and how the images of the two are matched."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from seqtool.data.corpora.caption_files import Captions, check_captions, read_captions, records
from seqtool.data.images.finding import ImageNames, image_id
from seqtool.errors import InputError

T = TypeVar("T")


def read_references(path: Path) -> Captions[str]:
    """Image → captions, from any file of captions."""
    entries = read_captions(path)
    check_captions(entry for of_image in entries.values() for entry in of_image if entry.own)
    captions = {image: [entry.caption for entry in of_image] for image, of_image in entries.items()}
    return Captions(captions, entries.others)


def read_hypotheses(file: str, references: Captions[str]) -> dict[str, dict[str, Any]]:
    """What a file says of each image's only caption, under the references' names of the images (`named`): its `text`,
    what else `caption format=jsonl` wrote of its best one, and as `file` the image's name in the file. InputError for
    an image with two captions.
    """
    captions: dict[str, list[dict[str, Any]]] = {}
    others: dict[str, str] = {}
    for record in records(Path(file)):
        entries = [{**record.best, "text": entry.caption, "file": entry.image} for entry in record.captions]
        captions.setdefault(record.image, []).extend(entries)
        others[record.other or record.image] = record.image
    if not captions:
        raise InputError(f"{file} has no captions.")
    for image, listed in captions.items():
        if len(listed) > 1:
            raise InputError(f"{file} has {len(listed)} captions for image {image}: expected one an image.")
    return named(file, {image: listed[0] for image, listed in captions.items() if listed}, references, others)


def named(file: str, captions: Mapping[str, T], references: Captions[str], others: Mapping[str, str]) -> dict[str, T]:
    """What a file says of images, under the names that these have in the references; others: the file's further names.

    An image may have the same name in both, or one that is the end of the other's path (`photos/a.jpg` is `a.jpg`) in
    any normal form and case, or the number or name that it has in COCO's results. An image that is not among the
    references, or might be several of them, keeps its name.
    """
    names = ImageNames([*references, *references.others])
    short: dict[str, set[str]] = {}
    for image in references:
        short.setdefault(_short(image), set()).add(image)
    further = {image: other for other, image in others.items()}

    def find(name: str) -> str | None:
        if name in references:
            return name
        alike = [name] if name in references.others else names.find(name)
        images = {references.others.get(other, other) for other in alike} & references.keys()
        images = images or short.get(_short(name), set())
        return next(iter(images)) if len(images) == 1 else None

    renamed: dict[str, T] = {}
    called: dict[str, str] = {}
    for image, caption in captions.items():
        name = find(image) or find(further.get(image, image)) or image
        if name in renamed:
            raise InputError(f"{file} has captions for {called[name]} and {image}, which are both image {name}.")
        renamed[name], called[name] = caption, image
    return renamed


def check_images(
    hypotheses: Mapping[str, Any],
    references: Mapping[str, Sequence[str]],
    *,
    hypotheses_name: str = "the hypotheses",
    references_name: str = "the references",
) -> None:
    """Refuse captions and references of different images, saying how many have no counterpart and naming one."""
    check_references(references, name=references_name)
    missing = [image for image in references if image not in hypotheses]
    unknown = [image for image in hypotheses if image not in references]
    if unknown and len(missing) == len(references):
        raise InputError(
            f"{hypotheses_name} and {references_name} have no image in common: {hypotheses_name} has "
            f"{_count(unknown).rstrip(',')}; {references_name} has {_count(missing).rstrip(',')}."
        )
    if missing:
        raise InputError(
            f"{hypotheses_name} has no caption for {_count(missing)} of {references_name}: every image must have one."
        )
    if unknown:
        raise InputError(
            f"{hypotheses_name} has captions for {_count(unknown)} that {references_name} does not have: "
            "remove them, or give the references of the same images. An image that it has is called "
            f"{next(iter(references))} there."
        )


def check_references(references: Mapping[str, Sequence[str]], *, name: str) -> None:
    """Refuse references without images, and images without references."""
    if not references:
        raise InputError(f"{name} has no image: there is nothing to score.")
    if without := [image for image, captions in references.items() if not captions]:
        raise InputError(f"{name} has no caption for {_count(without)}: every image needs at least one.")


def _count(images: Sequence[str]) -> str:
    return f"image {images[0]}" if len(images) == 1 else f"{len(images):,} images, such as {images[0]},"


def _short(image: str) -> str:
    """COCO's number, or the name of the file without its directory."""
    return str(image_id(PurePosixPath(image).name))
