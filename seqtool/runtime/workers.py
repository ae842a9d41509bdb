"""Distributing work over processes, with results in order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from seqtool.errors import UnfinishedError

MAX_DEFAULT_PROCESSES = 8  # more would wait, since a single process reads for all of them

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Iterable[Item], *, processes: int | None) -> Generator[Result]:
    """Yield the results of `function` for each item, in order. At any time about two items per process are in progress.

    function: a function at the top level of a module, so that processes can import it.
    items: the items, which are read as they are needed.
    processes: the number of processes; None: one per CPU, up to 8; 1: this process itself.

    Processes are spawned, so that no thread or GPU of this one is copied. Raises UnfinishedError if one of them dies.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = processes or min(MAX_DEFAULT_PROCESSES, cpus)
    if processes == 1:
        yield from map(function, items)
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_initialise_worker)
    futures: deque[Future[Result]] = deque()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
            if len(futures) > 2 * processes:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        raise UnfinishedError(
            "A process that prepared data ended before it had finished, possibly out of memory: set data.processes=1 "
            '(a script of your own also needs `if __name__ == "__main__":`).'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _initialise_worker() -> None:
    """Set up a process: it leaves Ctrl-C to its parent, which ends the pool, and ends if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
