"""A packed linear map is the map, to the last rounding."""

import pytest
import torch
from small_models import SUTSKEVER, make_model, of_fast_parts, random_sentences
from torch import nn
from torch.nn import functional as F

from seqtool.data.batches import make_source
from seqtool.decoding.tree import leaves
from seqtool.models.categorical import categorical
from seqtool.models.cells import LSTM, Recurrence
from seqtool.models.fast import decoding
from seqtool.models.fast.decoding import DecodingLanguageModel, optimise_for_decoding
from seqtool.models.fast.packed import JoinedLSTM, PackedLinear
from seqtool.models.fast.parts_for import attend_on_cpu, parts_for
from seqtool.models.language_model import LanguageModel
from seqtool.models.sutskever import Sutskever
from seqtool.runtime.precision import PRECISIONS, autocast, onednn

TYPES = [one for one in (torch.float32, torch.bfloat16) if PackedLinear.supports(one)]
PRECISIONS_HERE = [name for name, dtype in PRECISIONS.items() if (dtype or torch.float32) in TYPES]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("single_rows", [True, False])
@torch.no_grad()
def test_equals_the_linear_map(dtype: torch.dtype, bias: bool, single_rows: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(33, 70, bias=bias).to(dtype)
    quick = PackedLinear(linear, single_rows=single_rows)
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
        assert torch.equal(PackedLinear(linear)(x), x)


@pytest.mark.parametrize("precision", PRECISIONS_HERE)
@torch.no_grad()
def test_a_text_is_read_at_once(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step for each token, by matrices in their ordinary layout."""
    torch.manual_seed(1)
    model = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=2, cell="lstm", dropout=0.0, tie="none")
    tokens = torch.randint(4, 11, (1, 30))
    expected = model(None, tokens).features
    quick = optimise_for_decoding(of_fast_parts(model), precision, torch.device("cpu")).eval()
    for cell in (LSTM, JoinedLSTM):
        monkeypatch.setattr(cell, "forward" if cell is LSTM else "step", lambda *_: pytest.fail("a step"))
    assert torch.allclose(quick(None, tokens).features, expected, atol=1e-5 if precision == "fp32" else 0.01)


@pytest.mark.parametrize("name", ["bahdanau-deep", "luong", "sutskever-lstm"])
@pytest.mark.parametrize("precision", PRECISIONS_HERE)
@torch.no_grad()
def test_one_product_for_both_matrices_of_an_lstm(name: str, precision: str) -> None:
    """Single steps and tokens that are read at once leave the state that the plain model has."""
    cpu, plain = torch.device("cpu"), make_model(name).eval()
    joined = optimise_for_decoding(of_fast_parts(plain), precision, cpu)
    assert any(isinstance(module, JoinedLSTM) for module in joined.modules())
    source, tokens = make_source(random_sentences(5, seed=1)), torch.randint(4, 11, (5, 6))
    expected = plain.prefill(*plain.encode(source), tokens).state
    with autocast(cpu, precision), onednn():
        memory, state = joined.encode(source)
        found = joined.prefill(memory, state, tokens).state
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
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: single_rows)
    sizes = {"target_vocabulary": symbols, "embedding": 5, "hidden": 7, "layers": 2}
    plain = LanguageModel(**sizes, cell="lstm", dropout=0.0, tie="none")
    quick = optimise_for_decoding(of_fast_parts(plain), "fp32", torch.device("cpu")).eval()
    assert type(quick) is DecodingLanguageModel
    assert (quick.decoder[0].separate is not None) == (quick.output.unpacked is not None) == single_rows
    assert (quick.projections is not None) == (single_rows and symbols == 11)
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
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: True)
    texts = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=1, cell="lstm", dropout=0.0, tie="none")
    model = of_fast_parts(texts if name == "language-model" else make_model(name))
    model = optimise_for_decoding(model, precision, torch.device("cpu"))
    twice = name == "language-model" and precision == "fp32"
    assert (model.output.unpacked is not None) == twice
    assert {one.separate is not None for one in model.modules() if isinstance(one, JoinedLSTM)} == {twice}


def test_what_users_made_of_a_stack_stays() -> None:
    """Their recurrences and models may use W and U apart."""

    class Mine(Recurrence):
        pass

    class Model(Sutskever):
        pass

    cpu, theirs = torch.device("cpu"), of_fast_parts(make_model("sutskever-lstm"))
    theirs.decoder[0] = Mine("lstm", 6, 7, parts_for(cpu))
    decoder = optimise_for_decoding(theirs, "fp32", cpu).decoder
    assert type(decoder[0]) is Mine and type(decoder[1]) is JoinedLSTM
    model = optimise_for_decoding(Model(**SUTSKEVER, parts=parts_for(cpu)), "fp32", cpu)
    assert type(model) is Model and not any(isinstance(one, JoinedLSTM | nn.Identity) for one in model.modules())


@pytest.mark.parametrize("precision", PRECISIONS_HERE)
@pytest.mark.parametrize("name", ["bahdanau-gru", "sutskever-lstm", "transformer", "language-model"])
def test_the_trained_model_stays_as_it_is(name: str, precision: str) -> None:
    """A decoding model is a second one; the tensors that it can share, it shares."""
    texts = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=2, cell="lstm", dropout=0.3, tie="none")
    model = of_fast_parts((texts if name == "language-model" else make_model(name)).train())
    kinds = [type(module) for module in model.modules()]
    weights = {name: (id(tensor), tensor.clone()) for name, tensor in model.named_parameters()}
    decoder = optimise_for_decoding(model, precision, torch.device("cpu")).eval()
    assert decoder is not model and model.training and [type(module) for module in model.modules()] == kinds
    for name, tensor in model.named_parameters():
        assert id(tensor) == weights[name][0] and torch.equal(tensor, weights[name][1]), name
    assert decoder.target_embedding.weight is model.target_embedding.weight


@pytest.mark.parametrize("mask", [True, False])
def test_single_queries_are_the_plain_ones(mask: bool) -> None:
    """With gradients too, and oneDNN multiplies as before afterwards."""
    torch.manual_seed(1)
    shapes = (3, 2, 1, 4), (3, 2, 7, 4), (3, 2, 7, 4)
    allowed = torch.rand(3, 1, 1, 7) < 0.7 if mask else None
    if allowed is not None:
        allowed[..., 0] = True
    qkv = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found = []
    with onednn():
        before = torch.backends.mkldnn.matmul.fp32_precision
        for attention in (attend_on_cpu, F.scaled_dot_product_attention):
            y = attention(*qkv, allowed)
            found.append([y, *torch.autograd.grad(y.square().sum(), qkv)])
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
    assert not PackedLinear.supports(dtype)
