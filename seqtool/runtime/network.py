"""The only place that reaches the network: our downloads, and those of other libraries, within limits of size and time.

A download of ours ends within its seconds, however slowly the server answers. A file whose download was interrupted is
kept as NAME.partial, and the next attempt asks the server for the rest.
"""

import hashlib
import ipaddress
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path
from ssl import SSLError
from typing import BinaryIO, TypeVar, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from seqtool.errors import InputError
from seqtool.runtime.files import write_whole
from seqtool.runtime.version import __version__

MAXIMUM_BYTES = 50_000_000
SECONDS = 20.0  # for everything: looking the name up, connecting, redirects, the last byte
FILE_SECONDS = 120.0  # the same for a file, whose download the next attempt resumes
ANSWERING = 4.0  # seconds within which a library's server must answer
SILENCE = 20.0  # seconds for which it may then be silent
PIECE = 1 << 16  # bytes that are read at once
REDIRECTS = 5
REDIRECTING = frozenset({301, 302, 303, 307, 308})
RESERVED = "!#$%&'()*+,/:;=?@[]~"  # left unquoted in an address; % because it may already be quoted

T = TypeVar("T")


class DownloadError(InputError):
    """Why an address gave no file: the end of a sentence that begins with the address.

    silence: why nothing answered ("Connection refused"); None if something did.
    """

    def __init__(self, clause: str, silence: str | None = None) -> None:
        super().__init__(clause)
        self.silence = silence


def has_scheme(name: str) -> bool:
    """Whether the name is written as an address: http://…, file://…"""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name) is not None


def is_web_address(name: str) -> bool:
    return re.match(r"https?://", name, re.IGNORECASE) is not None


def download(address: str, *, maximum: int = MAXIMUM_BYTES, seconds: float = SECONDS) -> bytes:
    """The content of an http or https address, at most `maximum` bytes. Raises DownloadError."""
    content = BytesIO()
    _receive(address, content, maximum=maximum, seconds=seconds)
    return content.getvalue()


def download_file(address: str, path: Path, size: int, sha256: str) -> None:
    """Download a file of known size and digest, or what an interrupted download left of it. Raises InputError;
    `path` never has anything but the whole, checked file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    begun = partial.read_bytes() if partial.is_file() else b""
    content = BytesIO()
    content.write(begun if len(begun) < size else b"")
    try:
        _receive(address, content, maximum=size, seconds=FILE_SECONDS)
    except DownloadError as error:
        if content.tell():
            write_whole(partial, content.getvalue())
        clause = str(error).removesuffix(".")
        raise InputError(f"{address} {clause}: put {path.name} into {path.parent} by hand.") from error
    partial.unlink(missing_ok=True)
    if problem := difference(content.getvalue(), size, sha256):
        raise InputError(f"{address} is not the file that it was: {problem}.")
    write_whole(path, content.getvalue())


def difference(content: bytes, size: int, sha256: str) -> str | None:
    """How the content differs from the expected size and digest, as a clause; None if it does not."""
    if len(content) != size:
        return f"it has {len(content):,} bytes instead of {size:,}"
    digest = hashlib.sha256(content).hexdigest()
    return None if digest == sha256 else f"its SHA-256 is {digest} instead of {sha256}"


@dataclass(frozen=True)
class LibraryDownload:
    """A download that another library makes by itself.

    what: begins the sentence that is raised if it fails: "testset=wmt14/full".
    by_hand: ends it: what to do instead.
    addresses: what the library reads.
    is_probed: whether the first address must answer first, for libraries that retry for minutes where none does.
    refusal: why nothing may be downloaded, if that is so.
    """

    what: str
    by_hand: str
    addresses: Sequence[str] = ()
    is_probed: bool = False
    refusal: str | None = None

    def check(self) -> None:
        """Raise InputError if the download is refused, or its address is probed and does not answer soon."""
        reason = self.refusal
        if self.is_probed and reason is None:
            try:
                download(self.addresses[0], maximum=0, seconds=ANSWERING)
            except DownloadError as error:
                reason = error.silence
        if reason is not None:
            raise self._failure(reason)

    def run(self, fetch: Callable[[], T]) -> T:
        """The result of `fetch`, which lets the library download. Raises InputError if the network fails."""
        self.check()
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(SILENCE)
        try:
            return fetch()
        except (OSError, HTTPException, SystemExit) as error:  # sacreBLEU exits once it has logged the reason
            raise self._failure("" if isinstance(error, SystemExit) else reason_of(error)) from error
        finally:
            socket.setdefaulttimeout(before)

    def _failure(self, reason: str) -> InputError:
        source = f" from {' and '.join(self.addresses)}" if self.addresses else ""
        return InputError(f"{self.what} cannot be downloaded{source}{reason and f' ({reason})'}: {self.by_hand}.")


def reason_of(error: BaseException) -> str:
    """The first sentence of an error, without its full stop: "Connection refused"."""
    reason = getattr(error, "reason", None) or error
    text = str(getattr(reason, "strerror", None) or reason) or type(reason).__name__
    return text.splitlines()[0].split(". ")[0].strip().rstrip(".")


def _receive(address: str, file: BinaryIO, *, maximum: int, seconds: float) -> None:
    """Append what the file lacks of the address's content. Raises DownloadError.

    The work is done in a thread, since looking up a name cannot be interrupted, and a socket's own timeout restarts
    with every byte. After the deadline the thread ends with the next piece, or when the server falls silent.
    """
    answer: Future[None] = Future()
    deadline = time.monotonic() + seconds

    def work() -> None:
        try:
            _follow(address, file, maximum, deadline)
            answer.set_result(None)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid host name
            answer.set_exception(error)

    threading.Thread(target=work, name="download", daemon=True).start()
    try:
        answer.result(timeout=seconds)
    except DownloadError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            silence = f"no answer within {seconds:g} seconds"
            raise DownloadError(f"timed out after {seconds:g} seconds.", silence) from error
        problem = "does not answer" if isinstance(error, URLError) else "cannot be read"
        answered = isinstance(reason, SSLError)  # other software may have other certificates
        raise DownloadError(f"{problem} ({reason_of(error)}).", None if answered else reason_of(error)) from error


def _follow(address: str, file: BinaryIO, maximum: int, deadline: float) -> None:
    for _ in range(REDIRECTS + 1):
        try:
            with _open(address, deadline, start=file.tell()) as response:
                return _write(response, file, maximum, deadline)
        except HTTPError as error:
            with error:
                location = error.headers.get("Location")
            if error.code == 416 and file.tell():  # the file there is shorter than what was left of it here
                file.seek(0)
                file.truncate()
                continue
            if error.code not in REDIRECTING or location is None:
                raise DownloadError(f"answers with status {error.code} ({error.reason}).") from error
            address = urljoin(address, location)
            if not is_web_address(address):
                raise DownloadError(f"redirects to {address}: only http and https addresses are read.") from error
    raise DownloadError(f"redirects more than {REDIRECTS} times.")


def _write(response: HTTPResponse, file: BinaryIO, maximum: int, deadline: float) -> None:
    if response.status == 200:  # the whole file, even if only a part was asked for
        file.seek(0)
        file.truncate()
    elif response.status != 206 or not file.tell():
        raise DownloadError(f"answers with status {response.status} ({response.reason}).")
    if file.tell() + (response.length or 0) <= maximum:  # by the server's own statement, if any
        while file.tell() <= maximum and _remaining(deadline) and (piece := response.read1(PIECE)):
            file.write(piece)
        if file.tell() <= maximum:
            return
    raise DownloadError(f"has more than {maximum / 1e6:g} MB.")


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A redirect stays an HTTPError."""


def _open(address: str, deadline: float, *, start: int) -> HTTPResponse:
    """The answer to a request for the content from byte `start` on. Every status but 2xx is an HTTPError.

    The address is sent in ASCII: other letters of its path as %XX, of its host as IDNA.
    """
    parts = urlsplit(address)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    quoted = quote(urlunsplit(parts._replace(netloc=host, fragment="")), safe=RESERVED)
    headers = {"User-Agent": f"seqtool/{__version__}", **({"Range": f"bytes={start}-"} if start else {})}
    request = urllib.request.Request(quoted, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if _is_local(address) else None), _NotFollowed)
    return cast(HTTPResponse, opener.open(request, timeout=_remaining(deadline)))


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _is_local(address: str) -> bool:
    """Whether the address is on this machine; such addresses bypass the environment's proxy."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False
