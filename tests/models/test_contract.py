"""Tests of the contract of models (`models/contract.py`): prefilling, carried states and overridden projections."""

from typing import Any

import numpy as np
import pytest
import torch
from small_models import (
    BAHDANAU,
    CAPTIONERS,
    MODELS,
    copy_with_fast_parts,
    make_captioner,
    make_model,
    random_images,
    random_sentences,
)
from torch import Tensor

from seqtool.data.batches import Batch, make_source, make_target
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.contract import EncoderDecoder
from seqtool.models.tree import select
from seqtool.training.losses import TrainingLoss

Model = EncoderDecoder[Any]


@pytest.fixture(params=[*MODELS, *CAPTIONERS])
def case(request: pytest.FixtureRequest) -> tuple[Model, Any, Tensor]:
    """A model, a source of four rows and a target."""
    target = make_target(random_sentences(4, seed=2))[:, :-1]
    if request.param in MODELS:
        return make_model(request.param), make_source(random_sentences(4, seed=1)), target
    return make_captioner(request.param), random_images(4, seed=1), target


def state_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a state, which is a tree of dataclasses and tuples."""
    if isinstance(tree, Tensor):
        return [tree]
    branches = tree if isinstance(tree, tuple) else vars(tree).values()
    return [tensor for branch in branches for tensor in state_tensors(branch)]


def assert_close(actual: Any, expected: Any) -> None:
    for tensor, expected_tensor in zip(state_tensors(actual), state_tensors(expected), strict=True):
        assert torch.allclose(tensor, expected_tensor, rtol=1e-4, atol=1e-5)


def test_prefilling_equals_stepping(case: tuple[Model, Any, Tensor]) -> None:
    """Each row has three beams. The default `prefill` of the contract equals stepping, too."""
    model, source, target = case
    memory, state = model.encode(source)
    rows = torch.arange(4).repeat_interleave(3)
    state, tokens = select(state, rows), target[rows].roll(1, 0)[:, :4]
    stepped, alphas = state, []
    for token in tokens.unbind(1):
        step = model.step(memory, stepped, token)
        stepped = step.state
        alphas.append(step.attention)
    for prefilled in (model.prefill(memory, state, tokens), EncoderDecoder.prefill(model, memory, state, tokens)):
        assert_close(prefilled.state, stepped)
        assert (prefilled.attention is not None) == model.attends and prefilled.location is None
        if prefilled.attention is not None:
            assert_close(prefilled.attention, torch.stack(alphas, 1))


def test_a_state_is_carried_to_the_next_part(case: tuple[Model, Any, Tensor]) -> None:
    """Reading a target in two halves equals reading it as a whole."""
    model, source, target = case
    whole, half = model(source, target), target.shape[1] // 2
    first = model(source, target[:, :half])
    second = model(source, target[:, half:], first.state)
    assert_close(torch.cat([first.features, second.features], 1), whole.features)
    assert_close(second.state, whole.state)


class DoubledProjection(Bahdanau):
    """A model that overrides the projection."""

    def project(self, features: Tensor) -> Tensor:
        return 2 * super().project(features)


def test_an_overridden_projection_is_used_in_training() -> None:
    torch.manual_seed(0)
    model = DoubledProjection(**BAHDANAU)
    source, target = make_source(random_sentences(4, seed=1)), make_target(random_sentences(4, seed=2))
    batch = Batch(source, target, np.arange(4), 1)
    log_probabilities = model.project(model(source, batch.inputs).features).log_softmax(-1)
    nll = -(log_probabilities.gather(-1, batch.labels[:, :, None]).squeeze(-1) * (batch.labels != 0)).sum()
    assert torch.allclose(TrainingLoss(model, 0.0)(batch).nll, nll)
    assert torch.allclose(TrainingLoss(copy_with_fast_parts(model), 0.0)(batch).nll, nll)
