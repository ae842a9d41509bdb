"""Which content a file has, without reading a large file again that has not changed."""

import contextlib
import hashlib
import json
import time
from pathlib import Path

from seqtool.data.text_files import check_file, parse_json, write_whole

SETTLED = 2.0  # seconds: a file younger than this may change again without a new time stamp


class Digests:
    """SHA-256 of files, remembered in a JSON file with the size and time that each file had."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            known = parse_json(memory.read_bytes()).items()
        except (OSError, ValueError, AttributeError):  # none yet; or damaged, and all it costs is time
            known = ()
        self._known: dict[str, list[int | str]] = {
            name: one for name, one in known if isinstance(one, list) and len(one) == 3
        }

    def __call__(self, path: Path) -> str:
        name, stat = str(path.resolve()), check_file(path).stat()
        known = self._known.get(name)
        if known is not None and known[:2] == [stat.st_size, stat.st_mtime_ns]:
            return str(known[2])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if time.time() - stat.st_mtime > SETTLED:
            self._known[name] = [stat.st_size, stat.st_mtime_ns, digest]
            self._save()
        return digest

    def _save(self) -> None:
        """Two processes may both write: either's memory is right. Where none can be written it is slower."""
        with contextlib.suppress(OSError):
            write_whole(self._memory, json.dumps(self._known, indent=1).encode())
