"""Fetching a file from the web within firm limits of size and time."""

import ipaddress
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from seqtool.errors import InputError
from seqtool.runtime.version import __version__

MAXIMUM_BYTES = 50_000_000
SECONDS = 20.0  # for everything: looking the name up, connecting, redirects, the last byte
REDIRECTS = 5
REDIRECTING = frozenset({301, 302, 303, 307, 308})
RESERVED = "!#$%&'()*+,/:;=?@[]~"  # left unquoted in an address; % because it may already be quoted

Watch = Callable[[socket.socket], None]


class DownloadError(InputError):
    """Why an address gave no file: the end of a sentence that begins with the address."""


def has_scheme(name: str) -> bool:
    """Whether the name is written as an address: http://…, file://…"""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name) is not None


def is_web_address(name: str) -> bool:
    return re.match(r"https?://", name, re.IGNORECASE) is not None


def download(address: str, *, maximum: int = MAXIMUM_BYTES, seconds: float = SECONDS) -> bytes:
    """The content of an http or https address. Raises DownloadError if it cannot be fetched within the limits.

    The work is done in a thread, since looking up a name cannot be interrupted. At the deadline its sockets are shut
    down, which ends it: the sockets' own timeouts restart with every byte.
    """
    answer: Future[bytes] = Future()
    deadline = time.monotonic() + seconds
    sockets: list[socket.socket] = []

    def watch(connected: socket.socket) -> None:
        sockets.append(connected)
        _remaining(deadline)

    def work() -> None:
        try:
            answer.set_result(_follow(address, maximum, deadline, watch))
        except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid host name
            answer.set_exception(error)

    threading.Thread(target=work, name="download", daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except DownloadError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            for one in sockets:
                with suppress(OSError):  # it is closed
                    one.shutdown(socket.SHUT_RDWR)
            raise DownloadError(f"was not there within {seconds:g} seconds.") from error
        problem = "does not answer" if isinstance(error, URLError) else "cannot be read"
        words = str(getattr(reason, "strerror", None) or reason).split()
        raise DownloadError(f"{problem} ({' '.join(words).rstrip('.') or type(reason).__name__}).") from error


def _follow(address: str, maximum: int, deadline: float, watch: Watch) -> bytes:
    for _ in range(REDIRECTS + 1):
        request = urllib.request.Request(_quoted(address), headers={"User-Agent": f"seqtool/{__version__}"})
        try:
            with _opener(address, watch).open(request, timeout=_remaining(deadline)) as response:
                return _content(response, maximum)
        except HTTPError as error:
            with error:
                location = error.headers.get("Location")
            if error.code not in REDIRECTING or location is None:
                raise DownloadError(f"answers with status {error.code} ({error.reason}).") from error
            address = urljoin(address, location)
            if not is_web_address(address):
                raise DownloadError(f"redirects to {address}: only http and https addresses are read.") from error
    raise DownloadError(f"redirects more than {REDIRECTS} times.")


def _content(response: HTTPResponse, maximum: int) -> bytes:
    if response.status != 200:
        raise DownloadError(f"answers with status {response.status} ({response.reason}).")
    if response.length is None or response.length <= maximum:  # by the server's own statement, if any
        content = response.read(maximum + 1)
        if len(content) <= maximum:
            return content
    raise DownloadError(f"has more than {maximum / 1e6:g} MB.")


def _opener(address: str, watch: Watch) -> urllib.request.OpenerDirector:
    """An opener of addresses: every status but 2xx is an HTTPError, and redirects are not followed."""

    class Watched(urllib.request.HTTPHandler, urllib.request.HTTPSHandler, urllib.request.HTTPRedirectHandler):
        def http_open(self, request: urllib.request.Request) -> HTTPResponse:
            return self.do_open(_watched(HTTPConnection, watch), request)

        def https_open(self, request: urllib.request.Request) -> HTTPResponse:
            return self.do_open(_watched(HTTPSConnection, watch), request)

        def redirect_request(self, *_: object) -> None:
            return None

    proxies = urllib.request.ProxyHandler({} if _is_local(address) else None)
    return urllib.request.build_opener(proxies, Watched())


def _watched(kind: type[HTTPConnection], watch: Watch) -> Any:
    """A kind of connection that passes its sockets to `watch` once they are connected."""

    def connect(connection: HTTPConnection) -> None:
        kind.connect(connection)
        watch(connection.sock)

    return type(kind.__name__, (kind,), {"connect": connect})


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _quoted(address: str) -> str:
    """The address in ASCII: other letters of the path as %XX, of the host as IDNA."""
    parts = urlsplit(address)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return quote(urlunsplit(parts._replace(netloc=host, fragment="")), safe=RESERVED)


def _is_local(address: str) -> bool:
    """Whether the address is on this machine; such addresses bypass the environment's proxy."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False
