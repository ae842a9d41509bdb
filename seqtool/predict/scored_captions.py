"""Files of captions to score and of their references, and how the images of the two are matched."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from seqtool.data.corpora.caption_files import Captions, check_captions, read_captions
from seqtool.data.corpora.caption_files import records as read_records
from seqtool.data.corpora.coco import image_id
from seqtool.data.images.finding import ImageNames
from seqtool.errors import InputError

C = TypeVar("C")


def read_hypotheses(path: Path) -> Captions[str]:
    """Image → its only caption, from any file of captions; of the output of `caption` the best. Two captions for an
    image raise InputError.
    """
    entries = read_captions(path)
    for image, found in entries.items():
        if len(found) > 1:
            raise InputError(f"{path} has {len(found)} captions for image {image}: expected one an image.")
    return Captions({image: [found[0].caption] for image, found in entries.items() if found}, entries.others)


def read_references(path: Path) -> Captions[str]:
    """Image → captions, from any file of captions."""
    entries = read_captions(path)
    check_captions(entry for of_image in entries.values() for entry in of_image if entry.own)
    return Captions({image: [entry.caption for entry in found] for image, found in entries.items()}, entries.others)


def by_reference(file: str, references: Captions[str]) -> dict[str, str]:
    """The captions of a file of hypotheses, under the references' names of their images (`named`)."""
    hypotheses = read_hypotheses(Path(file))
    captions = {image: alternatives[0] for image, alternatives in hypotheses.items()}
    return named(file, captions, references, hypotheses.others)


def records(file: str, references: Captions[str]) -> dict[str, dict[str, Any]]:
    """All that a file says of each image's best caption, under the references' names of their images: its `text`, what
    else `caption format=jsonl` wrote, and as `file` the name in the file.
    """
    found: dict[str, dict[str, Any]] = {}
    others: dict[str, str] = {}
    for record in read_records(Path(file)):
        if record.captions:
            first = record.captions[0]
            found.setdefault(record.image, {"text": first.caption, **record.best, "file": first.image})
            others[record.other or record.image] = record.image
    return named(file, found, references, others)


def named(file: str, captions: Mapping[str, C], references: Captions[str], others: Mapping[str, str]) -> dict[str, C]:
    """What a file says of images, under the references' names of these images; `others`: the file's further names.

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

    found: dict[str, C] = {}
    called: dict[str, str] = {}
    for image, caption in captions.items():
        own = find(image) or find(further.get(image, image)) or image
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
