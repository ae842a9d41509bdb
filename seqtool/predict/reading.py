"""Read the lines that `translate` and `score` take, from a file, a pipe or a terminal."""

import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from itertools import count, islice
from pathlib import Path

from seqtool.errors import InputError
from seqtool.runtime.files import MAX_LINE_BYTES, printing_to_stderr, read_lines, warn_of_carriage_return, warn_of_table

PROMPT = "> "


def windows(path: str | None, size: int) -> Iterator[list[str]]:
    """Yield the lines of a file, or of standard input if `path` is None, in lists of at most `size`.

    From a file, all lists but the last are full. From a pipe, a list holds the lines that have arrived, so that none
    waits for later ones. From a terminal, a list holds what was typed or pasted at the prompt.
    """
    if not is_file(path) and is_typed():
        yield from _read_prompt()
        return
    if is_file(path):
        lines = _decode_lines() if path is None else read_lines(Path(path), may_be_empty=True)
        found = iter(lambda: list(islice(lines, size)), [])
    else:
        found = _read_pipe(size)
    for number, window in enumerate(found):
        if number == 0:
            warn_of_table(path or "standard input", window)
        yield window


def count_lines(path: str | None) -> int | None:
    """The number of lines of a file; None for a pipe or a terminal. Raises InputError if the file is not valid text."""
    if path is not None:
        return sum(1 for _ in read_lines(Path(path), may_be_empty=True))
    if not is_file(None):
        return None
    start = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
    try:
        return sum(1 for _ in _decode_lines())
    finally:
        os.lseek(sys.stdin.fileno(), start, os.SEEK_SET)


def is_file(path: str | None) -> bool:
    """Whether lines come from a file, either named or redirected to standard input."""
    return path is not None or stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)


def is_typed() -> bool:
    """Whether lines are typed: standard input is a terminal, and standard error is one that can show the prompt."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _read_pipe(size: int) -> Iterator[list[str]]:
    """Yield the lines of a pipe: the next line, with all others that have arrived by then. A thread reads them."""
    arrivals: queue.Queue[str | Exception | None] = queue.Queue(maxsize=size)

    def read() -> None:
        try:
            for line in _decode_lines():
                arrivals.put(line)
            arrivals.put(None)
        except (InputError, OSError) as error:
            arrivals.put(error)

    threading.Thread(target=read, daemon=True).start()
    last: str | Exception | None = ""
    while isinstance(last, str):
        window = [arrivals.get()]
        with suppress(queue.Empty):
            while isinstance(window[-1], str) and len(window) < size:
                window.append(arrivals.get_nowait())
        last = window[-1]
        if lines := [line for line in window if isinstance(line, str)]:
            yield lines
    if last is not None:
        raise last


def _read_prompt() -> Iterator[list[str]]:
    """Yield the lines that are typed or pasted at each prompt, until Ctrl-D."""
    with suppress(ImportError):  # adds line editing and a history to `input`
        import readline  # noqa: F401
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")  # whatever the locale
    print("Type a sentence, or Ctrl-D to finish.", file=sys.stderr)
    for number in count(1):
        try:
            with printing_to_stderr():  # the prompt and the echo: standard output is only for results
                entry = input(PROMPT)
            yield entry.split("\n")  # pasted text may have several lines
        except UnicodeDecodeError as error:
            raise _not_utf_8(number) from error
        except (EOFError, KeyboardInterrupt) as end:
            print(file=sys.stderr)  # so that the shell's prompt starts on a new line
            if isinstance(end, EOFError):
                return
            raise


def _decode_lines() -> Iterator[str]:
    """Yield the lines of standard input from a separate stream: Python cannot exit while a thread reads `sys.stdin`."""
    has_warned = False
    with os.fdopen(os.dup(sys.stdin.fileno()), "rb") as stream:
        for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), 1):
            if len(line) == MAX_LINE_BYTES:
                raise InputError(
                    f"Standard input has {MAX_LINE_BYTES >> 20} MB or more in line {number:,}: break it into sentences."
                )
            try:
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf_8(number) from error
            if not has_warned and "\r" in text.rstrip("\r"):
                has_warned = True
                warn_of_carriage_return("Standard input", number)
            yield text.removeprefix("\ufeff") if number == 1 else text


def _not_utf_8(number: int) -> InputError:
    return InputError(f"Standard input is not valid UTF-8 in line {number:,}: convert it to UTF-8.")
