"""Processes that share a long translation on a CPU. They are forked before torch is imported, so that it starts in all
of them at once, and find each other as torchrun's processes do (`distributed.group`).
"""

import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from pathlib import Path
from typing import NamedTuple

LEAST_BYTES = 25_000  # of input for each process, those of some 400 sentences, if five hypotheses are kept
MAX_PROCESSES = 8  # since each holds the model
LARGEST_SHARE = 0.5  # of the free memory that they may take
PROCESS_BYTES = 400_000_000  # of memory for torch and the tensors of a batch, beside the model
SAMPLE_BYTES = 1 << 20  # from which the number of a file's lines is estimated
GPUS = ("nvidia*", "kfd", "dxg")  # names of GPUs in /dev
CONTAINER = Path("/sys/fs/cgroup")  # where a container finds its limits
PR_SET_PDEATHSIG = 1  # from Linux's sys/prctl.h


class Fork(NamedTuple):
    """One of the processes: its number, from 0, and the socket at which the first expects the others."""

    rank: int
    size: int
    socket: socket.socket
    others: Sequence[int]  # the ids of the other processes, in the first

    def has_lost_one(self) -> bool:
        """Whether another process has ended, as far as the first knows."""
        return any(os.waitid(os.P_PID, other, os.WEXITED | os.WNOHANG | os.WNOWAIT) for other in self.others)


current: Fork | None = None  # this process within `sharing`


def worthwhile(
    file: str | None, checkpoints: Sequence[Path], device: str, threads: int | None, *, hypotheses: int, batch: int
) -> int:
    """The number of processes that should share the translation of a file (None: standard input): one for each core,
    if the file is long for this number of hypotheses, has a batch of lines for each, and memory suffices. It is 1 where
    torch may find a GPU or has been imported, and under torchrun.
    """
    if sys.platform != "linux" or "torch" in sys.modules or "WORLD_SIZE" in os.environ:
        return 1
    if device not in ("auto", "cpu") or (device == "auto" and any(any(Path("/dev").glob(name)) for name in GPUS)):
        return 1
    try:
        size, lines = _rest(file)
        models = sum(max(part.stat().st_size for part in _directory(path).rglob("*")) for path in checkpoints)
        by_memory = int(LARGEST_SHARE * _free_memory() / (models + PROCESS_BYTES))
    except (OSError, ValueError):
        return 1
    allowed = cores() if threads is None else threads
    return max(1, min(size * hypotheses // (5 * LEAST_BYTES), lines // batch, by_memory, allowed, MAX_PROCESSES))


def _rest(file: str | None) -> tuple[int, int]:
    """The number of bytes from where a file is read, and about how many lines they are; 0 for a pipe or a terminal."""
    with open(0 if file is None else file, "rb", closefd=file is not None) as opened:
        descriptor = opened.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return 0, 0
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        size, sample = os.fstat(descriptor).st_size - start, os.pread(descriptor, SAMPLE_BYTES, start)
    return size, sample.count(b"\n") * size // max(1, len(sample))


def _directory(checkpoint: Path) -> Path:
    """The directory of a run or checkpoint; of RUN/best and RUN/last, the run's."""
    return checkpoint.parent if checkpoint.name in ("best", "last") and not checkpoint.exists() else checkpoint


def _free_memory() -> int:
    """The memory in bytes that new processes may take: the machine's, or what a container has left."""
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    free = 0 if available is None else 1024 * int(available[1])
    limit, used, kinds = (CONTAINER / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.exists() and (number := limit.read_text("ascii").strip()).isdecimal():
        cached = re.search(r"^inactive_file (\d+)", kinds.read_text("ascii"), re.MULTILINE)  # given back when needed
        free = min(free, int(number) - int(used.read_text("ascii")) + int(cached[1] if cached else 0))
    return free


def cores() -> int:
    """The number of cores that this process may use: as the environment says, or those of its processors, within the
    limit of a container.
    """
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        if (number := os.environ.get(name, "")).isdecimal():
            return int(number)
    siblings = set()  # hardware threads of one core count as one
    for cpu in os.sched_getaffinity(0):
        names = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(names.read_text("ascii") if names.exists() else str(cpu))
    limit = CONTAINER / "cpu.max"
    quota, period = limit.read_text("ascii").split() if limit.exists() else ("max", "")
    return min(len(siblings), max(1, int(quota) // int(period))) if quota.isdecimal() else len(siblings)


@contextmanager
def sharing(size: int) -> Iterator[None]:
    """Have `size` processes, this one and its forks, run what is in the context: `current` is set there. In a sandbox
    without a network, or where no process can be started, this process works alone. Forks print nothing, leave Ctrl-C
    to this process, and end with the context or with this process, however it ends.
    """
    global current
    if size == 1 or not _has_local_network():
        yield
        return
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # as some job runners have it: forks would vanish at once
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listening = socket.create_server(("127.0.0.1", 0))
    first, rank, others = os.getpid(), 0, list[int]()
    while len(others) < size - 1:
        try:
            other = os.fork()
        except OSError:  # too many processes
            _end(others)
            others = []
            break
        if other == 0:
            rank, others = len(others) + 1, []
            break
        others.append(other)
    if rank > 0 or others:
        current = Fork(rank, size, listening, others)
    try:
        if rank > 0:
            _follow(first)
        yield
    finally:
        if rank > 0:
            os._exit(0)
        _end(others)
        listening.close()
        current = None


def _end(processes: Sequence[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


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
