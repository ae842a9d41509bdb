"""Directories that are either complete or absent, and the digests of the files that they are made from.

A directory is made once. Meanwhile it has another name, and a lock keeps other processes waiting:

cache/toy-en-es-1f2e3d4c5b6a/           complete: summary.json has the size of every other file
cache/toy-en-es-1f2e3d4c5b6a.lock       exists while the directory is made
cache/toy-en-es-1f2e3d4c5b6a.partial    unfinished: exists while the directory is made, and after an interruption

A preparation records its progress in progress.json beside the unfinished files. After an interruption, the next one
truncates the files to the recorded lengths and resumes. Unchanged files are not read again for their digests.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seqtool.errors import InputError, UnfinishedError, naming, place
from seqtool.runtime.files import check_directory, check_file, locked, parse_json, read_record, sync, write_whole
from seqtool.runtime.log import log
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.version import __version__

SUMMARY, PROGRESS = "summary.json", "progress.json"
RECORDING_SECONDS = 10.0  # the time between two records of progress
SETTLING_SECONDS = 2.0  # a younger file may change without a new time stamp, since FAT rounds time stamps to 2 s
HASHING_THREADS = 8  # hashing releases the interpreter lock
Progress = Mapping[str, Any]


def directory_path(root: Path, name: str, inputs: Mapping[str, Any]) -> Path:
    """The path of the directory that is made from these inputs: root/NAME-HASH, with a hash of the inputs."""
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    return root / re.sub(r"[^\w.-]+", "_", f"{name}-{digest}")


def make_once(directory: Path, fill: Callable[[Path], Mapping[str, Any]]) -> bool:
    """Make the directory unless it exists. Returns whether this call made it.

    `fill` writes the files into the directory that is passed to it, and returns the summary without their sizes. If
    another process is making the directory, this call waits. Unfinished work is removed, unless its progress was
    recorded (`Unfinished`): it is then kept after a signal, a full disk or a machine failure, and only removed after
    an InputError.
    """
    if directory.exists():
        return False
    check_directory(directory.parent, "data.cache")
    new_directories = [path for path in directory.parents if not path.exists()]
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock, unfinished = (directory.with_name(f"{directory.name}.{suffix}") for suffix in ("lock", "partial"))
    with locked(lock, lambda: print(f"Waiting for another process that is preparing {directory}.", file=sys.stderr)):
        try:
            if directory.exists():
                return False
            if not (unfinished / PROGRESS).is_file():  # a process that has ended left the unfinished files
                shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True, exist_ok=True)
            with naming(directory):
                summary = fill(unfinished)
                unlisted = {unfinished / SUMMARY, unfinished / PROGRESS}
                files = sorted(path for path in unfinished.rglob("*") if path.is_file() and path not in unlisted)
                sizes = {str(path.relative_to(unfinished)): path.stat().st_size for path in files}
                record = json.dumps({**summary, "files": sizes}, indent=1, ensure_ascii=False)
                (unfinished / SUMMARY).write_text(record, encoding="utf-8")
                for path in (*files, unfinished / SUMMARY):
                    with path.open("rb") as file:
                        sync(file)
            unfinished.rename(directory)
            (directory / PROGRESS).unlink(missing_ok=True)
            return True
        except BaseException as error:
            is_bad_input = isinstance(error, InputError) and not isinstance(error, UnfinishedError)
            if not is_bad_input and (unfinished / PROGRESS).is_file():
                log.info("What has been prepared is kept: run the same command to resume.")
            else:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise
        finally:
            lock.unlink(missing_ok=True)
            with suppress(OSError):
                for path in new_directories:
                    path.rmdir()  # removes only an empty directory


class Unfinished:
    """The recorded progress of an unfinished preparation."""

    def __init__(self, directory: Path) -> None:
        """Read the progress from the directory of the unfinished files. If none is recorded, remove the files."""
        self._path = directory / PROGRESS
        self.progress: dict[str, Any] = {}
        for interrupted in directory.glob(f".{PROGRESS}.*"):
            interrupted.unlink()
        try:
            self.progress = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            shutil.rmtree(directory)
            directory.mkdir()

    def record(self, **progress: Any) -> None:
        """Record that this progress has reached the disk."""
        self.progress |= progress
        write_whole(self._path, json.dumps(self.progress).encode())

    @contextmanager
    def record_regularly(self, name: str, keep: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
        """Yield a function by which the work in this context reports its progress.

        The progress is recorded as `name` every `RECORDING_SECONDS`, and when the work ends or fails. Before each
        record, `keep` is called with the progress: it must force the counted work to the disk.
        """
        last: Progress = {}  # the last report
        recorded_at = time.monotonic()

        def report_progress(progress: Progress, *, due: bool = False) -> None:
            nonlocal last, recorded_at
            last = progress
            if progress and (due or time.monotonic() - recorded_at >= RECORDING_SECONDS):
                keep(progress)
                self.record(**{name: progress})
                recorded_at = time.monotonic()

        try:
            yield report_progress
        except BaseException:
            with suppress(OSError):  # the disk may be full
                report_progress(last, due=True)
            raise
        report_progress(last, due=True)


def read_summary(directory: Path, *, format_version: int, kind: str) -> dict[str, Any]:
    """Read the summary of a directory. Messages call the directory `kind` ("a cache").

    Raises InputError unless the directory is complete and its format has this version.
    """
    advice = f"remove {directory} and prepare again"
    try:
        summary = read_record(directory / SUMMARY)
        sizes, version = dict(summary["files"]), summary["format"]
        if not all(isinstance(size, int) for size in sizes.values()):
            raise TypeError("a size is not a whole number")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in sizes):
            raise ValueError("a file is outside the directory")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{place(directory)} is not {kind}: seqtool prepare makes them.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{directory / SUMMARY} is damaged: {advice}.") from error
    if version != format_version:
        raise InputError(f"{directory} was made by another version of seqtool: prepare again.")
    for name, expected in sizes.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else 0
        if size != expected:
            raise InputError(f"{path} has {size:,} bytes instead of {expected:,}: {advice}.")
    return summary


def versions(**packages: str) -> dict[str, str]:
    """The versions of the software that makes a directory: seqtool, Python and other packages."""
    return {"seqtool": __version__, **packages, "python": platform.python_version()}


# Digests


class Digests:
    """The SHA-256 digests of files. A JSON file stores them by name, with the size and time of each file."""

    def __init__(self, path: Path) -> None:
        """Read the digests in the JSON file `path`, if it exists."""
        self._path = path
        self._initial_states: dict[Path, tuple[int, ...] | None] = {}
        self._records: dict[str, list[int | str]] = {}
        # if the file is missing or damaged, digests are computed again
        with suppress(OSError, ValueError, AttributeError):
            records = parse_json(path.read_bytes()).items()
            self._records = {name: record for name, record in records if isinstance(record, list) and len(record) == 3}

    def __call__(self, path: Path) -> str:
        """The digest of a file, which `check_unchanged` then checks. Raises InputError if the file does not exist."""
        self._initial_states.setdefault(check_file(path), _state(path))
        (digest,) = self.compute([path])
        return digest or hashlib.sha256(path.read_bytes()).hexdigest()  # an unreadable file raises here

    def compute(self, files: Sequence[Path]) -> list[str | None]:
        """The digest of each file; None if it is missing or unreadable. There may be a hundred thousand images."""
        names = list(map(os.path.abspath, files))
        digests = {name: self._stored_digest(name) for name in names}
        unread = [name for name, digest in digests.items() if digest is None]
        with (
            ThreadPoolExecutor(HASHING_THREADS) as threads,
            progress_bar(total=len(unread), unit=" images", description="Reading", shown=len(unread) > 1) as bar,
        ):
            apply = threads.map if len(unread) > 1 else map  # a single file is read in this thread: Ctrl-C stops it
            for name, record in zip(unread, apply(_read, unread), strict=True):
                bar.update()
                if record is not None:
                    _, modified, digests[name] = record
                    # A time in the future, from a wrong clock or an archive, is safe: a change would give the present.
                    if abs(time.time() - modified / 1e9) > SETTLING_SECONDS:
                        self._records[name] = list(record)
        if unread:
            self._store()
        return [digests[name] for name in names]

    @contextmanager
    def check_unchanged(self) -> Iterator[None]:
        """Check that the files whose digests were requested do not change before the context ends. Store the digests.

        Raises InputError if one has changed, even if the code in the context raises another error: its content may not
        match its digest.
        """
        try:
            yield
            if not self._path.exists():  # an image store of this cache may have written it
                self._store()
        finally:
            for path, before in self._initial_states.items():
                if before != _state(path):
                    raise InputError(f"{path} changed while it was read: prepare again.")

    def _store(self) -> None:
        """Write the JSON file, unless nothing else is in its directory: refused data leave nothing behind."""
        if self._records and any(self._path.parent.glob("*")):
            with suppress(OSError):  # without the JSON file, files are read again; processes write the same digests
                write_whole(self._path, json.dumps(self._records, indent=1).encode())

    def _stored_digest(self, name: str) -> str | None:
        """The stored digest; None if the file no longer has the same size and time."""
        record, state = self._records.get(name), _state(Path(name))
        return str(record[2]) if record and state and record[:2] == list(state[:2]) else None


def _read(name: str) -> tuple[int, int, str] | None:
    """A file's size in bytes, modification time in nanoseconds, and SHA-256; None if it is missing, unreadable or not
    regular.
    """
    with suppress(OSError):
        if _state(Path(name)):
            with Path(name).open("rb") as file:
                status = os.fstat(file.fileno())
                return status.st_size, status.st_mtime_ns, hashlib.file_digest(file, "sha256").hexdigest()
    return None


def _state(path: Path) -> tuple[int, ...] | None:
    """A file's size in bytes, times in nanoseconds and inode number. Any change of the file alters one of them.

    None if the file does not exist or is not a regular file: reading a pipe might never end.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a null character
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
