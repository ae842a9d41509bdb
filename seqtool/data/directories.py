"""Directories that are either complete or absent: made once, beside their place, under a lock, then renamed.

cache/toy-en-es-1f2e3d4c5b6a/           complete: summary.json has the size of every other file
cache/toy-en-es-1f2e3d4c5b6a.lock       while it is made; the lock goes with the process that holds it
cache/toy-en-es-1f2e3d4c5b6a.partial    while it is made, or to resume from; never used as it is
"""

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any, BinaryIO

from seqtool.errors import InputError, naming
from seqtool.runtime.files import read_record, sync
from seqtool.runtime.unfinished import PROGRESS, UnfinishedError
from seqtool.runtime.version import __version__

SUMMARY = "summary.json"
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
    with _locked(directory):
        if directory.exists():
            return False
        _make(directory, fill)
        return True


def read_summary(directory: Path, *, form: int, kind: str) -> dict[str, Any]:
    """The summary. Raises InputError unless the directory is complete and of this `kind` ("a cache") and format."""
    again = f"remove {directory} and prepare again"
    try:
        summary = read_record(directory / SUMMARY)
        files, version = dict(summary["files"]), summary["format"]
        if not all(isinstance(size, int) for size in files.values()):
            raise TypeError("sizes")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise ValueError("files elsewhere")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{directory} is not {kind}: seqtool prepare makes them.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{directory / SUMMARY} is damaged: {again}.") from error
    if version != form:
        raise InputError(f"{directory} was made by another version of seqtool: prepare again.")
    for name, size in files.items():
        path = directory / name
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise InputError(f"{path} has {found:,} bytes instead of {size:,}: {again}.")
    return summary


def versions(**others: str) -> dict[str, str]:
    """The versions that a directory is made with."""
    return {"seqtool": __version__, **others, "python": platform.python_version()}


def _make(directory: Path, fill: Callable[[Path], Mapping[str, Any]]) -> None:
    """Runs under the lock, so any unfinished files were left by a process that has ended."""
    unfinished = directory.with_name(directory.name + ".partial")
    if not (unfinished / PROGRESS).is_file():
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(exist_ok=True)
    try:
        with naming(directory):
            summary = fill(unfinished)
            others = {unfinished / SUMMARY, unfinished / PROGRESS}
            made = sorted(path for path in unfinished.rglob("*") if path.is_file() and path not in others)
            record = {**summary, "files": {str(path.relative_to(unfinished)): path.stat().st_size for path in made}}
            (unfinished / SUMMARY).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
            for path in (*made, unfinished / SUMMARY):
                with path.open("rb") as file:
                    sync(file)
        unfinished.rename(directory)
        (directory / PROGRESS).unlink(missing_ok=True)
    except BaseException as error:
        is_bad_input = isinstance(error, InputError) and not isinstance(error, UnfinishedError)
        if not is_bad_input and (unfinished / PROGRESS).is_file():
            log.info("What is prepared so far is kept: the same command goes on with it.")
        else:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lets only this process make the directory. The lock ends with the process, however that ends."""
    path = directory.with_name(directory.name + ".lock")
    while True:
        with path.open("ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                print(f"Waiting for another process that is preparing {directory}.", file=sys.stderr)
                flock(file, LOCK_EX)
            if not _is_file(path, file):
                continue  # the process that had it removed this file: there may be another one by now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_file(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
