"""What a preparation that was ended early has left, and the next one goes on from: vocabularies and training examples,
or the annotation vectors of images.

It stands in `progress.json` beside the unfinished files, which are cut back to what it says.
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
    """What ended a preparation is not its input: what is prepared is kept, and the next preparation goes on with it."""


class Unfinished:
    """The progress in a directory; everything else there goes where nothing is noted."""

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
        """That this is on the disk now."""
        self.known |= progress
        write_whole(self._path, json.dumps(self.known).encode())

    @contextmanager
    def noting(self, name: str, keep: Callable[[Mapping[str, Any]], None]) -> Iterator[Callable[..., None]]:
        """Around work which says by `reached(so_far, due=…)` how far it is: that is noted where it is due, and when the
        work ends early. `keep` has on the disk what was written so far.
        """
        last: Mapping[str, Any] | None = None  # since it was begun

        def reached(so_far: Mapping[str, Any], *, due: bool) -> None:
            nonlocal last
            last = so_far
            if due:
                keep(so_far)
                self.note(**{name: so_far})

        try:
            yield reached
        except BaseException:
            with suppress(OSError):  # of a full disk
                if last is not None:
                    reached(last, due=True)
            raise


def keep(file: IO[bytes], size: int) -> None:
    """Have the first bytes of a file on the disk, which were flushed, and nothing more: what a full disk would not take
    still waits in the file's buffer.
    """
    os.ftruncate(file.fileno(), size)
    os.fsync(file.fileno())
