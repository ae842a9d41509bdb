"""Tests of settings of devices: exact products with oneDNN, its cached shapes, threads and memory."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqtool.runtime import devices
from seqtool.runtime.precision import CACHED_SHAPES, _onednn_is_exact, onednn

pytestmark = pytest.mark.skipif(
    not hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"), reason="needs torch 2.9"
)


def test_products_stay_in_single_precision() -> None:
    torch.manual_seed(0)
    for rows, inner, columns in ((64, 512, 1536), (1000, 300, 200), (1, 512, 512), (7, 33, 5)):
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        expected = a.double() @ b.double()
        bound = 8 * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs())
        with onednn():
            assert ((a @ b - expected).abs() <= bound).all()


def test_onednn_restores_torchs_setting() -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    with pytest.raises(ZeroDivisionError), onednn() as is_used:
        assert matmul.fp32_precision == ("bf16" if is_used else before)
        raise ZeroDivisionError
    assert matmul.fp32_precision == before


def test_onednn_is_not_used_if_it_rounds_products(monkeypatch: pytest.MonkeyPatch) -> None:
    _onednn_is_exact.cache_clear()
    # The changed factor has the same effect as rounding x.
    monkeypatch.setattr(torch, "eye", lambda n: torch.diag(torch.full((n,), 1 - 2.0**-9)))
    with onednn() as is_used:
        assert not is_used
    monkeypatch.undo()
    _onednn_is_exact.cache_clear()


@pytest.mark.parametrize(("user_value", "expected"), [(None, CACHED_SHAPES), ("7", "7")])
def test_few_shapes_are_cached_unless_the_user_sets_a_number(
    user_value: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", user_value or "")
    if user_value is None:
        monkeypatch.delenv("LRU_CACHE_CAPACITY")
    with onednn():
        assert os.environ["LRU_CACHE_CAPACITY"] == expected


@pytest.mark.skipif(not _onednn_is_exact(), reason="products are left to torch's choice")
def test_code_for_hundreds_of_shapes_is_generated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("torch multiplies fp32 matrices with oneDNN only on processors with AVX-512")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    program = """
import torch
from seqtool.runtime.precision import onednn
with onednn():
    for _ in range(2):
        for rows in range(1, 401):
            torch.ones(rows, 128) @ torch.ones(128, 128)
"""
    events = output_of(program, ONEDNN_VERBOSE="profile_create").splitlines()
    assert 400 <= sum("cache_miss" in event for event in events) < 500


def test_a_job_without_threads_uses_torchs_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier jobs of a sweep with other numbers of threads do not matter."""
    monkeypatch.setattr(devices, "_default_threads", [])
    default = torch.get_num_threads()
    try:
        thread_counts = []
        for threads in (None, default + 1, default + 2, None, None):
            devices.set_threads(threads)
            thread_counts.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(default)
    assert thread_counts == [default, default + 1, default + 2, default, default]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's malloc")
def test_freed_memory_is_kept_by_the_process() -> None:
    program = """
import resource, torch
from seqtool.runtime.devices import keep_memory
keep_memory()
for _ in range(10):
    faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**21) for _ in range(4)]  # each has 8 MiB, or 2,048 pages
    del tensors
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
"""
    faults = [int(line) for line in output_of(program, THP_MEM_ALLOC_ENABLE="0").split()]
    assert faults[0] > 1000 and max(faults[5:]) < 100


LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="a kernel that has no large pages"
)
def test_large_tensors_use_large_pages() -> None:
    program = """
import torch
from seqtool.runtime.devices import keep_memory
keep_memory()
tensor = torch.ones(2**24)  # 64 MiB
print(*(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""
    assert int(output_of(program)) > 32 * 1024  # KiB


def output_of(program: str, **environment: str) -> str:
    """Run a Python program in a separate process, and return its standard output."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | environment
    ).stdout
