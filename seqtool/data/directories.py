"""Directories that are either complete or absent: made once, beside their place, under a lock, then renamed.

cache/toy-en-es-1f2e3d4c5b6a/           complete: summary.json has the size of every other file
cache/toy-en-es-1f2e3d4c5b6a.lock       while it is made
cache/toy-en-es-1f2e3d4c5b6a.partial    while it is made, or to resume from; never used as it is

What a preparation has done is noted in progress.json beside the unfinished files; the next one cuts the files back to
the lengths that were noted, and resumes.
"""

import hashlib
import json
import logging
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seqtool.errors import InputError, UnfinishedError, naming
from seqtool.runtime.files import locked, read_record, sync, write_whole
from seqtool.runtime.version import __version__

SUMMARY, PROGRESS = "summary.json", "progress.json"
NOTED = 10.0  # seconds after which progress is noted
Progress = Mapping[str, Any]
log = logging.getLogger("seqtool")


def place(root: Path, name: str, inputs: Mapping[str, Any]) -> Path:
    """The path of the directory for these inputs: its name has a hash of them."""
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    return root / re.sub(r"[^\w.-]+", "_", f"{name}-{digest}")


def make_once(directory: Path, fill: Callable[[Path], Mapping[str, Any]]) -> bool:
    """Make the directory unless it is there; returns whether it was made here.

    `fill` writes the files into the directory it is given and returns the summary without their sizes. If another
    process is making it, this one waits. Unfinished work is removed, unless `fill` has noted its progress
    (`Unfinished`): then only bad input (an InputError) removes it, not a signal, a full disk or a machine failure.
    """
    if directory.exists():
        return False
    lock = directory.with_name(f"{directory.name}.lock")
    waiting = f"Waiting for another process that is preparing {directory}."
    with locked(lock, lambda: print(waiting, file=sys.stderr)):
        try:
            if directory.exists():
                return False
            _make(directory, fill)
            return True
        finally:
            lock.unlink(missing_ok=True)


def _make(directory: Path, fill: Callable[[Path], Mapping[str, Any]]) -> None:
    """Runs under the lock, so any unfinished files were left by a process that has ended."""
    unfinished = directory.with_name(f"{directory.name}.partial")
    if not (unfinished / PROGRESS).is_file():
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(exist_ok=True)
    try:
        with naming(directory):
            summary = fill(unfinished)
            others = {unfinished / SUMMARY, unfinished / PROGRESS}
            files = sorted(path for path in unfinished.rglob("*") if path.is_file() and path not in others)
            record = {**summary, "files": {str(path.relative_to(unfinished)): path.stat().st_size for path in files}}
            (unfinished / SUMMARY).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
            for path in (*files, unfinished / SUMMARY):
                with path.open("rb") as file:
                    sync(file)
        unfinished.rename(directory)
        (directory / PROGRESS).unlink(missing_ok=True)
    except BaseException as error:
        is_bad_input = isinstance(error, InputError) and not isinstance(error, UnfinishedError)
        if not is_bad_input and (unfinished / PROGRESS).is_file():
            log.info("What has been prepared is kept: run the same command to resume.")
        else:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


class Unfinished:
    """The progress noted in the directory of an unfinished preparation; if there is none, its files are removed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROGRESS
        self.progress: dict[str, Any] = {}
        for interrupted in directory.glob(f".{PROGRESS}.*"):
            interrupted.unlink()
        try:
            self.progress = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            shutil.rmtree(directory)
            directory.mkdir()

    def note(self, **progress: Any) -> None:
        """Note that this is on the disk now."""
        self.progress |= progress
        write_whole(self._path, json.dumps(self.progress).encode())

    @contextmanager
    def noting(self, name: str, keep: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
        """Encloses work that reports its progress by `reached(progress)`; it is noted every `NOTED` seconds, and when
        the work ends. `keep` forces to the disk what was written so far.
        """
        last: Progress = {}  # since the work began
        noted = time.monotonic()

        def reached(progress: Progress, *, due: bool = False) -> None:
            nonlocal last, noted
            last = progress
            if progress and (due or time.monotonic() - noted >= NOTED):
                keep(progress)
                self.note(**{name: progress})
                noted = time.monotonic()

        try:
            yield reached
        except BaseException:
            with suppress(OSError):  # the disk may be full
                reached(last, due=True)
            raise
        reached(last, due=True)


def read_summary(directory: Path, *, form: int, kind: str) -> dict[str, Any]:
    """The summary. Raises InputError unless the directory is complete and of this `kind` ("a cache") and format."""
    again = f"remove {directory} and prepare again"
    try:
        summary = read_record(directory / SUMMARY)
        sizes, version = dict(summary["files"]), summary["format"]
        if not all(isinstance(size, int) for size in sizes.values()):
            raise TypeError("sizes")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in sizes):
            raise ValueError("files elsewhere")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{directory} is not {kind}: seqtool prepare makes them.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{directory / SUMMARY} is damaged: {again}.") from error
    if version != form:
        raise InputError(f"{directory} was made by another version of seqtool: prepare again.")
    for name, expected in sizes.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else 0
        if size != expected:
            raise InputError(f"{path} has {size:,} bytes instead of {expected:,}: {again}.")
    return summary


def versions(**others: str) -> dict[str, str]:
    """The versions that a directory is made with."""
    return {"seqtool": __version__, **others, "python": platform.python_version()}
