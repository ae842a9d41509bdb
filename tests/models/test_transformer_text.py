"""A Transformer that writes one text steps as the plain one does."""

import copy

import pytest
import torch
from torch import Tensor

from seqtool.decoding.tree import leaves, select
from seqtool.models.fast import packed
from seqtool.models.fast.packed import Packed, laid_out
from seqtool.models.fast.transformer_text import DecodingTransformerLanguageModel, Room
from seqtool.models.transformer import TransformerLanguageModel, Window

pytestmark = pytest.mark.skipif(not Packed.takes(torch.float32), reason="torch has no oneDNN here")
SIZES = {"target_vocabulary": 11, "width": 8, "layers": 2, "heads": 2, "feed_forward": 12, "context": 6}
CPU = torch.device("cpu")
Models = tuple[TransformerLanguageModel, DecodingTransformerLanguageModel]


@pytest.fixture(params=[("pre", "learnt"), ("post", "sinusoids")], ids=["pre", "post"])
def models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Models:
    """A plain model and the one that decodes; no parameter has the value it begins with."""
    monkeypatch.setattr(packed, "mkl_is_fast", lambda: True)
    torch.manual_seed(1)
    norm, positions = request.param
    plain = TransformerLanguageModel(**SIZES, norm=norm, positions=positions, dropout=0.1, tie="none").eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    quick = laid_out(copy.deepcopy(plain), "fp32", CPU)
    assert type(quick) is DecodingTransformerLanguageModel
    return plain, quick


def same(one: Window, other: Window) -> None:
    assert torch.equal(one.tokens, other.tokens) and one.past.length == other.past.length
    for tensor, expected in zip(one.past.layers, other.past.layers, strict=True):
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
        assert isinstance(states[1].past, Room) == (rows == 1)
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
        return next(leaves(state.past))

    states = [quick.step((), quick.encode(None)[1], torch.tensor([5])).state]
    while len(states) < SIZES["context"]:
        states.append(quick.step((), states[-1], torch.tensor([5])).state)
    assert len({numbers(state).data_ptr() for state in states}) == 1
    anew = quick.step((), states[-1], torch.tensor([5])).state
    assert anew.past.length == SIZES["context"] // 2 + 1 and numbers(anew).data_ptr() != numbers(states[0]).data_ptr()


@pytest.mark.parametrize(("precision", "fast"), [("bf16", True), ("fp32", False)])
def test_others_step_as_before(precision: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "mkl_is_fast", lambda: fast)
    model = TransformerLanguageModel(**SIZES, norm="pre", positions="learnt", dropout=0.1, tie="none")
    assert not isinstance(laid_out(model, precision, CPU), DecodingTransformerLanguageModel)
