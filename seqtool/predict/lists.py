"""The lists that callers in Python hand over: checked before any work, and refused without printing what they hold."""

from collections.abc import Callable, Collection, Mapping, Set
from io import BytesIO, TextIOBase
from os import PathLike, fspath
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seqtool.data.images.image_decoding import ImageError, open_image, read_image, upright_rgb
from seqtool.errors import InputError

LONGEST_NAME = 4096  # characters of a path or an address


@runtime_checkable
class Readable(Protocol):
    """A file that is open."""

    def read(self) -> Any: ...


Picture = str | PathLike[str] | Image.Image | NDArray[np.uint8] | bytes | bytearray | memoryview | Readable
"""A path, an http(s) address, a Pillow image, an array of height × width × 3, the bytes of a file, or an open file."""


def check_texts(values: Any, *, what: str, kind: str) -> list[str]:
    """The texts of a list. `what`: the beginning of a message, as "translate takes"; `kind`: what each text is."""
    return [str(text) for text in _items(values, what, kind, lambda text: isinstance(text, str), "text")]


def check_paths(values: Any, *, what: str, kind: str) -> list[str]:
    """The paths of a list."""
    listed = _items(values, what, kind, lambda path: isinstance(path, str | PathLike), "a path")
    return [str(fspath(path)) for path in listed]


def check_pictures(values: Any, *, what: str) -> list[Picture]:
    """The images of a list or of an array of images; none is read yet."""
    wanted = "a path, a Pillow image, an array of uint8 (height × width × 3), bytes or a file opened with mode 'rb'"
    if isinstance(values, np.ndarray) and values.ndim == 4:
        values = list(values)
    return _items(values, what, "image", _is_picture, wanted)


def named(picture: Picture, number: int) -> str:
    """What an image is called: its path or address, or its number in the list, from 1."""
    if isinstance(picture, Image.Image):
        return str(getattr(picture, "filename", "")) or f"image {number}"
    return str(picture) if isinstance(picture, str | PathLike) else f"image {number}"


def opened(picture: Picture, name: str) -> Image.Image:
    """The image as RGB, upright. Raises ImageError, which says `name`."""
    if isinstance(picture, Image.Image):
        return upright_rgb(picture, name=name)
    if isinstance(picture, np.ndarray):
        return upright_rgb(Image.fromarray(np.ascontiguousarray(picture)), name=name)
    if isinstance(picture, bytes | bytearray | memoryview):
        return open_image(BytesIO(picture), name=name)
    if isinstance(picture, str | PathLike):
        if len(name) > LONGEST_NAME:  # the image itself as text, as in base64
            raise ImageError(f"'{name[:40]}…'", "is too long for the name of a file or an address.")
        return read_image(name)
    return _from_file(picture, name)


def _items(values: Any, what: str, kind: str, suits: Callable[[Any], bool], wanted: str) -> list[Any]:
    """The items of a list, a tuple, or an array or column of a table; a set has no order, and a table has columns."""
    if suits(values):
        raise InputError(f"{what} a list of {kind}s: write [{kind}] for a single one.")
    unfit = isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Collection)
    if unfit or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{what} a list of {kind}s, not {_described(values)}.")
    items = list(values)
    for number, item in enumerate(items, 1):
        if not suits(item):
            raise InputError(f"{what} a list of {kind}s, but number {number:,} is {_described(item)}, not {wanted}.")
    return items


def _is_picture(picture: Any) -> bool:
    if isinstance(picture, np.ndarray):
        return picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3 and picture.size > 0
    if isinstance(picture, Readable):
        return not isinstance(picture, TextIOBase)
    return isinstance(picture, str | PathLike | Image.Image | bytes | bytearray | memoryview)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} ({' × '.join(map(str, value.shape)) or 'one number'})"
    name = type(value).__name__
    return "None" if value is None else f"a{'n' if name[0] in 'aeiou' else ''} {name}"


def _from_file(file: Any, name: str) -> Image.Image:
    """From its beginning, if the file can go back to it."""
    try:
        if getattr(file, "seekable", bool)():  # without such a method it cannot
            file.seek(0)
        content = file.read()
    except (OSError, ValueError) as error:
        raise ImageError(name, f"cannot be read ({error}).") from error
    if not isinstance(content, bytes):
        raise ImageError(name, "gives no bytes: open the file with mode 'rb'.")
    return open_image(BytesIO(content), name=name)
