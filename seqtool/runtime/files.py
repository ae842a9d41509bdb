"""Files: reading text line by line, plain or .gz, and seqtool's own JSON; writing files atomically, and those that
commands write, never over their inputs, and kept as far as finished if a command is stopped; locks.
"""

import gzip
import json
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from itertools import combinations, zip_longest
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from seqtool.errors import InputError, OutOfMemoryError, naming

BOM = b"\xef\xbb\xbf"  # the byte order mark that some editors put before UTF-8
LARGEST = 1 << 30  # bytes of a whole .gz
LONGEST = 16 << 20  # bytes of a line: a small .gz can hold one that fills the memory
PIECE = 4096  # bytes of a piece of a longer line: ten thousand are encoded at once
WORD = 256  # bytes in which a word should end
SUFFIX = re.compile(r"(?<=.)\.[A-Za-z_-]+\Z")
DEEPEST = 64  # brackets within brackets, in a JSON file of our own

# Torch's errors are RuntimeErrors.
INTERRUPTIONS = KeyboardInterrupt, SystemExit, RuntimeError, MemoryError, OutOfMemoryError
NOT_ENDED = "not ended"  # in n-best lists, the last field of a hypothesis that was cut off at its maximum length

log = logging.getLogger(__name__)


def config_directory() -> Path:
    """The configurations: the package's copy if it is installed from a wheel, otherwise the checkout's."""
    package = Path(__file__).resolve().parent.parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def read_lines(path: Path, *, may_be_empty: bool = False, with_ends: bool = False) -> Iterator[str]:
    r"""The lines of a UTF-8 file, without line ends unless `with_ends`.

    A line ends with \n or \r\n. If the only \n is at the end of the file, or there is none, \r ends lines too, but not
    `with_ends`: then all of the text is kept as it is. Any other \r inside a line stays, and is warned of once.

    Raises InputError if the file is missing, not a file, empty (unless it `may_be_empty`), not UTF-8, or a damaged .gz,
    or if a line is longer than in any real text. `with_ends`, such a line comes in pieces that end before white space.
    """
    number = before = 0  # the line, and its bytes before this piece
    size, has_return = LONGEST, False
    check_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            while line := file.readline(size):
                number += before == 0
                is_cut = len(line) == size and not line.endswith(b"\n")
                if len(line) == LONGEST and not with_ends:
                    advice = r"its lines end in \r, write \n" if b"\r" in line else "break it into sentences"
                    raise InputError(f"{path} line {number:,} has {LONGEST >> 20} MB or more: {advice}.")
                if is_cut:
                    line += _rest_of_word(file)
                text = line.removeprefix(BOM) if number == 1 and before == 0 else line
                if not text:  # only the mark
                    number = 0
                    break
                if with_ends:
                    yield text.decode()
                else:
                    body = text.removesuffix(b"\n").removesuffix(b"\r")
                    is_whole = b"\r" in body and number == 1 and not file.peek(1)
                    yield from (part.decode() for part in (body.split(b"\r") if is_whole else (body,)))
                    if not (is_whole or has_return) and b"\r" in body.rstrip(b"\r"):
                        has_return = True
                        warn_of_return(str(path), number)
                before, size = (before + len(line), PIECE) if is_cut else (0, LONGEST)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} line {number:,} is not valid UTF-8 (byte {before + error.start + 1:,} of the line): "
                "convert the file to UTF-8."
            ) from error
        except EOFError as error:
            raise InputError(f"{path} is cut short after line {number:,}: copy or download it again.") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} is not an intact gzip file (after line {number:,}): copy or download it again."
            ) from error
    if number == 0 and not may_be_empty:
        raise InputError(f"{path} is empty.")


@cache
def warn_of_return(name: str, number: int) -> None:
    r"""Say that a line, the first of its kind, has \r inside; once, however often the text is read."""
    log.warning(
        r"%s line %s has \r (a carriage return) inside, which ends no line here: write \n where a sentence ends.",
        name,
        f"{number:,}",
    )


def read_text(path: Path) -> str:
    r"""The text of a UTF-8 file, plain or .gz, whose lines may end in \n, \r\n or \r; they end in \n here.

    Raises InputError if the file is missing, empty, not UTF-8, or a damaged or too large .gz.
    """
    if check_file(path).suffix != ".gz":
        content = path.read_bytes()
    else:
        try:
            with gzip.open(path) as file:
                content = file.read(LARGEST)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is not an intact gzip file: copy or download it again.") from error
        if len(content) == LARGEST:
            raise InputError(f"{path} has {LARGEST >> 30} GB or more: decompress it.")
    content = content.removeprefix(BOM)
    if not content:
        raise InputError(f"{path} is empty.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        raise InputError(
            f"{path} line {before.count(10) + 1:,} is not valid UTF-8 (byte {error.start - before.rfind(10)} of the "
            "line): convert the file to UTF-8."
        ) from error
    text = text.replace("\r\n", "\n")
    return text if "\n" in text.strip() else text.replace("\r", "\n")


def _rest_of_word(file: Any) -> bytes:
    """What follows up to white space, or, in text without any, to the end of a character."""
    rest = b""
    while len(rest) < WORD + 3 and (following := file.peek(1)[:1]) and not following.isspace():
        if len(rest) >= WORD and not b"\x80" <= following < b"\xc0":
            break
        rest += file.read(1)
    return rest


def read_two_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs of two files, line by line. Raises InputError if one ends before the other."""
    counts = [0, 0]
    for first, second in zip_longest(read_lines(source), read_lines(target)):
        counts[0] += first is not None
        counts[1] += second is not None
        if first is not None and second is not None:
            yield first, second
    if counts[0] != counts[1]:
        (more, long), (fewer, short) = sorted(zip(counts, (source, target), strict=True), reverse=True)
        other = short.name if short.parent == long.parent else short
        raise InputError(f"{long} has {more:,} lines but {other} has {fewer:,}: the files must be parallel.")


def read_tsv(path: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a file with source, tab, target on each line. Raises InputError for any other line."""
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise InputError(
                f"{path} line {number:,} has {len(columns) - 1} tabs: "
                "each line must be the source, one tab, the target."
            )
        yield columns[0], columns[1]


def check_file(path: Path) -> Path:
    """Returns the path; raises InputError unless it is a file that can be read more than once."""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if path.is_dir():
        raise InputError(f"{path} is a directory, not a text file.")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file: write the text into a file first.")
    return path


def parse_json(content: bytes | str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of the JSON; `pairs` makes its objects. Raises ValueError if anything is wrong with it, including
    numbers of thousands of digits and thousands of brackets.
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("too many brackets within brackets") from error


def finite_json(value: Any, **options: Any) -> str:
    """As JSON, with text as it stands; JSON has no NaN or infinity: null stands for them. options: of `json.dumps`"""
    options |= {"ensure_ascii": False, "allow_nan": False}
    try:
        return json.dumps(value, **options)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), **options)


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file that seqtool wrote. Raises ValueError for what it never writes: another kind of value,
    deep nesting, text that UTF-8 cannot encode, a pipe or device.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    record: dict[str, Any] = parse_json(path.read_bytes())
    if not isinstance(record, dict):
        raise ValueError(f"{path} holds no object")
    check_plain(record)
    return record


def read_json_lines(path: Path, is_valid: Callable[[Any], bool], problem: str) -> list[dict[str, Any]]:
    """The objects that a run recorded, one on each line, without a last line that was cut short.

    Raises InputError, which ends with `problem`, for a line that is not JSON, or not valid. `is_valid` may also raise
    KeyError, TypeError or AttributeError.
    """
    try:
        lines, records = path.read_text(encoding="utf-8").split("\n"), []
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: it is damaged.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not is_valid(record):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise InputError(f"{path} line {number:,} {problem}.") from error
        records.append(record)
    return records


def check_plain(value: Any, depth: int = 0) -> None:
    """Raise ValueError for JSON that is nested deeply, or has text that UTF-8 cannot encode."""
    if depth > DEEPEST:
        raise ValueError("too many brackets within brackets")
    if isinstance(value, str):
        value.encode()  # JSON may hold half a surrogate pair
    elif isinstance(value, dict):
        check_plain([*value, *value.values()], depth)
    elif isinstance(value, list):
        for inner in value:
            check_plain(inner, depth + 1)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that `path` never has just part of it, even if the power fails. A replaced file's mode stays."""
    with beside(path) as temporary, _created(temporary, path) as file:
        file.write(content)
        sync(file)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A text file to write that replaces `path` when it is complete, with its mode; an error leaves the old file."""
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a file to write to.")
    if path.exists() and not path.is_file():  # /dev/null, /dev/stdout, a pipe
        with naming(path), path.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    if path.suffix == ".gz":
        raise InputError(f"{path} would be plain text under the name of a compressed file: name it without .gz.")
    path = path.resolve()  # a link stays a link
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"{path} is read-only: name another file to write to, or allow writing with chmod u+w.")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no directory {path.parent}.")
    with beside(path) as temporary:
        try:
            file = _created(temporary, path)
        except PermissionError as error:
            raise InputError(f"{path} cannot be written: {path.parent} may not be changed.") from error
        with TextIOWrapper(file, encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            sync(file)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A path to write to, whose file replaces `path` when it is complete; an error leaves the old file."""
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(4)}")
    try:
        with naming(path):
            yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, when_busy: Callable[[], None]) -> Iterator[None]:
    """Hold the lock on a file, which is made if need be. The lock is the operating system's, on an open file: it ends
    with its process, however that ends, and what is left of it is an empty file.

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


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def sync(file: IO[Any]) -> None:
    """Force the file's written content to the disk."""
    file.flush()
    os.fsync(file.fileno())


def cut(file: IO[bytes], size: int) -> None:
    """Cut a file to its first `size` bytes, already flushed, and force these to the disk. Bytes that a full disk
    refused may still be in the file's buffer.
    """
    os.ftruncate(file.fileno(), size)
    os.fsync(file.fileno())


def _created(path: Path, like: Path) -> BinaryIO:
    """A new file to write and read, with the mode of the file that it is to replace, if there is one."""
    if not like.exists():
        return path.open("w+b")
    path.touch(0o600)
    file = path.open("w+b")
    path.chmod(stat.S_IMODE(like.stat().st_mode))  # after opening: the mode may forbid writing
    return file


def without_suffix(name: str) -> str:
    """A file's name without its suffix: `a.v1.txt` → `a.v1`, which stays as it is, since a suffix has no digits."""
    return SUFFIX.sub("", name)


def expanded(path: str) -> str:
    """The path with ~ or ~user at its beginning as that home directory; the name of an unknown user stays."""
    return os.path.expanduser(path)  # noqa: PTH111 pathlib's raises for an unknown user


def one_line(text: str) -> str:
    """Any file name as one line of UTF-8 without tabs."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


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
