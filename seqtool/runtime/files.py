"""Reading and writing files.

- Text is read line by line, plain or .gz; seqtool's own JSON is checked.
- Files are written atomically, under locks where processes share them.
- Commands never write over their inputs, and what is finished is kept if a command is stopped.
"""

import gzip
import json
import os
import re
import secrets
import shutil
import stat
import sys
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from itertools import combinations, repeat, zip_longest
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from seqtool.errors import InputError, OutOfMemoryError, counted, naming, place
from seqtool.runtime.log import log

BOM = b"\xef\xbb\xbf"  # the byte order mark that some editors write at the start of a UTF-8 file
MAX_GZIP_BYTES = 1 << 30  # the decompressed size of a .gz that is read as a whole
MAX_LINE_BYTES = 16 << 20  # a limit is needed, since a small .gz can contain a line that fills the memory
CHUNK_BYTES = 4096  # longer lines are read in chunks of this size, of which ten thousand are encoded together
MAX_WORD_BYTES = 256  # a chunk is extended by at most this much, to end with a whole word
SUFFIX = re.compile(r"(?<=.)\.[A-Za-z_-]+\Z")  # the end of a name; it has no digits, so that `a.v1` has no suffix
MAX_JSON_DEPTH = 64  # the depth of nested brackets in a JSON file that seqtool wrote

INTERRUPTIONS = KeyboardInterrupt, SystemExit, RuntimeError, MemoryError, OutOfMemoryError  # torch raises RuntimeError
NOT_ENDED = "not ended"  # in n-best lists, the last field of a hypothesis that was cut off at its maximum length


def config_directory() -> Path:
    """The directory of the YAML files: the package's if it is installed from a wheel, otherwise the checkout's."""
    package = Path(__file__).resolve().parent.parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def read_lines(path: Path, *, may_be_empty: bool = False, with_ends: bool = False) -> Iterator[str]:
    r"""The lines of a UTF-8 file, without line ends unless `with_ends` is true.

    A line ends with \n or \r\n. \r also ends lines if the file has no \n, except at its end. Any other \r stays in its
    line, and a warning is logged once. If `with_ends`, \r never ends a line, and the text is unchanged.

    Raises InputError if the file is missing, not a file, empty (unless `may_be_empty`), not UTF-8, or a damaged .gz, or
    if a line has `MAX_LINE_BYTES`. If `with_ends`, such a line is yielded in chunks that end before white space.
    """
    number = bytes_before = 0  # the number of the line, and its bytes before this chunk
    size, has_warned = MAX_LINE_BYTES, False
    check_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            while line := file.readline(size):
                if bytes_before == 0:
                    number += 1
                is_cut = len(line) == size and not line.endswith(b"\n")
                if len(line) == MAX_LINE_BYTES and not with_ends:
                    advice = r"end lines with \n instead of \r" if b"\r" in line else "break it into sentences"
                    raise InputError(f"{path} line {number:,} has {MAX_LINE_BYTES >> 20} MB or more: {advice}.")
                if is_cut:
                    line += _read_rest_of_word(file)
                text = line.removeprefix(BOM) if number == 1 and bytes_before == 0 else line
                if not text:  # a file of only the byte order mark
                    number = 0
                    break
                if with_ends:
                    yield text.decode()
                else:
                    body = text.removesuffix(b"\n").removesuffix(b"\r")
                    has_cr_ends = b"\r" in body and number == 1 and not file.peek(1)
                    yield from body.decode().split("\r") if has_cr_ends else [body.decode()]
                    if not (has_cr_ends or has_warned) and b"\r" in body.rstrip(b"\r"):
                        has_warned = True
                        warn_of_carriage_return(str(path), number)
                bytes_before, size = (bytes_before + len(line), CHUNK_BYTES) if is_cut else (0, MAX_LINE_BYTES)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, bytes_before + error.start + 1, line) from error
        except EOFError as error:
            raise InputError(f"{path} is cut short after line {number:,}: copy or download it again.") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} is not an intact gzip file (after line {number:,}): copy or download it again."
            ) from error
    if number == 0 and not may_be_empty:
        raise InputError(f"{path} is empty.")


@cache
def warn_of_carriage_return(name: str, number: int) -> None:
    r"""Warn of the first line that contains \r: only once, however often the text is read."""
    log.warning(
        r"%s line %s contains \r (a carriage return), which is not treated as a line end: end lines with \n.",
        name,
        f"{number:,}",
    )


def read_text(path: Path) -> str:
    r"""The text of a UTF-8 file, plain or .gz, with \n at the ends of lines.

    Lines of the file may end with \n or \r\n, or with \r if the file has no \n, except at its end. Raises InputError if
    it is missing, empty, not UTF-8, or a damaged or too large .gz.
    """
    if check_file(path).suffix != ".gz":
        content = path.read_bytes()
    else:
        try:
            with gzip.open(path) as file:
                content = file.read(MAX_GZIP_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is not an intact gzip file: copy or download it again.") from error
        if len(content) == MAX_GZIP_BYTES:
            raise InputError(f"{path} has {MAX_GZIP_BYTES >> 30} GB or more: decompress it.")
    content = content.removeprefix(BOM)
    if not content:
        raise InputError(f"{path} is empty.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, byte = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise _not_utf8(path, line, byte, content) from error
    text = text.replace("\r\n", "\n")
    return text if "\n" in text.strip() else text.replace("\r", "\n")


def _not_utf8(path: Path, line: int, byte: int, content: bytes) -> InputError:
    """The error for a byte that is not UTF-8; `content` is the line, or begins with the file's first line."""
    if line == 1 and content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return InputError(f"{path} is UTF-16: convert it with iconv -f UTF-16 -t UTF-8, or save it as UTF-8.")
    problem = f"is not valid UTF-8 (byte {byte:,} of the line): convert the file to UTF-8."
    return InputError(f"{path} line {line:,} {problem}")


def _read_rest_of_word(file: Any) -> bytes:
    """Read on to white space; if there is none within `MAX_WORD_BYTES`, to the end of a character."""
    rest = b""
    while len(rest) < MAX_WORD_BYTES + 3 and (next_byte := file.peek(1)[:1]) and not next_byte.isspace():
        if len(rest) >= MAX_WORD_BYTES and not b"\x80" <= next_byte < b"\xc0":
            break
        rest += file.read(1)
    return rest


def warn_of_table(name: str, lines: Sequence[str]) -> None:
    """Warn of lines that all have tabs inside, whose columns would be read as one text."""
    texts = list(filter(None, map(str.strip, lines)))
    if texts and all("\t" in text for text in texts):
        log.warning("The lines of %s have tabs, so it seems to be a table: give a file with only one side.", name)


def read_two_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs of lines of two parallel files. Raises InputError if one ends before the other."""
    counts = [0, 0]
    for source_line, target_line in zip_longest(read_lines(source), read_lines(target)):
        counts[0] += 0 if source_line is None else 1
        counts[1] += 0 if target_line is None else 1
        if source_line is not None and target_line is not None:
            yield source_line, target_line
    if counts[0] != counts[1]:
        (more, longer), (fewer, shorter) = sorted(zip(counts, (source, target), strict=True), reverse=True)
        lines = counted(more, "line")
        raise InputError(f"{longer} has {lines} but {shorter} has {fewer:,}: the files must be parallel.")


def read_tsv(path: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a file whose lines are a source, a tab and a target, or blank, which makes a pair of empty texts
    unless only blank lines follow. Raises InputError for any other line.
    """
    blank = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip(" "):
            blank += 1
            continue
        yield from repeat(("", ""), blank)
        blank, columns = 0, line.split("\t")
        if len(columns) != 2:
            advice = "" if len(columns) > 2 else ". Or give two files, source,target"
            advice = ". CSV is not read: save it with tabs" if ".csv" in path.suffixes else advice
            raise InputError(
                f"{path} line {number:,} has {counted(len(columns) - 1, 'tab')}: "
                f"each line must be the source, one tab, the target{advice}."
            )
        yield columns[0], columns[1]


def check_file(path: Path) -> Path:
    """Return the path. Raises InputError unless it is a regular file, which can be read more than once."""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if path.is_dir():
        raise InputError(f"{place(path)} is a directory, not a text file.")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file: write the text into a file first.")
    return path


def parse_json(content: bytes | str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of the JSON, whose objects `pairs` makes from their names and values (None: dictionaries).

    Raises ValueError if it is invalid, including thousands of digits in a number and thousands of nested brackets.
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def finite_json(value: Any, **options: Any) -> str:
    """JSON with null for NaN and infinity, which JSON does not have. `options`: further arguments of `json.dumps`."""
    options |= {"ensure_ascii": False, "allow_nan": False}
    try:
        return json.dumps(value, **options)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), **options)


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file that seqtool wrote.

    Raises ValueError for what seqtool never writes: another kind of value, deep nesting, text that UTF-8 cannot encode;
    and for a pipe or device.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    record: dict[str, Any] = parse_json(path.read_bytes())
    if not isinstance(record, dict):
        raise ValueError(f"{path} does not contain an object")
    check_plain(record)
    return record


def read_json_lines(path: Path, is_valid: Callable[[Any], bool], problem: str) -> list[dict[str, Any]]:
    """The objects that a run recorded, one per line. A last line that was cut short is left out.

    path: the file.
    is_valid: whether an object is valid; it may also raise KeyError, TypeError or AttributeError for one that is not.
    problem: the end of the message of the InputError for any line that is not valid.
    """
    try:
        lines, records = path.read_text(encoding="utf-8").split("\n"), []
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: it is damaged.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            if not is_valid(record):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise InputError(f"{path} line {number:,} {problem}.") from error
        records.append(record)
    return records


def check_plain(value: Any, depth: int = 0) -> None:
    """Raise ValueError for a JSON value that is nested deeply, or has text that UTF-8 cannot encode."""
    if depth > MAX_JSON_DEPTH:
        raise ValueError("too many nested brackets")
    if isinstance(value, str):
        value.encode()  # JSON may contain half of a surrogate pair
    elif isinstance(value, dict):
        check_plain([*value, *value.values()], depth)
    elif isinstance(value, list):
        for inner in value:
            check_plain(inner, depth + 1)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: `path` never holds a part, even if the power fails. A replaced file's mode stays."""
    with replacement_path(path) as temporary, _create(temporary, path) as file:
        file.write(content)
        sync(file)


def check_writable(path: Path) -> None:
    """Raise InputError unless text can be written to the path."""
    if path.is_dir():
        raise InputError(f"{place(path)} is a directory: name a file to write to.")
    if path.exists() and not path.is_file():  # /dev/null, /dev/stdout, a pipe
        return
    if path.suffix == ".gz":
        raise InputError(f"{path} would be plain text under the name of a compressed file: name it without .gz.")
    path = path.resolve()
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no directory {path.parent}.")
    for existing in filter(Path.exists, (path, path.parent)):
        _check_permission(existing, str(path), "file")


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Yield a text file, which replaces `path` when it is complete and takes its mode; an error leaves the old file."""
    check_writable(path)
    if path.exists() and not path.is_file():
        with naming(path), path.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    path = path.resolve()  # replaces the target of a link, not the link
    with replacement_path(path) as temporary:
        file = _create(temporary, path)
        with TextIOWrapper(file, encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            sync(file)


def check_directory(path: Path, setting: str) -> None:
    """Raise InputError unless files can be written in the directory that a setting names, which need not exist yet."""
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        kind = "a file, not a directory" if existing.exists() else "a link to nothing"
        raise InputError(f"{setting}={path} cannot be used: {existing} is {kind}; name a directory.")
    _check_permission(existing, f"{setting}={path}", "directory")


def _check_permission(existing: Path, subject: str, kind: str) -> None:
    """Raise InputError if a file or directory may not be written to. `subject` begins the message; `kind` ends it."""
    if not os.access(existing, os.W_OK):
        is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY  # chmod changes nothing there
        advice = f" (chmod u+w {existing} allows it)" if existing.stat().st_uid == os.geteuid() else ""
        reason = "read-only file system" if is_read_only else f"permission denied{advice}"
        raise InputError(f"{subject} cannot be written: {reason}; name another {kind}.")


@contextmanager
def replacement_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` when it is complete; an error leaves the old file."""
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(4)}")
    try:
        with naming(path):
            yield temporary
        temporary.replace(path)
    except OSError as error:
        if str(error.filename) == str(temporary):  # messages name the user's file, not the temporary one
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, when_busy: Callable[[], None]) -> Iterator[None]:
    """Hold a lock on a file, which is created if it does not exist.

    The operating system releases the lock when the process ends, however it ends; an empty file is left. If another
    process holds the lock, `when_busy` is called; unless it raises, this process then waits.
    """
    from filelock import FileLock, Timeout  # importing takes a moment, and few commands lock anything

    lock = FileLock(path, fallback_to_soft=False)
    try:
        acquired_lock = lock.acquire(blocking=False)
    except Timeout:
        when_busy()
        acquired_lock = lock.acquire()
    with acquired_lock:
        yield


def write_lines(path: Path, lines: Iterable[str]) -> None:
    r"""Write lines as UTF-8, each with \n at its end."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def sync(file: IO[Any]) -> None:
    """Force the content that was written to a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def cut(file: IO[bytes], size: int) -> None:
    """Truncate a file to its first `size` bytes, which must have been flushed, and force them to the disk.

    It does not flush: the file's buffer may contain bytes that a full disk refused.
    """
    os.ftruncate(file.fileno(), size)
    os.fsync(file.fileno())


def _create(path: Path, replaced_file: Path) -> BinaryIO:
    """Create a file to write and read, with the mode of `replaced_file` if that exists."""
    if not replaced_file.exists():
        return path.open("w+b")
    path.touch(0o600)
    file = path.open("w+b")
    path.chmod(stat.S_IMODE(replaced_file.stat().st_mode))  # after opening: the mode may forbid writing
    return file


def without_suffix(name: str) -> str:
    """A file's name without its suffix, which has no digits: `a.v1.txt` → `a.v1` → `a.v1`."""
    return SUFFIX.sub("", name)


def expanded(path: str) -> str:
    """The path with the home directory in place of ~ or ~user at its beginning; an unknown user's name stays."""
    return os.path.expanduser(path)  # noqa: PTH111 Path.expanduser raises for an unknown user


def one_line(text: str) -> str:
    """A text, such as any file name, as one line of UTF-8 without tabs."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[tuple[str, str | int]]) -> None:
    """Raise InputError if two outputs are the same file, or an output is also an input, even through links.

    outputs: the path of each output, by setting
    inputs: the name in messages and the path or descriptor of each input
    """
    paths = {name: path for name, path in outputs.items() if path is not None}
    identities = {name: _identity(path) for name, path in paths.items()}
    for name, other in combinations(paths, 2):
        if identities[name] is not None and identities[name] == identities[other]:
            raise InputError(f"{name} and {other} are both {paths[name]}: name two files.")
    for title, file in inputs if paths else ():
        input_identity = _identity(file)
        for name, path in paths.items():
            if input_identity is not None and input_identity == identities[name]:
                raise InputError(
                    f"{name}={path} is the same file as {title}, which is read: name another file to write to."
                )


@contextmanager
def keeping(path: Path, finished: Callable[[], str]) -> Iterator[TextIO]:
    """Yield a text file to write, as in `replacing`, of which a finished part is kept.

    If Ctrl-C, a signal or a machine failure ends the work early, the finished part is kept as PATH.partial. Its path
    and its size, as `finished()` describes it, are printed to standard error. Bad input and a full disk leave nothing.
    """
    with replacing(path) as stream:
        try:
            yield stream
        except INTERRUPTIONS:
            _keep(stream, path, finished())
            raise


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send what C code and other programs print to standard error, within the context: standard output has results."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _keep(stream: TextIO, path: Path, finished: str) -> None:
    """Copy what was written so far to PATH.partial, and report it."""
    stream.flush()
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return
    if stream.tell() == 0:
        print(f"Stopped before anything was written: {path} is not made.", file=sys.stderr)
        return
    partial = path.with_name(f"{path.name}.partial")
    with open(os.dup(stream.fileno()), "rb") as source, replacing(partial) as copy:  # noqa: PTH123 a descriptor
        source.seek(0)
        shutil.copyfileobj(source, copy.buffer)
    unchanged = f"; {path} is unchanged" if path.exists() else ""
    print(f"Stopped: {partial} has what is finished, {finished}{unchanged}.", file=sys.stderr)


def _identity(file: str | int) -> tuple[int, int] | str | None:
    """A value that is equal for two names of one file, even if it does not exist yet.

    None for a device or pipe, which writing does not replace.
    """
    try:
        status = os.stat(file)  # noqa: PTH116 a descriptor is not a path
    except OSError:
        return os.path.realpath(file) if isinstance(file, str) else None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
