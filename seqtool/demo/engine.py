"""The models of a demo, behind one bounded queue: one thread loads them and answers one request after another, or
several at once where they ask for the same kind of work.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from seqtool.errors import InputError

Describe = Callable[[Sequence[Any]], list[dict[str, Any]]]
log = logging.getLogger("seqtool")
WAITING = 64  # requests at most, besides those that are being answered


class BusyError(Exception):
    """Too many requests are waiting."""


def _as_it_is(found: Any) -> Any:
    return found


def _none(task: Any) -> int:
    return 0


@dataclass(frozen=True)
class Asked:
    """What a request asks for. `begin` takes the models, checks the request and gives its task; `work` does the tasks
    of one or more requests; `end` makes this request's answer of its result. Most requests do everything in `begin`.

    Of those that wait, requests of one `kind` are done together, as far as their `size` is within the `room` of the
    first one's task.
    """

    begin: Callable[[Sequence[Any]], Any]
    work: Callable[[list[Any]], Sequence[Any]] = list
    end: Callable[[Any], Any] = _as_it_is
    kind: Hashable = None
    size: int = 0
    room: Callable[[Any], int] = _none


class _Waiting(NamedTuple):
    asked: Asked
    answer: Future[Any]

    def give(self, make: Callable[[], Any]) -> None:
        """Give what is made, or what goes wrong with it."""
        try:
            found = make()
        except BaseException as error:
            self.fail(error)
        else:
            if self.answer.set_running_or_notify_cancel():  # else the client has gone
                self.answer.set_result(found)

    def fail(self, error: BaseException) -> None:
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class Engine:
    """`state` is `loading`, `ready` or `failed`, and then `problem` says why; `about` is what is said of the models."""

    def __init__(self, load: Callable[[], Sequence[Any]], describe: Describe) -> None:
        self._load, self._describe = load, describe
        self._waiting: deque[_Waiting] = deque()
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
            for one in self._waiting:
                one.answer.cancel()
            self._changed.notify()

    async def ask(self, asked: Asked) -> Any:
        """The answer. Raises BusyError, or what went wrong. A request that is cancelled while it waits gives its place
        to another one.
        """
        answer: Future[Any] = Future()
        with self._changed:
            self._waiting = deque(one for one in self._waiting if not one.answer.cancelled())
            if len(self._waiting) >= WAITING:
                raise BusyError
            self._waiting.append(_Waiting(asked, answer))
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
        while (first := self._next()) is not None:
            self._answer(first)

    def _answer(self, first: _Waiting) -> None:
        """Answer a request, and those of its kind that wait. If that fails, each is answered alone, so that only those
        at fault are told.
        """
        tasks = self._begun([first])
        if tasks and first.asked.kind is not None:
            tasks += self._begun(self._others(first.asked, first.asked.room(tasks[0][1])))
        if len(tasks) > 1:
            try:
                results = first.asked.work([task for _, task in tasks])
                ended = [partial(one.asked.end, found) for (one, _), found in zip(tasks, results, strict=True)]
            except Exception as error:
                log.warning("Requests could not be answered together, and are answered one by one: %s", error)
            else:
                for (one, _), end in zip(tasks, ended, strict=True):
                    one.give(end)
                return
        for one, task in tasks:
            if self._stopped:
                one.answer.cancel()
            else:
                one.give(partial(_alone, one.asked, task))

    def _begun(self, waiting: Sequence[_Waiting]) -> list[tuple[_Waiting, Any]]:
        """Those that can begin, with their tasks; the others are told why not."""
        begun = []
        for one in waiting:
            try:
                if self.state == "failed":
                    raise InputError(self.problem)
                if not one.answer.cancelled():
                    begun.append((one, one.asked.begin(self._models)))
            except BaseException as error:
                one.fail(error)
        return begun

    def _next(self) -> _Waiting | None:
        """The next request, or None at the end."""
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            return None if self._stopped else self._waiting.popleft()

    def _others(self, first: Asked, room: int) -> list[_Waiting]:
        """Those of one kind that wait, from the front, as far as there is room for them and the first."""
        found, left, room = [], deque[_Waiting](), room - first.size
        with self._changed:
            for one in self._waiting:
                if one.asked.kind == first.kind and one.asked.size <= room:
                    found.append(one)
                    room -= one.asked.size
                else:
                    left.append(one)
            self._waiting = left
        return found


def _alone(asked: Asked, task: Any) -> Any:
    (found,) = asked.work([task])
    return asked.end(found)
