"""Connections whose requests must arrive in time: uvicorn waits for the head of one for ever."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0  # from the first byte, or from connecting, to the whole head of a request


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections on which no request has begun within `SECONDS`."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

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
