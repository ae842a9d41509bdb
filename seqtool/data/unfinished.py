"""What a preparation that was killed has left, and the next one goes on from: vocabularies, and training pairs so far.

It stands in `progress.json` beside the unfinished files, which are cut back to what it says.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqtool.data.text_files import write_whole

PROGRESS = "progress.json"
SHARD = 1_000_000  # training pairs after which progress is noted


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

    def note(self, **progress: Any) -> None:
        """That this is on the disk now."""
        self._known |= progress
        write_whole(self._path, json.dumps(self._known).encode())

    def finish(self) -> None:
        self._path.unlink()
