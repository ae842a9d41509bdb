"""Digests of files' content, without reading unchanged files again; and checks that none has changed."""

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seqtool.errors import InputError
from seqtool.runtime.files import check_file, parse_json, write_whole
from seqtool.runtime.progress import progress_bar

SETTLED = 2.0  # seconds: a file younger than this may change again without a new time stamp
READERS = 8  # threads: hashing releases the interpreter lock


class Digests:
    """SHA-256 of files, remembered in a JSON file with the size and time that each file had."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            known = parse_json(memory.read_bytes()).items()
        except (OSError, ValueError, AttributeError):  # none yet; or damaged, which costs only time
            known = ()
        self._seen: dict[Path, tuple[int, ...] | None] = {}
        self._known: dict[str, list[int | str]] = {
            name: one for name, one in known if isinstance(one, list) and len(one) == 3
        }

    def __call__(self, path: Path) -> str:
        """Raises InputError if there is no file; from here on, `unchanged` checks this file."""
        name = str(check_file(path).resolve())
        self._seen.setdefault(path, _state(path))
        digest = self._remembered(name)
        if digest is None:
            digest = self._remember(name, _read(name))
            if name in self._known:
                self._save()
        return digest

    def of(self, files: Sequence[Path]) -> list[str | None]:
        """The digests of images, perhaps a hundred thousand; None for one that is missing or unreadable."""
        names = list(map(os.path.abspath, files))
        found = {name: self._remembered(name) for name in names}
        unknown = [name for name, digest in found.items() if digest is None]
        if unknown:
            with (
                ThreadPoolExecutor(READERS) as threads,
                progress_bar(total=len(unknown), unit=" images", description="Reading") as bar,
            ):
                for name, read in zip(unknown, threads.map(_read_if_possible, unknown), strict=True):
                    bar.update()
                    if read is not None:
                        found[name] = self._remember(name, read)
            self._save()
        return [found[name] for name in names]

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Encloses code that reads the files whose digests were asked for. Raises InputError if one has changed since,
        however the reading ends: its content does not match its digest.
        """
        try:
            yield
        finally:
            for path, before in self._seen.items():
                if before != _state(path):
                    raise InputError(f"{path} changed while it was read: prepare again.")

    def _remembered(self, name: str) -> str | None:
        known, state = self._known.get(name), _state(Path(name))
        return str(known[2]) if known is not None and state is not None and known[:2] == list(state[:2]) else None

    def _remember(self, name: str, read: tuple[int, int, str]) -> str:
        """Remember a digest. A file dated in the future, by a wrong clock or an archive, counts as settled too: a
        change now would give it another time.
        """
        size, modified, digest = read
        if abs(time.time() - modified / 1e9) > SETTLED:
            self._known[name] = [size, modified, digest]
        return digest

    def _save(self) -> None:
        """Two processes may both write: either's digests are right. If neither can, files are read more often."""
        with contextlib.suppress(OSError):
            write_whole(self._memory, json.dumps(self._known, indent=1).encode())


def _read(name: str) -> tuple[int, int, str]:
    """Size in bytes, time in nanoseconds, and SHA-256 of a file."""
    with Path(name).open("rb") as file:
        found = os.fstat(file.fileno())
        return found.st_size, found.st_mtime_ns, hashlib.file_digest(file, "sha256").hexdigest()


def _read_if_possible(name: str) -> tuple[int, int, str] | None:
    try:
        return _read(name) if _state(Path(name)) else None
    except OSError:
        return None


def _state(path: Path) -> tuple[int, ...] | None:
    """Size in bytes, times in nanoseconds and inode number of a file; any change alters at least one. None if there is
    no file; a pipe, which might never end, counts as none.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a null character
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
