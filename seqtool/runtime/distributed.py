"""The processes that torchrun starts, which work as one through torch.distributed.

All run the same command on the same input; they share out the work and agree on what they found, and only the first
reads standard input, writes files and prints. A process by itself is a group of one, where all of this costs nothing.
"""

import atexit
import gc
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
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
from seqtool.runtime import failures

X = TypeVar("X")
Y = TypeVar("Y")

JOINING = timedelta(minutes=10)
PATIENCE = timedelta(minutes=30)  # of processes that work on the same step, validation or window of lines
PATIENCE_WITH_FIRST = timedelta(days=1)  # which may prepare data, or wait for a line that someone types

_rank, _size = 0, 1
_patient: Any = None  # the group in which the others wait for the first


def rank() -> int:
    return _rank


def size() -> int:
    return _size


def is_first() -> bool:
    return _rank == 0


@contextmanager
def group() -> Iterator[None]:
    """Work together with the other processes that torchrun started, if it did.

    Raises LostConnectionError, which says why, where another process is lost or hangs; and InputError where another
    one raised it, with the same sentence.
    """
    global _rank, _size
    members = int(os.environ.get("WORLD_SIZE", 1)) if dist.is_torchelastic_launched() else 1
    if not dist.is_torchelastic_launched():
        failures.check_launcher()
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
            failures.tell(error)
            raise
        with suppress(ValueError):  # not the main thread: signals are not ours to handle
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's: first the cause is said
        atexit.unregister(_leave)  # it would wait for the others
        raise failures.explained(error, PATIENCE if dist.is_initialized() else None) from error
    finally:
        _rank, _size = 0, 1


def _join() -> None:
    import torch.distributed.nn  # before there is a group: its functions would hold on to it as their default

    global _patient
    store, rank, size = next(rendezvous("env://", timeout=JOINING))
    failures.use(store)
    if failures.store_stays():  # in which the addresses of dead workers still stand
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
    """Say nothing but why this process fails."""
    logging.disable(logging.WARNING)
    try:
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        with nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(logging.NOTSET)


def local_rank() -> int | None:
    """Which of this machine's processes this is; None by itself."""
    return int(os.environ["LOCAL_RANK"]) if _size > 1 else None


def local_size() -> int:
    """How many processes work together on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if _size > 1 else 1


def described(device: torch.device) -> str:
    """Where the work is done, for people."""
    return f"{device}" if _size == 1 else f"{_size} processes, the first on {device}"


def seed(number: int) -> None:
    """Seed each process's random numbers differently; the first keeps those that it has."""
    if not is_first():
        torch.manual_seed(int(np.random.SeedSequence([number, _rank]).generate_state(1, np.uint64)[0]))


def share(items: Sequence[X]) -> Sequence[X]:
    """This process's part: every `size`-th."""
    return items[_rank::_size]


def together(function: Callable[[X], Y], items: Sequence[X]) -> list[Y]:
    """[function(item) for item in items], in every process, each having done its share.

    Meanwhile each process works by itself: a function that shares out its own work does all of it.
    """
    global _rank, _size
    if _size == 1:
        return [function(item) for item in items]
    before = _rank, _size
    mine = share(items)
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
    """What the function gives in the first process, however long that takes; the others do not call it. Where it raises
    InputError, all do.
    """
    if _size == 1:
        return function()
    found: list[Any] = _called(function, here=is_first()) or [None]
    dist.broadcast_object_list(found, group=_patient)
    return found[0]  # type: ignore[no-any-return]


def first_here(function: Callable[[], X]) -> X:
    """What the function gives in this process: it is called by the first process of each machine, and when they are
    done, however long that takes, by the others, for which files are there then. Where it raises InputError in one of
    the first ones, all do.
    """
    if _size == 1:
        return function()
    found = _called(function, here=local_rank() == 0)
    return found[0] if found else function()


def _called(function: Callable[[], X], *, here: bool) -> list[X]:
    """What the function gives where it is to be called `here`, otherwise nothing, once all have called it that are to.
    An InputError of one process is raised in all of them.
    """
    found: list[X] = []
    failure = None
    if here:
        try:
            found.append(function())
        except InputError as error:
            failure = error
    sentences: list[Any] = [None] * _size
    dist.all_gather_object(sentences, None if failure is None else str(failure), group=_patient)
    if failed := [sentence for sentence in sentences if sentence is not None]:
        raise failure or InputError(failed[0])
    return found


def each_from_first(items: Iterator[X]) -> Iterator[X]:
    """What the first process's iterator gives, as it comes."""
    while found := from_first(lambda: list(islice(items, 1))):
        yield found[0]


def highest(*values: float) -> list[float]:
    """Of each number the highest that a process has."""
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


def wait_for_all() -> None:
    highest(0.0)


class DataParallel:
    """A loss whose gradients, after the last batch of a step, are the mean over all processes."""

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss
        self._wrapped: nn.Module = loss
        self._trained = -1

    def prepare(self) -> None:
        """Before each step: which parameters are trained may have changed."""
        trained = sum(parameter.requires_grad for parameter in self.loss.parameters())
        if _size > 1 and trained != self._trained:
            warnings.filterwarnings("ignore", "Grad strides do not match")  # of matrices with one row: it costs nothing
            self._wrapped = DistributedDataParallel(self.loss)
            self._trained = trained

    def __call__(self, *arguments: Any) -> Any:
        return self._wrapped(*arguments)

    def exchanging(self, *, last: bool) -> AbstractContextManager[None]:
        """Around a batch's pass forward and back: gradients are added up, and exchanged after the last."""
        if last or not isinstance(self._wrapped, DistributedDataParallel):
            return nullcontext()
        return self._wrapped.no_sync()
