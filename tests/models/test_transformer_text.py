"""A Transformer that writes one text steps as the plain one does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import of_fast_parts
from torch import Tensor

from seqtool.decoding.tree import leaves, select
from seqtool.models.fast import decoding
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.packed import PackedLinear
from seqtool.models.fast.transformer_text import DecodingTransformerLanguageModel, PreallocatedCache
from seqtool.models.transformer import FeedForward, TransformerLanguageModel, Window

pytestmark = pytest.mark.skipif(not PackedLinear.supports(torch.float32), reason="torch has no oneDNN here")
SIZES = {"target_vocabulary": 11, "width": 8, "layers": 2, "feed_forward": 12, "context": 6}
CPU = torch.device("cpu")
Models = tuple[TransformerLanguageModel, DecodingTransformerLanguageModel]


CHOICES = [
    {"norm": "pre", "positions": "learnt", "tie": "none", "heads": 2},
    {"norm": "post", "positions": "sinusoids", "tie": "output", "heads": 1},
]


def make(**settings: Any) -> TransformerLanguageModel:
    """A model of which no parameter has the value it begins with."""
    torch.manual_seed(1)
    model = TransformerLanguageModel(**{**SIZES, **CHOICES[0], "dropout": 0.1, **settings}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return model


@pytest.fixture(params=CHOICES, ids=["pre", "post"])
def models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Models:
    """A plain model and the one that decodes."""
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: True)
    plain = make(**request.param)
    quick = optimise_for_decoding(of_fast_parts(plain), "fp32", CPU)
    assert type(quick) is DecodingTransformerLanguageModel
    return plain, quick


def same(one: Window, other: Window) -> None:
    assert torch.equal(one.tokens, other.tokens) and one.cache.length == other.cache.length
    for tensor, expected in zip(one.cache.layers, other.cache.layers, strict=True):
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("begun", [0, 4, 6])
@torch.inference_mode()
def test_steps_are_the_plain_ones(models: Models, rows: int, begun: int) -> None:
    """Through several windows, after a prompt of any length, which may fill one."""
    tokens = torch.randint(4, 11, (rows, begun + 15))
    states = [select(model.encode(None)[1], torch.zeros(rows, dtype=torch.int64)) for model in models]
    states = [model.prefill((), state, tokens[:, :begun])[0] for model, state in zip(models, states, strict=True)]
    for token in tokens[:, begun:].unbind(1):
        found = [model.step((), state, token) for model, state in zip(models, states, strict=True)]
        torch.testing.assert_close(found[1].logits, found[0].logits)
        states = [one.state for one in found]
        assert isinstance(states[1].cache, PreallocatedCache) == (rows == 1)
        same(states[1], states[0])


@torch.inference_mode()
def test_a_state_may_be_continued_more_than_once(models: Models) -> None:
    """States that follow the same one do not change each other, nor it; all of them can be selected and read on."""
    plain, quick = models
    token = torch.tensor
    first = quick.step((), quick.encode(None)[1], token([5])).state
    one, other = quick.step((), first, token([6])).state, quick.step((), first, token([7])).state
    expected = plain.prefill((), plain.encode(None)[1], token([[5]]))[0]
    same(first, expected)
    for state, last in ((one, 6), (other, 7)):
        follows = plain.step((), expected, token([last])).state
        same(state, follows)
        twice = torch.tensor([0, 0])
        same(select(state, twice), select(follows, twice))
        same(quick.prefill((), state, token([[8, 9]]))[0], plain.prefill((), follows, token([[8, 9]]))[0])
        same(quick.step((), state, token([8])).state, plain.step((), follows, token([8])).state)


@torch.inference_mode()
def test_no_step_copies_what_was_read(models: Models) -> None:
    """All states of a window share one tensor."""
    _, quick = models

    def numbers(state: Window) -> Tensor:
        return next(leaves(state.cache))

    states = [quick.step((), quick.encode(None)[1], torch.tensor([5])).state]
    while len(states) < SIZES["context"]:
        states.append(quick.step((), states[-1], torch.tensor([5])).state)
    assert len({numbers(state).data_ptr() for state in states}) == 1
    anew = quick.step((), states[-1], torch.tensor([5])).state
    assert anew.cache.length == SIZES["context"] // 2 + 1 and numbers(anew).data_ptr() != numbers(states[0]).data_ptr()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_both_modes(models: Models, mode: Callable[[], Any]) -> None:
    """After a prompt, into a second window; and on from a state that was made under inference_mode."""
    plain, quick = models
    with torch.inference_mode():
        made = quick.step((), quick.encode(None)[1], torch.tensor([5])).state
        expected = plain.step((), plain.encode(None)[1], torch.tensor([5])).state
    with mode():
        prompt = torch.tensor([[5, 6, 7, 8]])
        pairs = [(made, expected), tuple(one.prefill((), one.encode(None)[1], prompt)[0] for one in (quick, plain))]
        for found, other in pairs:
            for token in torch.tensor([[9], [8], [7], [6], [5], [4]]):
                step, right = quick.step((), found, token), plain.step((), other, token)
                torch.testing.assert_close(step.logits, right.logits)
                found, other = step.state, right.state


@torch.inference_mode()
def test_two_threads_may_continue_one_state(models: Models) -> None:
    """A place that has been taken, and not filled yet, is nobody else's."""
    _, quick = models
    first = quick.step((), quick.encode(None)[1], torch.tensor([5])).state
    one, other = (PreallocatedCache.claim_next(first.cache, SIZES["context"]) for _ in range(2))
    assert one.storage.data_ptr() == first.cache.layers[0].untyped_storage().data_ptr() != other.storage.data_ptr()


@torch.inference_mode()
def test_under_autocast(models: Models) -> None:
    """Whoever asks for bf16 of a model that was loaded for single precision gets it."""
    plain, quick = models
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = (one.step((), one.encode(None)[1], torch.tensor([5])).logits for one in (quick, plain))
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05, check_dtype=False)


class Mine(FeedForward):
    pass


@pytest.mark.parametrize("case", ["bf16", "other processors", "one inner unit", "double", "a part of one's own"])
@torch.no_grad()
def test_others_step_as_before(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "mkl_is_fast", lambda: case != "other processors")
    model = make(feed_forward=1 if case == "one inner unit" else 12)
    if case == "double":
        model = model.double()
    if case == "a part of one's own":
        model.decoder.layers[0].feed_forward = Mine(8, 12)
    state, token = model.encode(None)[1], torch.tensor([5])
    expected = model.step((), state, token).logits
    quick = optimise_for_decoding(model, "bf16" if case == "bf16" else "fp32", CPU)
    assert not isinstance(quick, DecodingTransformerLanguageModel)
    if case != "bf16":
        torch.testing.assert_close(quick.step((), state, token).logits, expected)
