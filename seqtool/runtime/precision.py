"""The precision of matrix products: mixed precision (`precision=`), oneDNN for fp32 on a CPU, and TF32."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from seqtool.errors import InputError
from seqtool.settings.classes import chosen

# The types in which autocast computes; in int8 only linear maps are computed, in decoding (`models.fast.quantised`).
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": None}
INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8"}  # Linux's names of processors' instructions for products of int8
ONEDNN_SWITCH = "bf16"  # with this value of torch's switch, oneDNN multiplies fp32 matrices
CACHED_SHAPES = "64"  # the number of shapes for which torch caches oneDNN's prepared products


def check_precision(device: torch.device, precision: str, *, training: bool = False) -> None:
    """Raise InputError if the device cannot compute, or train, in this precision."""
    if precision == "int8" and training:
        raise InputError(
            "precision=int8 is for decoding with a trained model: train with precision=fp32, bf16 or fp16."
        )
    choices = {name: dtype for name, dtype in PRECISIONS.items() if name != "int8"} if training else PRECISIONS
    chosen(precision, choices, kind="precision")
    if precision == "fp16" and device.type == "cpu":
        raise InputError("precision=fp16 needs a GPU; on a CPU use precision=bf16 or fp32.")
    if precision == "int8" and device.type != "cpu":
        raise InputError("precision=int8 needs a CPU; on a GPU use precision=bf16 or fp16.")
    if precision == "int8" and not multiplies_int8():
        raise InputError(
            "precision=int8 needs a processor with instructions for it (VNNI, AVX-VNNI or AMX), which this one lacks: "
            "use precision=fp32."
        )


@cache
def multiplies_int8() -> bool:
    """Whether the processor has instructions for products of 8-bit integers, as far as Linux tells."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith("flags")), "")
        return not INT8_FLAGS.isdisjoint(flags.split())
    return False


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """A context for mixed precision (AMP): matrix products are in `precision`; torch keeps the softmax and the like in
    fp32. Gradients are scaled in `training/trainer.py`.
    """
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


@contextmanager
def no_gradients() -> Iterator[None]:
    """`torch.no_grad` for passes of a model before one that needs gradients within the same `autocast`.

    Autocast keeps its rounded matrices, and before torch 2.11 also those that were rounded without a gradient, so that
    the matrices themselves would get none afterwards.
    """
    with torch.no_grad():
        yield
    torch.clear_autocast_cache()


@contextmanager
def onednn() -> Iterator[bool]:
    """Multiply fp32 matrices on a CPU with oneDNN within the context, if it is exact. Yields whether it is.

    MKL, torch's choice on x86, uses AVX-512 only on Intel's processors and is half as fast on others. oneDNN takes half
    a millisecond to generate code for a new shape, and keeps the code of 1,024 shapes, which are most of those in an
    epoch. torch's own cache for as many would take another 0.2 GB and save no time.
    """
    with _product_precision(ONEDNN_SWITCH) if _onednn_is_exact() else nullcontext():
        yield _onednn_is_exact()


def without_onednn() -> AbstractContextManager[None]:
    """Use MKL again within `onednn()`: it takes a tenth of oneDNN's time to start a small product."""
    return _product_precision("none") if _onednn_is_exact() else nullcontext()


def mkl_is_fast() -> bool:
    """Whether MKL should multiply a matrix by a vector in fp32.

    It should on Intel's processors with AMX, where it takes a fifth less time than oneDNN.
    """
    available: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return available and _onednn_can_be_chosen() and not _onednn_is_exact()


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN computes in full fp32, tried with numbers that rounding would change.

    torch's only switch for oneDNN also lets it round to bf16, as it does on processors with units for bf16 (AMX, Arm).
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", CACHED_SHAPES)  # torch reads this once, for the first product
    if not _onednn_can_be_chosen():
        return False
    x = torch.full((256, 256), 1 + 2**-12)
    with _product_precision(ONEDNN_SWITCH), torch.autocast("cpu", enabled=False):
        return torch.equal(x @ torch.eye(256), x)


def _onednn_can_be_chosen() -> bool:
    """Whether torch has a switch for oneDNN's fp32 products, as it has since version 2.9."""
    return hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")


@contextmanager
def _product_precision(precision: str) -> Iterator[None]:
    """Set torch's switch for the precision of oneDNN's products to this value within the context."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    previous, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        yield
    finally:
        restore(matmul, previous)


def fp32_switches() -> list[Any]:
    """torch's switches for the precision of fp32 operations, one for each operation and library, since torch 2.9."""
    backends: Any = torch.backends
    operations = [(backends.cudnn, "conv"), (backends.cudnn, "rnn"), (backends.cuda, "matmul")]
    operations += [(backends.mkldnn, "conv"), (backends.mkldnn, "rnn"), (backends.mkldnn, "matmul")]
    switches = [getattr(library, name, None) for library, name in operations]
    return [switch for switch in switches if hasattr(switch, "fp32_precision")]


def restore(switch: Any, precision: str) -> None:
    """Restore a switch: it follows torch's general switches again if that results in this precision."""
    switch.fp32_precision = "none"
    if switch.fp32_precision != precision:
        switch.fp32_precision = precision


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute in full fp32, without TF32, within the context, so that results on a GPU and a CPU agree.

    Afterwards torch's switches, both the older switches and the switches of torch 2.9, are restored.
    """
    previous = [(switch, switch.fp32_precision) for switch in fp32_switches()]
    convolutions_tf32 = product_precision = None
    with suppress(RuntimeError):  # torch raises it if a newer switch contradicts this one
        convolutions_tf32 = torch.backends.cudnn.allow_tf32
    with suppress(RuntimeError):
        product_precision = torch.get_float32_matmul_precision()
    try:
        if convolutions_tf32:
            torch.backends.cudnn.allow_tf32 = False
        if product_precision not in (None, "highest"):
            torch.set_float32_matmul_precision("highest")
        for switch, _ in previous:
            if switch.fp32_precision not in ("none", "ieee"):
                switch.fp32_precision = "ieee"
        yield
    finally:
        if convolutions_tf32:
            torch.backends.cudnn.allow_tf32 = True
        if product_precision not in (None, "highest"):
            torch.set_float32_matmul_precision(product_precision)
        for switch, precision in previous:
            if switch.fp32_precision != precision:
                restore(switch, precision)
