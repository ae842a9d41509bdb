"""The processes that torchrun starts, which work as one through torch.distributed.

All run the same command on the same input; they divide the work and exchange the results, and only the first
reads standard input, writes files and prints. A single process is a group of one, where all of this costs nothing.

A process that fails records the cause in the store through which all have found each other. torchrun's own store
outlives them, so each machine reports the cause once, from any of its processes, and does not repeat it when torchrun
restarts all of them, as it does whatever their exit status.
"""

import atexit
import gc
import hashlib
import json
import logging
import os
import re
import signal
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

log = logging.getLogger("seqtool")
X = TypeVar("X")
Y = TypeVar("Y")

JOINING = timedelta(minutes=10)
PATIENCE = timedelta(minutes=30)  # for processes that work on the same step, validation or window of lines
PATIENCE_WITH_FIRST = timedelta(days=1)  # the first may prepare data, or wait for a line to be typed
STORE_TIMEOUT = timedelta(seconds=10)

_rank, _size = 0, 1
_patient: Any = None  # the group in which the others wait for the first
_store: Any = None  # through which the processes of this group have found each other


class LostConnectionError(InputError):
    """The group has failed, as far as is known not because of the user's input."""


def rank() -> int:
    return _rank


def size() -> int:
    return _size


def is_first() -> bool:
    return _rank == 0


@contextmanager
def group() -> Iterator[None]:
    """Work together with the other processes that torchrun started, if it did.

    Raises LostConnectionError, which says why, if another process is lost or hangs; and InputError if another
    one raised it, with the same message.
    """
    global _rank, _size
    members = int(os.environ.get("WORLD_SIZE", 1)) if dist.is_torchelastic_launched() else 1
    if not dist.is_torchelastic_launched():
        _check_launcher()
    if members == 1 or _size > 1:
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
        with suppress(ValueError):  # not the main thread: signals are not ours to handle
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from torchrun: first report the cause
        atexit.unregister(_leave)  # it would wait for the others
        raise _explanation(error, PATIENCE if dist.is_initialized() else None) from error
    finally:
        _rank, _size = 0, 1


def _join() -> None:
    import torch.distributed.nn  # before there is a group, or its functions would keep it as their default

    global _patient, _store
    store, rank, size = next(rendezvous("env://", timeout=JOINING))
    _store = store
    if _store_stays():  # it still has the addresses of dead workers
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    _patient = dist.new_group(backend="gloo", timeout=PATIENCE_WITH_FIRST)


def _leave() -> None:
    global _patient
    _patient = None
    gc.collect()  # the model holds on to the group, whose threads must end before the interpreter does
    dist.destroy_process_group()


@contextmanager
def _silence() -> Iterator[None]:
    """Print nothing except why this process fails."""
    logging.disable(logging.WARNING)
    try:
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        with nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(logging.NOTSET)


def local_rank() -> int | None:
    """This process's number on this machine; None for a single process."""
    return int(os.environ["LOCAL_RANK"]) if _size > 1 else None


def local_size() -> int:
    """The number of processes that work together on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if _size > 1 else 1


def has_own_gpu() -> bool:
    """Whether the first GPU that this process sees is not another process's, too."""
    if _store is None:
        return True
    key = _key(f"gpu/{torch.cuda.get_device_properties(0).uuid}")
    return bool(_store.compare_set(key, "", str(_rank)).decode() == str(_rank))


def described(device: torch.device) -> str:
    """A description of where the work is done."""
    return f"{device}" if _size == 1 else f"{_size} processes, the first on {device}"


def seed(number: int) -> None:
    """Seed each process's random numbers differently; the first keeps its own."""
    if not is_first():
        torch.manual_seed(int(np.random.SeedSequence([number, _rank]).generate_state(1, np.uint64)[0]))


def together(function: Callable[[X], Y], items: Sequence[X]) -> list[Y]:
    """[function(item) for item in items], in every process, each having done its shard, every `size`-th item.

    Meanwhile each process works alone: a function that would divide its own work does all of it.
    """
    global _rank, _size
    if _size == 1:
        return [function(item) for item in items]
    before = _rank, _size
    mine = items[_rank::_size]
    try:
        _rank, _size = 0, 1
        done = [function(item) for item in mine]
    finally:
        _rank, _size = before
    results: list[Any] = [None] * len(items)
    for process, part in enumerate(gathered(done)):
        results[process::_size] = part
    return results


def gathered(value: X) -> list[X]:
    """Every process's value, in every process."""
    if _size == 1:
        return [value]
    values: list[Any] = [None] * _size
    dist.all_gather_object(values, value)
    return values


def from_first(function: Callable[[], X]) -> X:
    """The function's result in the first process, however long it takes; the others do not call it. If it raises
    InputError, all processes do.
    """
    if _size == 1:
        return function()
    result: list[Any] = _call(function, here=is_first()) or [None]
    dist.broadcast_object_list(result, group=_patient)
    return result[0]  # type: ignore[no-any-return]


def first_here(function: Callable[[], X]) -> X:
    """The function's result in this process: the first process of each machine calls it, and when they are done,
    however long that takes, the others do, who then find its files. If it raises InputError in one of the first ones,
    all processes do.
    """
    if _size == 1:
        return function()
    result = _call(function, here=local_rank() == 0)
    return result[0] if result else function()


def _call(function: Callable[[], X], *, here: bool) -> list[X]:
    """The function's result if it is to be called `here`, otherwise nothing; waits until all such calls are done.
    An InputError of one process is raised in all of them.
    """
    result: list[X] = []
    failure = None
    if here:
        try:
            result.append(function())
        except InputError as error:
            failure = error
    sentences: list[Any] = [None] * _size
    dist.all_gather_object(sentences, None if failure is None else str(failure), group=_patient)
    if failed := [sentence for sentence in sentences if sentence is not None]:
        raise failure or InputError(failed[0])
    return result


def each_from_first(items: Iterator[X]) -> Iterator[X]:
    """The items of the first process's iterator, in every process, as they come."""
    while item := from_first(lambda: list(islice(items, 1))):
        yield item[0]


def highest(*values: float) -> list[float]:
    """For each number, the highest over all processes."""
    if _size == 1:
        return list(values)
    highest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest.tolist()


def total(tensor: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if _size > 1:
        dist.all_reduce(tensor)
    return tensor


class DataParallel:
    """A loss whose gradients, after the last batch of a step, are the mean over all processes."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        self._wrapped: Any = loss
        self._trained = -1

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[Any]:
        """The loss for the forward and backward pass of a batch, within which gradients add up, to be exchanged after
        the last batch. From one step to the next the set of trained parameters may change.
        """
        trained = sum(parameter.requires_grad for parameter in self._loss.parameters())
        if _size > 1 and trained != self._trained:
            warnings.filterwarnings("ignore", "Grad strides do not match")  # for matrices with one row: harmless
            self._wrapped, self._trained = DistributedDataParallel(self._loss), trained
        with nullcontext() if last or _size == 1 else self._wrapped.no_sync():
            yield self._wrapped


def _check_launcher() -> None:
    """Refuse a launcher that is not torchrun: all its processes would do the same work.

    srun only causes a warning: it sets no rank for torch, and may be starting torchrun itself or different commands.
    """
    sizes = ["OMPI_COMM_WORLD_SIZE", *(["WORLD_SIZE"] if "RANK" in os.environ else [])]
    for variable in sizes:
        if (size := os.environ.get(variable, "1")).isdecimal() and int(size) > 1:
            raise InputError(
                f"{variable}={size} says that another launcher than torchrun started {size} processes, which would all "
                f"do the same: start torchrun --nproc-per-node={size} -m seqtool … in its place, or unset {variable} "
                "for a process by itself."
            )
    size = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if size.isdecimal() and int(size) > 1 and os.environ.get("SLURM_PROCID") == "0":
        log.warning(
            "srun started %s tasks, each of which works by itself: to work together they need torchrun, one a machine.",
            size,
        )


def _record_cause(error: Exception) -> None:
    """Record why this process stops, unless another process has recorded a cause."""
    if _store is None:
        return
    reports_itself = isinstance(error, InputError)
    text = str(error) if reports_itself else f"{type(error).__name__}: {_first_sentence(error)}"
    with suppress(RuntimeError):  # the store went with its process
        _store.set_timeout(STORE_TIMEOUT)
        _store.compare_set(_key("cause"), "", json.dumps([reports_itself, text]))


def _explanation(error: Exception, patience: timedelta | None) -> InputError:
    """Why waiting for another process failed: the cause it recorded, or torch's message.

    patience: how long it was waited for; None before all have connected.
    """
    reports_itself, cause = False, ""
    if _store is not None:
        with suppress(RuntimeError):
            _store.set_timeout(STORE_TIMEOUT)
            if _store.check([_key("cause")]):
                reports_itself, cause = json.loads(_store.get(_key("cause")))
    if reports_itself:
        return InputError(cause)
    reason = _first_sentence(error)
    if cause:
        sentence = f"Lost the connection to another process, which stopped with {cause}."
    elif re.search("timed? ?out", reason, re.IGNORECASE) is not None:
        if patience is None:
            advice = "start torchrun on all --nnodes machines, with the same address"
            sentence = f"Not all processes connected ({reason}): {advice}."
        else:
            seconds = int(patience.total_seconds())
            time = f"{seconds // 60} minutes" if seconds >= 60 else f"{seconds} seconds"
            sentence = f"Another process did not answer within {time} ({reason}): it hangs or is much slower."
    elif "NCCL" in reason:
        sentence = f"NCCL failed ({reason}): with NCCL_DEBUG=INFO it says more."
    else:
        sentence = f"Lost the connection to another process ({reason}): torchrun says which one stopped, and how."
    return LostConnectionError(sentence)


def already_reported(error: Exception, sentence: str) -> bool:
    """Whether another process on this machine has reported the error, possibly before torchrun restarted all of them;
    from now on it counts as reported.

    If torchrun keeps no store of its own (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), nothing is known about earlier
    processes, nor about others before they have joined: then the first process of each machine reports it.
    """
    machine = os.environ.get("GROUP_RANK", "0")
    key = f"seqtool/reported/{machine}/{hashlib.sha256(sentence.encode()).hexdigest()}"
    if isinstance(error, LostConnectionError):  # each loss is reported
        key = _key(f"lost/{machine}")
    try:
        store = _store
        if store is None:
            if not _store_stays():
                return os.environ.get("LOCAL_RANK", "0") != "0"
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(address, port, is_master=False, timeout=STORE_TIMEOUT)  # type: ignore[attr-defined]
        return bool(store.add(key, 1) > 1)
    except RuntimeError:
        return False


def _store_stays() -> bool:
    """Whether the store is torchrun's own, which restarted processes share."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _key(name: str) -> str:
    """A key in the store for these processes, different from that of processes restarted in their place."""
    return f"seqtool/{os.environ['TORCHELASTIC_RESTART_COUNT']}/{name}" if _store_stays() else f"seqtool/{name}"


def _first_sentence(error: Exception) -> str:
    """The error's first sentence, without the place in torch's source."""
    line = (str(error).splitlines() or [""])[0]
    return re.sub(r"^\[\S+:\d+\] *", "", line).split(". ")[0].rstrip(". ")
