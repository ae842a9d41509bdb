"""A packed linear map is the map, to the last rounding."""

import pytest
import torch
from torch import nn

from seqtool.models.fast.gates import QuickLSTM
from seqtool.models.fast.packed import Packed, laid_out
from seqtool.models.language_model import LanguageModel
from seqtool.runtime.precision import onednn

TYPES = [one for one in (torch.float32, torch.bfloat16) if Packed.takes(one)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_equals_the_linear_map(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(33, 70, bias=bias).to(dtype)
    packed = Packed(linear)
    several = torch.randn(5, 7, 33).to(dtype)
    for x in (several[0], several, several.transpose(0, 1), several[:0]):
        exact = linear.double()(x.double())
        found = packed(x)
        assert found.dtype == dtype and found.shape == exact.shape
        assert torch.allclose(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@torch.no_grad()
def test_single_precision_is_not_rounded_on_the_way() -> None:
    if torch.float32 not in TYPES:
        pytest.skip("torch has no oneDNN here")
    linear = nn.Linear(256, 256, bias=False)
    nn.init.eye_(linear.weight)
    x = torch.full((64, 256), 1 + 2**-12)
    with onednn():
        assert torch.equal(Packed(linear)(x), x)


@torch.no_grad()
def test_a_text_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step for each token, by matrices in their ordinary layout."""
    torch.manual_seed(1)
    model = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=2, cell="lstm", dropout=0.0, tie="none")
    tokens = torch.randint(4, 11, (1, 30))
    expected = model(None, tokens).features
    packed = laid_out(model, "fp32", torch.device("cpu")).eval()
    monkeypatch.setattr(QuickLSTM, "forward", lambda *_: pytest.fail("a step"))
    assert torch.allclose(packed(None, tokens).features, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_left_alone(dtype: torch.dtype) -> None:
    assert not Packed.takes(dtype)
