"""The number type in which matrices are multiplied: AMP (`precision=`), and oneDNN for fp32 on a CPU."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import torch

from seqtool.errors import InputError

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
ONEDNN = "bf16"  # the setting under which torch lets oneDNN multiply
KEPT_SHAPES = "64"  # shapes for which torch caches oneDNN's prepared products


def check_precision(device: torch.device, precision: str) -> None:
    """Raise InputError if the device cannot compute in this precision."""
    if precision not in PRECISIONS:
        raise InputError(f"Unknown precision '{precision}'; choose from {', '.join(PRECISIONS)}.")
    if precision == "fp16" and device.type == "cpu":
        raise InputError("precision=fp16 needs a GPU; on a CPU use precision=bf16 or fp32.")


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Mixed precision (AMP): matrix products in `precision`; torch keeps what needs more, such as the softmax, in fp32.
    Gradients are scaled in `training/trainer.py`.
    """
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


@contextmanager
def onednn() -> Iterator[bool]:
    """Have oneDNN multiply fp32 matrices on a CPU. Yields False and leaves them to MKL if that would lose precision.

    MKL, torch's choice on x86, uses AVX-512 only on Intel's processors and is half as fast on others. oneDNN
    takes half a millisecond to make code for a new shape, and keeps that of 1,024 shapes, most of those in an epoch.
    torch would cache another 0.2 GB for as many, which saves no time.
    """
    if not _onednn_is_exact():
        yield False
        return
    with _products_by(ONEDNN):
        yield True


def without_onednn() -> AbstractContextManager[None]:
    """Within `onednn()`: use MKL after all, which takes a tenth of oneDNN's time to begin a small product."""
    return _products_by("none") if _onednn_is_exact() else nullcontext()


def mkl_is_fast() -> bool:
    """Whether to have MKL multiply a matrix by a vector in fp32: on Intel's processors with AMX, where it takes a fifth
    less time than oneDNN.
    """
    available: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return available and _onednn_can_be_chosen() and not _onednn_is_exact()


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN keeps full fp32: torch's only switch for it also lets it round to bf16, as it does on processors
    with units for bf16 (AMX, Arm). So it is tried with numbers that rounding would change.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", KEPT_SHAPES)  # read once, with the first product
    if not _onednn_can_be_chosen():
        return False
    x = torch.full((256, 256), 1 + 2**-12)
    with _products_by(ONEDNN), torch.autocast("cpu", enabled=False):
        return torch.equal(x @ torch.eye(256), x)


def _onednn_can_be_chosen() -> bool:
    """From torch 2.9 on."""
    return hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")


@contextmanager
def _products_by(precision: str) -> Iterator[None]:
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        yield
    finally:
        restore(matmul, before)


def fp32_switches() -> list[Any]:
    """torch's switches for the precision of fp32 operations, each of one kind and library: from torch 2.9 on."""
    backends: Any = torch.backends
    operations = [(backends.cudnn, "conv"), (backends.cudnn, "rnn"), (backends.cuda, "matmul")]
    operations += [(backends.mkldnn, "conv"), (backends.mkldnn, "rnn"), (backends.mkldnn, "matmul")]
    switches = [getattr(library, name, None) for library, name in operations]
    return [switch for switch in switches if hasattr(switch, "fp32_precision")]


def restore(switch: Any, precision: str) -> None:
    """Set one of these switches back: it follows torch's general ones again if that gives this precision."""
    switch.fp32_precision = "none"
    if switch.fp32_precision != precision:
        switch.fp32_precision = precision


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute convolutions and products in full fp32, without TF32, so that a GPU and a CPU agree. Afterwards torch's
    switches, the older ones and those of torch 2.9, are as they were.
    """
    before = [(switch, switch.fp32_precision) for switch in fp32_switches()]
    convolutions = products = None
    with suppress(RuntimeError):  # torch refuses to say where a newer switch says something else
        convolutions = torch.backends.cudnn.allow_tf32
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    try:
        if convolutions:
            torch.backends.cudnn.allow_tf32 = False
        if products not in (None, "highest"):
            torch.set_float32_matmul_precision("highest")
        for switch, _ in before:
            if switch.fp32_precision not in ("none", "ieee"):
                switch.fp32_precision = "ieee"
        yield
    finally:
        if convolutions:
            torch.backends.cudnn.allow_tf32 = True
        if products not in (None, "highest"):
            torch.set_float32_matmul_precision(products)
        for switch, precision in before:
            if switch.fp32_precision != precision:
                restore(switch, precision)
