"""What a preparation that was ended early has left, and the next one goes on from: vocabularies and training pairs, or
the annotation vectors of images.

It stands in `progress.json` beside the unfinished files, which are cut back to what it says.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from seqtool.errors import InputError
from seqtool.runtime.files import write_whole

PROGRESS = "progress.json"
SHARD = 1_000_000  # training pairs after which progress is noted


class UnfinishedError(InputError):
    """What ended a preparation is not its input: what is prepared is kept, and the next preparation goes on with it."""


class Unfinished:
    """The progress in a directory; everything else there goes where nothing is noted."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROGRESS
        self._known: dict[str, Any] = {}
        for left in directory.glob(f".{PROGRESS}.*"):
            left.unlink()
        try:
            self._known = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            shutil.rmtree(directory)
            directory.mkdir()

    @property
    def counts(self) -> dict[str, int] | None:
        """The pairs of each split; None where the vocabularies are not there yet."""
        return self._known.get("counts")

    @property
    def train(self) -> Mapping[str, Any]:
        """`read`: how many training pairs were; `dropped` by reason; and each side as its writer said."""
        found: Mapping[str, Any] = self._known.get("train", {"read": 0, "dropped": {}})
        return found

    @property
    def images(self) -> Mapping[str, Any]:
        """`done`: how many images were; `refused`: why those are, by digest; `by`: with which weights and versions."""
        found: Mapping[str, Any] = self._known.get("images", {"done": 0, "refused": {}, "by": []})
        return found

    def note(self, **progress: Any) -> None:
        """That this is on the disk now."""
        self._known |= progress
        write_whole(self._path, json.dumps(self._known).encode())

    def noting(self, name: str, keep: Callable[[Mapping[str, Any]], None]) -> "Noting":
        """Around the work whose progress has this name; `keep` has on the disk what was written up to it."""
        return Noting(self, name, keep)


class Noting:
    """Notes how far some work is: when it is asked to, and when the work ends early."""

    def __init__(self, unfinished: Unfinished, name: str, keep: Callable[[Mapping[str, Any]], None]) -> None:
        self._unfinished, self._name, self._keep = unfinished, name, keep
        self.so_far: Mapping[str, Any] | None = None  # since it was begun

    def __enter__(self) -> "Noting":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(OSError):  # of a full disk
                self.note()

    def note(self) -> None:
        """Have on the disk what is done so far, and that it is."""
        if self.so_far is not None:
            self._keep(self.so_far)
            self._unfinished.note(**{self._name: self.so_far})


def keep(file: IO[bytes], size: int) -> None:
    """Have the first bytes of a file on the disk, which were flushed, and nothing more: what a full disk would not take
    still waits in the file's buffer.
    """
    os.ftruncate(file.fileno(), size)
    os.fsync(file.fileno())


def is_begun(directory: Path) -> bool:
    """Whether there is something to go on from."""
    return (directory / PROGRESS).is_file()
