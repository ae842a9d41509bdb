"""The models of a demo, behind one bounded queue: one thread loads them and answers one request after another."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from seqtool.errors import InputError

X = TypeVar("X")
Describe = Callable[[Sequence[Any]], list[dict[str, Any]]]
log = logging.getLogger("seqtool")
WAITING = 64  # requests at most, besides the one that is being answered


class BusyError(Exception):
    """Too many requests are waiting."""


class Engine:
    """`state` is `loading`, `ready` or `failed`, and then `problem` says why; `about` is what is said of the models."""

    def __init__(self, load: Callable[[], Sequence[Any]], describe: Describe) -> None:
        self._load, self._describe = load, describe
        self._waiting: deque[tuple[Callable[[Sequence[Any]], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._models: Sequence[Any] = ()
        self.about: list[dict[str, Any]] = []
        self.state, self.problem = "loading", ""
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ends(self, seconds: float) -> bool:
        """Whether the thread ends within so many seconds: a request that is being answered cannot be stopped."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End after the request that is being answered; those that wait are not answered."""
        with self._changed:
            self._stopped = True
            for _, answer in self._waiting:
                answer.cancel()
            self._changed.notify()

    async def ask(self, function: Callable[[Sequence[Any]], X]) -> X:
        """What the function makes of the models. Raises BusyError, or what the function raises. A request that is
        cancelled while it waits gives its place to another one.
        """
        answer: Future[X] = Future()
        with self._changed:
            self._waiting = deque(one for one in self._waiting if not one[1].cancelled())
            if len(self._waiting) >= WAITING:
                raise BusyError
            self._waiting.append((function, answer))
            self._changed.notify()
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        try:
            models = self._load()
            self.about, self._models = self._describe(models), models
            self.state = "ready"
        except Exception as error:  # such as want of memory
            self.state, self.problem = "failed", str(error) or type(error).__name__
            log.error("The model cannot be loaded: %s", self.problem)
        while (asked := self._next()) is not None:
            function, answer = asked
            if not answer.set_running_or_notify_cancel():  # the client has gone
                continue
            try:
                if self.state == "failed":
                    raise InputError(self.problem)
                answer.set_result(function(self._models))
            except BaseException as error:  # whoever asked is told
                answer.set_exception(error)

    def _next(self) -> tuple[Callable[[Sequence[Any]], Any], Future[Any]] | None:
        """The next request, or None at the end."""
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            return None if self._stopped else self._waiting.popleft()
