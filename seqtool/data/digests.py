"""Digests of files' content, without reading unchanged files again; and checks that none has changed."""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from seqtool.errors import InputError
from seqtool.runtime.files import check_file, parse_json, write_whole
from seqtool.runtime.progress import progress_bar

SETTLED = 2.0  # seconds: a file younger than this may change again without a new time stamp
THREADS = 8  # hashing releases the interpreter lock


class Digests:
    """SHA-256 of files, remembered in a JSON file by name: the size, time and digest that each file had."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._used: dict[Path, tuple[int, ...] | None] = {}
        self._records: dict[str, list[int | str]] = {}
        with suppress(OSError, ValueError, AttributeError):  # none yet; or damaged, which costs only time
            records = parse_json(memory.read_bytes()).items()
            self._records = {name: record for name, record in records if isinstance(record, list) and len(record) == 3}

    def __call__(self, path: Path) -> str:
        """Raises InputError if there is no file; from here on, `unchanged` checks this file."""
        self._used.setdefault(check_file(path), _state(path))
        (digest,) = self.of([path])
        return digest or _read(str(path))[2]  # raises the reason if there is none

    def of(self, files: Sequence[Path]) -> list[str | None]:
        """The digests of files, perhaps a hundred thousand images; None for one that is missing or unreadable."""
        names = list(map(os.path.abspath, files))
        digests = {name: self._remembered(name) for name in names}
        unread = [name for name, digest in digests.items() if digest is None]
        with (
            ThreadPoolExecutor(THREADS) as threads,
            progress_bar(total=len(unread), unit=" images", description="Reading", shown=len(unread) > 1) as bar,
        ):
            apply = threads.map if len(unread) > 1 else map  # a large text is read here, where Ctrl-C ends it
            for name, record in zip(unread, apply(_read_if_possible, unread), strict=True):
                bar.update()
                if record is None:
                    continue
                _, modified, digests[name] = record
                # One dated in the future, by a wrong clock or an archive, is settled too: a change would date it now.
                if abs(time.time() - modified / 1e9) > SETTLED:
                    self._records[name] = list(record)
        if unread and self._records:
            with suppress(OSError):  # files are then read again; if two processes write, either's digests are right
                write_whole(self._memory, json.dumps(self._records, indent=1).encode())
        return [digests[name] for name in names]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Encloses code that reads the files whose digests were asked for. Raises InputError if one has changed since,
        however the reading ends: its content does not match its digest.
        """
        try:
            yield
        finally:
            for path, before in self._used.items():
                if before != _state(path):
                    raise InputError(f"{path} changed while it was read: prepare again.")

    def _remembered(self, name: str) -> str | None:
        record, state = self._records.get(name), _state(Path(name))
        return str(record[2]) if record and state and record[:2] == list(state[:2]) else None


def _read(name: str) -> tuple[int, int, str]:
    """Size in bytes, time in nanoseconds, and SHA-256 of a file."""
    with Path(name).open("rb") as file:
        status = os.fstat(file.fileno())
        return status.st_size, status.st_mtime_ns, hashlib.file_digest(file, "sha256").hexdigest()


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
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a null character
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
