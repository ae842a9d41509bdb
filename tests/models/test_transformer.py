"""Transformers: their equations, kept keys and values, positions, windows of a text, and what a token costs."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_models import LAYERS, TRANSFORMER, VOCABULARY, WORDS, random_sentences
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from seqtool.data.batches import make_source, make_target
from seqtool.decoding.beam_search import beam_search
from seqtool.decoding.tree import select
from seqtool.errors import InputError
from seqtool.models.initialisation import initialise
from seqtool.models.transformer import CrossAttention, SelfAttention, Transformer, TransformerLanguageModel, sinusoids

READER: dict[str, Any] = {
    **{key: value for key, value in TRANSFORMER.items() if key in ("width", "heads", "feed_forward", "norm")},
    **{"target_vocabulary": VOCABULARY, "layers": 2, "dropout": 0.0, "tie": "none", "positions": "learnt"},
}


CPU_ATTENTION = {  # of which torch's counter knows only from 2.15 on
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


def translator(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(**WORDS | TRANSFORMER | LAYERS | settings)
    initialise(model, "default")
    return model.eval()


def reader(context: int, **settings: Any) -> TransformerLanguageModel:
    torch.manual_seed(0)
    model = TransformerLanguageModel(**READER | {"context": context} | settings)
    initialise(model, "default")
    return model.eval()


def heads(x: Tensor) -> Tensor:
    """Of 8 numbers: two heads of 4."""
    return x.view(*x.shape[:2], 2, 4).transpose(1, 2)


def softmax_of(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(4)).masked_fill(~seen, -math.inf).softmax(-1)


def test_attention_of_a_text_over_itself_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    attention, x = SelfAttention(8, 2), torch.randn(3, 5, 8)
    q, k, v = (heads(one) for one in attention.queries_keys_values(x).chunk(3, -1))
    alpha = softmax_of(q, k, torch.ones(5, 5, dtype=torch.bool).tril())
    expected = attention.output((alpha @ v).transpose(1, 2).flatten(2))
    whole, seen = attention.causal(x, x.new_empty(3, 0, 16))
    assert torch.allclose(whole, expected, atol=1e-6)
    first, past = attention.causal(x[:, :2], x.new_empty(3, 0, 16))
    rest, past = attention.causal(x[:, 2:], past)
    assert torch.allclose(torch.cat([first, rest], 1), expected, atol=1e-6) and torch.allclose(past, seen)


def test_attention_over_a_source_is_that_of_the_paper() -> None:
    """With weights and without, for several rows of each source."""
    torch.manual_seed(0)
    attention, x, source = CrossAttention(8, 2), torch.randn(6, 4, 8), torch.randn(3, 5, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
    keys_values = attention.keys_values(source)
    k, v = (heads(one).repeat_interleave(2, 0) for one in keys_values.chunk(2, -1))
    alpha = softmax_of(heads(attention.queries(x)), k, mask.repeat_interleave(2, 0)[:, None, None])
    expected = attention.output((alpha @ v).transpose(1, 2).flatten(2))
    found, weights = attention(x, keys_values, mask, weights=True)
    assert torch.allclose(found, expected, atol=1e-6) and torch.allclose(weights, alpha.transpose(1, 2), atol=1e-6)
    assert torch.allclose(attention(x, keys_values, mask, weights=False)[0], expected, atol=1e-6)


def test_sinusoids() -> None:
    table = sinusoids(torch.arange(50), 6)
    assert table[7, 0] == pytest.approx(math.sin(7)) and table[7, 1] == pytest.approx(math.cos(7))
    assert table[40, 5] == pytest.approx(math.cos(40 / 10_000 ** (4 / 6)))


def test_the_attention_that_is_shown() -> None:
    """One head, or the mean of all, of the layer that is chosen."""
    source, target = make_source(random_sentences(4, seed=1)), make_target(random_sentences(4, seed=2))[:, :-1]
    shown: dict[tuple[int | None, int | None], Tensor] = {}
    for layer in (None, 1, 2):
        for head in (None, 1, 2):
            attention = translator(attention_layer=layer, attention_head=head)(source, target).attention
            assert attention is not None
            shown[layer, head] = attention
    for layer in (1, 2):
        assert torch.allclose(shown[layer, None], (shown[layer, 1] + shown[layer, 2]) / 2)
    assert torch.equal(shown[None, 1], shown[2, 1]) and not torch.allclose(shown[1, 1], shown[2, 1])
    assert translator().train()(source, target).attention is None


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoids", "learnt"])
def test_windows_of_a_text(norm: str, positions: str) -> None:
    """A text in pieces of any size is the text read at once, and each token sees at least half a window."""
    model, text = reader(6, norm=norm, positions=positions), torch.randint(VOCABULARY, (2, 23))
    whole = model(None, text).features
    for sizes in ([1] * 23, [5, 1, 9, 8], [6, 6, 6, 5], [23]):
        state, features = None, []
        for piece in text.split(sizes, 1):
            output = model(None, piece, state)
            state = output.state
            features.append(output.features)
        assert torch.allclose(torch.cat(features, 1), whole, atol=1e-5)
    for t in range(6, 23):
        start = 3 * ((t - 3) // 3)  # the window's first token
        alone = model(None, text[:, start : t + 1]).features
        assert torch.allclose(alone[:, -1], whole[:, t], atol=1e-5)


@pytest.mark.parametrize("positions", ["sinusoids", "learnt"])
def test_a_text_by_steps_and_by_prefilling(positions: str) -> None:
    """Both give what `forward` gives, over several windows, whatever stands in the other rows."""
    model, text = reader(6, positions=positions), torch.randint(VOCABULARY, (3, 20))
    output = model(None, text)
    whole = model.project(output.features)
    _, first = model.encode(None)
    stepped = prefilled = select(first, torch.zeros(3, dtype=torch.int64))
    for t in range(20):
        logits, stepped, attention, _ = model.step((), stepped, text[:, t])
        assert attention is None and torch.allclose(logits, whole[:, t], atol=1e-5)
    for piece in text.split([4, 1, 9, 6], 1):
        prefilled = model.prefill((), prefilled, piece).state
    for state in (stepped, prefilled):
        assert torch.equal(state.tokens, output.state.tokens)
        for one, other in zip(state.cache.layers, output.state.cache.layers, strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    assert torch.allclose(model(None, text[1:2]).features, output.features[1:2], atol=1e-5)
    assert model.prefill((), stepped, text[:, :0])[0] is stepped


def test_a_training_target_that_fits_a_window_starts_afresh() -> None:
    model, text = reader(6).train(), torch.randint(VOCABULARY, (2, 12))
    first, second = text.split(6, 1)
    carried = model(None, second, model(None, first).state).features
    assert torch.equal(carried, model(None, second).features)


def test_every_position_of_a_window_is_trained() -> None:
    model, text = reader(6).train(), torch.randint(4, VOCABULARY, (2, 7))
    model.loss(model(None, text[:, :-1]).features, text[:, 1:], 0.0).total.backward()
    gradient = model.decoder.words.position_embedding.weight.grad
    assert len(gradient) == 6 and (gradient.abs().sum(1) > 0).all()


def test_a_sequence_longer_than_its_learnt_positions_is_refused() -> None:
    model = translator(positions="learnt", longest=5)
    source, target = make_source([[5, 6, 7]]), make_target([[5] * 6])[:, :-1]
    with pytest.raises(InputError, match=r"longer than model\.longest=5"):
        model(source, target)


def test_decoding_ends_where_learnt_positions_do() -> None:
    assert (translator(positions="learnt", longest=7).max_positions, translator(longest=7).max_positions) == (7, None)


@pytest.mark.parametrize("scheme", ["default", "bahdanau2015", "sutskever2014"])
def test_normalisations_begin_as_they_are(scheme: str) -> None:
    model = translator()
    initialise(model, scheme)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert norms and all((one.weight == 1).all() and (one.bias == 0).all() for one in norms)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_learns_to_reverse(norm: str) -> None:
    """Every sequence, word for word, by greedy search."""
    torch.manual_seed(0)
    sizes = {"width": 32, "feed_forward": 64, "source_vocabulary": 12, "target_vocabulary": 12}
    model = Transformer(**WORDS | TRANSFORMER | LAYERS | sizes | {"norm": norm})
    initialise(model, "default")
    sentences = [[4 + int(i) for i in torch.randint(8, (int(n),))] for n in torch.randint(3, 7, (256,))]
    batches = [sentences[i : i + 64] for i in range(0, 256, 64)]
    pairs = [(make_source(one), make_target([sentence[::-1] for sentence in one])) for one in batches]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003, betas=(0.9, 0.98))
    for step in range(320):
        source, target = pairs[step % 4]
        optimiser.zero_grad()
        model.loss(model(source, target[:, :-1]).features, target[:, 1:], 0.0).total.backward()
        optimiser.step()
    model.eval()
    found = beam_search(
        model.step,
        *model.encode(make_source(sentences)),
        beam=1,
        maximum=[10] * 256,
        n_best=1,
        penalty=lambda length: length,
        coverage=0.0,
        keep_attention=False,
    )
    right = sum(one[0].tokens == sentence[::-1] for one, sentence in zip(found, sentences, strict=True))
    assert right >= 254


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "middle"}, "Unknown model.norm 'middle'"),
        ({"positions": "none"}, "Unknown model.positions 'none'"),
        ({"heads": 3}, "multiple of twice model.heads"),
        ({"attention_layer": 3}, "model.attention_layer must be from 1 to 2"),
        ({"attention_head": 0}, "model.attention_head must be from 1 to 2"),
        ({"tie": "both"}, "Unknown model.tie"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        translator(**settings)


def test_a_windows_length_is_named_by_its_own_setting() -> None:
    with pytest.raises(InputError, match=r"model\.context must be"):
        reader(2_000_000)


def test_what_a_token_costs_grows_linearly_while_decoding() -> None:
    """Operations and kept numbers up to 500 tokens: those of keys and values, once a token."""
    model = translator(longest=600)
    memory, state = model.encode(make_source([[5, 6, 7, 8]]))
    operations, numbers = {}, {}
    for t in range(1, 501):
        counting = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) if t in (2, 3, 500) else nullcontext()
        with counting as counter:
            state = model.step(memory, state, torch.tensor([4 + t % 7])).state
        if counter is not None:
            operations[t], numbers[t] = counter.get_total_flops(), sum(layer.numel() for layer in state.layers)
    assert numbers[500] == 500 * 2 * 2 * 8  # two layers, keys and values of 8 numbers
    growth = operations[3] - operations[2]
    assert growth > 0 and operations[500] == operations[2] + 498 * growth
