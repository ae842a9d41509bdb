"""The device and the number of threads to compute with (`device=`, `threads=`), and how memory is allocated."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

import torch

from seqtool.errors import InputError
from seqtool.runtime import distributed
from seqtool.settings import declarations

MODEL_TOO_LARGE = (
    "for the model's weights: close other programs, choose a smaller model, or set device=cpu if a GPU is full."
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_default_threads: list[int] = []  # the number that torch chose; empty unless another number is set


class Machine(NamedTuple):
    """The device of the tensors, and the precision in which matrices are multiplied (`precision.autocast`)."""

    device: torch.device
    precision: str


def choose_device(name: str) -> torch.device:
    """The device with this name, as in `find_device`; a GPU becomes torch's default."""
    device = find_device(name)
    make_default(device)
    return device


def make_default(device: torch.device) -> None:
    """Make a GPU the default of torch and NCCL. Does nothing for other devices."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def find_device(name: str) -> torch.device:
    """The device with this name; raises InputError if there is none. `auto` is the GPU if there is one, else the CPU.

    If torchrun started several processes on this machine, `cuda` is a different GPU for each of them.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda:") and distributed.local_size() > 1:
        raise InputError(
            f"device={name} would put all {distributed.local_size()} processes of this machine on one GPU: set "
            "device=cuda and each takes its own, those of CUDA_VISIBLE_DEVICES in turn; or lower --nproc-per-node to 1."
        )
    if name == "cuda" and distributed.local_rank() is not None:
        rank, count = distributed.local_rank() or 0, torch.cuda.device_count()
        sees_only_its_own = count == 1 and distributed.is_alone_on_gpu()  # the launcher hides the others
        if not sees_only_its_own and (count < 2 or rank >= count):
            raise InputError(
                f"More processes were started than the {_gpus(count)} that torch sees here: lower --nproc-per-node, or "
                "set device=cpu."
            )
        name = f"cuda:{0 if sees_only_its_own else rank}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"Unknown device '{name}'; choose auto, cpu, mps, cuda or cuda:0, cuda:1, ….") from error
    if device.type not in ("cpu", "cuda", "mps") or (device.type == "mps" and not torch.backends.mps.is_available()):
        raise InputError(f"device={name} cannot be used by seqtool here; use device=auto or device=cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        torch_sees = f"torch {torch.__version__} sees {_gpus(torch.cuda.device_count())}"
        raise InputError(f"device={name} does not exist here: {torch_sees}; use device=auto or device=cpu.")
    return device


def _gpus(count: int) -> str:
    """The number of GPUs in words, with the reasons if it is 0."""
    if count:
        return f"{count} GPU{'s' if count > 1 else ''}"
    if torch.version.cuda is None and torch.version.hip is None:
        return "0 GPUs (it was built without CUDA: see pytorch.org/get-started for a build with it)"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    reasons = [] if visible is None else [f"CUDA_VISIBLE_DEVICES='{visible}' hides all others"]
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # such as a missing driver, or one that is too old
        reasons.append(f"torch says: {str(error).split('. ')[0].rstrip('.')}")
    return f"0 GPUs ({'; '.join(reasons)})" if reasons else "0 GPUs"


def set_threads(threads: int | None) -> None:
    """Set torch's number of CPU threads; None is torch's own choice."""
    declarations.check_values(declarations.Machine("auto", threads))
    if threads is None:
        threads = _default_threads.pop() if _default_threads else torch.get_num_threads()
    elif not _default_threads:
        _default_threads.append(torch.get_num_threads())
    torch.set_num_threads(threads)


@contextmanager
def computing_on(device: torch.device, threads: int | None = None) -> Iterator[None]:
    """Make a GPU torch's default and set the number of CPU threads (None leaves it) within the context; both are
    restored afterwards.
    """
    names_a_gpu = device.type == "cuda" and device.index is not None
    previous_threads = torch.get_num_threads()
    with torch.cuda.device(device) if names_a_gpu else nullcontext():
        try:
            if threads not in (None, previous_threads):
                torch.set_num_threads(threads)
            yield
        finally:
            if threads not in (None, previous_threads):
                torch.set_num_threads(previous_threads)


def keep_memory() -> None:
    """Have glibc's malloc keep freed memory, and torch ask Linux for pages of 2 MiB.

    By default malloc returns freed memory to Linux, so that the logits of every step are new memory, with a page fault
    for each 4 KiB. Tensors that begin at a large page also leave fewer gaps, so that less memory is used in total.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads this when it allocates the first tensor of 2 MiB
    with suppress(AttributeError, OSError, TypeError):  # there is no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)  # 32 MiB, the largest value allowed
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
