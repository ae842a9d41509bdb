"""Tests that faster parts give what the plain equations give, model by model: losses and every gradient."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import (
    BAHDANAU,
    CAPTIONERS,
    MODELS,
    SUTSKEVER,
    copy_with_fast_parts,
    make_captioner,
    make_model,
    random_images,
    random_sentences,
)
from torch import Tensor

from seqtool.data.batches import Batch, make_source, make_target
from seqtool.models.attention import Attention, AttentionOutput
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import LSTM, Cell, Layers, State
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast import additive, cross_entropy_in_pieces
from seqtool.models.fast.deferred_gradients import DeferredGradientLinear, one_pass
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, CrossEntropy, plain_copy
from seqtool.models.recurrent_decoder import StepOutput
from seqtool.models.sutskever import Sutskever
from seqtool.models.tree import select
from seqtool.training.losses import Loss, TrainingLoss

Model = EncoderDecoder[Any]


def make_case(name: str) -> tuple[EncoderDecoder[Any], Batch]:
    """A model and a batch of sentences or captions of different lengths."""
    target = make_target(random_sentences(5, seed=2))
    tokens = int((target[:, 1:] != 0).sum())
    if name in MODELS:
        return make_model(name), Batch(make_source(random_sentences(5, seed=1)), target, np.arange(5), tokens)
    return make_captioner(name), Batch(random_images(5, seed=1), target, np.arange(5), tokens)


def loss_and_gradients(model: EncoderDecoder[Any], batch: Batch) -> tuple[Loss, dict[str, Tensor]]:
    torch.manual_seed(7)  # for the draws of hard attention
    model.zero_grad()
    loss = TrainingLoss(model, 0.1)(batch)
    (loss.total / 3).backward()
    return loss, copy_gradients(model)


def copy_gradients(model: EncoderDecoder[Any]) -> dict[str, Tensor]:
    parameters = model.named_parameters()
    return {name: parameter.grad.clone() for name, parameter in parameters if parameter.grad is not None}


def assert_close_gradients(
    actual: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-9, atol: float = 1e-12
) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert torch.allclose(gradient, expected[name], rtol=rtol, atol=atol), name


@pytest.fixture(params=[*MODELS, *CAPTIONERS])
def case(request: pytest.FixtureRequest) -> tuple[Model, Batch]:
    return make_case(request.param)


@pytest.mark.parametrize(("device", "limit"), [("cpu", 1), ("cpu", 2**20), ("cuda", 1), ("cuda", 2**20)])
def test_losses_and_gradients_equal_the_plain_ones(
    case: tuple[Model, Batch], device: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy_in_pieces, "MAX_LOGITS", limit)
    monkeypatch.setattr(additive, "MAX_NUMBERS_IN_CACHE", limit)
    model, batch = case
    model.double().train()
    plain_loss, expected = loss_and_gradients(model, batch)
    fast_loss, actual = loss_and_gradients(copy_with_fast_parts(model, device), batch)
    assert torch.allclose(fast_loss.total, plain_loss.total, rtol=1e-12)
    assert torch.allclose(fast_loss.nll, plain_loss.nll, rtol=1e-12)
    assert_close_gradients(actual, expected)


def test_gradients_in_single_precision_equal_the_plain_ones(case: tuple[Model, Batch]) -> None:
    """A CPU has parts that are used only in single precision."""
    model, batch = case
    model.train()
    plain_loss, expected = loss_and_gradients(model, batch)
    fast_loss, actual = loss_and_gradients(copy_with_fast_parts(model), batch)
    assert torch.allclose(fast_loss.total, plain_loss.total, rtol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert_close_gradients(actual, expected, rtol=1e-3, atol=1e-5 * max(1, largest))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_carried_states_and_prefixes_equal_the_plain_ones(case: tuple[Model, Batch], device: str) -> None:
    """The inputs are read in two halves, and as a prefix, each with and without gradients."""
    plain, batch = case

    def outputs(model: Model) -> list[Tensor]:
        half = batch.inputs.shape[1] // 2
        first = model(batch.source, batch.inputs[:, :half])
        second = model(batch.source, batch.inputs[:, half:], first.state)
        filled, attention, _ = model.prefill(*model.encode(batch.source), batch.inputs)
        states = [tensor for state in (first.state, second.state, filled) for tensor in state_tensors(state)]
        doubles = [tensor.double() for tensor in (*states, first.features, second.features)]
        return doubles + ([] if attention is None else [attention])

    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for actual, expected in zip(outputs(copy_with_fast_parts(plain, device)), outputs(plain), strict=True):
                assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bahdanau-gru", "bahdanau-gru_cho"])
def test_gradients_of_alignments_and_states_equal_the_plain_ones(name: str) -> None:
    model, batch = make_case(name)
    model.double()

    def gradient(model: Model) -> dict[str, Tensor]:
        output = model(batch.source, batch.inputs)
        assert output.attention is not None
        total = output.attention.square().sum() + output.features.square().sum() + output.state.top.square().sum()
        total.backward()
        return copy_gradients(model)

    assert_close_gradients(gradient(copy_with_fast_parts(model)), gradient(model))


def test_a_second_backward_pass_starts_afresh() -> None:
    model, batch = make_case("bahdanau-gru")
    model = copy_with_fast_parts(model)
    _, expected = loss_and_gradients(model, batch)
    model.zero_grad()
    total = TrainingLoss(model, 0.1)(batch).total / 3
    total.backward(retain_graph=True)
    total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, 2 * expected[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("name", [*MODELS, *CAPTIONERS])
def test_a_partial_backward_pass_leaves_nothing_behind(name: str) -> None:
    """Computing the gradient of a state in the middle does not change the gradients of the weights."""
    model, batch = make_case(name)
    model = copy_with_fast_parts(model.double())
    torch.manual_seed(7)
    first = model(batch.source, batch.inputs[:, :2])
    second = model(batch.source, batch.inputs[:, 2:], first.state)
    total = first.features.square().sum() + second.features.square().sum()
    middle = [tensor for tensor in state_tensors(first.state) if tensor.requires_grad]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
    torch.autograd.grad(total, middle, retain_graph=True, allow_unused=True)
    actual = torch.autograd.grad(total, parameters, allow_unused=True)
    assert [gradient is None for gradient in actual] == [gradient is None for gradient in expected]
    for gradient, expected_gradient in zip(actual, expected, strict=True):
        if gradient is not None:
            assert torch.allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


def test_gradients_in_bfloat16_are_as_accurate_as_the_plain_ones() -> None:
    model, batch = make_case("bahdanau-gru")
    _, exact = loss_and_gradients(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, fast = loss_and_gradients(copy_with_fast_parts(model), batch)
        _, plain = loss_and_gradients(model, batch)
    for name, gradient in exact.items():
        assert fast[name].dtype == torch.float32
        error = (fast[name] - gradient).norm() / gradient.norm()
        assert error < max(0.02, 1.5 * float((plain[name] - gradient).norm() / gradient.norm())), name


@pytest.mark.parametrize(
    "convert", [lambda model: model, copy_with_fast_parts, lambda model: copy_with_fast_parts(model, "cuda")]
)
@pytest.mark.parametrize("grad", [True, False])
def test_states_and_attention_are_in_single_precision_under_autocast(
    case: tuple[Model, Batch], grad: bool, convert: Callable[[Model], Model]
) -> None:
    """This holds from the first state on, with gradients (in training) and without (in validation and decoding)."""
    model, batch = convert(case[0]), case[1]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        output = model(batch.source, batch.inputs)
        memory, state = model.encode(batch.source)
        step = model.step(memory, state, batch.inputs[:, 0])
    assert {alpha.dtype for alpha in (output.attention, step.attention) if alpha is not None} <= {torch.float32}
    for tree in (state, step.state, output.state):
        assert {tensor.dtype for tensor in state_tensors(tree) if tensor.is_floating_point()} == {torch.float32}


def state_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a state, which is a tree of dataclasses and tuples."""
    if isinstance(tree, Tensor):
        return [tree]
    branches = tree if isinstance(tree, tuple) else vars(tree).values()
    return [tensor for branch in branches for tensor in state_tensors(branch)]


def test_nothing_is_deferred_without_a_backward_pass() -> None:
    linear = DeferredGradientLinear(3, 2)
    plain = torch.nn.functional.linear(torch.ones(1, 3), linear.weight, linear.bias)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), one_pass():
            y = linear(torch.ones(1, 3))
            assert torch.equal(y, plain) and y.requires_grad == grad
    assert linear(torch.ones(1, 3)).grad_fn.name() == "AddmmBackward0"


def test_selected_keys_have_their_gradient() -> None:
    """Selecting rows of a memory makes new tensors, which the encoder did not return."""
    model, batch = make_case("bahdanau-gru")
    model.double()

    def gradient(model: Model) -> dict[str, Tensor]:
        memory, state = model.encode(batch.source)
        rows = torch.tensor([3, 0, 3])
        step = model.step(select(memory, rows), select(state, rows), torch.tensor([4, 5, 6]))
        step.logits.square().sum().backward()
        return copy_gradients(model)

    assert_close_gradients(gradient(copy_with_fast_parts(model)), gradient(model))


class SubclassedLSTM(LSTM):
    """A cell with the constructor of LSTM."""

    def forward(self, x: Tensor, state: State) -> State:
        h, c = super().forward(x, state)
        return h / 2, c


class CellWithoutParts(Cell):
    """A cell that takes no parts."""

    gates = 1

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.recurrent = torch.nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, state: State) -> State:
        return (torch.sin(x + self.recurrent(state[0])),)


class HalvedStep(Sutskever):
    """A model that overrides the step of its stack of cells."""

    def decoder_step(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        return super().decoder_step(memory, state, projected / 2)


class StepWithoutAttention(Bahdanau):
    """A model that overrides the step of Bahdanau, for which there is no hand-written decoder."""

    def decoder_step(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        step = super().decoder_step(memory, state, projected)
        return step._replace(feature_inputs=(step.feature_inputs[0], torch.zeros_like(step.feature_inputs[1])))


class HalvedAttention(Bahdanau):
    """A model with an attention of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.attention.__class__ = Halved


class Halved(Attention):
    def forward(self, query: Any, memory: Any) -> AttentionOutput:
        context, alpha = super().forward(query, memory)
        return AttentionOutput(context / 2, alpha)


USER_MODELS: dict[str, Callable[[], Model]] = {
    "subclassed cell": lambda: Sutskever(**SUTSKEVER | {"cell": SubclassedLSTM}),
    "cell without parts": lambda: Bahdanau(**BAHDANAU | {"cell": CellWithoutParts}),
    "step of a stack": lambda: HalvedStep(**SUTSKEVER),
    "step with attention": lambda: StepWithoutAttention(**BAHDANAU),
    "attention of one's own": lambda: HalvedAttention(**BAHDANAU),
}


@pytest.mark.parametrize("name", USER_MODELS)
def test_user_defined_classes_keep_their_equations(name: str) -> None:
    """User-defined classes get each part that their constructors take, and none made for the built-in classes."""
    _, batch = make_case("bahdanau-gru")
    torch.manual_seed(0)
    model = USER_MODELS[name]().double().train()
    fast = copy_with_fast_parts(model)
    plain_loss, expected = loss_and_gradients(model, batch)
    fast_loss, actual = loss_and_gradients(fast, batch)
    assert torch.allclose(fast_loss.total, plain_loss.total, rtol=1e-12)
    assert_close_gradients(actual, expected)
    assert DeferredGradientLinear in {type(module) for module in fast.modules()}


def test_backbones_and_names_of_parameters_do_not_change() -> None:
    for name in CAPTIONERS:
        model = make_captioner(name)
        fast = copy_with_fast_parts(model)
        assert list(fast.state_dict()) == list(model.state_dict())
        kinds = {name: type(module) for name, module in model.backbone.named_modules()}
        assert {name: type(module) for name, module in fast.backbone.named_modules()} == kinds
        assert type(fast.output) is DeferredGradientLinear


@pytest.mark.parametrize("name", [*MODELS, *CAPTIONERS])
def test_initial_weights_equal_the_plain_ones(name: str) -> None:
    """A model draws the same random numbers, whichever parts it is built of."""
    model, _ = make_case(name)
    weights = []
    for device in (None, "cpu", "cuda"):
        parts = PLAIN if device is None else parts_for(torch.device(device))
        torch.manual_seed(5)
        built = type(model)(**model.built_with | {"parts": parts})
        weights.append([*built.state_dict().values(), torch.rand(3)])
    plain_weights, *fast_weights = weights
    for tensors in fast_weights:
        assert all(torch.equal(tensor, expected) for tensor, expected in zip(tensors, plain_weights, strict=True))


def test_a_plain_copy_has_plain_parts() -> None:
    """The copy has the same weights and dtype, and draws no random numbers."""
    for name in (*MODELS, *CAPTIONERS):
        model = make_case(name)[0].double()
        for device in ("cpu", "cuda", "mps"):
            fast = copy_with_fast_parts(model, device)
            torch.manual_seed(1)
            copy, random_number = plain_copy(fast), torch.rand(1)
            torch.manual_seed(1)
            assert torch.equal(random_number, torch.rand(1)) and copy.parts is PLAIN
            assert [type(module) for module in copy.modules()] == [type(module) for module in model.modules()]
            expected = model.state_dict()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in copy.state_dict().items())
    assert plain_copy(model) is not model


def test_user_defined_models_can_have_a_fast_loss() -> None:
    """A user-defined model doubles the features before its output layer, and its fast loss does the same."""

    class DoubledFeatures(Sutskever):
        def project(self, features: Tensor) -> Tensor:
            return super().project(2 * features)

        def loss(self, features: Tensor, labels: Tensor, smoothing: float) -> CrossEntropy:
            return self.parts.cross_entropy(2 * features, self.output, labels, smoothing)

    calls = []

    def record_and_compute(features: Tensor, output: Any, labels: Tensor, smoothing: float) -> CrossEntropy:
        calls.append(output)
        return cross_entropy_in_pieces.cross_entropy_in_pieces(features, output, labels, smoothing)

    _, batch = make_case("bahdanau-gru")
    torch.manual_seed(0)
    model = DoubledFeatures(**SUTSKEVER).double()
    plain_loss, expected = loss_and_gradients(model, batch)
    parts = replace(parts_for(torch.device("cpu")), cross_entropy=record_and_compute)
    fast = DoubledFeatures(**SUTSKEVER, parts=parts).double()
    fast.load_state_dict(model.state_dict())
    fast_loss, actual = loss_and_gradients(fast, batch)
    assert calls == [fast.output] and torch.allclose(fast_loss.total, plain_loss.total, rtol=1e-12)
    assert_close_gradients(actual, expected)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_drops_its_share_and_scales_the_remainder(p: float) -> None:
    dropout = parts_for(torch.device("cpu")).dropout(p)
    x = torch.ones(301, 333, requires_grad=True)
    torch.manual_seed(3)
    dropped = dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), dropped)
    allowed = {0.0, 1 / (1 - p)} if 0 < p < 1 else {1 - p}
    for value in dropped.unique().tolist():
        assert min(abs(value - allowed_value) for allowed_value in allowed) < 1e-4
    share = float((dropped == 0).double().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-5  # five standard deviations
    dropped.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, dropped)
    assert dropout.eval()(x) is x or torch.equal(dropout(x), x)
