"""Reading images: as RGB, or refused, and made square; many of them over several processes, without torch."""

import math
import stat
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Generator, Sequence
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

MAXIMUM_PIXELS = 100_000_000
TOO_LARGE = f"has more than {MAXIMUM_PIXELS // 1_000_000} million pixels: make it smaller."
LARGE = 16_000_000  # pixels: larger images are read one at a time and made smaller at once, so that memory is bounded
BAND = 1_000_000  # pixels that are converted at a time
CHUNK = 64  # images that are read, and go through the backbone, together
SMALL = 4 * CHUNK  # fewer images are read before other processes could start
MOST_BYTES = 2**30  # of a file: files are read whole, in several processes at once
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")  # others are not tried: Pillow runs Ghostscript on EPS
ORIENTATION = 0x0112  # the EXIF tag, and what undoes each of its values except 1 (upright)
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
DAMAGE = (  # what Pillow raises on damaged files
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    NotImplementedError,
    struct.error,
    zlib.error,
)


class ImageError(InputError):
    """An image that cannot be used: its name and a clause that says why. It can be pickled."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


class _Quiet:
    """Suppresses warnings while any thread is inside: catch_warnings itself restores wrongly if two threads use it."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._caught = warnings.catch_warnings(action="ignore")
                self._caught.__enter__()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(None, None, None)


QUIET = _Quiet()
ALONE = threading.Lock()


def read_image(name: str, *, seconds: float = network.TIMEOUT_SECONDS) -> Image.Image:
    """The image in a file or at an http(s) address, fetched within so many seconds. Raises ImageError."""
    path = Path(name)
    if not network.has_scheme(name) or path.is_file():
        return open_image(path, name=name)
    if not network.is_web_address(name):
        raise ImageError(name, "cannot be read: of addresses only http and https are.")
    try:
        content = network.download(name, seconds=seconds)
    except network.DownloadError as error:
        raise ImageError(name, str(error)) from error
    return open_image(BytesIO(content), name=name)


def open_image(file: Path | BinaryIO, *, name: str) -> Image.Image:
    """The image as 8-bit RGB, upright by its EXIF orientation, over white where it is transparent.

    Of an animation, the first frame. Colour profiles are ignored. `name` begins the message of the ImageError that
    says what is wrong.
    """
    if isinstance(file, Path):
        with _opened(file, name) as stream:
            return open_image(stream, name=name)
    with QUIET:
        try:
            image = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise ImageError(name, TOO_LARGE) from error
        except UnidentifiedImageError as error:
            empty = not file.seek(0) and not file.read(1)
            reason = "is empty." if empty else f"is not an image of a known format ({', '.join(FORMATS)})."
            if not empty and Path(name).suffix.lower() in (".heic", ".heif"):
                reason = "is in Apple's HEIC format, which is not read: convert it to JPEG."
            raise ImageError(name, reason) from error
        except DAMAGE as error:
            raise _damaged(name, error) from error
        return upright_rgb(image, name=name)


def upright_rgb(image: Image.Image, *, name: str) -> Image.Image:
    """An image opened by Pillow, converted as `open_image` does. Raises ImageError."""
    if image.width * image.height > MAXIMUM_PIXELS:
        raise ImageError(name, TOO_LARGE)
    pixels = image.width * image.height
    with QUIET, ALONE if pixels > LARGE else nullcontext():
        try:
            image.load()
            rgb = _rgb(image)
            if pixels > LARGE:
                rgb = rgb.reduce(math.ceil(math.sqrt(pixels / LARGE)))
            orientation = None
            with suppress(*DAMAGE):  # EXIF data that cannot be read are ignored
                orientation = image.getexif().get(ORIENTATION)
            return rgb.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else rgb
        except DAMAGE as error:
            raise _damaged(name, error) from error


def fit(image: Image.Image, *, size: int, mode: str) -> NDArray[np.uint8]:
    """The RGB image as size×size×3: `crop` takes the square in its middle, `squash` distorts the whole image."""
    width, height = image.size
    box = None
    if mode == "crop":  # cut out before it is scaled: a long, thin image would become a huge one
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    return np.array(image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0))


def _damaged(name: str, error: BaseException) -> ImageError:
    return ImageError(name, f"is a damaged image ({str(error).rstrip('.') or type(error).__name__}).")


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.open("rb")
        reason = "is a directory, not an image." if stat.S_ISDIR(mode) else "is not a regular file."
    except (FileNotFoundError, NotADirectoryError):
        reason = "does not exist."
    except OSError as error:
        reason = f"cannot be read ({error.strerror})."
    except ValueError as error:  # a null character, half of a surrogate pair
        reason = f"is not the name of a file ({error})."
    raise ImageError(name, reason)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, not 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits, grey; with three channels Pillow has made them 8 already
        return _in_bands(image, _of_16_bits)
    if image.mode in ("RGBA", "RGBa", "LA", "PA") or "transparency" in image.info:
        return _in_bands(image, _over_white)
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The image converted some rows at a time, so that intermediate results take little memory."""
    rgb = Image.new("RGB", image.size)
    rows = max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        rgb.paste(convert(image.crop(box)), box)
    return rgb


def _of_16_bits(image: Image.Image) -> Image.Image:
    values = np.clip(np.asarray(image).astype(np.int32), 0, 65535)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


class Chunk(NamedTuple):
    """pixels: images×3×size×size of the images that can be read; refused: by place in the chunk, why the others
    cannot, as a clause without the file's name.
    """

    pixels: NDArray[np.uint8]
    refused: dict[int, str]


def load(
    images: Sequence[tuple[str, Path]], *, size: int, mode: str, processes: int | None
) -> Generator[Chunk, None, None]:
    """The images, each a file and the SHA-256 of its content, `CHUNK` at a time in their order, fitted to size×size
    pixels (`mode` as for `fit`). Raises InputError if a file's content is different, or it is gone.
    """
    chunks = (images[start : start + CHUNK] for start in range(0, len(images), CHUNK))
    return in_order(partial(_load, size=size, mode=mode), chunks, processes=processes if len(images) >= SMALL else 1)


def _load(images: Sequence[tuple[str, Path]], *, size: int, mode: str) -> Chunk:
    pixels = np.empty((len(images), 3, size, size), np.uint8)
    refused: dict[int, str] = {}
    for place, (digest, file) in enumerate(images):
        try:
            image = open_image(BytesIO(_content(file, digest)), name=str(file))
            pixels[place - len(refused)] = fit(image, size=size, mode=mode).transpose(2, 0, 1)
        except ImageError as error:
            refused[place] = error.reason
    return Chunk(pixels[: len(images) - len(refused)], refused)


def _content(file: Path, expected: str) -> bytes:
    """The file's content, checked, so that its row in the store is computed from the content that names it."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
            digest = sha256(content)
            while more := stream.read(MOST_BYTES):
                digest.update(more)
    except OSError as error:
        raise UnfinishedError(f"{file} can no longer be read ({error.strerror}): prepare again once it can.") from error
    if digest.hexdigest() != expected:
        raise InputError(f"{file} changed while it was read: prepare again.")
    if len(content) > MOST_BYTES:
        raise ImageError(str(file), f"has more than {MOST_BYTES >> 30} GB: make it smaller.")
    return content
