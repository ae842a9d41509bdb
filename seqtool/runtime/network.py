"""The only module that uses the network, for downloads by seqtool and by other libraries.

seqtool's own downloads are limited in size and time, however slowly the server answers. What was received of a file
whose download was interrupted is kept as NAME.partial, and the next attempt asks the server for the rest.
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
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path
from ssl import SSLError
from typing import BinaryIO, NamedTuple, TypeVar, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from seqtool.errors import InputError
from seqtool.runtime.files import write_whole
from seqtool.runtime.version import __version__

MAX_BYTES = 50_000_000  # the largest size of a download, unless it is a file of known size
TIMEOUT_SECONDS = 20.0  # the time for a whole download, from looking up the name to the last byte
FILE_TIMEOUT_SECONDS = 120.0  # the time for a file, whose download the next attempt resumes
PROBE_SECONDS = 4.0  # the time in which the server of a library's download must answer
SOCKET_TIMEOUT_SECONDS = 20.0  # the time in which the next byte of a library's download must arrive
CHUNK_BYTES = 1 << 16  # the number of bytes read at once
MAX_REDIRECTS = 5
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
UNQUOTED = "!#$%&'()*+,/:;=?@[]~"  # RFC 3986's reserved characters and ~; % because an address may already be quoted

T = TypeVar("T")


class DownloadError(InputError):
    """A download failed. The message is the end of a sentence that begins with the address."""

    def __init__(self, clause: str, no_answer: str | None = None) -> None:
        super().__init__(clause)
        self.no_answer = no_answer  # the reason why no server answered ("Connection refused"); None if a server did


def has_scheme(name: str) -> bool:
    """Whether a name is an address with a scheme: http://…, file://…"""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name) is not None


def is_web_address(name: str) -> bool:
    """Whether a name is an http or https address."""
    return re.match(r"https?://", name, re.IGNORECASE) is not None


def download(address: str, *, maximum: int = MAX_BYTES, seconds: float = TIMEOUT_SECONDS) -> bytes:
    """The content of an http or https address. Raises DownloadError if it fails or has more than `maximum` bytes."""
    content = BytesIO()
    _receive(address, content, maximum=maximum, seconds=seconds)
    return content.getvalue()


def download_file(address: str, path: Path, size: int, sha256: str) -> None:
    """Download a file of known size and digest to `path`, or the rest of an interrupted download.

    Raises InputError if that fails, or if the content differs. Only a complete and checked file is written to `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    received_bytes = partial.read_bytes() if partial.is_file() else b""
    content = BytesIO()
    content.write(received_bytes if len(received_bytes) < size else b"")
    try:
        _receive(address, content, maximum=size, seconds=FILE_TIMEOUT_SECONDS)
    except DownloadError as error:
        if content.tell():
            write_whole(partial, content.getvalue())
        clause = str(error).removesuffix(".")
        raise InputError(f"{address} {clause}: put {path.name} into {path.parent} by hand.") from error
    partial.unlink(missing_ok=True)
    if problem := difference(content.getvalue(), size, sha256):
        raise InputError(f"{address} is not the expected file: {problem}.")
    write_whole(path, content.getvalue())


def difference(content: bytes, size: int, sha256: str) -> str | None:
    """A clause that describes how the content differs from the expected size and digest; None if it does not."""
    if len(content) != size:
        return f"it has {len(content):,} bytes instead of {size:,}"
    digest = hashlib.sha256(content).hexdigest()
    return None if digest == sha256 else f"its SHA-256 is {digest} instead of {sha256}"


class LibraryDownload(NamedTuple):
    """A download by another library."""

    subject: str  # the subject of the message if it fails, such as "testset=wmt14/full"
    advice: str  # the end of the message: what to do instead
    addresses: Sequence[str] = ()  # the addresses that the library downloads
    is_probed: bool = False  # whether to try the first first: some libraries retry for minutes if no server answers
    refusal: str | None = None  # the reason why nothing may be downloaded; None if it may

    def check(self) -> None:
        """Raise InputError if the download is refused, or if its address is probed and does not answer in time."""
        reason = self.refusal
        if self.is_probed and reason is None:
            try:
                download(self.addresses[0], maximum=0, seconds=PROBE_SECONDS)
            except DownloadError as error:
                reason = error.no_answer
        if reason is not None:
            raise self._failure(reason)

    def run(self, fetch: Callable[[], T]) -> T:
        """The result of `fetch`, in which the library downloads. Raises InputError if the network fails."""
        self.check()
        previous_timeout = socket.getdefaulttimeout()
        socket.setdefaulttimeout(SOCKET_TIMEOUT_SECONDS)
        try:
            return fetch()
        except (OSError, HTTPException, SystemExit) as error:  # sacreBLEU logs the reason and exits
            raise self._failure("" if isinstance(error, SystemExit) else reason_of(error)) from error
        finally:
            socket.setdefaulttimeout(previous_timeout)

    def _failure(self, reason: str) -> InputError:
        source = f" from {' and '.join(self.addresses)}" if self.addresses else ""
        reason = f" ({reason})" if reason else ""
        return InputError(f"{self.subject} cannot be downloaded{source}{reason}: {self.advice}.")


def reason_of(error: BaseException) -> str:
    """The reason for an error: the first sentence of its message, without a full stop ("Connection refused")."""
    reason = getattr(error, "reason", None) or error
    text = str(getattr(reason, "strerror", None) or reason) or type(reason).__name__
    return text.splitlines()[0].split(". ")[0].strip().rstrip(".")


def _receive(address: str, file: BinaryIO, *, maximum: int, seconds: float) -> None:
    """Append the part of an address's content that the file does not have yet. Raises DownloadError.

    A thread does the work, since looking up a name cannot be interrupted, and a socket's own timeout restarts with
    every byte. After the deadline the thread ends with the next chunk, or when the socket times out.
    """
    outcome: Future[None] = Future()
    deadline = time.monotonic() + seconds

    def receive() -> None:
        try:
            _follow(address, file, maximum, deadline)
            outcome.set_result(None)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid host name
            outcome.set_exception(error)

    threading.Thread(target=receive, name="download", daemon=True).start()
    try:
        outcome.result(timeout=seconds)
    except DownloadError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            no_answer = f"no answer within {seconds:g} seconds"
            raise DownloadError(f"timed out after {seconds:g} seconds.", no_answer) from error
        problem = "does not answer" if isinstance(error, URLError) else "cannot be read"
        has_answered = isinstance(reason, SSLError)  # a library may have other certificates, and succeed
        raise DownloadError(f"{problem} ({reason_of(error)}).", None if has_answered else reason_of(error)) from error


def _follow(address: str, file: BinaryIO, maximum: int, deadline: float) -> None:
    """Receive the content of an address, following redirects."""
    for _ in range(MAX_REDIRECTS + 1):
        try:
            with _open(address, deadline, start=file.tell()) as response:
                return _write(response, file, maximum, deadline)
        except HTTPError as error:
            with error:
                location = error.headers.get("Location")
            if error.code == 416 and file.tell():  # the server's file is shorter than the part received earlier
                file.seek(0)
                file.truncate()
                continue
            if error.code not in REDIRECT_STATUSES or location is None:
                raise DownloadError(f"answers with status {error.code} ({error.reason}).") from error
            address = urljoin(address, location)
            if not is_web_address(address):
                raise DownloadError(f"redirects to {address}: only http and https addresses are read.") from error
    raise DownloadError(f"redirects more than {MAX_REDIRECTS} times.")


def _write(response: HTTPResponse, file: BinaryIO, maximum: int, deadline: float) -> None:
    """Write the content of a response to the file, which may have at most `maximum` bytes."""
    if response.status == 200:  # the whole content, even if only a part was requested
        file.seek(0)
        file.truncate()
    elif response.status != 206 or not file.tell():
        raise DownloadError(f"answers with status {response.status} ({response.reason}).")
    if file.tell() + (response.length or 0) <= maximum:  # the length that the server announces, if any
        while file.tell() <= maximum and _remaining(deadline) and (chunk := response.read1(CHUNK_BYTES)):
            file.write(chunk)
        if file.tell() <= maximum:
            if response.length:  # what is missing
                raise DownloadError(f"ended after {file.tell():,} of {file.tell() + response.length:,} bytes.")
            return
    raise DownloadError(f"has more than {maximum / 1e6:g} MB.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect, which is then raised as an HTTPError."""


def _open(address: str, deadline: float, *, start: int) -> HTTPResponse:
    """The response to a request for the content from byte `start` on. Any status other than 2xx is an HTTPError.

    The address is sent in ASCII: other characters are written as %XX in its path, and as IDNA in its host.
    """
    parts = urlsplit(address)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    quoted_address = quote(urlunsplit(parts._replace(netloc=host, fragment="")), safe=UNQUOTED)
    headers = {"User-Agent": f"seqtool/{__version__}", **({"Range": f"bytes={start}-"} if start else {})}
    request = urllib.request.Request(quoted_address, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if _is_local(address) else None), _NoRedirects)
    return cast(HTTPResponse, opener.open(request, timeout=_remaining(deadline)))


def _remaining(deadline: float) -> float:
    """The seconds that remain until the deadline; raises TimeoutError if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _is_local(address: str) -> bool:
    """Whether the address is on this machine, so that it bypasses the environment's proxy."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # not an IP address
        return False
