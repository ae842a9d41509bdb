"""The models of a demo and the bounded queue of requests to them.

One thread loads the models and answers one request after another, or several together if they want the same work.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from starlette.exceptions import HTTPException

from seqtool.errors import InputError
from seqtool.runtime.log import log

MAX_WAITING = 64  # the number of requests in the queue, besides those being answered


class WorkItem(ABC):
    """The work that a request asks of the models."""

    group: Hashable = None  # items of one group that wait at the same time are answered together; None: alone
    size: int = 1  # the size of this item, in any unit that its group shares
    max_group_size: int = 1  # the maximum sum of the sizes of items that are answered together

    @abstractmethod
    def answer(self, models: Sequence[Any]) -> Any:
        """Compute the answer."""

    def answer_together(self, models: Sequence[Any], items: Sequence[Any]) -> Sequence[Any]:
        """Compute the answers to several items of this group, this one among them, in their order."""
        raise NotImplementedError


QueueEntry = tuple[WorkItem, Future[Any]]  # an item and the future of its answer


class Engine:
    """The thread that answers requests, and their queue.

    state: `loading`, `ready` or `failed`
    problem: why models could not be loaded; empty if all of them were
    models: the models that are loaded
    """

    def __init__(self, loaders: Sequence[Callable[[], Any]]) -> None:
        """Each loader returns a model; they are called in the engine's thread.

        A model that cannot be loaded is left out. If none can be loaded, the state is `failed`.
        """
        self._loaders = loaders
        self._queue: deque[QueueEntry] = deque()
        self._condition = threading.Condition()
        self._stopped = False
        self.models: list[Any] = []
        self.state, self.problem = "loading", ""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ends(self, seconds: float) -> bool:
        """Wait `seconds` for the thread to end, since an answer cannot be interrupted. Return whether it ended."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the request that is being answered, and cancel the requests that wait."""
        with self._condition:
            self._stopped = True
            for _, future in self._queue:
                future.cancel()
            self._condition.notify()

    async def ask(self, item: WorkItem) -> Any:
        """Return the answer to an item, or raise its error. Raises HTTPException if the queue is full."""
        future: Future[Any] = Future()
        with self._condition:
            self._queue = deque(entry for entry in self._queue if not entry[1].cancelled())
            if len(self._queue) >= MAX_WAITING:
                raise HTTPException(503, "Too many requests are waiting: try again in a moment.", {"retry-after": "1"})
            self._queue.append((item, future))
            self._condition.notify()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        problems, models = [], []
        for load in self._loaders:
            try:
                models.append(load())
            except Exception as error:  # too little memory, for example
                problems.append(str(error) or type(error).__name__)
                log.error("A model cannot be loaded: %s", problems[-1])
        self.models, self.problem = models, " ".join(problems)  # at once: other threads describe the models
        self.state = "ready" if self.models else "failed"
        while batch := self._next_batch():
            self._answer(batch)

    def _next_batch(self) -> list[QueueEntry]:
        """Wait for the next item; return it with items to answer together. The list is empty once the engine stops."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._stopped)
            if self._stopped:
                return []
            first, future = self._queue.popleft()
            batch, size_left = [(first, future)], first.max_group_size - first.size
            for item, future in list(self._queue) if first.group is not None else []:
                if item.group == first.group and item.size <= size_left and not future.cancelled():
                    self._queue.remove((item, future))
                    batch.append((item, future))
                    size_left -= item.size
            return batch

    def _answer(self, batch: Sequence[QueueEntry]) -> None:
        """Answer items together. If that fails, answer each alone, so that only the items that cause errors fail."""
        if len(batch) > 1 and self.state == "ready":
            items = [item for item, _ in batch]
            try:
                results = items[0].answer_together(self.models, items)
            except Exception as error:
                log.warning("Requests could not be answered together, and will be answered one by one: %s", error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    if future.set_running_or_notify_cancel():  # false if the client has disconnected
                        future.set_result(result)
                return
        for item, future in batch:
            if self._stopped:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                try:
                    if self.state == "failed":
                        raise InputError(self.problem)
                    future.set_result(item.answer(self.models))
                except BaseException as error:
                    future.set_exception(error)
