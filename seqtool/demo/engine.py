"""The models of a demo, behind one bounded queue: one thread loads them and answers one request after another, or
several at once where they ask for the same kind of work.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from seqtool.errors import InputError

Describe = Callable[[Sequence[Any]], list[dict[str, Any]]]
log = logging.getLogger("seqtool")
WAITING = 64  # requests at most, besides those that are being answered
TOGETHER = 400  # sentences: a request waits for those that it is joined with


class BusyError(Exception):
    """Too many requests are waiting."""


def _as_it_is(found: Any) -> Any:
    return found


@dataclass(frozen=True)
class Asked:
    """What a request asks for. `begin` checks it against the models and gives its task; `work` does the tasks of one or
    more requests; `end` makes this request's answer of its own result. Requests of one `kind` may be done together, up
    to a `size` of `TOGETHER`; those without a kind are done alone.
    """

    begin: Callable[[Sequence[Any]], Any]
    work: Callable[[list[Any]], Sequence[Any]] = list
    end: Callable[[Any], Any] = _as_it_is
    kind: Hashable = None
    size: int = 0


class _Waiting(NamedTuple):
    asked: Asked
    answer: Future[Any]


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
        while together := self._next():
            tasks = []
            for one in together:
                if one.answer.set_running_or_notify_cancel():  # else the client has gone
                    with _told(one):
                        tasks.append((one, self._begun(one)))
            if tasks:
                self._do(tasks)

    def _begun(self, one: _Waiting) -> Any:
        if self.state == "failed":
            raise InputError(self.problem)
        return one.asked.begin(self._models)

    def _do(self, tasks: Sequence[tuple[_Waiting, Any]]) -> None:
        """Do tasks of one kind together. If that fails, each is done alone, so that only those at fault are told."""
        first, *others = tasks
        try:
            results = first[0].asked.work([task for _, task in tasks])
        except BaseException as error:
            if others:
                for each in tasks:
                    self._do([each])
            else:
                first[0].answer.set_exception(error)
            return
        for (one, _), found in zip(tasks, results, strict=True):
            with _told(one):
                one.answer.set_result(one.asked.end(found))

    def _next(self) -> list[_Waiting]:
        """The next request with others of its kind that wait, or nothing at the end."""
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return []
            found, size, left = [first := self._waiting.popleft()], first.asked.size, deque[_Waiting]()
            for one in self._waiting:
                joins = first.asked.kind is not None and one.asked.kind == first.asked.kind
                if joins and size + one.asked.size <= TOGETHER:
                    found.append(one)
                    size += one.asked.size
                else:
                    left.append(one)
            self._waiting = left
            return found


@contextmanager
def _told(one: _Waiting) -> Iterator[None]:
    """Whoever asked is told what goes wrong."""
    try:
        yield
    except BaseException as error:
        one.answer.set_exception(error)
