"""Images of any kind and condition: found by their names, read as RGB or refused, and made square."""

import glob
import math
import stat
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from seqtool.data import urls
from seqtool.data.text_files import read_lines
from seqtool.errors import InputError

MAXIMUM_PIXELS = 100_000_000
LARGE = 16_000_000  # pixels: larger images are read one at a time and made smaller at once, so that memory is bounded
BAND = 1_000_000  # pixels that are converted at a time
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")  # others are not tried: Pillow runs Ghostscript on EPS
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
FITS = ("crop", "squash")
ORIENTATION = 0x0112  # the EXIF tag, and what undoes each of its values but 1, which is upright
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
    """An image that cannot be used: its name and a clause that says why. Survives the way between processes."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


class _Quiet:
    """Without warnings while any thread is inside: catch_warnings itself, used by two at once, restores wrongly."""

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


def read_image(name: str, *, seconds: float = urls.SECONDS) -> Image.Image:
    """The image in a file or at an http(s) address, for which there are so many seconds. Raises ImageError."""
    path = Path(name)
    if not urls.has_scheme(name) or path.is_file():
        return open_image(path, name=name)
    if not urls.is_web_address(name):
        raise ImageError(name, "cannot be read: of addresses only http and https are.")
    try:
        content = urls.download(name, seconds=seconds)
    except urls.DownloadError as error:
        raise ImageError(name, str(error)) from error
    return open_image(BytesIO(content), name=name)


def open_image(file: Path | BinaryIO, *, name: str) -> Image.Image:
    """The image as 8-bit RGB, upright by its EXIF orientation, over white where it is transparent.

    Of an animation the first frame. Colour profiles are ignored. `name` begins the sentence of the ImageError that
    says what is wrong.
    """
    if isinstance(file, Path):
        with _opened(file, name) as stream:
            return open_image(stream, name=name)
    with QUIET:
        try:
            image = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise _too_large(name) from error
        except UnidentifiedImageError as error:
            empty = not file.seek(0) and not file.read(1)
            reason = "is empty." if empty else f"is no image of a known format ({', '.join(FORMATS)})."
            raise ImageError(name, reason) from error
        except DAMAGE as error:
            raise _damaged(name, error) from error
        return upright_rgb(image, name=name)


def upright_rgb(image: Image.Image, *, name: str) -> Image.Image:
    """An image that Pillow opened, as `open_image` gives it. Raises ImageError."""
    if image.width * image.height > MAXIMUM_PIXELS:
        raise _too_large(name)
    pixels = image.width * image.height
    with QUIET, ALONE if pixels > LARGE else nullcontext():
        try:
            image.load()
            rgb = _rgb(image)
            if pixels > LARGE:
                rgb = rgb.reduce(math.ceil(math.sqrt(pixels / LARGE)))
            return _upright(rgb, image)
        except DAMAGE as error:
            raise _damaged(name, error) from error


def fit(image: Image.Image, *, size: int, mode: str) -> NDArray[np.uint8]:
    """The RGB image as size×size×3: `crop` takes the square in its middle, `squash` all of it, out of shape."""
    if mode not in FITS:
        raise InputError(f"Unknown model.encoder.fit '{mode}'; choose from {', '.join(FITS)}.")
    width, height = image.size
    box = None
    if mode == "crop":  # cut out before it is scaled: a long, thin image would become a huge one
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    return np.array(image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0))


def find_images(names: Sequence[str]) -> list[str]:
    """The images that files, folders, globs, http(s) addresses and .txt lists of these name, in their order.

    Folders and globs give the files with an image's suffix, sorted; folders without those inside further folders. The
    lines of a list are names as those given here are, but no lists. Raises InputError where a folder, glob or list
    gives no image; a file that is missing is for read_image to refuse, so that the others are read.
    """
    return [image for name in names for image in _find(name, in_list=False)]


def _too_large(name: str) -> ImageError:
    return ImageError(name, f"has more than {MAXIMUM_PIXELS // 1_000_000} million pixels: make it smaller.")


def _damaged(name: str, error: BaseException) -> ImageError:
    return ImageError(name, f"is a damaged image ({str(error).rstrip('.') or type(error).__name__}).")


def _find(name: str, *, in_list: bool) -> Iterator[str]:
    path = Path(name)
    if not name:
        raise InputError("The name of an image is empty: write the name of a file, folder or list.")
    if path.is_dir():
        found = [str(one) for one in sorted(path.iterdir()) if not one.name.startswith(".") and _is_image(one)]
        if not found:
            raise InputError(f"{name} is a folder without images ({_suffixes()}).")
        yield from found
    elif path.suffix.lower() == ".txt" and path.is_file() and not urls.has_scheme(name):
        if in_list:
            raise InputError(f"{name} is a list: a list of images cannot name another.")
        yield from _listed(path)
    elif glob.has_magic(name) and not path.exists() and not urls.has_scheme(name):
        matches = glob.glob(name, recursive=True)  # noqa: PTH207 the pattern is a whole path, hidden files are the shell's
        found = sorted(one for one in matches if _is_image(Path(one)))
        if not found:
            raise InputError(f"{name} matches no image ({_suffixes()}).")
        yield from found
    else:
        yield name


def _listed(path: Path) -> Iterator[str]:
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        if name := line.strip():
            empty = False
            try:
                yield from _find(name, in_list=True)
            except InputError as error:
                raise InputError(f"{path} line {number:,}: {error}") from error
    if empty:
        raise InputError(f"{path} names no images: write one name on each line.")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _suffixes() -> str:
    return ", ".join(sorted(SUFFIXES))


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
    """The image converted some rows at a time, so that what lies between takes little memory."""
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


def _upright(rgb: Image.Image, image: Image.Image) -> Image.Image:
    """`rgb` turned as the EXIF data of the file it is from say; those that cannot be read say nothing."""
    try:
        orientation = image.getexif().get(ORIENTATION)
    except DAMAGE:
        return rgb
    return rgb.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else rgb
