"""Finding images.

`find_images` lists the images that a user names as files, folders, globs, web addresses and lists. `ImageNames` and
`in_folder` find images although their names are spelt differently: in another Unicode normal form or case, or with
other slashes, folders or suffixes.
"""

import glob
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from seqtool.errors import InputError, counted, place
from seqtool.runtime import network
from seqtool.runtime.files import read_lines
from seqtool.runtime.log import log

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
SUFFIX_LIST = ", ".join(SUFFIXES)
MAX_KINDS = 5  # suffixes of files other than images that a message names
COCO_NAME = re.compile(r"(?:COCO_\w+_)?(\d{12})(?:\.\w+)?")  # COCO_val2014_000000000042.jpg, 000000000042.jpg


def find_images(names: Sequence[str], *, recursive: bool = False) -> list[str]:
    """Return the names of the images that files, folders, globs, http(s) addresses and .txt lists name, in order.

    - A folder or glob stands for its files with the suffix of an image, sorted.
    - The folders inside a folder are searched only if `recursive`, and links to folders are never followed.
    - Other files in a folder are reported on standard error; files whose names begin with a dot are ignored.
    - A line of a list is any such name except the name of a list.

    Raises InputError if a folder, glob or list has no image. Missing files are not checked here but by read_image, so
    that the other images can be read.
    """
    return [image for name in names for image in _find(name, in_list=False, recursive=recursive)]


def _find(name: str, *, in_list: bool, recursive: bool) -> Iterator[str]:
    """Find the images that one name stands for. in_list: whether the name is a line of a list"""
    path = Path(name)
    if not name:
        raise InputError("The name of an image is empty: write the name of a file, folder or list.")
    if path.is_dir():
        yield from _list_folder(path, name, recursive=recursive)
    elif path.suffix.lower() == ".txt" and path.is_file() and not network.has_scheme(name):
        if in_list:
            raise InputError(f"{name} is a list: a list of images cannot name another list.")
        lines = [(number, line) for number, line in enumerate(map(str.strip, read_lines(path)), start=1) if line]
        if not lines:
            raise InputError(f"{path} names no images: write one name on each line.")
        for number, line in lines:
            try:
                yield from _find(line, in_list=True, recursive=recursive)
            except InputError as error:
                raise InputError(f"{path} line {number:,}: {error}") from error
    elif glob.has_magic(name) and not path.exists() and not network.has_scheme(name):
        matches = glob.glob(name, recursive=True)  # noqa: PTH207 skips hidden files, as a shell does
        images = sorted(match for match in matches if _is_image(Path(match)))
        if not images:
            raise InputError(f"{name} matches no image ({SUFFIX_LIST}).")
        yield from images
    else:
        yield name


def _list_folder(folder: Path, name: str, *, recursive: bool) -> list[str]:
    """List the images in a folder, and with `recursive` in the folders inside it. Report the files left out."""
    images: list[Path] = []
    other_files: Counter[str] = Counter()  # by suffix
    skipped_folders = 0
    for directory, subfolders, files in os.walk(folder, onerror=_raise):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        if not recursive:
            skipped_folders = len(subfolders)
            subfolders.clear()
        for path in (Path(directory, file) for file in files if not file.startswith(".")):
            if _is_image(path):
                images.append(path)
            else:
                other_files[path.suffix.lower() or "without a suffix"] += 1
    left_out = []
    if skipped_folders:
        left_out.append(f"{counted(skipped_folders, 'folder')} (recursive=true takes their images)")
    if other_files:
        most_common = sorted(other_files.items(), key=lambda item: (-item[1], item[0]))[:MAX_KINDS]
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in most_common)
        more = ", …" if len(other_files) > MAX_KINDS else ""
        left_out.append(f"{other_files.total():,} of other kinds ({kinds}{more})")
    if not images:
        contents = f"; it has {' and '.join(left_out)}" if left_out else ""
        convert = ": convert them to JPEG" if ".heic" in other_files or ".heif" in other_files else ""
        raise InputError(f"{place(Path(name))} is a folder without images ({SUFFIX_LIST}){contents}{convert}.")
    if left_out:
        kept = f"{counted(len(images), 'image')} ({SUFFIX_LIST})"
        print(f"{name}: {kept}; left out: {' and '.join(left_out)}.", file=sys.stderr)
    return [str(path) for path in sorted(images)]


def _raise(error: OSError) -> None:
    raise error


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


class ImageNames:
    """A set of image names, in which a name is found even if it is spelt differently."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_stem: dict[str, list[tuple[str, tuple[str, ...]]]] = {}  # names and their `_parts`
        for name in names:
            if parts := _parts(name):
                self._by_stem.setdefault(_without_suffix(parts[-1]), []).append((name, parts))

    def find(self, name: str) -> list[str]:
        r"""The names in the set that best match `name`: none, one, or several that match equally well.

        Two names match if one path is the end of the other, in any normal form and case. One of them may lack its
        suffix: `Photos\a.JPG` and `a` match `a.jpg`.
        """
        parts = _parts(name)
        *folders, file = parts or ("",)
        stem = _without_suffix(file)
        matches = {}
        for candidate, path in self._by_stem.get(stem, []):
            same_file = file == path[-1] or stem in (file, path[-1])
            if same_file and all(a == b for a, b in zip(reversed(folders), reversed(path[:-1]), strict=False)):
                matches[candidate] = file == path[-1], min(len(parts), len(path)), path == parts
        best = [candidate for candidate, quality in matches.items() if quality == max(matches.values())]
        return [candidate for candidate in best if name.endswith(candidate) or candidate.endswith(name)] or best


def in_folder(directory: Path, names: Iterable[str], *, file: Path) -> dict[str, str]:
    """Find the path in the directory of each image that `file` names, even if the name is spelt differently.

    The path is the name itself if the directory has no such image, or if `file` also names that image exactly. A name
    may begin with folders that the path lacks if the last of them is the directory, or if all names begin with them.

    Raises InputError for a name that several images match, and for two names of the same image.
    """
    paths = {name: name for name in names}
    missing_names = [name for name in paths if name.startswith("/") or not os.path.exists(directory / name)]  # noqa: PTH110
    if not missing_names:
        return paths
    images, exact_names = ImageNames(images_in(directory)), paths.keys() - {*missing_names}
    directory_names = {*_parts(directory.name), *_parts(directory.resolve().name)}
    first, last = min(map(_parts, paths)), max(map(_parts, paths))  # a common beginning of both is common to all names
    name_by_match: dict[str, str] = {}
    for name in missing_names:
        matches = [] if ".." in Path(name).parts else images.find(name)
        if not matches:
            continue
        extra_folders = _parts(name)[: -len(_parts(matches[0]))]  # folders in front that the path lacks
        is_common = first[: len(extra_folders)] == extra_folders == last[: len(extra_folders)]
        if not is_common and extra_folders[-1] not in directory_names:
            continue
        if len(matches) > 1:
            raise InputError(f"{file} names {name}, which could be {directory}/{matches[0]} or {matches[1]}.")
        if matches[0] not in exact_names:
            paths[name] = matches[0]
            if (other_name := name_by_match.setdefault(matches[0], name)) != name:
                raise InputError(f"{file} names {other_name} and {name}, but {directory} has only {matches[0]}.")
    if name_by_match:
        path, name = next(iter(name_by_match.items()))
        log.warning(
            "%s of the %s images of %s have other names in %s: %s calls one %s, %s has %s.",
            *(f"{len(name_by_match):,}", f"{len(paths):,}", file, directory, file, name, directory, path),
        )
    return paths


def image_id(image: str) -> int | str:
    """The id for COCO's tools: a number if the name is one or has the form of COCO's file names, else the name."""
    if match := COCO_NAME.fullmatch(image):
        return int(match[1])
    return int(image) if image.isdecimal() and str(int(image)) == image else image


def coco_id(name: str) -> int | str:
    """The id of an image in COCO's results format, from the name of its file without the directory."""
    return image_id(PurePosixPath(name).name)


def images_in(directory: Path) -> list[str]:
    """The paths of the images in a directory and in the folders inside it, relative to it."""
    images = []
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        paths = (Path(folder, name) for name in names if name.lower().endswith(SUFFIXES))
        images += [path.relative_to(directory).as_posix() for path in paths]
    return sorted(images)


def _parts(name: str) -> tuple[str, ...]:
    """The folders and the file of a path, without differences in slashes, Unicode normal form and case."""
    return PurePosixPath(unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()).parts


def _without_suffix(file: str) -> str:
    """The name of a file without the suffix of an image."""
    stem, dot, suffix = file.rpartition(".")
    return stem if stem and dot + suffix in SUFFIXES else file
