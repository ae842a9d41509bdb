"""Faster parts give what the plain equations give, model by model: losses and every gradient."""

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
    make_captioner,
    make_model,
    of_fast_parts,
    random_images,
    random_sentences,
)
from torch import Tensor

from seqtool.data.batches import Batch, make_source, make_target
from seqtool.decoding.tree import select
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import LSTM, Cell, Layers, State
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast import additive, cross_entropy_in_pieces
from seqtool.models.fast.gathering import GatheredLinear, one_pass
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, CrossEntropy, plain_copy
from seqtool.models.recurrent_decoder import StepOutput
from seqtool.models.sutskever import Sutskever
from seqtool.training.losses import Loss, TrainingLoss

Model = EncoderDecoder[Any]


def make(name: str) -> tuple[EncoderDecoder[Any], Batch]:
    """A model and a batch of sentences or captions of different lengths."""
    target = make_target(random_sentences(5, seed=2))
    tokens = int((target[:, 1:] != 0).sum())
    if name in MODELS:
        return make_model(name), Batch(make_source(random_sentences(5, seed=1)), target, np.arange(5), tokens)
    return make_captioner(name), Batch(random_images(5, seed=1), target, np.arange(5), tokens)


def gradients(model: EncoderDecoder[Any], batch: Batch) -> tuple[Loss, dict[str, Tensor]]:
    torch.manual_seed(7)  # hard attention draws
    model.zero_grad()
    loss = TrainingLoss(model, 0.1)(batch)
    (loss.total / 3).backward()
    return loss, {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-9, atol: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], rtol=rtol, atol=atol), name


@pytest.fixture(params=[*MODELS, *CAPTIONERS])
def case(request: pytest.FixtureRequest) -> tuple[Model, Batch]:
    return make(request.param)


@pytest.mark.parametrize(("device", "at_once"), [("cpu", 1), ("cpu", 2**20), ("cuda", 2**20)])
def test_equals_plain_gradients(
    case: tuple[Model, Batch], device: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy_in_pieces, "MAX_LOGITS", at_once)
    monkeypatch.setattr(additive, "MAX_NUMBERS_IN_CACHE", at_once)
    model, batch = case
    model.double().train()
    plain, expected = gradients(model, batch)
    fast, found = gradients(of_fast_parts(model, device), batch)
    assert torch.allclose(fast.total, plain.total, rtol=1e-12) and torch.allclose(fast.nll, plain.nll, rtol=1e-12)
    compare(found, expected)


def test_in_single_precision_gradients_are_the_plain_ones(case: tuple[Model, Batch]) -> None:
    """A CPU has parts for it alone."""
    model, batch = case
    model.train()
    plain, expected = gradients(model, batch)
    fast, found = gradients(of_fast_parts(model), batch)
    assert torch.allclose(fast.total, plain.total, rtol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    compare(found, expected, rtol=1e-3, atol=1e-5 * max(1, largest))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_carried_state_and_a_prefix_are_the_plain_ones(case: tuple[Model, Batch], device: str) -> None:
    """`forward` in two halves, and a prompt, each with gradients and without."""
    model, batch = case

    def made(one: Model) -> list[Tensor]:
        half = batch.inputs.shape[1] // 2
        first = one(batch.source, batch.inputs[:, :half])
        second = one(batch.source, batch.inputs[:, half:], first.state)
        filled, attention, _ = one.prefill(*one.encode(batch.source), batch.inputs)
        seen = [*tensors(first.state), *tensors(second.state), *tensors(filled), first.features, second.features]
        return [one.double() for one in seen] + ([] if attention is None else [attention])

    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for found, expected in zip(made(of_fast_parts(model, device)), made(model), strict=True):
                assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bahdanau-gru", "bahdanau-gru_cho"])
def test_gradients_of_alignments_and_states_are_the_plain_ones(name: str) -> None:
    model, batch = make(name)
    model.double()

    def gradient(model: Model) -> dict[str, Tensor]:
        output = model(batch.source, batch.inputs)
        assert output.attention is not None
        total = output.attention.square().sum() + output.features.square().sum() + output.state.top.square().sum()
        total.backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    compare(gradient(of_fast_parts(model)), gradient(model))


def test_a_second_pass_backward_starts_anew() -> None:
    model, batch = make("bahdanau-gru")
    model = of_fast_parts(model)
    _, expected = gradients(model, batch)
    model.zero_grad()
    total = TrainingLoss(model, 0.1)(batch).total / 3
    total.backward(retain_graph=True)
    total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, 2 * expected[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("name", [*MODELS, *CAPTIONERS])
def test_a_pass_that_stops_short_leaves_nothing_behind(name: str) -> None:
    """Asking for the gradient of a state in the middle changes no gradient of the weights."""
    model, batch = make(name)
    model = of_fast_parts(model.double())
    torch.manual_seed(7)
    first = model(batch.source, batch.inputs[:, :2])
    second = model(batch.source, batch.inputs[:, 2:], first.state)
    total = first.features.square().sum() + second.features.square().sum()
    wanted = [one for one in tensors(first.state) if one.requires_grad]
    parameters = [one for one in model.parameters() if one.requires_grad]
    expected = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
    torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True)
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_in_bfloat16_gradients_are_as_near_as_the_plain_ones() -> None:
    model, batch = make("bahdanau-gru")
    _, exact = gradients(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, fast = gradients(of_fast_parts(model), batch)
        _, plain = gradients(model, batch)
    for name, gradient in exact.items():
        assert fast[name].dtype == torch.float32
        error = (fast[name] - gradient).norm() / gradient.norm()
        assert error < max(0.02, 1.5 * float((plain[name] - gradient).norm() / gradient.norm())), name


@pytest.mark.parametrize("made", [lambda model: model, of_fast_parts, lambda model: of_fast_parts(model, "cuda")])
@pytest.mark.parametrize("grad", [True, False])
def test_states_and_attention_are_in_single_precision_under_autocast(
    case: tuple[Model, Batch], grad: bool, made: Callable[[Model], Model]
) -> None:
    """In training, and in validation and decoding, from the first on."""
    model, batch = made(case[0]), case[1]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        output = model(batch.source, batch.inputs)
        memory, state = model.encode(batch.source)
        step = model.step(memory, state, batch.inputs[:, 0])
    assert {one.dtype for one in (output.attention, step.attention) if one is not None} <= {torch.float32}
    for tree in (state, step.state, output.state):
        assert {one.dtype for one in tensors(tree) if one.is_floating_point()} == {torch.float32}


def tensors(tree: Any) -> list[Tensor]:
    """Those of a state: a tree of dataclasses and tuples."""
    if isinstance(tree, Tensor):
        return [tree]
    branches = tree if isinstance(tree, tuple) else vars(tree).values()
    return [one for branch in branches for one in tensors(branch)]


def test_nothing_is_gathered_without_a_backward_pass() -> None:
    linear = GatheredLinear(3, 2)
    plain = torch.nn.functional.linear(torch.ones(1, 3), linear.weight, linear.bias)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), one_pass():
            y = linear(torch.ones(1, 3))
            assert torch.equal(y, plain) and y.requires_grad == grad
    assert linear(torch.ones(1, 3)).grad_fn.name() == "AddmmBackward0"


def test_selected_keys_have_their_gradient() -> None:
    """Rows of a memory are other tensors than the memory that was read."""
    model, batch = make("bahdanau-gru")
    model.double()

    def gradient(model: Model) -> dict[str, Tensor]:
        memory, state = model.encode(batch.source)
        rows = torch.tensor([3, 0, 3])
        step = model.step(select(memory, rows), select(state, rows), torch.tensor([4, 5, 6]))
        step.logits.square().sum().backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    compare(gradient(of_fast_parts(model)), gradient(model))


class Mine(LSTM):
    """A cell with the constructor of ours."""

    def forward(self, x: Tensor, state: State) -> State:
        h, c = super().forward(x, state)
        return h / 2, c


class Alone(Cell):
    """A cell that takes no parts."""

    gates = 1

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.recurrent = torch.nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, state: State) -> State:
        return (torch.sin(x + self.recurrent(state[0])),)


class Halved(Sutskever):
    """A model whose step is not the stack's alone."""

    def decoder_step(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        return super().decoder_step(memory, state, projected / 2)


class Unattentive(Bahdanau):
    """A model with a step of its own, which no hand-written decoder has."""

    def decoder_step(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        step = super().decoder_step(memory, state, projected)
        return step._replace(feature_inputs=(step.feature_inputs[0], torch.zeros_like(step.feature_inputs[1])))


OWN: dict[str, Callable[[], Model]] = {
    "a cell like ours": lambda: Sutskever(**SUTSKEVER | {"cell": Mine}),
    "a cell": lambda: Bahdanau(**BAHDANAU | {"cell": Alone}),
    "a stack's step": lambda: Halved(**SUTSKEVER),
    "a step": lambda: Unattentive(**BAHDANAU),
}


@pytest.mark.parametrize("name", OWN)
def test_users_own_classes_compute_what_they_say(name: str) -> None:
    """They get each part that their constructors take, and nothing that was made for ours."""
    _, batch = make("bahdanau-gru")
    torch.manual_seed(0)
    model = OWN[name]().double().train()
    fast = of_fast_parts(model)
    plain, expected = gradients(model, batch)
    loss, found = gradients(fast, batch)
    assert torch.allclose(loss.total, plain.total, rtol=1e-12)
    compare(found, expected)
    assert GatheredLinear in {type(module) for module in fast.modules()}


def test_a_backbone_and_the_names_of_parameters_stay_as_they_are() -> None:
    for name in CAPTIONERS:
        model = make_captioner(name)
        fast = of_fast_parts(model)
        assert list(fast.state_dict()) == list(model.state_dict())
        kinds = {name: type(module) for name, module in model.backbone.named_modules()}
        assert {name: type(module) for name, module in fast.backbone.named_modules()} == kinds
        assert type(fast.output) is GatheredLinear


@pytest.mark.parametrize("name", [*MODELS, *CAPTIONERS])
def test_first_weights_are_the_plain_ones(name: str) -> None:
    """Whichever parts it is built of, a model draws the same random numbers."""
    model, _ = make(name)
    made = []
    for device in (None, "cpu", "cuda"):
        parts = PLAIN if device is None else parts_for(torch.device(device))
        torch.manual_seed(5)
        built = type(model)(**model.built_with | {"parts": parts})
        made.append([*built.state_dict().values(), torch.rand(3)])
    for tensors_of in made[1:]:
        assert all(torch.equal(one, other) for one, other in zip(tensors_of, made[0], strict=True))


def test_a_plain_copy_has_plain_parts() -> None:
    """Of the same weights and number type, without drawing random numbers."""
    for name in (*MODELS, *CAPTIONERS):
        model = make(name)[0].double()
        for device in ("cpu", "cuda", "mps"):
            fast = of_fast_parts(model, device)
            torch.manual_seed(1)
            copied, drawn = plain_copy(fast), torch.rand(1)
            torch.manual_seed(1)
            assert torch.equal(drawn, torch.rand(1)) and copied.parts is PLAIN
            assert [type(module) for module in copied.modules()] == [type(module) for module in model.modules()]
            expected = model.state_dict()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in copied.state_dict().items())
    assert plain_copy(model) is not model


def test_a_loss_of_ones_own_is_one_class() -> None:
    """A model with a fast loss, from outside: its output layer halves the features, and so does its loss."""

    class Sharp(Sutskever):
        def project(self, features: Tensor) -> Tensor:
            return super().project(2 * features)

        def loss(self, features: Tensor, labels: Tensor, smoothing: float) -> CrossEntropy:
            return self.parts.cross_entropy(2 * features, self.output, labels, smoothing)

    calls = []

    def counted(features: Tensor, output: Any, labels: Tensor, smoothing: float) -> CrossEntropy:
        calls.append(output)
        return cross_entropy_in_pieces.cross_entropy_in_pieces(features, output, labels, smoothing)

    _, batch = make("bahdanau-gru")
    torch.manual_seed(0)
    model = Sharp(**SUTSKEVER).double()
    plain, expected = gradients(model, batch)
    parts = replace(parts_for(torch.device("cpu")), cross_entropy=counted)
    fast = Sharp(**SUTSKEVER, parts=parts).double()
    fast.load_state_dict(model.state_dict())
    loss, found = gradients(fast, batch)
    assert calls == [fast.output] and torch.allclose(loss.total, plain.total, rtol=1e-12)
    compare(found, expected)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_leaves_its_share_and_scales_it(p: float) -> None:
    dropout = parts_for(torch.device("cpu")).dropout(p)
    x = torch.ones(301, 333, requires_grad=True)
    torch.manual_seed(3)
    dropped = dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), dropped)
    values = {0.0, 1 / (1 - p)} if 0 < p < 1 else {1 - p}
    assert all(any(abs(found - value) < 1e-4 for value in values) for found in dropped.unique().tolist())
    share = float((dropped == 0).double().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-5  # five standard deviations
    dropped.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, dropped)
    assert dropout.eval()(x) is x or torch.equal(dropout(x), x)
