"""Tests of the Transformer optimised for writing a single text: its steps equal those of the plain model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import copy_with_fast_parts
from torch import Tensor

from seqtool.models.fast import decoding
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.packed import PackedLinear
from seqtool.models.fast.transformer_text import DecodingTransformerLanguageModel, PreallocatedCache
from seqtool.models.transformer import FeedForward, TransformerLanguageModel, Window
from seqtool.models.tree import leaves, select

pytestmark = pytest.mark.skipif(not PackedLinear.supports(torch.float32), reason="torch has no oneDNN here")
SIZES = {"target_vocabulary": 11, "width": 8, "layers": 2, "feed_forward": 12, "context": 6}
CPU = torch.device("cpu")
Models = tuple[TransformerLanguageModel, DecodingTransformerLanguageModel]


SETTINGS = [
    {"norm": "pre", "positions": "learnt", "tie": "none", "heads": 2},
    {"norm": "post", "positions": "sinusoids", "tie": "output", "heads": 1},
]


def make_model(**settings: Any) -> TransformerLanguageModel:
    """Make a model whose parameters all differ from their initial values."""
    torch.manual_seed(1)
    model = TransformerLanguageModel(**{**SIZES, **SETTINGS[0], "dropout": 0.1, **settings}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return model


@pytest.fixture(params=SETTINGS, ids=["pre", "post"])
def models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Models:
    """A plain model and the same model optimised for decoding."""
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: True)
    plain = make_model(**request.param)
    fast = optimise_for_decoding(copy_with_fast_parts(plain), "fp32", CPU)
    assert type(fast) is DecodingTransformerLanguageModel
    return plain, fast


def assert_same_state(state: Window, expected: Window) -> None:
    assert torch.equal(state.tokens, expected.tokens) and state.cache.length == expected.cache.length
    for layer, expected_layer in zip(state.cache.layers, expected.cache.layers, strict=True):
        torch.testing.assert_close(layer, expected_layer)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("prompt_length", [0, 4, 6])
@torch.inference_mode()
def test_fast_steps_equal_plain_steps(models: Models, rows: int, prompt_length: int) -> None:
    """The steps cross several windows, after a prompt that is empty, fits into a window of 6 tokens or fills it."""
    tokens = torch.randint(4, 11, (rows, prompt_length + 15))
    states = [select(model.encode(None)[1], torch.zeros(rows, dtype=torch.int64)) for model in models]
    states = [
        model.prefill((), state, tokens[:, :prompt_length])[0] for model, state in zip(models, states, strict=True)
    ]
    for token in tokens[:, prompt_length:].unbind(1):
        outputs = [model.step((), state, token) for model, state in zip(models, states, strict=True)]
        torch.testing.assert_close(outputs[1].logits, outputs[0].logits)
        states = [output.state for output in outputs]
        assert isinstance(states[1].cache, PreallocatedCache) == (rows == 1)
        assert_same_state(states[1], states[0])


@torch.inference_mode()
def test_a_state_may_be_continued_more_than_once(models: Models) -> None:
    """Two states that continue the same state leave it and each other unchanged; both can be selected and continued."""
    plain, fast = models
    first_token, next_token, two_tokens = torch.tensor([5]), torch.tensor([8]), torch.tensor([[8, 9]])
    first = fast.step((), fast.encode(None)[1], first_token).state
    tokens = [torch.tensor([6]), torch.tensor([7])]
    states = [fast.step((), first, token).state for token in tokens]
    expected_first = plain.prefill((), plain.encode(None)[1], first_token[None])[0]
    assert_same_state(first, expected_first)
    for state, token in zip(states, tokens, strict=True):
        expected = plain.step((), expected_first, token).state
        assert_same_state(state, expected)
        twice = torch.tensor([0, 0])
        assert_same_state(select(state, twice), select(expected, twice))
        assert_same_state(fast.prefill((), state, two_tokens)[0], plain.prefill((), expected, two_tokens)[0])
        assert_same_state(fast.step((), state, next_token).state, plain.step((), expected, next_token).state)


@torch.inference_mode()
def test_steps_do_not_copy_the_cache(models: Models) -> None:
    """All states of a window share one tensor; the next window has a new one."""
    _, fast = models

    def cache_tensor(state: Window) -> Tensor:
        return next(leaves(state.cache))

    states = [fast.step((), fast.encode(None)[1], torch.tensor([5])).state]
    while len(states) < SIZES["context"]:
        states.append(fast.step((), states[-1], torch.tensor([5])).state)
    assert len({cache_tensor(state).data_ptr() for state in states}) == 1
    next_window = fast.step((), states[-1], torch.tensor([5])).state
    assert next_window.cache.length == SIZES["context"] // 2 + 1
    assert cache_tensor(next_window).data_ptr() != cache_tensor(states[0]).data_ptr()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_steps_agree_under_no_grad_and_inference_mode(models: Models, mode: Callable[[], Any]) -> None:
    """Steps reach a second window, both after a prompt and from a state that was made under inference_mode."""
    plain, fast = models
    with torch.inference_mode():
        stepped = tuple(model.step((), model.encode(None)[1], torch.tensor([5])).state for model in (fast, plain))
    with mode():
        prompt = torch.tensor([[5, 6, 7, 8]])
        prefilled = tuple(model.prefill((), model.encode(None)[1], prompt)[0] for model in (fast, plain))
        for fast_state, plain_state in [stepped, prefilled]:
            for token in torch.tensor([[9], [8], [7], [6], [5], [4]]):
                fast_step, plain_step = fast.step((), fast_state, token), plain.step((), plain_state, token)
                torch.testing.assert_close(fast_step.logits, plain_step.logits)
                fast_state, plain_state = fast_step.state, plain_step.state


@torch.inference_mode()
def test_a_position_is_claimed_once(models: Models) -> None:
    """A position that one step has taken but not filled yet is not given to another: the second gets a copy."""
    _, fast = models
    first = fast.step((), fast.encode(None)[1], torch.tensor([5])).state
    shared, copied = (PreallocatedCache.claim_next(first.cache, SIZES["context"]) for _ in range(2))
    assert shared.storage.data_ptr() == first.cache.layers[0].untyped_storage().data_ptr() != copied.storage.data_ptr()


@torch.inference_mode()
def test_a_single_precision_model_steps_under_bf16_autocast(models: Models) -> None:
    plain, fast = models
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, expected = (model.step((), model.encode(None)[1], torch.tensor([5])).logits for model in (fast, plain))
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.05, check_dtype=False)


class UserFeedForward(FeedForward):
    pass


@pytest.mark.parametrize("case", ["bf16", "other processors", "one inner unit", "double", "a user's own part"])
@torch.no_grad()
def test_unsupported_models_are_not_optimised_for_decoding(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: case != "other processors")
    model = make_model(feed_forward=1 if case == "one inner unit" else 12)
    if case == "double":
        model = model.double()
    if case == "a user's own part":
        model.decoder.layers[0].feed_forward = UserFeedForward(8, 12)
    state, token = model.encode(None)[1], torch.tensor([5])
    expected = model.step((), state, token).logits
    fast = optimise_for_decoding(model, "bf16" if case == "bf16" else "fp32", CPU)
    assert not isinstance(fast, DecodingTransformerLanguageModel)
    if case != "bf16":
        torch.testing.assert_close(fast.step((), state, token).logits, expected)
