"""The one exception that is the user's to mend, and files that cannot be written."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path

FULL = (ENOSPC, EDQUOT)


class InputError(ValueError):
    """Bad input: one sentence that names the file, line or setting, what was expected and what to do.

    The command line prints it and exits with status 2; every other exception is a defect and keeps its traceback.
    """


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Give the error of a full disk, which knows no file name where a write fails, the name of what is written."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            error.filename = str(path)
        raise


def full_disk(error: OSError) -> str | None:
    """The sentence about a full disk or a quota that is used up; None for any other error."""
    if error.errno not in FULL:
        return None
    path = error.filename2 or error.filename or "a file"  # of a copy the second is what is written
    return f"The disk is full: {path} cannot be written."


# Control characters, which a terminal obeys, ends of lines and marks that turn the direction of text among them; and
# halves of surrogate pairs, which cannot be written.
UNPRINTABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def printable(text: str) -> str:
    """The text on one line, safe to show on a terminal: control characters in it are escaped, as \\x1b."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
