"""The models of a demo, behind one bounded queue: one thread loads them and answers one request after another."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from seqtool.errors import InputError
from seqtool.predict.predictor import Predictor

X = TypeVar("X")
WAITING = 64  # requests at most, besides the one that is being answered


class BusyError(Exception):
    """Too many requests are waiting."""


class Engine:
    """`state` is `loading`, `ready` or `failed`, and then `problem` says why."""

    def __init__(self, load: Callable[[], Sequence[Predictor]]) -> None:
        self._load = load
        self._waiting: queue.Queue[tuple[Callable[[Sequence[Any]], Any], Future[Any]] | None] = queue.Queue(WAITING)
        self.models: Sequence[Predictor] = ()
        self.state, self.problem = "loading", ""
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the request that is being answered; those that wait are not answered."""
        while True:
            try:
                waiting = self._waiting.get_nowait()
            except queue.Empty:
                break
            if waiting is not None:
                waiting[1].cancel()
        self._waiting.put(None)

    async def ask(self, function: Callable[[Sequence[Any]], X]) -> X:
        """What the function makes of the models. Raises BusyError, or what the function raises."""
        answer: Future[X] = Future()
        try:
            self._waiting.put_nowait((function, answer))
        except queue.Full:
            raise BusyError from None
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        try:
            self.models = self._load()
            self.state = "ready"
        except (InputError, OSError) as error:
            self.state, self.problem = "failed", str(error)
        while (asked := self._waiting.get()) is not None:
            function, answer = asked
            if not answer.set_running_or_notify_cancel():  # the client has gone
                continue
            try:
                if self.state == "failed":
                    raise InputError(self.problem)
                answer.set_result(function(self.models))
            except BaseException as error:
                answer.set_exception(error)
