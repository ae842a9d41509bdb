"""Protects the demo's server against pages of other sites, clients without the token, and requests that are too large
or too slow. Starlette's TrustedHostMiddleware refuses requests with an unknown Host header.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from seqtool.errors import InputError

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
MAX_JSON_BYTES = 2 << 20  # the size of a request's body
MAX_UPLOAD_BYTES = 20 << 20  # the size of a form with pictures
MAX_HELD_BYTES = 64 << 20  # the size of the bodies of all requests that wait for an answer
SMALL_BODY_BYTES = 64 << 10  # a body up to this size is read even if MAX_HELD_BYTES are held
BODY_SECONDS = 60.0  # the time in which the body of a request must arrive
IDLE_SECONDS = 30.0  # the time between two checks of a connection (`TimedProtocol`)
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
HEADERS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("headers.yaml").read_bytes())  # type: ignore[no-untyped-call]


def check_address(host: str, port: int, token: str | None) -> None:
    """Raise InputError for an invalid host or port, and for a token that is short or would need quoting in a URL."""
    if token is not None and not TOKEN.fullmatch(token):
        raise InputError("token= must have at least 16 letters, digits, - and _; null generates one.")
    if not 0 <= port <= 65535:
        raise InputError(f"port must be from 0 to 65,535, not {port}.")
    if not host or any(letter.isspace() or letter in "/@?#" for letter in host):
        raise InputError(f"host={host} is not an address: use 127.0.0.1 or one of this machine's.")


def allowed_hosts(host: str) -> list[str]:
    """The Host headers that a server listening on `host` accepts. It must refuse others, because a page of another site
    can make its own name resolve to this machine's address (DNS rebinding).
    """
    return ["*"] if host in ("0.0.0.0", "::") else [*LOCAL_HOSTS, f"[{host}]" if ":" in host else host]


class Guard:
    """ASGI middleware that refuses requests from pages of other sites, and requests without the token.

    token: the token that requests must send; None accepts all
    cookie: the name of the cookie in which the page keeps the token
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
        candidates = [request.query_params.get("token", ""), request.cookies.get(self._cookie, "")]
        candidates += [bearer.strip()] if kind.lower() == "bearer" else []
        token = self._token
        if token is not None and not any(secrets.compare_digest(sent.encode(), token.encode()) for sent in candidates):
            advice = "open the whole address that was printed, or send it as a bearer token"
            raise HTTPException(401, f"A token is required: {advice}.")
        await self._app(scope, receive, send)


class Bodies:
    """Reads the bodies of requests. `held` is the number of bytes of the requests not answered yet."""

    def __init__(self) -> None:
        self.held = 0

    @asynccontextmanager
    async def read(self, request: Request, max_bytes: int) -> AsyncIterator[bytes]:
        """Read the body of a request, which counts as held within the context.

        Raises HTTPException if the body has more than `max_bytes`, or if too much is held, and TimeoutError if it takes
        longer than `BODY_SECONDS` to arrive.
        """
        body = bytearray()
        too_large = HTTPException(413, f"The request is too large: at most {max_bytes >> 20} MB can be sent.")
        if int(request.headers.get("content-length", "0")) > max_bytes:
            raise too_large
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > max_bytes:
                        raise too_large
                    if len(body) > SMALL_BODY_BYTES and self.held > MAX_HELD_BYTES:
                        raise HTTPException(503, "Too much is being sent at once: try again in a moment.")
            yield bytes(body)
        finally:
            self.held -= len(body)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with timeouts: uvicorn waits for ever for a request, and for the client to read an answer.

    It checks every connection each `IDLE_SECONDS`. It closes a connection if, since the last check, no request has
    begun or been in progress, or the client has read nothing of an answer.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(IDLE_SECONDS, self._check, None, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check(self, request: Any, unread: int) -> None:
        """Close the connection if it is idle. `request` and `unread` are from the last check."""
        is_idle = self.cycle is request and (request is None or request.response_complete)
        now_unread = self.transport.get_write_buffer_size()
        if unread and now_unread == unread:
            self.transport.abort()
        elif is_idle and not now_unread:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(IDLE_SECONDS, self._check, self.cycle, now_unread)
