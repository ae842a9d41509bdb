"""The content of many images, without reading again those that have not changed."""

import hashlib
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seqtool.data.digests import Digests, is_settled
from seqtool.runtime.progress import progress_bar

READERS = 8  # threads: hashing lets go of the interpreter


class ImageDigests(Digests):
    """Digests of images, of which there may be a hundred thousand: remembered together, looked up quickly."""

    def of(self, files: Sequence[Path]) -> list[str | None]:
        """The SHA-256 of each file's content, None where it is missing or cannot be read."""
        found, unknown = self._look_up(files)
        if unknown:
            with (
                ThreadPoolExecutor(READERS) as threads,
                progress_bar(total=len(unknown), unit=" images", description="Reading") as bar,
            ):
                for name, known in zip(unknown, threads.map(_digest, unknown), strict=True):
                    bar.update()
                    if known is not None:
                        found[name] = known[2]
                        if is_settled(known[1] / 1e9):
                            self._known[name] = list(known)
            self._save()
        return [found.get(name) for name in map(os.path.abspath, files)]

    def _look_up(self, files: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
        """By name the digests that are remembered, and the names of the others."""
        found: dict[str, str] = {}
        unknown = []
        for name in dict.fromkeys(map(os.path.abspath, files)):
            known = self._known.get(name)
            if known is not None and known[:2] == list(_size_and_time(name) or ()):
                found[name] = str(known[2])
            else:
                unknown.append(name)
        return found, unknown


def _digest(name: str) -> tuple[int, int, str] | None:
    """Size, time and SHA-256 of a file, None where there is none that can be read."""
    found = _size_and_time(name)
    if found is None:
        return None
    try:
        with Path(name).open("rb") as file:
            return found[0], found[1], hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _size_and_time(name: str) -> tuple[int, int] | None:
    """In bytes and nanoseconds; None where there is no file. A pipe might never end, so it is none."""
    try:
        found = Path(name).stat()
    except (OSError, ValueError):  # ValueError: a null character
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
