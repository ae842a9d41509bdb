"""Errors that users can fix: bad input, files that cannot be written, and too little memory."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

NO_SPACE = (ENOSPC, EDQUOT, EFBIG)

# The messages of torch's allocators when memory runs out, and the status codes of NVIDIA's libraries. A library that
# cannot allocate its own handle reports NOT_INITIALIZED.
NO_MEMORY = re.compile("out of memory|not enough memory|can('|no)t allocate memory|bad_alloc", re.IGNORECASE)
NO_MEMORY_STATUS = re.compile("[A-Z_]+_(ALLOC|ALLOCATION)_FAILED|[A-Z]+_STATUS_NOT_INITIALIZED")


class InputError(ValueError):
    """Bad input. The message is one sentence that names the file, line or setting, what was expected and what to do.

    The command line prints the message and exits with status 2. Other exceptions, besides OSError, are defects, whose
    traceback is printed.
    """


class OutOfMemoryError(InputError):
    """Memory ran out. The message says which settings to lower."""


class UnfinishedError(InputError):
    """The preparation of data was interrupted, not because of its input. The next preparation resumes it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the computer's or a GPU's memory ran out, which torch may report as a plain RuntimeError."""
    if isinstance(error, RuntimeError):
        return any(pattern.search(str(error)) for pattern in (NO_MEMORY, NO_MEMORY_STATUS))
    return isinstance(error, MemoryError | OutOfMemoryError)


@contextmanager
def out_of_memory(advice: Callable[[], str], device: object = None) -> Iterator[None]:
    """Raise OutOfMemoryError if memory runs out within the context; its message ends with `advice`."""
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
    """Add the file's name to the error of a full disk or of a file that is too large: failed writes do not name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NO_SPACE:
            error.filename = str(path)
        raise


def full_disk(error: OSError) -> str | None:
    """The message, without a full stop, if a disk or quota is full or a file too large; None for any other error."""
    if error.errno not in NO_SPACE:
        return None
    path = error.filename2 or error.filename or "a file"  # in a copy, filename2 is the file that is written
    if error.errno == EFBIG:
        return f"{path} cannot be written: it would exceed the limit on file sizes; raise it (ulimit -f unlimited)"
    return f"The disk is full: {path} cannot be written; make room"


def counted(number: int, noun: str) -> str:
    """The number with its noun, such as `1 image` or `1,000 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def place(directory: Path) -> str:
    """The directory's name in a message: its whole path instead of `.` or `..`, which are hard to read."""
    return str(directory if directory.name.strip(".") else directory.resolve())


# Control characters, which change what a terminal shows, including line ends and marks of text direction; and unpaired
# surrogates, which cannot be encoded.
UNPRINTABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def printable(text: str) -> str:
    """The text on one line, safe to show on a terminal: control characters are escaped, such as \\x1b."""
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
