"""Tests that packed linear maps, and models optimised for decoding, equal the plain ones up to rounding."""

import pytest
import torch
from small_models import SUTSKEVER, copy_with_fast_parts, make_model, random_sentences
from torch import nn
from torch.nn import functional as F

from seqtool.data.batches import make_source
from seqtool.models.categorical import categorical
from seqtool.models.cells import LSTM, Recurrence
from seqtool.models.fast import decoding
from seqtool.models.fast.decoding import DecodingLanguageModel, optimise_for_decoding
from seqtool.models.fast.packed import JoinedLSTM, PackedLinear, linear_relu
from seqtool.models.fast.parts_for import attend_on_cpu, parts_for
from seqtool.models.language_model import LanguageModel
from seqtool.models.sutskever import Sutskever
from seqtool.models.tree import leaves
from seqtool.runtime.precision import PRECISIONS, autocast, onednn

SUPPORTED_TYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if PackedLinear.supports(dtype)]
SUPPORTED_PRECISIONS = [name for name, dtype in PRECISIONS.items() if (dtype or torch.float32) in SUPPORTED_TYPES]


def make_language_model(*, layers: int, dropout: float) -> LanguageModel:
    sizes = {"target_vocabulary": 11, "embedding": 5, "hidden": 7, "layers": layers}
    return LanguageModel(**sizes, cell="lstm", dropout=dropout, tie="none")


@pytest.mark.parametrize("dtype", SUPPORTED_TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("single_rows", [True, False])
@torch.no_grad()
def test_packed_maps_equal_linear_maps(dtype: torch.dtype, bias: bool, single_rows: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(33, 70, bias=bias).to(dtype)
    packed = PackedLinear(linear, single_rows=single_rows)
    several = torch.randn(5, 7, 33).to(dtype)
    for x in (several[0], several, several.transpose(0, 1), several[:0], several[:1, 0], several[:1, :1]):
        exact = linear.double()(x.double())
        actual = packed(x)
        assert actual.dtype == dtype and actual.shape == exact.shape
        assert torch.allclose(actual.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
        if bias and x.dim() == 2:
            for module in (packed, linear.to(dtype)):
                torch.testing.assert_close(linear_relu(module, x).double(), exact.relu(), rtol=0.01, atol=0.01)


@torch.no_grad()
def test_products_in_single_precision_are_not_rounded() -> None:
    if torch.float32 not in SUPPORTED_TYPES:
        pytest.skip("torch has no oneDNN here")
    linear = nn.Linear(256, 256, bias=False)
    nn.init.eye_(linear.weight)
    x = torch.full((64, 256), 1 + 2**-12)  # TF32 and bf16 would round it to 1
    with onednn():
        assert torch.equal(PackedLinear(linear)(x), x)


@pytest.mark.parametrize("precision", SUPPORTED_PRECISIONS)
@torch.no_grad()
def test_a_whole_text_is_read_at_once(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is read without a step for each token, by matrices in their ordinary layout."""
    torch.manual_seed(1)
    model = make_language_model(layers=2, dropout=0.0)
    tokens = torch.randint(4, 11, (1, 30))
    expected = model(None, tokens).features
    quick = optimise_for_decoding(copy_with_fast_parts(model), precision, torch.device("cpu")).eval()
    for cell in (LSTM, JoinedLSTM):
        monkeypatch.setattr(cell, "forward" if cell is LSTM else "step", lambda *_: pytest.fail("a step"))
    assert torch.allclose(quick(None, tokens).features, expected, atol=1e-5 if precision == "fp32" else 0.01)


@pytest.mark.parametrize("name", ["bahdanau-deep", "luong", "sutskever-lstm"])
@pytest.mark.parametrize("precision", SUPPORTED_PRECISIONS)
@torch.no_grad()
def test_joining_both_matrices_of_an_lstm_keeps_its_states(name: str, precision: str) -> None:
    """Single steps, and reading all tokens at once, leave the state of the plain model."""
    cpu, plain = torch.device("cpu"), make_model(name).eval()
    joined = optimise_for_decoding(copy_with_fast_parts(plain), precision, cpu)
    assert any(isinstance(module, JoinedLSTM) for module in joined.modules())
    source, tokens = make_source(random_sentences(5, seed=1)), torch.randint(4, 11, (5, 6))
    expected = plain.prefill(*plain.encode(source), tokens).state
    with autocast(cpu, precision), onednn():
        memory, state = joined.encode(source)
        prefilled = joined.prefill(memory, state, tokens).state
        for token in tokens.unbind(1):
            state = joined.step(memory, state, token).state
    tolerances = {"rtol": 0.0, "atol": 1e-5} if precision == "fp32" else {"rtol": 2**-6, "atol": 2**-5}
    for actual in (prefilled, state):
        for tensor, expected_tensor in zip(leaves(actual), leaves(expected), strict=True):
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(tensor, expected_tensor, **tolerances)


@pytest.mark.parametrize(("single_rows", "vocabulary_size"), [(True, 11), (True, 1001), (False, 11)])
@torch.no_grad()
def test_a_text_is_generated_as_by_the_plain_model(
    single_rows: bool, vocabulary_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row and several are generated; the special path for one row looks up projections if there are few symbols."""
    torch.manual_seed(1)
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: single_rows)
    sizes = {"target_vocabulary": vocabulary_size, "embedding": 5, "hidden": 7, "layers": 2}
    plain = LanguageModel(**sizes, cell="lstm", dropout=0.0, tie="none")
    quick = optimise_for_decoding(copy_with_fast_parts(plain), "fp32", torch.device("cpu")).eval()
    assert type(quick) is DecodingLanguageModel
    assert (quick.decoder[0].separate is not None) == (quick.output.unpacked is not None) == single_rows
    assert (quick.projections is not None) == (single_rows and vocabulary_size == 11)
    for rows in (1, 3):
        tokens = torch.randint(4, 11, (rows, 6))
        plain_state, quick_state = (model.forward(None, tokens[:, :1]).state for model in (plain, quick))
        for token in tokens[:, 1:].unbind(1):
            plain_step, quick_step = plain.step((), plain_state, token), quick.step((), quick_state, token)
            torch.testing.assert_close(quick_step.logits, plain_step.logits)
            plain_state, quick_state = plain_step.state, quick_step.state
        for tensor, expected in zip(leaves(quick_state), leaves(plain_state), strict=True):
            torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("precision", SUPPORTED_PRECISIONS)
@pytest.mark.parametrize("name", ["sutskever-lstm", "language-model"])
def test_only_language_models_in_fp32_keep_matrices_twice(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: True)
    language_model = make_language_model(layers=1, dropout=0.0)
    model = copy_with_fast_parts(language_model if name == "language-model" else make_model(name))
    model = optimise_for_decoding(model, precision, torch.device("cpu"))
    twice = name == "language-model" and precision == "fp32"
    assert (model.output.unpacked is not None) == twice
    assert {cell.separate is not None for cell in model.modules() if isinstance(cell, JoinedLSTM)} == {twice}


def test_user_defined_classes_in_a_stack_are_kept() -> None:
    """User-defined recurrences and models may use W and U separately."""

    class UserRecurrence(Recurrence):
        pass

    class UserModel(Sutskever):
        pass

    cpu, user_model = torch.device("cpu"), copy_with_fast_parts(make_model("sutskever-lstm"))
    user_model.decoder[0] = UserRecurrence("lstm", 6, 7, parts_for(cpu))
    decoder = optimise_for_decoding(user_model, "fp32", cpu).decoder
    assert type(decoder[0]) is UserRecurrence and type(decoder[1]) is JoinedLSTM
    model = optimise_for_decoding(UserModel(**SUTSKEVER, parts=parts_for(cpu)), "fp32", cpu)
    assert type(model) is UserModel
    assert not any(isinstance(module, JoinedLSTM | nn.Identity) for module in model.modules())


@pytest.mark.parametrize("precision", SUPPORTED_PRECISIONS)
@pytest.mark.parametrize("name", ["bahdanau-gru", "sutskever-lstm", "transformer", "language-model"])
def test_the_trained_model_does_not_change(name: str, precision: str) -> None:
    """The model for decoding is a second model, which shares tensors where it can."""
    language_model = make_language_model(layers=2, dropout=0.3)
    model = copy_with_fast_parts((language_model if name == "language-model" else make_model(name)).train())
    kinds = [type(module) for module in model.modules()]
    weights = {name: (id(tensor), tensor.clone()) for name, tensor in model.named_parameters()}
    decoder = optimise_for_decoding(model, precision, torch.device("cpu")).eval()
    assert decoder is not model and model.training and [type(module) for module in model.modules()] == kinds
    for name, tensor in model.named_parameters():
        assert id(tensor) == weights[name][0] and torch.equal(tensor, weights[name][1]), name
    assert decoder.target_embedding.weight is model.target_embedding.weight


@pytest.mark.parametrize("mask", [True, False])
def test_attention_of_single_queries_equals_that_of_torch(mask: bool) -> None:
    """Gradients are equal, too, and the precision of oneDNN is restored afterwards."""
    torch.manual_seed(1)
    shapes = (3, 2, 1, 4), (3, 2, 7, 4), (3, 2, 7, 4)
    allowed = torch.rand(3, 1, 1, 7) < 0.7 if mask else None
    if allowed is not None:
        allowed[..., 0] = True
    qkv = [torch.randn(shape, requires_grad=True) for shape in shapes]
    results = []
    with onednn():
        before = torch.backends.mkldnn.matmul.fp32_precision
        for attention in (attend_on_cpu, F.scaled_dot_product_attention):
            y = attention(*qkv, allowed)
            results.append([y, *torch.autograd.grad(y.square().sum(), qkv)])
        assert torch.backends.mkldnn.matmul.fp32_precision == before
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_draws_at_the_edges_have_positive_probability() -> None:
    """The smallest and the largest random number draw no token of probability 0; rows of NaN still draw a token."""
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    for uniform, expected in ((0.0, 1), (0.1, 1), (0.3, 3), (1 - 2**-24, 3), (1.0, 3)):
        assert categorical(p, torch.tensor([uniform])).tolist() == [expected]
    assert 0 <= int(categorical(p * torch.nan, torch.tensor([0.5]))) < 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_not_supported(dtype: torch.dtype) -> None:
    assert not PackedLinear.supports(dtype)
