"""The ids that COCO's own tools use for images."""

import re

NAME = re.compile(r"(?:COCO_\w+_)?(\d{12})(?:\.\w+)?")  # COCO_val2014_000000000042.jpg, 000000000042.jpg


def image_id(image: str) -> int | str:
    """COCO's number of an image, if its name has the form of COCO's file names or is the number; otherwise its name."""
    if match := NAME.fullmatch(image):
        return int(match[1])
    return int(image) if image.isdecimal() and str(int(image)) == image else image
