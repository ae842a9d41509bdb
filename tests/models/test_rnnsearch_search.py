"""Tests of RNNsearch's step for decoding: it equals the plain model's, and other models keep theirs."""

import pytest
import torch
from small_models import copy_with_fast_parts, make_model, random_sentences

from seqtool.data.batches import make_source
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.rnnsearch_search import DecodingBahdanau
from seqtool.models.tree import select

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["bahdanau-gru", "bahdanau-gru_cho", "bahdanau-one-way"])
@torch.inference_mode()
def test_steps_equal_plain_steps(name: str) -> None:
    """Two rows of each sentence, reordered between steps; several tokens at once at the end."""
    plain = make_model(name).double().eval()
    fast = optimise_for_decoding(copy_with_fast_parts(plain), "fp32", CPU).eval()
    assert type(fast) is DecodingBahdanau
    source = make_source(random_sentences(3, seed=1))
    memories, states = zip(*(model.encode(source) for model in (plain, fast)), strict=True)
    states = tuple(select(state, torch.arange(3).repeat_interleave(2)) for state in states)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        token = torch.randint(4, 9, (6,), generator=generator)
        steps = [
            model.step(memory, state, token)
            for model, memory, state in zip((plain, fast), memories, states, strict=True)
        ]
        for actual, expected in ((steps[1].logits, steps[0].logits), (steps[1].attention, steps[0].attention)):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
        rows = torch.tensor([1, 0, 2, 2, 5, 4])
        states = tuple(select(step.state, rows) for step in steps)
        torch.testing.assert_close(states[1].top, states[0].top, rtol=1e-10, atol=1e-10)
    tokens = torch.randint(4, 9, (6, 5), generator=generator)
    ends = [
        model.prefill(memory, state, tokens)
        for model, memory, state in zip((plain, fast), memories, states, strict=True)
    ]
    torch.testing.assert_close(ends[1].state.top, ends[0].state.top, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ends[1].attention, ends[0].attention, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["bahdanau-lstm", "bahdanau-deep", "bahdanau-dot", "luong"])
def test_other_models_keep_their_step(name: str) -> None:
    fast = optimise_for_decoding(copy_with_fast_parts(make_model(name)), "fp32", CPU)
    assert not isinstance(fast, DecodingBahdanau)
