"""The same image under names that differ: in normal form, in case, in the slashes or the folders of its path."""

import logging
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from seqtool.data.images.finding import SUFFIXES
from seqtool.errors import InputError

log = logging.getLogger("seqtool")


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
