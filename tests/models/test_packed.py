"""A packed linear map is the map, to the last rounding."""

import copy

import pytest
import torch
from small_models import make_model, random_sentences
from torch import nn

from seqtool.data.batches import make_source
from seqtool.decoding.tree import leaves
from seqtool.models.categorical import categorical
from seqtool.models.fast import packed
from seqtool.models.fast.gates import QuickLSTM
from seqtool.models.fast.packed import DecodingLanguageModel, JoinedLSTM, Packed, laid_out
from seqtool.models.fast.quicken import WholeProducts
from seqtool.models.fast.recurrences import HandWrittenRecurrence
from seqtool.models.language_model import LanguageModel
from seqtool.models.sutskever import Sutskever
from seqtool.models.transformer_layers import ScaledDotProducts
from seqtool.runtime.precision import PRECISIONS, autocast, onednn

TYPES = [one for one in (torch.float32, torch.bfloat16) if Packed.takes(one)]
PRECISIONS_HERE = [name for name, dtype in PRECISIONS.items() if (dtype or torch.float32) in TYPES]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("single_rows", [True, False])
@torch.no_grad()
def test_equals_the_linear_map(dtype: torch.dtype, bias: bool, single_rows: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(33, 70, bias=bias).to(dtype)
    quick = Packed(linear, single_rows=single_rows)
    several = torch.randn(5, 7, 33).to(dtype)
    for x in (several[0], several, several.transpose(0, 1), several[:0], several[:1, 0], several[:1, :1]):
        exact = linear.double()(x.double())
        found = quick(x)
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


@pytest.mark.parametrize("precision", PRECISIONS_HERE)
@torch.no_grad()
def test_a_text_is_read_at_once(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step for each token, by matrices in their ordinary layout."""
    torch.manual_seed(1)
    model = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=2, cell="lstm", dropout=0.0, tie="none")
    tokens = torch.randint(4, 11, (1, 30))
    expected = model(None, tokens).features
    quick = laid_out(model, precision, torch.device("cpu")).eval()
    for cell in (QuickLSTM, JoinedLSTM):
        monkeypatch.setattr(cell, "forward" if cell is QuickLSTM else "step", lambda *_: pytest.fail("a step"))
    assert torch.allclose(quick(None, tokens).features, expected, atol=1e-5 if precision == "fp32" else 0.01)


@pytest.mark.parametrize("name", ["bahdanau-deep", "luong", "sutskever-lstm"])
@pytest.mark.parametrize("precision", PRECISIONS_HERE)
@torch.no_grad()
def test_one_product_for_both_matrices_of_an_lstm(name: str, precision: str) -> None:
    """Single steps and tokens that are read at once leave the state that the plain model has."""
    cpu, plain = torch.device("cpu"), make_model(name).eval()
    joined = laid_out(copy.deepcopy(plain), precision, cpu)
    assert any(isinstance(module, JoinedLSTM) for module in joined.modules())
    source, tokens = make_source(random_sentences(5, seed=1)), torch.randint(4, 11, (5, 6))
    expected, _ = plain.prefill(*plain.encode(source), tokens)
    with autocast(cpu, precision), onednn():
        memory, state = joined.encode(source)
        found, _ = joined.prefill(memory, state, tokens)
        for token in tokens.unbind(1):
            state = joined.step(memory, state, token).state
    for one in (found, state):
        for tensor, other in zip(leaves(one), leaves(expected), strict=True):
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(
                tensor, other, **({"rtol": 0, "atol": 1e-5} if precision == "fp32" else {"rtol": 2**-6, "atol": 2**-5})
            )


@pytest.mark.parametrize(("single_rows", "symbols"), [(True, 11), (True, 1001), (False, 11)])
@torch.no_grad()
def test_a_text_is_written_as_by_the_plain_model(
    single_rows: bool, symbols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row and several, with and without a way of its own for a single row; many symbols are not looked up."""
    torch.manual_seed(1)
    monkeypatch.setattr(packed, "mkl_is_fast", lambda: single_rows)
    sizes = {"target_vocabulary": symbols, "embedding": 5, "hidden": 7, "layers": 2}
    plain = LanguageModel(**sizes, cell="lstm", dropout=0.0, tie="none")
    quick = laid_out(copy.deepcopy(plain), "fp32", torch.device("cpu")).eval()
    assert type(quick) is DecodingLanguageModel
    assert (quick.decoder[0].apart is not None) == (quick.output.ordinary is not None) == single_rows
    assert (quick.known is not None) == (single_rows and symbols == 11)
    for rows in (1, 3):
        tokens = torch.randint(4, 11, (rows, 6))
        state, found = plain.forward(None, tokens[:, :1]).state, quick.forward(None, tokens[:, :1]).state
        for token in tokens[:, 1:].unbind(1):
            one, other = plain.step((), state, token), quick.step((), found, token)
            torch.testing.assert_close(other.logits, one.logits)
            state, found = one.state, other.state
        for tensor, other in zip(leaves(found), leaves(state), strict=True):
            torch.testing.assert_close(tensor, other)


@pytest.mark.parametrize("precision", PRECISIONS_HERE)
@pytest.mark.parametrize("name", ["sutskever-lstm", "language-model"])
def test_only_texts_in_single_precision_keep_matrices_twice(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "mkl_is_fast", lambda: True)
    texts = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=1, cell="lstm", dropout=0.0, tie="none")
    model = laid_out(texts if name == "language-model" else make_model(name), precision, torch.device("cpu"))
    twice = name == "language-model" and precision == "fp32"
    assert (model.output.ordinary is not None) == twice
    assert {one.apart is not None for one in model.modules() if isinstance(one, JoinedLSTM)} == {twice}


def test_what_users_made_of_a_stack_stays() -> None:
    """Their recurrences and models may use W and U apart."""

    class Mine(HandWrittenRecurrence):
        pass

    class Model(Sutskever):
        pass

    cpu, theirs, model = torch.device("cpu"), make_model("sutskever-lstm"), make_model("sutskever-lstm")
    theirs.decoder[0].__class__ = Mine
    laid_out(theirs, "fp32", cpu)
    assert type(theirs.decoder[0]) is Mine and type(theirs.decoder[1]) is JoinedLSTM
    model.__class__ = Model
    laid_out(model, "fp32", cpu)
    assert not any(isinstance(one, JoinedLSTM | nn.Identity) for one in model.modules())


@pytest.mark.parametrize("mask", [True, False])
def test_single_queries_are_the_plain_ones(mask: bool) -> None:
    """With gradients too, and oneDNN multiplies as before afterwards."""
    torch.manual_seed(1)
    shapes = (3, 2, 1, 4), (3, 2, 7, 4), (3, 2, 7, 4)
    allowed = torch.rand(3, 1, 1, 7) < 0.7 if mask else None
    if allowed is not None:
        allowed[..., 0] = True
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found = []
    with onednn():
        before = torch.backends.mkldnn.matmul.fp32_precision
        for products in (WholeProducts(), ScaledDotProducts()):
            y = products(*given, allowed)
            found.append([y, *torch.autograd.grad(y.square().sum(), given)])
        assert torch.backends.mkldnn.matmul.fp32_precision == before
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_draws_at_the_edges() -> None:
    """No token of probability 0, for the smallest and the greatest number; and a row that is not a number has some."""
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    for uniform, expected in ((0.0, 1), (0.1, 1), (0.3, 3), (1 - 2**-24, 3), (1.0, 3)):
        assert categorical(p, torch.tensor([uniform])).tolist() == [expected]
    assert 0 <= int(categorical(p * torch.nan, torch.tensor([0.5]))) < 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_left_alone(dtype: torch.dtype) -> None:
    assert not Packed.takes(dtype)
