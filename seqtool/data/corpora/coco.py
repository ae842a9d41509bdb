"""COCO's annotation files, and the ids that its own tools use for images."""

import contextlib
import re
from pathlib import Path
from typing import Any

from seqtool.data.corpora.caption_files import field, read_json
from seqtool.errors import InputError

NAME = re.compile(r"(?:COCO_\w+_)?(\d{12})(?:\.\w+)?")  # COCO_val2014_000000000042.jpg, 000000000042.jpg


def image_id(image: str) -> int | str:
    """COCO's number of an image, if its name has the form of COCO's file names or is the number; otherwise its name."""
    if match := NAME.fullmatch(image):
        return int(match[1])
    return int(image) if image.isdecimal() and str(int(image)) == image else image


def read_annotations(path: Path) -> Any:
    """The captions of a file as pycocotools indexes them: `imgs` by id, and `imgToAnns`, the annotations of each, with
    their `place` in the file. Raises InputError if an image has no file name or caption, or its id occurs twice.
    """
    from pycocotools.coco import COCO  # takes a moment, and only COCO's own corpus needs it

    content = read_json(path)
    images = field(content, "images", list, str(path))
    known = set()
    for number, record in enumerate(images):
        place = f"{path} images[{number}]"
        identifier = field(record, "id", int, place)
        if identifier in known:
            raise InputError(f"{place} has the id {identifier} again.")
        known.add(identifier)
        field(record, "file_name", str, place)
    if not known:
        raise InputError(f"{path} has no images.")
    annotations = field(content, "annotations", list, str(path))
    for number, record in enumerate(annotations):
        place = f"{path} annotations[{number}]"
        identifier = field(record, "image_id", int, place)
        if identifier not in known:
            raise InputError(f"{place} is a caption of image {identifier}, which is not among the images.")
        field(record, "caption", str, place)
        record |= {"id": number, "place": place}
    found = COCO()  # type: ignore[no-untyped-call]
    found.dataset = {"images": images, "annotations": annotations}
    with contextlib.redirect_stdout(None):  # pycocotools prints what it does
        found.createIndex()  # type: ignore[no-untyped-call]
    for identifier, image in found.imgs.items():
        if identifier not in found.imgToAnns:
            raise InputError(f"{path} has no caption of image {identifier}, {image['file_name']}.")
    return found
