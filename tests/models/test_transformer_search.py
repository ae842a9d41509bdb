"""Tests of the Transformer's step for a search: whatever rows are selected, it equals the plain model's step."""

from typing import Any

import pytest
import torch
from small_models import copy_with_fast_parts, make_captioner, make_model, random_images, random_sentences
from torch import Tensor

from seqtool.data.batches import make_source
from seqtool.models.fast import transformer_search
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.transformer_search import DecodingTransformer, DecodingTransformerCaptioner, SharedCache
from seqtool.models.transformer import KeyValueCache
from seqtool.models.tree import keep, select

CPU = torch.device("cpu")
SENTENCES = 4


class Pair:
    """A plain model and the same model optimised for decoding, in double precision, whose steps are compared."""

    def __init__(self, name: str) -> None:
        is_captioner = name == "transformer-captioner"
        self.plain: Any = (make_captioner if is_captioner else make_model)(name).double().eval()
        self.fast = optimise_for_decoding(copy_with_fast_parts(self.plain), "fp32", CPU).eval()
        source: Any = make_source(random_sentences(SENTENCES, seed=1))
        if is_captioner:
            images = random_images(SENTENCES, seed=1)
            source = type(images)(images.values.double())
        self.source = source
        self.memories, self.states = zip(*(model.encode(source) for model in (self.plain, self.fast)), strict=True)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Select rows of the states and, if they are given, rows of the memories."""
        count = len(self.states[0].layers[0])
        self.states = tuple(keep(state, rows, count) for state in self.states)
        if sentences is not None:
            self.memories = tuple(select(memory, sentences) for memory in self.memories)
        self.compare_states()

    def step(self, token: Tensor) -> None:
        steps = [model.step(*rest, token) for model, *rest in zip(self.models, self.memories, self.states, strict=True)]
        torch.testing.assert_close(steps[1].logits, steps[0].logits)
        torch.testing.assert_close(steps[1].attention, steps[0].attention)
        blind = self.fast.step_without_attention(self.memories[1], self.states[1], token)  # continues the state again
        torch.testing.assert_close(blind.logits, steps[0].logits)
        assert blind.attention is None
        self.states = steps[0].state, steps[1].state
        self.compare_states()

    @property
    def models(self) -> tuple[Any, Any]:
        return self.plain, self.fast

    def compare_states(self) -> None:
        for layer, expected in zip(self.states[1].layers, self.states[0].layers, strict=True):
            torch.testing.assert_close(layer, expected)


@pytest.fixture(params=["transformer", "transformer-post", "transformer-captioner", "large vocabulary"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    if request.param == "large vocabulary":
        monkeypatch.setattr(transformer_search, "MAX_PROJECTED", 0)
    monkeypatch.setattr(transformer_search, "ROOM", 5)  # so that tables become full
    monkeypatch.setattr(transformer_search, "CACHE", 1000)  # so that it holds few sources
    return Pair("transformer" if request.param == "large vocabulary" else request.param)


def tokens(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(4, 9, (count,), generator=generator)


@pytest.mark.parametrize("beam", [1, 2, 3, 7])  # a step of 7 needs more slots than a table grows by
@torch.inference_mode()
def test_the_steps_of_a_search_equal_plain_ones(pair: Pair, beam: int) -> None:
    """Rows are reordered within their sentences, and sentences leave, as beam search does it."""
    assert type(pair.fast) in (DecodingTransformer, DecodingTransformerCaptioner)
    generator = torch.Generator().manual_seed(beam)
    pair.step(tokens(SENTENCES, generator))
    pair.select(torch.arange(SENTENCES).repeat_interleave(beam))
    for step in range(12):
        sentences = len(pair.memories[0].bias)
        pair.step(tokens(sentences * beam, generator))
        left = torch.arange(sentences)
        if step in (4, 8):
            left = left[left != 1]
        row = left[:, None] * beam + torch.randint(0, beam, (len(left), beam), generator=generator)
        pair.select(row.flatten(), left if len(left) < sentences else None)
        cache = pair.states[1]
        assert isinstance(cache, SharedCache) and cache.tables == len(left)
    assert beam == 1 or cache.filled < beam * cache.length  # what no hypothesis sees was left out


@torch.inference_mode()
def test_prefilling_and_forced_decoding_equal_the_plain_models(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(4, 9, (SENTENCES, 3), generator=generator)
    outputs = [
        model.prefill(*rest, prefix) for model, *rest in zip(pair.models, pair.memories, pair.states, strict=True)
    ]
    torch.testing.assert_close(outputs[1].attention, outputs[0].attention)
    pair.states = tuple(output.state for output in outputs)
    pair.step(tokens(SENTENCES, generator))
    expected, actual = (model(pair.source, prefix) for model in pair.models)
    torch.testing.assert_close(actual.features, expected.features)
    torch.testing.assert_close(actual.attention, expected.attention)


@torch.inference_mode()
def test_any_rows_may_be_selected(pair: Pair) -> None:
    """Rows of mixed sentences, single rows, repeated rows; several tokens at once; a state of another search."""
    generator = torch.Generator().manual_seed(1)
    pair.select(torch.arange(SENTENCES).repeat_interleave(2))
    pair.step(tokens(8, generator))
    pair.select(torch.tensor([1, 0, 3, 3, 4, 5, 6, 6]))
    pair.step(tokens(8, generator))
    pair.select(torch.tensor([0, 2, 5, 7]))  # one row of each sentence
    assert isinstance(pair.states[1], KeyValueCache)
    pair.step(tokens(4, generator))
    pair.select(torch.tensor([2]), torch.tensor([2]))
    pair.select(torch.tensor([0, 0, 0]))
    pair.step(tokens(3, generator))
    pair.select(torch.tensor([2, 0, 0]))
    block = torch.randint(4, 9, (3, 4), generator=generator)
    pair.states = tuple(
        model.prefill(*rest, block).state for model, *rest in zip(pair.models, pair.memories, pair.states, strict=True)
    )
    pair.compare_states()
    pair.step(tokens(3, generator))


@torch.inference_mode()
def test_sentences_may_be_repeated(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(1)
    pair.select(torch.arange(SENTENCES).repeat_interleave(2))
    for rows, sentences in (([1, 0, 2, 3], [0, 1]), ([2, 3, 1, 0, 1, 1], [1, 0, 0])):
        pair.step(tokens(2 * len(pair.memories[0].bias), generator))
        pair.select(torch.tensor(rows), torch.tensor(sentences))
    pair.step(tokens(6, generator))


@torch.inference_mode()
def test_a_state_may_be_continued_more_than_once(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(1)
    pair.select(torch.arange(SENTENCES).repeat_interleave(2))
    pair.step(tokens(8, generator))
    pair.select(torch.tensor([1, 0, 3, 3, 4, 5, 6, 6]))
    states, before = pair.states, [layer.clone() for layer in pair.states[1].layers]
    for _ in range(2):
        pair.states = states
        pair.step(tokens(8, generator))
        pair.step(tokens(8, generator))
    pair.states = states
    pair.compare_states()
    torch.testing.assert_close(states[1].layers, tuple(before), rtol=0, atol=0)


def test_a_state_of_inference_mode_may_be_continued_outside_it(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        pair.step(tokens(SENTENCES, generator))
        pair.step(tokens(SENTENCES, generator))
    with torch.no_grad():
        pair.step(tokens(SENTENCES, generator))
