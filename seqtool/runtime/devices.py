"""The device, and the number type in which matrices are multiplied: `device=`, `threads=`, `precision=`."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from seqtool.errors import InputError
from seqtool.runtime import distributed

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST_THREADS = 1024
KEPT_SHAPES = "64"  # shapes for which torch caches oneDNN's prepared products
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in malloc.h
WANT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")


@dataclass
class MachineSettings:
    """Where a model runs."""

    device: str
    threads: int | None


@dataclass(frozen=True)
class Machine:
    """The device of tensors, and the precision in which matrices are multiplied (`autocast`)."""

    device: torch.device
    precision: str


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one, else the CPU; several processes on a machine take one GPU each."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    local = distributed.local_rank()
    if name.startswith("cuda:") and distributed.local_size() > 1:
        raise InputError(
            f"device={name} would put all {distributed.local_size()} processes of this machine on one GPU: say "
            "device=cuda and each takes its own, those of CUDA_VISIBLE_DEVICES in turn; or lower --nproc-per-node to 1."
        )
    if name == "cuda" and local is not None:
        if local >= torch.cuda.device_count():
            raise InputError(
                f"More processes were started than the {torch.cuda.device_count()} GPUs that torch sees here: "
                "lower --nproc-per-node, or say device=cpu."
            )
        name = f"cuda:{local}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"Unknown device '{name}'; choose auto, cpu, cuda or cuda:0, cuda:1, ….") from error
    if device.type not in ("cpu", "cuda", "mps") or (device.type == "mps" and not torch.backends.mps.is_available()):
        raise InputError(f"device={name} is not one that seqtool runs on here; use device=auto or device=cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device={name} is not here: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs; "
            "use device=auto or device=cpu."
        )
    if device.type == "cuda" and local is not None:
        torch.cuda.set_device(device)
    return device


def check_precision(device: torch.device, precision: str) -> None:
    """Raise InputError if the device cannot compute in this precision."""
    if precision not in PRECISIONS:
        raise InputError(f"Unknown precision '{precision}'; choose from {', '.join(PRECISIONS)}.")
    if precision == "fp16" and device.type == "cpu":
        raise InputError("precision=fp16 needs a GPU; on a CPU use precision=bf16 or fp32.")


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Mixed precision (AMP): matrix products in `precision`; torch keeps what needs more, such as the softmax, in fp32.
    Gradients are scaled in `training/updates.py`.
    """
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def set_threads(threads: int | None) -> None:
    """Set torch's number of CPU threads; None leaves torch's choice."""
    if threads is not None:
        if threads < 1:
            raise InputError(f"threads must be at least 1, not {threads}.")
        if threads > MOST_THREADS:
            raise InputError(f"threads must be at most {MOST_THREADS:,}, not {threads:,}.")
        torch.set_num_threads(threads)


@contextmanager
def onednn() -> Iterator[bool]:
    """Have oneDNN multiply fp32 matrices on a CPU. Yields False and leaves them to MKL if that would lose precision.

    MKL, torch's choice on x86, uses AVX-512 only on Intel's processors and is half as fast on others. oneDNN
    takes half a millisecond to make code for a new shape, and keeps that of 1,024 shapes, most of those in an epoch.
    torch would cache another 0.2 GB for as many, which saves no time.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", KEPT_SHAPES)  # read once
    if not _onednn_is_exact():
        yield False
        return
    with _products_by_onednn():
        yield True


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN keeps full fp32: torch's only switch for it also lets it round to bf16, as it does on processors
    with units for bf16 (AMX, Arm). So it is tried with numbers that rounding would change.
    """
    if not hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"):  # before torch 2.9
        return False
    x = torch.full((256, 256), 1 + 2**-12)
    with _products_by_onednn():
        return torch.equal(x @ torch.eye(256), x)


@contextmanager
def _products_by_onednn() -> Iterator[None]:
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def keep_memory() -> None:
    """Have glibc's malloc keep freed memory, and torch ask Linux for pages of 2 MiB. By default malloc returns memory,
    so that the logits of every step are new memory, with a page fault for each 4 KiB. Tensors that begin at a large
    page also leave fewer holes: all of it together takes less memory.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read at the first tensor of 2 MiB
    with suppress(AttributeError, OSError, TypeError):  # without glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest value allowed
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def out_of_memory(device: torch.device, advice: Callable[[], str]) -> Iterator[None]:
    """Raise InputError if memory runs out, ending with `advice`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError; on a CPU it is a plain one
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in WANT_OF_MEMORY):
            raise
        raise InputError(f"Out of memory on {device} {advice()}") from error
