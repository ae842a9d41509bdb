"""Locks between processes. A lock is the operating system's, on an open file: it ends with its process, however that
ends, and what is left of it is an empty file.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, when_busy: Callable[[], None]) -> Iterator[None]:
    """Hold the lock on a file, which is made if need be.

    If another process holds it, `when_busy` is called first; then, unless that raises, this process waits.
    """
    from filelock import FileLock, Timeout  # takes a moment, and few commands lock anything

    lock = FileLock(path, fallback_to_soft=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        when_busy()
        held = lock.acquire()
    with held:
        yield
