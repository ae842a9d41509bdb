"""What protects the server of a demo: from other sites' pages, from other names for this machine, from strangers, and
from requests that are too large or too slow.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as Http
from starlette.responses import PlainTextResponse

from seqtool.errors import InputError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL = ("localhost", "127.0.0.1", "[::1]")
JSON_BYTES = 2 << 20  # of a request's body
UPLOAD_BYTES = 20 << 20  # of pictures
HELD_BYTES = 64 << 20  # of the bodies of all requests that wait for an answer, but for the first `SMALL` of each
SMALL = 64 << 10  # bytes of a request that always pass
SECONDS = 60.0  # in which a request must have arrived
FORM = "multipart/form-data"
COOKIE = "seqtool-token"
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
log = logging.getLogger("seqtool")
HEADERS = {
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


class RefusedError(Exception):
    """A request that is not answered: the status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    def answer(self) -> PlainTextResponse:
        return PlainTextResponse(f"{self}\n", self.status, {"connection": "close"})


class Guard:
    """An ASGI application behind the guards. host, port: where it listens; token: None where none is needed."""

    def __init__(self, app: App, *, host: str, port: int, token: str | None) -> None:
        self._app = app
        self._cookie = f"{COOKIE}-{port}"  # cookies do not tell ports apart
        self._hosts = {*LOCAL, (f"[{host}]" if ":" in host else host).lower()}
        self._any_host = host in ("0.0.0.0", "::")
        self._token = token
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        http, body = Http(scope), None
        started = token_in_address = False

        async def guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if token_in_address:
                    headers.append("set-cookie", f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            await asyncio.wait_for(send(message), SECONDS)  # a client that does not read holds nobody up for longer

        refused = None
        try:
            try:
                self._check_host(http.headers)
                self._check_origin(http.headers, http.method)
                token_in_address = self._check_token(http)
                uploads = scope["path"] == "/api/caption" and http.headers.get("content-type", "").startswith(FORM)
                body = Body(receive, http.headers, UPLOAD_BYTES if uploads else JSON_BYTES, self._hold)
                await self._app(scope, body.receive, guarded)
            except RefusedError as error:
                refused = error
            except TimeoutError:
                raise
            except Exception:
                log.exception("A request could not be answered.")
                refused = RefusedError(500, "This request could not be answered; the server's log says why.")
            if refused is not None and not started:
                await refused.answer()(scope, receive, guarded)
        except TimeoutError:
            log.info("A client did not read its answer.")
        finally:
            self._held -= 0 if body is None else body.held

    def _hold(self, count: int) -> None:
        self._held += count
        if self._held > HELD_BYTES:
            raise RefusedError(503, "Too much is being sent at once: try again in a moment.")

    def _check_host(self, headers: Headers) -> None:
        """A page elsewhere may have given its own name this machine's address (DNS rebinding)."""
        name = re.sub(r":[0-9]*\Z", "", headers.get("host", "").lower())
        if not self._any_host and name not in self._hosts:
            raise RefusedError(421, "The request names another host: open the address that the server printed.")

    def _check_origin(self, headers: Headers, method: str) -> None:
        """Pages of other sites may not send anything."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        own = origin is None or origin.lower().partition("://")[2] == headers.get("host", "").lower()
        if method not in ("GET", "HEAD") and not (own and site in ("none", "same-origin")):
            raise RefusedError(403, "This request comes from another site's page.")

    def _check_token(self, http: Http) -> bool:
        """Whether the token came in the address, to be kept in a cookie."""
        if self._token is None:
            return False
        in_address, in_cookie = http.query_params.get("token", ""), http.cookies.get(self._cookie, "")
        scheme, _, credentials = http.headers.get("authorization", "").partition(" ")
        bearer = credentials.strip() if scheme.lower() == "bearer" else ""
        if not any(
            secrets.compare_digest(one.encode(), self._token.encode()) for one in (in_address, bearer, in_cookie)
        ):
            raise RefusedError(
                401, "A token is required: open the whole address that was printed, or send it as a bearer token."
            )
        return in_address != ""


class Body:
    """A request's body, of at most so many bytes and within `SECONDS`. `hold` is told of the bytes beyond `SMALL` as
    they come, and may refuse them; `held` counts them.
    """

    def __init__(self, receive: Receive, headers: Headers, most: int, hold: Callable[[int], None]) -> None:
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 15:
            raise RefusedError(400, "The request's Content-Length is no number.")
        self._receive, self._most, self._hold = receive, most, hold
        self._check(int(declared))
        self._deadline = asyncio.get_running_loop().time() + SECONDS
        self._complete = False
        self._received = self.held = 0

    async def receive(self) -> MutableMapping[str, Any]:
        if self._complete:  # only the client's leaving is still to come
            return await self._receive()
        left = self._deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except TimeoutError:
            raise RefusedError(408, f"The request did not arrive within {SECONDS:.0f} seconds.") from None
        count = len(message.get("body", b""))
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        self._received += count
        self._check(self._received)
        more = max(0, self._received - SMALL) - self.held
        self.held += more
        self._hold(more)
        return message

    def _check(self, count: int) -> None:
        if count > self._most:
            raise RefusedError(413, f"The request is too large: at most {self._most >> 20} MB can be sent.")


def check_address(host: str, port: int, token: str | None) -> None:
    """Raise InputError for a port that no server can have, and for a token that is easily guessed or needs quoting."""
    if token is not None and not TOKEN.fullmatch(token):
        raise InputError("token= must have at least 16 letters, digits, - and _; null makes one.")
    if not 0 <= port <= 65535:
        raise InputError(f"port must be from 0 to 65,535, not {port}.")
    if not host or any(letter.isspace() or letter in "/@?#" for letter in host):
        raise InputError(f"host={host} is not an address: use 127.0.0.1 or one of this machine's.")
