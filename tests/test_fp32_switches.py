"""Tests of torch's switches for fp32: full fp32 is used where it is needed, and a caller's settings are restored."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from small_models import make_captioner

from seqtool.models.inputs import Pixels
from seqtool.runtime.precision import fp32_switches, onednn, without_onednn, without_tf32

BACKENDS: Any = torch.backends
NEEDS_SWITCHES = pytest.mark.skipif(
    not hasattr(BACKENDS, "fp32_precision"), reason="torch has these switches since 2.9"
)


def set_precision(switch: Any, precision: str) -> None:
    switch.fp32_precision = precision


CALLER_SETTINGS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "general": lambda: set_precision(BACKENDS, "tf32"),
    "general ieee": lambda: set_precision(BACKENDS, "ieee"),
    "cudnn": lambda: set_precision(BACKENDS.cudnn, "tf32"),
    "cudnn.conv": lambda: set_precision(BACKENDS.cudnn.conv, "ieee"),
    "cudnn.rnn": lambda: set_precision(BACKENDS.cudnn.rnn, "ieee"),
    "cuda.matmul": lambda: set_precision(BACKENDS.cuda.matmul, "tf32"),
    "mkldnn": lambda: set_precision(BACKENDS.mkldnn, "tf32"),
    "mkldnn.conv": lambda: set_precision(BACKENDS.mkldnn.conv, "bf16"),
    "mkldnn.matmul": lambda: set_precision(BACKENDS.mkldnn.matmul, "tf32"),
    "general, except products": lambda: (set_precision(BACKENDS.cuda.matmul, "ieee"), set_precision(BACKENDS, "tf32")),
    "older, products": lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True),
    "older, convolutions": lambda: setattr(BACKENDS.cudnn, "allow_tf32", False),
    "older, precision": lambda: torch.set_float32_matmul_precision("medium"),
    "older, then general": lambda: (torch.set_float32_matmul_precision("high"), set_precision(BACKENDS, "tf32")),
}


def switch_values() -> list[Any]:
    """Return the value of every switch, or "refused" where torch raises an error for mixed settings."""

    def value(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except RuntimeError:
            return "refused"

    older = [lambda: BACKENDS.cudnn.allow_tf32, lambda: BACKENDS.cuda.matmul.allow_tf32]
    switches = (BACKENDS, BACKENDS.cudnn, BACKENDS.mkldnn, *fp32_switches())
    newer = [lambda switch=switch: switch.fp32_precision for switch in switches]
    return [value(read) for read in (*older, torch.get_float32_matmul_precision, *newer)]


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[None]:
    """A caller's settings; torch's defaults are restored afterwards."""
    CALLER_SETTINGS[request.param]()
    yield
    torch.set_float32_matmul_precision("highest")
    for switch in (BACKENDS, BACKENDS.cudnn, BACKENDS.mkldnn, *fp32_switches()):
        switch.fp32_precision = "none"
    BACKENDS.cudnn.allow_tf32 = True


WITH_EVERY_SETTING = pytest.mark.parametrize("caller", CALLER_SETTINGS, indirect=True)


@NEEDS_SWITCHES
@WITH_EVERY_SETTING
def test_full_fp32_is_used_and_settings_are_restored(caller: None) -> None:
    before = switch_values()
    with without_tf32():
        assert {switch.fp32_precision for switch in fp32_switches()} <= {"none", "ieee"}
        with without_tf32(), onednn(), without_onednn():
            pass
        assert {switch.fp32_precision for switch in fp32_switches()} <= {"none", "ieee"}
    assert switch_values() == before


@NEEDS_SWITCHES
@WITH_EVERY_SETTING
def test_a_backbone_works_with_every_setting(caller: None) -> None:
    before = switch_values()
    model = make_captioner("show_tell-first_step")
    model.annotations(Pixels(torch.zeros(2, 3, 24, 24, dtype=torch.uint8)))
    assert switch_values() == before


@NEEDS_SWITCHES
@pytest.mark.parametrize("caller", ["general"], indirect=True)
def test_switches_follow_the_general_switch_afterwards(caller: None) -> None:
    with without_tf32(), onednn(), without_onednn():
        pass
    BACKENDS.fp32_precision = "ieee"
    for switch in (BACKENDS.cuda.matmul, BACKENDS.mkldnn.matmul, BACKENDS.mkldnn.conv):
        assert switch.fp32_precision == "ieee"
