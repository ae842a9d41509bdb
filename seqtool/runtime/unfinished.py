"""The progress of an interrupted preparation, from which the next one resumes: vocabularies and training examples,
or the annotation vectors of images.

It is recorded in `progress.json` beside the unfinished files, which are cut back to the recorded lengths.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from seqtool.errors import InputError
from seqtool.runtime.files import write_whole

PROGRESS = "progress.json"
SHARD = 1_000_000  # training examples after which progress is noted


class UnfinishedError(InputError):
    """A preparation ended, but not because of its input: its results are kept, and the next preparation resumes."""


class Unfinished:
    """The progress in a directory; if none is noted, everything else there is removed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROGRESS
        self.known: dict[str, Any] = {}
        for left in directory.glob(f".{PROGRESS}.*"):
            left.unlink()
        try:
            self.known = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            shutil.rmtree(directory)
            directory.mkdir()

    def note(self, **progress: Any) -> None:
        """Note that this is on the disk now."""
        self.known |= progress
        write_whole(self._path, json.dumps(self.known).encode())

    @contextmanager
    def noting(self, name: str, keep: Callable[[Mapping[str, Any]], None]) -> Iterator[Callable[..., None]]:
        """Encloses work that reports its progress by `reached(so_far, due=…)`; this is noted if it is `due`, and when
        the work ends early. `keep` forces to the disk what was written so far.
        """
        last: Mapping[str, Any] | None = None  # since the work began

        def reached(so_far: Mapping[str, Any], *, due: bool) -> None:
            nonlocal last
            last = so_far
            if due:
                keep(so_far)
                self.note(**{name: so_far})

        try:
            yield reached
        except BaseException:
            with suppress(OSError):  # the disk may be full
                if last is not None:
                    reached(last, due=True)
            raise


def keep(file: IO[bytes], size: int) -> None:
    """Cut a file to its first `size` bytes, already flushed, and force these to the disk. Bytes that a full disk
    refused may still be in the file's buffer.
    """
    os.ftruncate(file.fileno(), size)
    os.fsync(file.fileno())
