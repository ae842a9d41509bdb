"""Connections on which requests must arrive, and answers be read, in time: uvicorn waits for either for ever."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0  # from connecting to the whole head of a request, and without any of an answer being read


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections on which no request has begun within `SECONDS`, or no answer is being read."""

    _timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def _look(self, before: int | None) -> None:
        """Break the connection off if as much of an answer is unread as `SECONDS` ago."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        unread = self.transport.get_write_buffer_size()
        if unread and unread == before:
            self.transport.abort()
        elif unread:
            self._unread_timer = self.loop.call_later(SECONDS, self._look, unread)

    def _watch(self) -> None:
        """Keep a timer running while no request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(SECONDS, self._expire)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
