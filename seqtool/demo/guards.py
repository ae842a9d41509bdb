"""What protects the demo's server: from pages of other sites, from strangers, and from requests that are too large or
too slow. Other names for this machine are refused by Starlette's TrustedHostMiddleware.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from seqtool.errors import InputError

LOCAL = ("localhost", "127.0.0.1", "[::1]")
JSON_BYTES = 2 << 20  # of a request's body
UPLOAD_BYTES = 20 << 20  # of a form with pictures
HELD_BYTES = 64 << 20  # of the bodies of all requests that wait for an answer
SMALL = 64 << 10  # bytes of a request that is read however much is held
SECONDS = 60.0  # in which a request's body must have arrived
IDLE_SECONDS = 30.0  # without a request being begun or answered, or any of an answer being read
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
HEADERS = {  # of all answers
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def check_address(host: str, port: int, token: str | None) -> None:
    """Raise InputError for a port that no server can have, and for a token that is easily guessed or needs quoting."""
    if token is not None and not TOKEN.fullmatch(token):
        raise InputError("token= must have at least 16 letters, digits, - and _; null makes one.")
    if not 0 <= port <= 65535:
        raise InputError(f"port must be from 0 to 65,535, not {port}.")
    if not host or any(letter.isspace() or letter in "/@?#" for letter in host):
        raise InputError(f"host={host} is not an address: use 127.0.0.1 or one of this machine's.")


def own_names(host: str) -> list[str]:
    """The names under which a server that listens on `host` is asked. Others are refused, since a page elsewhere can
    give its own name this machine's address (DNS rebinding).
    """
    return ["*"] if host in ("0.0.0.0", "::") else [*LOCAL, f"[{host}]" if ":" in host else host]


class Guard:
    """ASGI middleware that refuses what pages of other sites send, and requests without the token.

    token: None where none is needed.
    cookie: the name of the cookie in which the page keeps the token.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        is_foreign = origin is not None and origin.lower().partition("://")[2] != host
        is_foreign = is_foreign or request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_foreign and request.method not in ("GET", "HEAD"):
            raise HTTPException(403, "This request comes from another site's page.")
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        sent = [request.query_params.get("token", ""), request.cookies.get(self._cookie, "")]
        sent += [bearer.strip()] if kind.lower() == "bearer" else []
        token = self._token
        if token is not None and not any(secrets.compare_digest(text.encode(), token.encode()) for text in sent):
            raise HTTPException(
                401, "A token is required: open the whole address that was printed, or send it as a bearer token."
            )
        await self._app(scope, receive, send)


class Bodies:
    """Reads the bodies of requests. `held` counts the bytes of those that are not yet answered."""

    def __init__(self) -> None:
        self.held = 0

    @asynccontextmanager
    async def read(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """A body of at most `most` bytes, which counts as held within the context. Raises HTTPException for a larger
        one and where too much is held, TimeoutError for one that takes longer than `SECONDS` to arrive.
        """
        body = bytearray()
        too_large = HTTPException(413, f"The request is too large: at most {most >> 20} MB can be sent.")
        if int(request.headers.get("content-length", "0")) > most:
            raise too_large
        try:
            async with asyncio.timeout(SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > most:
                        raise too_large
                    if len(body) > SMALL and self.held > HELD_BYTES:
                        raise HTTPException(503, "Too much is being sent at once: try again in a moment.")
            yield bytes(body)
        finally:
            self.held -= len(body)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which by itself waits for ever for a request and for an answer to be read. Looks at every
    connection each `IDLE_SECONDS` and closes it if no request is being answered nor was begun since the last look, or
    if nothing was read of an answer.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(IDLE_SECONDS, self._look, None, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self, request: Any, unread: int) -> None:
        """request, unread: the newest request and the unread bytes of answers at the last look."""
        is_idle = self.cycle is request and (request is None or request.response_complete)
        now_unread = self.transport.get_write_buffer_size()
        if unread and now_unread == unread:
            self.transport.abort()
        elif is_idle and not now_unread:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(IDLE_SECONDS, self._look, self.cycle, now_unread)
