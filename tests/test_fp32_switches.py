"""What a caller has set of torch's switches for fp32 is no obstacle, is not in force where full fp32 is needed, and is
there afterwards; and torch.compile follows every Transformer.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import make_captioner

from seqtool.models.inputs import Pixels
from seqtool.runtime.precision import fp32_switches, onednn, without_onednn, without_tf32

B: Any = torch.backends
NEW = pytest.mark.skipif(not hasattr(B, "fp32_precision"), reason="torch has these switches from 2.9 on")


def general(precision: str) -> None:
    B.fp32_precision = precision


def of(library: Any, precision: str) -> None:
    library.fp32_precision = precision


SET: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "general": lambda: general("tf32"),
    "general ieee": lambda: general("ieee"),
    "cudnn": lambda: of(B.cudnn, "tf32"),
    "cudnn.conv": lambda: of(B.cudnn.conv, "ieee"),
    "cudnn.rnn": lambda: of(B.cudnn.rnn, "ieee"),
    "cuda.matmul": lambda: of(B.cuda.matmul, "tf32"),
    "mkldnn": lambda: of(B.mkldnn, "tf32"),
    "mkldnn.conv": lambda: of(B.mkldnn.conv, "bf16"),
    "mkldnn.matmul": lambda: of(B.mkldnn.matmul, "tf32"),
    "general, but one": lambda: (of(B.cuda.matmul, "ieee"), general("tf32")),
    "older, products": lambda: setattr(B.cuda.matmul, "allow_tf32", True),
    "older, convolutions": lambda: setattr(B.cudnn, "allow_tf32", False),
    "older, precision": lambda: torch.set_float32_matmul_precision("medium"),
    "older, then general": lambda: (torch.set_float32_matmul_precision("high"), general("tf32")),
}


def state() -> list[Any]:
    """Of every switch what it says, or that torch refuses to say."""

    def said(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except RuntimeError:
            return "refused"

    older = [lambda: B.cudnn.allow_tf32, lambda: B.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision]
    newer = [lambda one=one: one.fp32_precision for one in (B, B.cudnn, B.mkldnn, *fp32_switches())]
    return [said(read) for read in (*older, *newer)]


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a caller has set; afterwards torch's defaults."""
    SET[request.param]()
    yield
    torch.set_float32_matmul_precision("highest")
    for switch in (B, B.cudnn, B.mkldnn, *fp32_switches()):
        switch.fp32_precision = "none"
    B.cudnn.allow_tf32 = True


CALLERS = pytest.mark.parametrize("caller", SET, indirect=True)


@NEW
@CALLERS
def test_full_fp32_is_in_force_and_everything_as_before_afterwards(caller: None) -> None:
    before = state()
    with without_tf32():
        assert {switch.fp32_precision for switch in fp32_switches()} <= {"none", "ieee"}
        with without_tf32(), onednn(), without_onednn():
            pass
        assert {switch.fp32_precision for switch in fp32_switches()} <= {"none", "ieee"}
    assert state() == before


@NEW
@CALLERS
def test_captions_are_made_whatever_is_set(caller: None) -> None:
    before = state()
    model = make_captioner("show_tell-first_step")
    model.annotations(Pixels(torch.zeros(2, 3, 24, 24, dtype=torch.uint8)))
    assert state() == before


@NEW
@pytest.mark.parametrize("caller", ["general"], indirect=True)
def test_switches_follow_the_general_one_afterwards(caller: None) -> None:
    with without_tf32(), onednn(), without_onednn():
        pass
    B.fp32_precision = "ieee"
    assert B.cuda.matmul.fp32_precision == B.mkldnn.matmul.fp32_precision == B.mkldnn.conv.fp32_precision == "ieee"


def test_torch_compile_follows_every_transformer() -> None:
    script = Path(__file__).parent / "compiling.py"
    ended = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
