"""Which content a file has, without reading a large file again that has not changed; and whether it has."""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from seqtool.errors import InputError
from seqtool.runtime.files import check_file, parse_json, write_whole

SETTLED = 2.0  # seconds: a file younger than this may change again without a new time stamp


class Digests:
    """SHA-256 of files, remembered in a JSON file with the size and time that each file had."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            known = parse_json(memory.read_bytes()).items()
        except (OSError, ValueError, AttributeError):  # none yet; or damaged, and all it costs is time
            known = ()
        self._seen: dict[Path, tuple[int, ...] | None] = {}
        self._known: dict[str, list[int | str]] = {
            name: one for name, one in known if isinstance(one, list) and len(one) == 3
        }

    def __call__(self, path: Path) -> str:
        name, stat = str(path.resolve()), check_file(path).stat()
        self._seen.setdefault(path, _state(path))
        known = self._known.get(name)
        if known is not None and known[:2] == [stat.st_size, stat.st_mtime_ns]:
            return str(known[2])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if is_settled(stat.st_mtime):
            self._known[name] = [stat.st_size, stat.st_mtime_ns, digest]
            self._save()
        return digest

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Around what reads the files whose digests were asked for. Raises InputError where one has changed since,
        however the reading ends: what was read of it is not what its digest says.
        """
        try:
            yield
        finally:
            for path, before in self._seen.items():
                if before != _state(path):
                    raise InputError(f"{path} changed while it was read: prepare again.")

    def _save(self) -> None:
        """Two processes may both write: either's memory is right. Where none can be written it is slower."""
        with contextlib.suppress(OSError):
            write_whole(self._memory, json.dumps(self._known, indent=1).encode())


def is_settled(modified: float) -> bool:
    """Whether a file that was modified then, in seconds, would have another time if it were changed now. One from the
    future, which a wrong clock or an archive made, would.
    """
    return abs(time.time() - modified) > SETTLED


def _state(path: Path) -> tuple[int, ...] | None:
    """What is another after a change; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
