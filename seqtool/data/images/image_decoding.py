"""Reads images, and fits them to a model's input.

This module does not import torch, so that worker processes start fast.
"""

import math
import stat
import struct
import threading
import warnings
import zlib
from collections.abc import Generator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from seqtool.errors import InputError, UnfinishedError
from seqtool.runtime import network
from seqtool.runtime.workers import in_order

MAX_PIXELS = 100_000_000  # larger images are refused
LARGE_PIXELS = 16_000_000  # larger images are read one at a time and reduced at once, so that they need little memory
BAND_PIXELS = 1_000_000  # pixels that are converted at a time
CHUNK = 64  # images that are read, and encoded by the backbone, together
MIN_PARALLEL = 4 * CHUNK  # fewer images are read by this process: it finishes before other processes could start
MAX_FILE_BYTES = 2**30  # files are read whole, by several processes at the same time
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")  # others are not tried: Pillow runs Ghostscript on EPS
ORIENTATION = 0x0112  # the EXIF tag
UPRIGHT = {  # the transposition that makes an image upright, by its orientation; images with 1 are upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
DAMAGE = (  # the errors that Pillow raises on damaged files
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, NotImplementedError),
    *(struct.error, zlib.error),
)


class ImageError(InputError):
    """An image that cannot be used."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both, so that it can be pickled
        self.name = name
        self.reason = reason  # the end of a sentence that begins with the name: "does not exist."

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


class _Quiet:
    """A context that suppresses warnings and that several threads may enter at the same time.

    With catch_warnings alone, warnings might stay suppressed after the last thread has left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0  # the number of threads in the context

    def __enter__(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._caught = warnings.catch_warnings(action="ignore")
                self._caught.__enter__()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                self._caught.__exit__(None, None, None)


QUIET = _Quiet()
LARGE_IMAGE_LOCK = threading.Lock()


def read_image(name: str, *, seconds: float = network.TIMEOUT_SECONDS) -> Image.Image:
    """Read the image in a file or at an http(s) address, which is downloaded within `seconds`. Raises ImageError."""
    path = Path(name)
    if not network.has_scheme(name) or path.is_file():
        return open_image(path, name=name)
    if not network.is_web_address(name):
        raise ImageError(name, "cannot be read: an address must begin with http:// or https://.")
    try:
        content = network.download(name, seconds=seconds)
    except network.DownloadError as error:
        raise ImageError(name, str(error)) from error
    return open_image(BytesIO(content), name=name)


def open_image(file: Path | BinaryIO, *, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read an image as 8-bit RGB, upright by its EXIF orientation, over white where it is transparent.

    An animation gives its first frame. Colour profiles are ignored. Raises ImageError; its message begins with `name`.
    """
    if isinstance(file, Path):
        with _open_regular_file(file, name) as stream:
            return open_image(stream, name=name, max_pixels=max_pixels)
    with QUIET:
        try:
            image = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise _size_error(name, max_pixels) from error
        except UnidentifiedImageError as error:
            is_empty = not file.seek(0) and not file.read(1)
            reason = "is empty." if is_empty else f"is not an image of a known format ({', '.join(FORMATS)})."
            if not is_empty and Path(name).suffix.lower() in (".heic", ".heif"):
                reason = "is in Apple's HEIC format, which is not read: convert it to JPEG."
            raise ImageError(name, reason) from error
        except DAMAGE as error:
            raise _damage_error(name, error) from error
        return upright_rgb(image, name=name, max_pixels=max_pixels)


def upright_rgb(image: Image.Image, *, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Convert an image opened by Pillow as `open_image` does. Raises ImageError; its message begins with `name`."""
    pixels = image.width * image.height
    if pixels > max_pixels:
        raise _size_error(name, max_pixels)
    with QUIET, LARGE_IMAGE_LOCK if pixels > LARGE_PIXELS else nullcontext():
        try:
            image.load()
            rgb = _rgb(image)
            if pixels > LARGE_PIXELS:
                rgb = rgb.reduce(math.ceil(math.sqrt(pixels / LARGE_PIXELS)))
            orientation = None
            with suppress(*DAMAGE):  # EXIF data that cannot be read is ignored
                orientation = image.getexif().get(ORIENTATION)
            return rgb.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else rgb
        except DAMAGE as error:
            raise _damage_error(name, error) from error


def fit(image: Image.Image, *, size: int, mode: str) -> NDArray[np.uint8]:
    """Scale an RGB image to size×size×3 pixels. Mode `crop` uses its central square, `squash` distorts the image."""
    width, height = image.size
    box = None
    if mode == "crop":  # cropped before it is scaled: scaling a long, thin image first would make it huge
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    return np.array(image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0))


def _size_error(name: str, max_pixels: int) -> ImageError:
    return ImageError(name, f"has more than {max_pixels // 1_000_000} million pixels: make it smaller.")


def _damage_error(name: str, error: BaseException) -> ImageError:
    return ImageError(name, f"is a damaged image ({str(error).rstrip('.') or type(error).__name__}).")


def _open_regular_file(path: Path, name: str) -> BinaryIO:
    """Open a regular file. Raises ImageError."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.open("rb")
        reason = "is a directory, not an image." if stat.S_ISDIR(mode) else "is not a regular file."
    except (FileNotFoundError, NotADirectoryError):
        reason = "does not exist."
    except OSError as error:
        reason = f"cannot be read ({error.strerror})."
    except ValueError as error:  # the path has a null character or half of a surrogate pair
        reason = f"is not the name of a file ({error})."
    raise ImageError(name, reason)


def _rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB, over white, in bands of rows, so that intermediate results need little memory."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, not 8 or 16 bits")
    is_grey = image.mode.startswith("I")  # with 16 bits; Pillow has already converted 16-bit colours to 8 bits
    if not (is_grey or image.mode in ("RGBA", "RGBa", "LA", "PA") or "transparency" in image.info):
        return image if image.mode == "RGB" else image.convert("RGB")
    rgb = Image.new("RGB", image.size)
    rows = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        band = image.crop(box)
        if is_grey:
            values = np.clip(np.asarray(band).astype(np.int32), 0, 65535)
            band = Image.fromarray(((values + 128) // 257).astype(np.uint8))
        else:
            band = band.convert("RGBA")
            band = Image.alpha_composite(Image.new("RGBA", band.size, "white"), band)
        rgb.paste(band.convert("RGB"), box)
    return rgb


class Chunk(NamedTuple):
    """Images that were read together."""

    pixels: NDArray[np.uint8]  # images×3×size×size, without the unreadable images
    refused: dict[int, str]  # the reason, a clause without the file's name, by the index of each unreadable image


def load(images: Sequence[tuple[str, Path]], *, size: int, mode: str, processes: int | None) -> Generator[Chunk]:
    """Read images in order, `CHUNK` at a time, and fit them to size×size pixels.

    images: the SHA-256 of each image's content and its file
    mode: as for `fit`
    processes: the number of processes that read them; None means one per CPU, up to 8

    Raises InputError if a file's content has changed, and UnfinishedError if it can no longer be read.
    """
    chunks = (images[start : start + CHUNK] for start in range(0, len(images), CHUNK))
    processes = processes if len(images) >= MIN_PARALLEL else 1
    return in_order(partial(_load, size=size, mode=mode), chunks, processes=processes)


def _load(images: Sequence[tuple[str, Path]], *, size: int, mode: str) -> Chunk:
    pixels = np.empty((len(images), 3, size, size), np.uint8)
    refused: dict[int, str] = {}
    row = 0
    for index, (digest, file) in enumerate(images):
        try:
            image = open_image(BytesIO(_content(file, digest)), name=str(file))
            pixels[row] = fit(image, size=size, mode=mode).transpose(2, 0, 1)
            row += 1
        except ImageError as error:
            refused[index] = error.reason
    return Chunk(pixels[:row], refused)


def _content(file: Path, expected_digest: str) -> bytes:
    """Read the file's content. Raises InputError if it does not have the digest under which its row is stored."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
            digest = sha256(content)
            while more := stream.read(MAX_FILE_BYTES):
                digest.update(more)
    except OSError as error:
        raise UnfinishedError(f"{file} can no longer be read ({error.strerror}): prepare again once it can.") from error
    if digest.hexdigest() != expected_digest:
        raise InputError(f"{file} changed while it was read: prepare again.")
    if len(content) > MAX_FILE_BYTES:
        raise ImageError(str(file), f"has more than {MAX_FILE_BYTES >> 30} GB: make it smaller.")
    return content
