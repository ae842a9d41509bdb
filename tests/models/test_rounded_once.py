"""Tests of weights that are rounded once a batch: losses and gradients are those of autocast."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_models import copy_with_fast_parts, make_captioner, make_model, random_images, random_sentences

from seqtool.data.batches import make_source, make_target
from seqtool.models.fast.rounded_once import RoundedOnceLinear, rounded_once


def gradients(model: Any, source: Any, *, once: bool, dtype: torch.dtype) -> tuple[torch.Tensor, list[Any]]:
    """Return the loss in this precision and the gradients."""
    model.zero_grad()
    target = make_target(random_sentences(3, seed=2))
    with torch.autocast("cpu", dtype=dtype), rounded_once(model) if once else nullcontext():
        output = model(source, target[:, :-1])
        loss = model.loss(output.features, target[:, 1:], 0.1).total
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("name", "has_biases"),
    [
        *(("transformer", True), ("transformer-post", True), ("transformer-captioner", True), ("bahdanau-gru", True)),
        ("transformer", False),
    ],
)
def test_losses_and_gradients_are_those_of_autocast(name: str, has_biases: bool) -> None:
    is_captioner = name == "transformer-captioner"
    plain = (make_captioner if is_captioner else make_model)(name)
    model = copy_with_fast_parts(plain, "cuda").train()
    for linear in (module for module in model.modules() if isinstance(module, RoundedOnceLinear) and not has_biases):
        linear.bias = None
    source: Any = random_images(3, seed=1) if is_captioner else make_source(random_sentences(3, seed=1))
    for dtype in (torch.bfloat16, torch.float16):
        loss, expected = gradients(model, source, once=False, dtype=dtype)
        once, actual = gradients(model, source, once=True, dtype=dtype)
        assert torch.equal(once, loss) and any(gradient is not None for gradient in actual)
        for gradient, other in zip(actual, expected, strict=True):
            assert (gradient is None) == (other is None)
            assert gradient is None or (torch.equal(gradient, other) and gradient.dtype == other.dtype)


def test_without_autocast_nothing_is_rounded() -> None:
    model = copy_with_fast_parts(make_model("transformer"), "cuda")
    source, target = make_source(random_sentences(3, seed=1)), make_target(random_sentences(3, seed=2))
    expected = model(source, target[:, :-1]).features
    with rounded_once(model):
        assert torch.equal(model(source, target[:, :-1]).features, expected)
