"""Processes that share a long translation on a CPU. They are forked before torch is imported, so that it starts in all
of them at once, and find each other as torchrun's processes do (`distributed.group`).
"""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path

LEAST_BYTES = 25_000  # of input for each process, those of some 400 sentences, if five hypotheses are kept
MAX_PROCESSES = 8  # since each holds the model
LARGEST_SHARE = 0.5  # of the free memory that the files of their models may take
GPUS = ("nvidia*", "kfd", "dxg")  # names of GPUs in /dev
PR_SET_PDEATHSIG = 1  # from Linux's sys/prctl.h


@dataclass(frozen=True)
class Fork:
    """One of the processes: its number, from 0, and the socket at which the first expects the others.

    others: the ids of the other processes, in the first
    """

    rank: int
    size: int
    socket: socket.socket
    others: Sequence[int]

    def has_lost_one(self) -> bool:
        """Whether another process has ended, as far as the first knows."""
        return any(os.waitid(os.P_PID, other, os.WEXITED | os.WNOHANG | os.WNOWAIT) for other in self.others)


current: Fork | None = None  # this process within `sharing`


def worthwhile(
    file: str | None, checkpoints: Sequence[Path], device: str, threads: int | None, hypotheses: int = 5
) -> int:
    """The number of processes that should share the translation of a file (None: standard input): one for each core, if
    the file is long for this number of hypotheses, and memory suffices. It is 1 where torch may find a GPU or has been
    imported, and under torchrun.
    """
    if sys.platform != "linux" or "torch" in sys.modules or "WORLD_SIZE" in os.environ:
        return 1
    if device not in ("auto", "cpu") or (device == "auto" and any(any(Path("/dev").glob(name)) for name in GPUS)):
        return 1
    try:
        allowed = cores() if threads is None else threads
        size = min(_bytes_left(file) * hypotheses // (5 * LEAST_BYTES), allowed, MAX_PROCESSES)
        largest = max(file.stat().st_size for path in checkpoints for file in path.rglob("*"))
        free = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except (OSError, ValueError):
        return 1
    fits = free is not None and size * len(checkpoints) * largest < LARGEST_SHARE * 1024 * int(free[1])
    return max(1, size) if fits else 1


def _bytes_left(file: str | None) -> int:
    """The number of bytes from where a file is read; 0 for a pipe or a terminal."""
    if file is not None:
        return Path(file).stat().st_size
    status = os.fstat(sys.stdin.fileno())
    return status.st_size and status.st_size - os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)


def cores() -> int:
    """The number of cores that torch uses by default: OMP_NUM_THREADS, or all that this process may use."""
    if (number := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        return int(number)
    siblings = set()  # hardware threads of one core count as one
    for cpu in os.sched_getaffinity(0):
        names = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(names.read_text("ascii") if names.exists() else str(cpu))
    return len(siblings)


@contextmanager
def sharing(size: int) -> Iterator[int]:
    """Have `size` processes, this one and its forks, run what is in the context, and yield their number: in a sandbox
    without a network, this process works alone. Forks print nothing, leave Ctrl-C to this process, and end with the
    context or with this process, however it ends.
    """
    global current
    if size == 1 or not _has_local_network():
        yield 1
        return
    listening = socket.create_server(("127.0.0.1", 0))
    first, rank, others = os.getpid(), 0, list[int]()
    for number in range(1, size):
        if (other := os.fork()) == 0:
            _follow(first)
            rank = number
            break
        others.append(other)
    current = Fork(rank, size, listening, [] if rank else others)
    try:
        yield size
    finally:
        if rank > 0:
            os._exit(0)
        for other in others:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
        listening.close()
        current = None


def _has_local_network() -> bool:
    """Whether processes of this machine can connect with each other."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 1):
            return True
    except OSError:
        return False


def _follow(first: int) -> None:
    """Be silent, leave Ctrl-C to the first process, and end if that ends."""
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != first:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
