"""Tests of the example of untied weights: with equal weights it is the tied network, which alone goes further."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from example_modules import imported

from seqtool.models.inputs import Source

SIZES = {"source_vocabulary": 7, "target_vocabulary": 8, "size": 6}


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with imported("untied", tmp_path_factory.mktemp("untied")) as module:
        yield module


def models(untied: Any) -> tuple[Any, Any]:
    """A tied model, and an untied one all of whose steps have its weights."""
    torch.manual_seed(0)
    tied, copies = untied.Steps(**SIZES), untied.Steps(**SIZES, tied=False, longest=5)
    weights = tied.state_dict()
    copies.load_state_dict({name: weights[re.sub(r"encoder\.\d+", "encoder.0", name)] for name in copies.state_dict()})
    return tied, copies


def test_with_equal_weights_at_all_steps_the_untied_model_is_the_tied_one(untied: Any) -> None:
    tied, copies = models(untied)
    encoders = [sum(weight.numel() for weight in model.encoder.parameters()) for model in (tied, copies)]
    assert encoders[1] == 5 * encoders[0]
    source, target = Source(torch.randint(4, 7, (3, 5)), torch.tensor([5, 3, 1])), torch.randint(4, 8, (3, 2))
    torch.testing.assert_close(tied(source, target).features, copies(source, target).features)


def test_each_untied_step_is_trained_only_by_sources_that_reach_it(untied: Any) -> None:
    _, model = models(untied)
    source = Source(torch.randint(4, 7, (2, 5)), torch.tensor([3, 2]))  # the rest is padding
    model(source, torch.randint(4, 8, (2, 2))).features.sum().backward()
    reached = [any(weight.grad.abs().sum() > 0 for weight in step.parameters()) for step in model.encoder]
    assert reached == [True, True, True, False, False]


def test_padding_and_other_rows_change_nothing(untied: Any) -> None:
    for model in models(untied):
        tokens, target = torch.randint(4, 7, (2, 3)), torch.randint(4, 8, (2, 2))
        alone = model(Source(tokens[:1, :2], torch.tensor([2])), target[:1]).features
        torch.testing.assert_close(model(Source(tokens, torch.tensor([2, 3])), target).features[:1], alone)


def test_walks(untied: Any) -> None:
    assert untied.room([]) == "second"
    assert untied.room(["left", "left", "left", "right"]) == "second"  # the wall stops two of them
    assert untied.room(["right", "right", "right", "stay", "left"]) == "third"
    walks = {split: list(untied.Corridor(train=500, test=50).pairs(split)) for split in ("train", "test", "longer")}
    assert {len(source.split()) for source, _ in walks["train"]} == set(range(1, 9))
    assert {len(source.split()) for source, _ in walks["longer"]} == set(range(9, 13))
    assert not {*walks["train"]} & {*walks["test"]}
    assert all(target == untied.room(source.split()) for source, target in walks["test"])


def test_both_learn_lengths_that_they_see_and_only_the_tied_one_goes_further(untied: Any) -> None:
    tied, other = untied.compare(STEPS)
    assert other.parameters == 13 * tied.parameters
    assert tied.accuracies["test"] >= 0.97 and tied.accuracies["longer"] >= 0.9
    assert other.accuracies["test"] >= 0.85 and other.accuracies["longer"] <= 0.5
    assert other.losses["longer"] > 10 * tied.losses["longer"]


STEPS = 200  # as in the table of docs/examples.md
