"""The fast path of training gives what the plain equations give: losses and every gradient."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_models import CAPTIONERS, MODELS, make_captioner, make_model, random_images, random_sentences
from torch import Tensor

from seqtool import cross_entropy
from seqtool.data.batches import Batch, make_source, make_target
from seqtool.decoding import select
from seqtool.losses import Loss, TrainingLoss
from seqtool.models import attention, sharing
from seqtool.models.bahdanau import maxout
from seqtool.models.encoder_decoder import EncoderDecoder


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


@pytest.fixture(params=[*MODELS, *CAPTIONERS])
def case(request: pytest.FixtureRequest) -> Iterator[tuple[EncoderDecoder[Any], Batch]]:
    yield make(request.param)


@pytest.mark.parametrize("at_once", [1, 2**20])
def test_equals_plain_gradients(
    case: tuple[EncoderDecoder[Any], Batch], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "LOGITS", at_once)
    monkeypatch.setattr(attention, "IN_CACHE", at_once)
    model, batch = case
    model.double().train()
    with sharing.plain():
        plain, expected = gradients(model, batch)
    fast, found = gradients(model, batch)
    assert torch.allclose(fast.total, plain.total, rtol=1e-12) and torch.allclose(fast.nll, plain.nll, rtol=1e-12)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("name", ["bahdanau-gru", "bahdanau-gru_cho"])
def test_gradients_of_alignments_and_states_are_the_plain_ones(name: str) -> None:
    model, batch = make(name)
    model.double()

    def gradient() -> dict[str, Tensor]:
        model.zero_grad()
        output = model(batch.source, batch.inputs)
        assert output.attention is not None
        (output.attention.square().sum() + torch.stack(output.decoder_states).square().sum()).backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    found = gradient()
    with sharing.plain():
        expected = gradient()
    for name, one in expected.items():
        assert torch.allclose(found[name], one, rtol=1e-9, atol=1e-12), name


def test_a_second_pass_backward_starts_anew() -> None:
    model, batch = make("bahdanau-gru")
    _, expected = gradients(model, batch)
    model.zero_grad()
    total = TrainingLoss(model, 0.1)(batch).total / 3
    total.backward(retain_graph=True)
    total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, 2 * expected[name], rtol=1e-4, atol=1e-6), name


def test_in_bfloat16_gradients_are_as_near_as_the_plain_ones() -> None:
    model, batch = make("bahdanau-gru")
    _, exact = gradients(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, fast = gradients(model, batch)
        with sharing.plain():
            _, plain = gradients(model, batch)
    for name, gradient in exact.items():
        assert fast[name].dtype == torch.float32
        error = (fast[name] - gradient).norm() / gradient.norm()
        assert error < max(0.02, 1.5 * float((plain[name] - gradient).norm() / gradient.norm())), name


@pytest.mark.parametrize("name", ["bahdanau-gru", "sutskever-lstm"])
def test_states_stay_in_single_precision_under_autocast(name: str) -> None:
    model, batch = make(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch.source, batch.inputs)
    assert {one.dtype for one in (*output.encoder_states, *output.decoder_states)} == {torch.float32}


def test_nothing_is_shared_without_a_backward_pass() -> None:
    model, _ = make("bahdanau-gru")
    with torch.no_grad(), sharing.one_gradient(model):
        assert all(one.shared is None for one in model.modules() if isinstance(one, sharing.StepLinear))
    assert sharing.ledger_of(sharing.share(torch.zeros(2, 2))) is not None


def test_selected_keys_have_their_gradient() -> None:
    """Rows of a memory are other tensors than the memory that was shared."""
    model, batch = make("bahdanau-gru")
    model.double()

    def gradient() -> dict[str, Tensor]:
        model.zero_grad()
        memory, state = model.encode(batch.source)
        rows = torch.tensor([3, 0, 3])
        step = model.step(select(memory, rows), select(state, rows), torch.tensor([4, 5, 6]))
        step.logits.square().sum().backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    found = gradient()
    with sharing.plain():
        expected = gradient()
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12) for name in found)


def test_maxout_hands_its_gradient_to_the_higher_of_a_pair_and_to_one_of_equals() -> None:
    pairs = torch.tensor([[1.0, 2.0], [5.0, -1.0], [3.0, 3.0]], requires_grad=True)
    maxima = maxout(pairs)
    assert maxima.tolist() == [2, 5, 3]
    maxima.backward(torch.tensor([10.0, 20.0, 30.0]))
    assert pairs.grad is not None and pairs.grad.tolist() == [[0, 10], [20, 0], [30, 0]]
