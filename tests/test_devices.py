"""Where and how products are taken."""

from collections.abc import Iterator

import pytest
import torch

from seqtool.devices import multiply_by_onednn

pytestmark = pytest.mark.skipif(
    not hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"), reason="needs torch 2.9"
)


@pytest.fixture
def matmul() -> Iterator[object]:
    """torch's switch, as it comes and as it was found."""
    switch = torch.backends.mkldnn.matmul
    before, switch.fp32_precision = switch.fp32_precision, "none"
    yield switch
    switch.fp32_precision = before


def test_products_stay_in_single_precision(matmul: object) -> None:
    multiply_by_onednn()
    torch.manual_seed(0)
    for rows, inner, columns in ((64, 512, 1536), (1000, 300, 200), (1, 512, 512), (7, 33, 5)):
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        exact = a.double() @ b.double()
        bound = 8 * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs())
        assert ((a @ b - exact).abs() <= bound).all()


def test_left_alone_where_products_are_rounded(matmul: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "eye", lambda n: torch.diag(torch.full((n,), 1 - 2.0**-9)))  # what bf16 would make of it
    multiply_by_onednn()
    assert matmul.fp32_precision == "none"  # type: ignore[attr-defined]
