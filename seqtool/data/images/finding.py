"""Finding images: those that files, folders, globs, web addresses and lists of these name; and the same image under
names that differ in normal form, in case, in the slashes or the folders of its path, or as COCO numbers it.
"""

import glob
import logging
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from seqtool.errors import InputError
from seqtool.runtime import network
from seqtool.runtime.files import read_lines

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LISTED = ", ".join(SUFFIXES)
MOST_KINDS = 5  # of other files that a message names
COCO = re.compile(r"(?:COCO_\w+_)?(\d{12})(?:\.\w+)?")  # COCO_val2014_000000000042.jpg, 000000000042.jpg

log = logging.getLogger("seqtool")


def find_images(names: Sequence[str], *, recursive: bool = False) -> list[str]:
    """The images that files, folders, globs, http(s) addresses and .txt lists of these name, in their order.

    Folders and globs give the files with an image's suffix, sorted. The folders inside a folder are searched only if
    `recursive`, and links to folders never. Other files in a folder are reported on standard error; names that begin
    with a dot are ignored. The lines of a list are names like those given here, but not of lists. Raises InputError if
    a folder, glob or list gives no image. A missing file is left for read_image to refuse, so the others can be read.
    """
    return [image for name in names for image in _find(name, in_list=False, recursive=recursive)]


def _find(name: str, *, in_list: bool, recursive: bool) -> Iterator[str]:
    path = Path(name)
    if not name:
        raise InputError("The name of an image is empty: write the name of a file, folder or list.")
    if path.is_dir():
        yield from _in_folder(path, name, recursive=recursive)
    elif path.suffix.lower() == ".txt" and path.is_file() and not network.has_scheme(name):
        if in_list:
            raise InputError(f"{name} is a list: a list of images cannot name another.")
        lines = [(number, line) for number, line in enumerate(map(str.strip, read_lines(path)), start=1) if line]
        if not lines:
            raise InputError(f"{path} names no images: write one name on each line.")
        for number, line in lines:
            try:
                yield from _find(line, in_list=True, recursive=recursive)
            except InputError as error:
                raise InputError(f"{path} line {number:,}: {error}") from error
    elif glob.has_magic(name) and not path.exists() and not network.has_scheme(name):
        matches = glob.glob(name, recursive=True)  # noqa: PTH207 the pattern is a whole path, hidden files are the shell's
        images = sorted(match for match in matches if _is_image(Path(match)))
        if not images:
            raise InputError(f"{name} matches no image ({LISTED}).")
        yield from images
    else:
        yield name


def _in_folder(folder: Path, name: str, *, recursive: bool) -> list[str]:
    """The images in a folder, and with `recursive` in those inside it; reports what else is there."""
    images: list[Path] = []
    others: Counter[str] = Counter()
    folders = 0
    for place, inside, files in os.walk(folder, onerror=_raise):
        inside[:] = [sub for sub in inside if not sub.startswith(".")]
        if not recursive:
            folders = len(inside)
            inside.clear()
        for path in (Path(place, file) for file in files if not file.startswith(".")):
            if _is_image(path):
                images.append(path)
            else:
                others[path.suffix.lower() or "without a suffix"] += 1
    left = []
    if folders:
        left.append(f"{folders:,} {'folder' if folders == 1 else 'folders'} (recursive=true takes their images)")
    if others:
        common = sorted(others.items(), key=lambda item: (-item[1], item[0]))[:MOST_KINDS]
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in common)
        more = ", …" if len(others) > MOST_KINDS else ""
        left.append(f"{others.total():,} of other kinds ({kinds}{more})")
    if not images:
        besides = f"; it has {' and '.join(left)}" if left else ""
        raise InputError(f"{name} is a folder without images ({LISTED}){besides}.")
    if left:
        noun = "image" if len(images) == 1 else "images"
        print(f"{name}: {len(images):,} {noun} ({LISTED}); left out: {' and '.join(left)}.", file=sys.stderr)
    return [str(path) for path in sorted(images)]


def _raise(error: OSError) -> None:
    raise error


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


class ImageNames:
    """Names of images, among which other spellings of them are looked up."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_end: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name in names:
            if parts := _parts(name):
                self._by_end.setdefault(_without_suffix(parts[-1]), []).append((name, parts))

    def find(self, name: str) -> list[str]:
        r"""What the image called `name` is called here: none, one, or several names that fit equally well.

        One path must be the end of the other, in any normal form and case: `Photos\a.JPG` is `a.jpg`, and so is `a`, as
        one of the two may lack its suffix.
        """
        parts = _parts(name)
        *folders, file = parts or ("",)
        bare, fits = _without_suffix(file), {}
        for other, path in self._by_end.get(bare, []):
            is_file = file == path[-1] or bare in (file, path[-1])
            if is_file and all(a == b for a, b in zip(reversed(folders), reversed(path[:-1]), strict=False)):
                fits[other] = file == path[-1], min(len(parts), len(path)), path == parts
        best = [other for other, fit in fits.items() if fit == max(fits.values())]
        return [other for other in best if name.endswith(other) or other.endswith(name)] or best


def in_folder(directory: Path, names: Iterable[str], *, file: Path) -> dict[str, str]:
    """For each image that `file` names, its path in the directory; the name itself if it is not there, or if that image
    has a name of its own in the file. Folders that the path lacks must end in the directory, or be those of all names.

    Raises InputError for a name that several images have and for two names, neither its own, of one image.
    """
    paths = {name: name for name in names}
    missing = [name for name in paths if name.startswith("/") or not os.path.exists(directory / name)]  # noqa: PTH110
    if missing:
        images, there = ImageNames(images_in(directory)), paths.keys() - {*missing}
        own = {*_parts(directory.name), *_parts(directory.resolve().name)}
        ends = [end(map(_parts, paths)) for end in (min, max)]  # what they begin with, all begin with
        name_of: dict[str, str] = {}
        for name in missing:
            alike = [] if ".." in Path(name).parts else images.find(name)
            lacking = _parts(name)[: -len(_parts(alike[0]))] if alike else ()
            is_common = all(parts[: len(lacking)] == lacking for parts in ends)
            if not alike or not (is_common or lacking[-1] in own):
                continue
            if len(alike) > 1:
                raise InputError(f"{file} names {name}, which could be {directory}/{alike[0]} or {alike[1]}.")
            if alike[0] not in there:
                paths[name] = alike[0]
                if (other := name_of.setdefault(alike[0], name)) != name:
                    raise InputError(f"{file} names {other} and {name}, but {directory} has only {alike[0]}.")
        if name_of:
            path, name = next(iter(name_of.items()))
            log.warning(
                "%s of the %s images of %s have other names in %s: %s calls one %s, %s has %s.",
                *(f"{len(name_of):,}", f"{len(paths):,}", file, directory, file, name, directory, path),
            )
    return paths


def image_id(image: str) -> int | str:
    """The id that COCO's own tools use: its number of an image, if its name has the form of COCO's file names or is the
    number; otherwise its name.
    """
    if match := COCO.fullmatch(image):
        return int(match[1])
    return int(image) if image.isdecimal() and str(int(image)) == image else image


def images_in(directory: Path) -> list[str]:
    """The paths of the images in a directory and in the folders inside it, relative to it."""
    images = []
    for place, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(place, name) for name in names if name.lower().endswith(SUFFIXES))
        images += [path.relative_to(directory).as_posix() for path in paths]
    return sorted(images)


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()).parts


def _without_suffix(file: str) -> str:
    stem, dot, suffix = file.rpartition(".")
    return stem if stem and dot + suffix in SUFFIXES else file
