"""Finding the images that files, folders, globs, web addresses and lists of these name."""

import glob
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from seqtool.errors import InputError
from seqtool.runtime import network
from seqtool.runtime.files import read_lines

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LISTED = ", ".join(SUFFIXES)
MOST_KINDS = 5  # of other files that a message names


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
        yield from _listed(path, recursive=recursive)
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


def _listed(path: Path, *, recursive: bool) -> Iterator[str]:
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        if name := line.strip():
            empty = False
            try:
                yield from _find(name, in_list=True, recursive=recursive)
            except InputError as error:
                raise InputError(f"{path} line {number:,}: {error}") from error
    if empty:
        raise InputError(f"{path} names no images: write one name on each line.")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()
