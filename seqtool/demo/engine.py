"""The models of a demo behind one bounded queue: one thread loads them and answers one request after another, or
several at once where they ask for the same kind of work.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from starlette.exceptions import HTTPException

from seqtool.errors import InputError

log = logging.getLogger("seqtool")
WAITING = 64  # requests at most, besides those that are being answered


class WorkItem(ABC):
    """What a request asks of the models.

    group: items of one group that wait at the same time are answered together; None: always alone.
    size, room: how much one is, and how much may be answered together.
    """

    group: Hashable = None
    size: int = 1
    room: int = 1

    @abstractmethod
    def answer(self, models: Sequence[Any]) -> Any: ...

    def answer_together(self, models: Sequence[Any], items: Sequence[Any]) -> Sequence[Any]:
        """The answers to several items of this group, this one among them, in their order."""
        raise NotImplementedError


Waiting = tuple[WorkItem, Future[Any]]  # an item, and where its answer goes


class Engine:
    """`state` is `loading`, `ready` or `failed`, and then `problem` says why.

    load: gives the models, called in the engine's thread; they are then in `models`.
    """

    def __init__(self, load: Callable[[], Sequence[Any]]) -> None:
        self._load = load
        self._waiting: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.models: Sequence[Any] = ()
        self.state, self.problem = "loading", ""
        self._thread = threading.Thread(target=self._run, daemon=True)

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

    async def ask(self, item: WorkItem) -> Any:
        """The answer. Raises HTTPException if too many wait, or what went wrong. A cancelled item leaves the queue."""
        answer: Future[Any] = Future()
        with self._changed:
            self._waiting = deque(waiting for waiting in self._waiting if not waiting[1].cancelled())
            if len(self._waiting) >= WAITING:
                raise HTTPException(503, "Too many requests are waiting: try again in a moment.", {"retry-after": "1"})
            self._waiting.append((item, answer))
            self._changed.notify()
        return await asyncio.wrap_future(answer)

    def _run(self) -> None:
        try:
            self.models = self._load()
            self.state = "ready"
        except Exception as error:  # such as too little memory
            self.state, self.problem = "failed", str(error) or type(error).__name__
            log.error("The model cannot be loaded: %s", self.problem)
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[Waiting]:
        """The next item, and those that are answered together with it; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            if self._stopped:
                return []
            first, answer = self._waiting.popleft()
            batch, room = [(first, answer)], first.room - first.size
            for item, answer in list(self._waiting) if first.group is not None else []:
                if item.group == first.group and item.size <= room and not answer.cancelled():
                    self._waiting.remove((item, answer))
                    batch.append((item, answer))
                    room -= item.size
            return batch

    def _answer(self, batch: Sequence[Waiting]) -> None:
        """Answer items together. If that fails, answer each alone, so that only those at fault get an error."""
        if len(batch) > 1 and self.state == "ready":
            items = [item for item, _ in batch]
            try:
                results = items[0].answer_together(self.models, items)
            except Exception as error:
                log.warning("Requests could not be answered together, and are answered one by one: %s", error)
            else:
                for (_, answer), result in zip(batch, results, strict=True):
                    if answer.set_running_or_notify_cancel():  # otherwise the client has gone
                        answer.set_result(result)
                return
        for item, answer in batch:
            if self._stopped:
                answer.cancel()
            elif answer.set_running_or_notify_cancel():
                try:
                    if self.state == "failed":
                        raise InputError(self.problem)
                    answer.set_result(item.answer(self.models))
                except BaseException as error:
                    answer.set_exception(error)
