"""Where and how products are taken."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqtool.runtime import devices
from seqtool.runtime.precision import KEPT_SHAPES, _onednn_is_exact, onednn

pytestmark = pytest.mark.skipif(
    not hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"), reason="needs torch 2.9"
)


def test_products_stay_in_single_precision() -> None:
    torch.manual_seed(0)
    for rows, inner, columns in ((64, 512, 1536), (1000, 300, 200), (1, 512, 512), (7, 33, 5)):
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        exact = a.double() @ b.double()
        bound = 8 * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs())
        with onednn():
            assert ((a @ b - exact).abs() <= bound).all()


def test_torch_is_as_it_was_afterwards() -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    with pytest.raises(ZeroDivisionError), onednn() as chosen:
        assert matmul.fp32_precision == ("bf16" if chosen else before)
        raise ZeroDivisionError
    assert matmul.fp32_precision == before


def test_left_alone_where_products_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    _onednn_is_exact.cache_clear()
    monkeypatch.setattr(torch, "eye", lambda n: torch.diag(torch.full((n,), 1 - 2.0**-9)))  # as good as rounding x
    with onednn() as chosen:
        assert not chosen
    monkeypatch.undo()
    _onednn_is_exact.cache_clear()


@pytest.mark.parametrize(("own", "kept"), [(None, KEPT_SHAPES), ("7", "7")])
def test_torch_keeps_few_shapes_unless_the_user_says_how_many(
    own: str | None, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", own or "")
    if own is None:
        monkeypatch.delenv("LRU_CACHE_CAPACITY")
    with onednn():
        assert os.environ["LRU_CACHE_CAPACITY"] == kept


@pytest.mark.skipif(not _onednn_is_exact(), reason="products are left to torch's choice")
def test_code_for_hundreds_of_shapes_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    program = """
import torch
from seqtool.runtime.precision import onednn
with onednn():
    for _ in range(2):
        for rows in range(1, 401):
            torch.ones(rows, 128) @ torch.ones(128, 128)
"""
    made = [line for line in printed_by(program, ONEDNN_VERBOSE="profile_create").splitlines() if "cache_miss" in line]
    assert 400 <= len(made) < 500


def test_a_job_without_a_number_of_threads_has_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the jobs before it in a sweep had."""
    monkeypatch.setattr(devices, "_default_threads", [])
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (None, before + 1, before + 2, None, None):
            devices.set_threads(threads)
            found.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert found == [before, before + 1, before + 2, before, before]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's malloc")
def test_memory_that_was_freed_is_not_given_back() -> None:
    program = """
import resource, torch
from seqtool.runtime.devices import keep_memory
keep_memory()
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(2**21) for _ in range(4)]  # 8 MiB, 2,048 pages, each
    del kept
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = [int(line) for line in printed_by(program, THP_MEM_ALLOC_ENABLE="0").split()]
    assert faults[0] > 1000 and max(faults[5:]) < 100


LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="a kernel that has no large pages"
)
def test_large_tensors_have_large_pages() -> None:
    program = """
import torch
from seqtool.runtime.devices import keep_memory
keep_memory()
kept = torch.ones(2**24)  # 64 MiB
print(*(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""
    assert int(printed_by(program)) > 32 * 1024  # KiB


def printed_by(program: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | environment
    ).stdout
