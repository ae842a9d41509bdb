"""Work shared out over processes, with results in order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from seqtool.runtime.unfinished import UnfinishedError

MOST = 8  # processes by default; one process reads for all of them

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int
) -> Generator[Result, None, None]:
    """The results of `function`, which a module defines, for each task; at any time each worker has two tasks.
    Workers are spawned, so that no thread or GPU of this process is copied; a single worker is this process itself.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start)
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UnfinishedError(
            "A process that prepared data ended before its work did, perhaps for want of memory: set data.processes=1 "
            '(a script of your own needs `if __name__ == "__main__":` besides).'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def number(processes: int | None) -> int:
    """The number of workers: `processes`, or one per CPU, up to 8."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processes or min(MOST, cpus)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and then ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker with its parent: a killed parent cannot do so, and the worker would wait for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
