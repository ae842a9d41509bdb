"""The processes that torchrun starts, or that `forks.sharing` forks, which work together through torch.distributed.

All processes run the same command on the same input. They divide the work and exchange the results. Only the first
process reads standard input, writes files and prints. A single process is a group of one, without any overhead.

A process that fails records the cause in the store through which the processes found each other. torchrun's own store
outlives the processes. So each machine reports a cause only once, even though torchrun restarts all processes whatever
their exit status.
"""

import atexit
import gc
import hashlib
import json
import logging
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from seqtool.errors import InputError
from seqtool.runtime import forks
from seqtool.runtime.log import log

X = TypeVar("X")
Y = TypeVar("Y")

JOIN_TIMEOUT = timedelta(minutes=10)  # the wait until all processes have connected
STEP_TIMEOUT = timedelta(minutes=30)  # the wait for other processes in a step, validation or window of lines
FIRST_TIMEOUT = timedelta(days=1)  # the wait for the first process, which may prepare data or wait for a typed line
STORE_TIMEOUT = timedelta(seconds=10)  # the wait for an answer of the store

_rank, _size = 0, 1
_waiting_group: Any = None  # the group with FIRST_TIMEOUT, in which processes wait for the first
_store: Any = None  # the store through which the processes of this group found each other
_assemblies = 0  # the number of calls of `_assemble`


class LostConnectionError(InputError):
    """The group has failed, and no process has reported bad input as the cause."""


def rank() -> int:
    """The number of this process, from 0."""
    return _rank


def size() -> int:
    """The number of processes in the group."""
    return _size


def is_first() -> bool:
    """Whether this is the first process, which reads standard input, writes files and prints."""
    return _rank == 0


@contextmanager
def group() -> Iterator[None]:
    """Join the processes that torchrun started or that were forked, if any, within the context.

    Raises LostConnectionError, with the reason, if another process is lost or hangs. If another process raised
    InputError, raises it with the same message.
    """
    global _rank, _size
    process_count = 1
    if dist.is_torchelastic_launched():
        process_count = int(os.environ.get("WORLD_SIZE", 1))
    else:
        _check_launcher()
        if forks.current is not None:
            process_count = forks.current.size
    if process_count == 1 or _size > 1:
        yield
        return
    try:
        if not dist.is_initialized():
            _join()
            atexit.register(_leave)
        _rank, _size = dist.get_rank(), dist.get_world_size()
        with nullcontext() if is_first() else _silence():
            yield
    except Exception as error:
        if not isinstance(error, RuntimeError) or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            _record_cause(error)
            raise
        with suppress(ValueError):  # outside the main thread, signals cannot be handled
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it: report the cause first
        atexit.unregister(_leave)  # it would wait for the other processes
        raise _explanation(error, STEP_TIMEOUT if dist.is_initialized() else None) from error
    finally:
        _rank, _size = 0, 1


def _join() -> None:
    """Connect with the other processes."""
    import torch.distributed.nn  # before the group exists, or its functions would keep it as their default

    global _waiting_group, _store
    store, rank, size = next(rendezvous("env://", timeout=JOIN_TIMEOUT)) if forks.current is None else _meet()
    _store = store
    if _store_outlives_processes():  # it still has the addresses of processes that have ended
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
    _waiting_group = dist.new_group(backend="gloo", timeout=FIRST_TIMEOUT)


def _meet() -> tuple[Any, int, int]:
    """Wait for the other forked processes. Returns the store, this process's number and their number."""
    fork = forks.current
    assert fork is not None
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank, size = fork.rank, fork.size
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    listening: dict[str, Any] = {} if rank else {"is_master": True, "master_listen_fd": os.dup(fork.socket.fileno())}
    host, port = fork.socket.getsockname()
    store = dist.TCPStore(host, port, wait_for_workers=False, timeout=JOIN_TIMEOUT, **listening)  # type: ignore[attr-defined]
    _assemble(fork, store)
    return store, rank, size


def _assemble(fork: forks.Fork, store: Any) -> None:
    """Wait until all forked processes have called this. A signal ends this wait at once, unlike torch's own."""
    global _assemblies
    _assemblies += 1
    store.set(f"{_assemblies}/{fork.rank}", "")
    while not store.check([f"{_assemblies}/{rank}" for rank in range(fork.size)]):
        if fork.has_lost_one():
            raise dist.DistError("it ended early")
        time.sleep(0.01)


def _leave() -> None:
    """Disconnect from the other processes."""
    global _waiting_group
    _waiting_group = None
    gc.collect()  # the model refers to the group, whose threads must end before the interpreter does
    dist.destroy_process_group()


@contextmanager
def _silence() -> Iterator[None]:
    """Print and log nothing except errors within the context."""
    logging.disable(logging.WARNING)
    try:
        null = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        with null, redirect_stdout(null), redirect_stderr(null):
            yield
    finally:
        logging.disable(logging.NOTSET)


def local_rank() -> int | None:
    """The number of this process on its machine, from 0; None for a single process."""
    return int(os.environ["LOCAL_RANK"]) if _size > 1 else None


def local_size() -> int:
    """The number of processes that work together on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if _size > 1 else 1


def is_alone_on_gpu() -> bool:
    """Whether this process is the only one that uses the first GPU that it sees."""
    if _store is None:
        return True
    key = _key(f"gpu/{torch.cuda.get_device_properties(0).uuid}")
    return bool(_store.compare_set(key, "", str(_rank)).decode() == str(_rank))


def describe(device: torch.device) -> str:
    """Describe the device and the number of processes."""
    return f"{device}" if _size == 1 else f"{_size} processes, the first on {device}"


def seed(number: int) -> None:
    """Seed the random numbers of all processes except the first, each differently."""
    if not is_first():
        torch.manual_seed(int(np.random.SeedSequence([number, _rank]).generate_state(1, np.uint64)[0]))


def parallel_map(function: Callable[[X], Y], items: Sequence[X]) -> list[Y]:
    """Return the function's results for all items, in every process. Each computes a shard, every `size`-th item.

    While `function` runs, each process is a group of one, so that `function` itself does not divide its work.
    """
    global _rank, _size
    if _size == 1:
        return [function(item) for item in items]
    previous_group = _rank, _size
    shard = items[_rank::_size]
    try:
        _rank, _size = 0, 1
        shard_results = [function(item) for item in shard]
    finally:
        _rank, _size = previous_group
    results: list[Any] = [None] * len(items)
    for process, process_results in enumerate(gather(shard_results)):
        results[process::_size] = process_results
    return results


def gather(value: X) -> list[X]:
    """Return the values of all processes, in every process."""
    if _size == 1:
        return [value]
    if forks.current is not None:
        _assemble(forks.current, _store)
    values: list[Any] = [None] * _size
    dist.all_gather_object(values, value)
    return values


def from_first(function: Callable[[], X]) -> X:
    """The result of the function, which only the first process calls; the others wait for it, however long it takes.

    If the function raises InputError, all processes do.
    """
    if _size == 1:
        return function()
    result: list[Any] = _call(function, here=is_first()) or [None]
    dist.broadcast_object_list(result, group=_waiting_group)
    return result[0]  # type: ignore[no-any-return]


def first_on_each_machine(function: Callable[[], X]) -> X:
    """The function's result. The first process of each machine calls it before the others, which can use its files.

    The others wait, however long it takes. If the function raises InputError in a first process, all processes do.
    """
    if _size == 1:
        return function()
    result = _call(function, here=local_rank() == 0)
    return result[0] if result else function()


def _call(function: Callable[[], X], *, here: bool) -> list[X]:
    """The function's result, in a list, in processes where `here` is true; an empty list in others, which wait.

    An InputError in one process is raised in all of them.
    """
    result: list[X] = []
    failure = None
    if here:
        try:
            result.append(function())
        except InputError as error:
            failure = error
    messages: list[Any] = [None] * _size
    dist.all_gather_object(messages, None if failure is None else str(failure), group=_waiting_group)
    if failures := [message for message in messages if message is not None]:
        raise failure or InputError(failures[0])
    return result


def each_from_first(items: Iterator[X]) -> Iterator[X]:
    """The items of the first process's iterator, in every process, one at a time."""
    while item := from_first(lambda: list(islice(items, 1))):
        yield item[0]


def maximum(*values: float) -> list[float]:
    """The maximum of each value over all processes."""
    if _size == 1:
        return list(values)
    maxima = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(maxima, dist.ReduceOp.MAX)
    return maxima.tolist()


def total(tensor: Tensor) -> Tensor:
    """The sum of the tensor over all processes, in place."""
    if _size > 1:
        dist.all_reduce(tensor)
    return tensor


class DistributedLoss:
    """A loss whose gradients are averaged over all processes after the last batch of a step."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        self._wrapped_loss: Any = loss
        self._trainable_count = -1  # the number of trainable parameters when the loss was wrapped

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[Any]:
        """Yield the loss for the forward and backward pass of a batch.

        Gradients accumulate, and are exchanged only for the `last` batch of a step. The set of trained parameters may
        change from one step to the next.
        """
        trainable_count = sum(parameter.requires_grad for parameter in self._loss.parameters())
        if _size > 1 and trainable_count != self._trainable_count:
            warnings.filterwarnings("ignore", "Grad strides do not match")  # harmless, for matrices with one row
            self._wrapped_loss, self._trainable_count = DistributedDataParallel(self._loss), trainable_count
        with nullcontext() if last or _size == 1 else self._wrapped_loss.no_sync():
            yield self._wrapped_loss


def _check_launcher() -> None:
    """Raise InputError if a launcher other than torchrun started several processes, which would all do the same work.

    srun only causes a warning: it sets no rank for torch, and may be starting torchrun itself or different commands.
    """
    size_variables = ["OMPI_COMM_WORLD_SIZE", *(["WORLD_SIZE"] if "RANK" in os.environ else [])]
    for variable in size_variables:
        if (size := os.environ.get(variable, "1")).isdecimal() and int(size) > 1:
            raise InputError(
                f"{variable}={size} shows that a launcher other than torchrun started {size} processes, which would "
                f"all do the same: use torchrun --nproc-per-node={size} -m seqtool … instead, or unset {variable} for "
                "a single process."
            )
    size = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if size.isdecimal() and int(size) > 1 and os.environ.get("SLURM_PROCID") == "0":
        advice = "for that, start torchrun once on each machine."
        log.warning("srun started %s tasks, which do not work together: %s", size, advice)


def _record_cause(error: Exception) -> None:
    """Record in the store why this process stops, unless another process has recorded a cause."""
    if _store is None:
        return
    is_input_error = isinstance(error, InputError)
    text = str(error) if is_input_error else f"{type(error).__name__}: {_first_sentence(error)}"
    with suppress(RuntimeError):  # the store has ended with its process
        _store.set_timeout(STORE_TIMEOUT)
        _store.compare_set(_key("cause"), "", json.dumps([is_input_error, text]))


def _explanation(error: Exception, timeout: timedelta | None) -> InputError:
    """The error that explains why waiting for another process failed: the cause it recorded, or torch's message.

    timeout: how long this process waited; None if not all processes have connected.
    """
    is_input_error, cause = False, ""
    if _store is not None:
        with suppress(RuntimeError):
            _store.set_timeout(STORE_TIMEOUT)
            if _store.check([_key("cause")]):
                is_input_error, cause = json.loads(_store.get(_key("cause")))
    if is_input_error:
        return InputError(cause)
    reason = _first_sentence(error)
    if forks.current is not None:
        stopped = f"stopped with {cause}" if cause else f"was lost ({reason}), possibly out of memory"
        sentence = f"A process that shared the work {stopped}: set threads=1 for a single process."
    elif cause:
        sentence = f"Lost the connection to another process, which stopped with {cause}."
    elif re.search("timed? ?out", reason, re.IGNORECASE) is not None:
        if timeout is None:
            advice = "start torchrun on all --nnodes machines, with the same address"
            sentence = f"Not all processes connected ({reason}): {advice}."
        else:
            seconds = int(timeout.total_seconds())
            duration = f"{seconds // 60} minutes" if seconds >= 60 else f"{seconds} seconds"
            sentence = f"Another process did not answer within {duration} ({reason}): it hangs or is much slower."
    elif "NCCL" in reason:
        sentence = f"NCCL failed ({reason}): set NCCL_DEBUG=INFO to see the details."
    else:
        sentence = f"Lost the connection to another process ({reason}): torchrun reports which one stopped, and how."
    return LostConnectionError(sentence)


def already_reported(error: Exception, sentence: str) -> bool:
    """Whether a process on this machine has already reported the error, perhaps before torchrun restarted all of them.

    After this call, the error counts as reported. If torchrun keeps no store of its own
    (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), processes cannot know what was reported before a restart, or before all have
    connected: then the first process of each machine reports the error.
    """
    machine = os.environ.get("GROUP_RANK", "0")
    key = f"seqtool/reported/{machine}/{hashlib.sha256(sentence.encode()).hexdigest()}"
    if isinstance(error, LostConnectionError):  # reported again after each restart
        key = _key(f"lost/{machine}")
    try:
        store = _store
        if store is None:
            if not _store_outlives_processes():
                return os.environ.get("LOCAL_RANK", "0") != "0"
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(address, port, is_master=False, timeout=STORE_TIMEOUT)  # type: ignore[attr-defined]
        return bool(store.add(key, 1) > 1)
    except RuntimeError:
        return False


def _store_outlives_processes() -> bool:
    """Whether the store is torchrun's own, which restarted processes use again."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _key(name: str) -> str:
    """A key in the store that differs after a restart."""
    restart = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}/" if _store_outlives_processes() else ""
    return f"seqtool/{restart}{name}"


def _first_sentence(error: Exception) -> str:
    """The error's first sentence, without the file and line of torch's source."""
    line = (str(error).splitlines() or [""])[0]
    return re.sub(r"^\[\S+:\d+\] *", "", line).split(". ")[0].rstrip(". ")
