"""The exception for what the user can put right, errors of files that cannot be written, and lack of memory."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

FULL = (ENOSPC, EDQUOT, EFBIG)

# What torch's allocators say when memory runs out, and the status by which NVIDIA's libraries say so: one that has no
# memory for its own handle is NOT_INITIALIZED.
NO_MEMORY = re.compile("out of memory|not enough memory|can('|no)t allocate memory|bad_alloc", re.IGNORECASE)
NO_MEMORY_STATUS = re.compile("[A-Z_]+_(ALLOC|ALLOCATION)_FAILED|[A-Z]+_STATUS_NOT_INITIALIZED")


class InputError(ValueError):
    """Bad input: one sentence that names the file, line or setting, what was expected and what to do.

    The command line prints it and exits with status 2; every other exception is a defect and keeps its traceback.
    """


class OutOfMemoryError(InputError):
    """Memory ran out: the sentence says what to lower."""


class UnfinishedError(InputError):
    """A preparation ended, but not because of its input: its results are kept, and the next preparation resumes."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, the computer's or a GPU's. Of torch's errors some are plain RuntimeErrors."""
    if isinstance(error, RuntimeError):
        return any(pattern.search(str(error)) for pattern in (NO_MEMORY, NO_MEMORY_STATUS))
    return isinstance(error, MemoryError | OutOfMemoryError)


@contextmanager
def out_of_memory(advice: Callable[[], str], device: object = None) -> Iterator[None]:
    """Raise OutOfMemoryError if memory runs out, ending with `advice`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        status = NO_MEMORY_STATUS.search(str(error))
        where = ("" if device is None else f" on {device}") + (f" ({status[0]})" if status else "")
        raise OutOfMemoryError(f"Out of memory{where} {advice()}") from error


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add the name of the file to the error of a full disk or of a file that is too large, which has none if a write
    fails.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            error.filename = str(path)
        raise


def full_disk(error: OSError) -> str | None:
    """What is wrong and what to do, without a full stop, if a disk or a quota is full or a file too large; None for any
    other error.
    """
    if error.errno not in FULL:
        return None
    path = error.filename2 or error.filename or "a file"  # for a copy, the second is the one written
    if error.errno == EFBIG:
        return f"{path} cannot be written: a file may not be so large here; raise the limit (ulimit -f unlimited)"
    return f"The disk is full: {path} cannot be written; make room"


# Control characters, which a terminal obeys, including line ends and marks that change the direction of text; and
# halves of surrogate pairs, which cannot be encoded.
UNPRINTABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def printable(text: str) -> str:
    """The text on one line, safe to show on a terminal: control characters in it are escaped, as \\x1b."""
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
