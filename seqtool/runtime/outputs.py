"""Files that commands write: never over their inputs, and kept as far as finished if a command is stopped."""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TextIO

from seqtool.errors import InputError, OutOfMemoryError
from seqtool.runtime.files import replacing

# Torch's errors are RuntimeErrors.
INTERRUPTIONS = KeyboardInterrupt, SystemExit, RuntimeError, MemoryError, OutOfMemoryError
NOT_ENDED = "not ended"  # in n-best lists, the last field of a hypothesis that was cut off at its maximum length


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[tuple[str, str | int]]) -> None:
    """Raise InputError if two outputs are one file, or an output is also an input, even through links.

    outputs: paths by setting; inputs: each one's name in the message, and its path or descriptor.
    """
    written = {name: path for name, path in outputs.items() if path is not None}
    identities = {name: _identity(path) for name, path in written.items()}
    for name, other in combinations(written, 2):
        if identities[name] is not None and identities[name] == identities[other]:
            raise InputError(f"{name} and {other} are both {written[name]}: name two files.")
    if not written:
        return
    for title, file in inputs:
        read = _identity(file)
        for name, path in written.items():
            if read is not None and read == identities[name]:
                raise InputError(
                    f"{name}={path} is the same file as {title}, which is read: name another file to write to."
                )


@contextmanager
def keeping(path: Path, finished: Callable[[], str]) -> Iterator[TextIO]:
    """A file that replaces `path` when it is complete, as in `replacing`. If Ctrl-C, a signal or a machine failure
    ends the work early, the finished part is kept beside it, and standard error says where it is and how much is
    `finished`. Bad input and a full disk leave nothing.
    """
    with replacing(path) as stream:
        try:
            yield stream
        except INTERRUPTIONS:
            _keep(stream, path, finished())
            raise


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Within it, what C code and other programs print goes to standard error: standard output is for results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _keep(stream: TextIO, path: Path, finished: str) -> None:
    stream.flush()
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return
    if stream.tell() == 0:
        print(f"Stopped before anything was finished: {path} is not written.", file=sys.stderr)
        return
    partial = path.with_name(f"{path.name}.partial")
    with open(os.dup(stream.fileno()), "rb") as written, replacing(partial) as kept:  # noqa: PTH123 a descriptor
        written.seek(0)
        shutil.copyfileobj(written, kept.buffer)
    before = f"; {path} is as it was" if path.exists() else ""
    print(f"Stopped: {partial} has what is finished, {finished}{before}.", file=sys.stderr)


def _identity(file: str | int) -> tuple[int, int] | str | None:
    """Equal for two names of one file, existing or not; None for a device or pipe, which writing does not replace."""
    try:
        status = os.stat(file)  # noqa: PTH116 a descriptor is no path
    except OSError:
        return os.path.realpath(file) if isinstance(file, str) else None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
