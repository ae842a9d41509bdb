"""Tests of Transformers: attention, cached keys and values, positions, windows of a text, and the cost of a token."""

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
from seqtool.errors import InputError
from seqtool.models.initialisation import initialise
from seqtool.models.transformer import (
    CrossAttention,
    SelfAttention,
    Transformer,
    TransformerLanguageModel,
    bias_of,
    sinusoids,
)
from seqtool.models.tree import select

LANGUAGE_MODEL: dict[str, Any] = {
    **{key: value for key, value in TRANSFORMER.items() if key in ("width", "heads", "feed_forward", "norm")},
    **{"target_vocabulary": VOCABULARY, "layers": 2, "dropout": 0.0, "tie": "none", "positions": "learnt"},
}


CPU_ATTENTION = {  # torch's counter has no entry for this kernel before 2.15
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


def make_translator(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(**WORDS | TRANSFORMER | LAYERS | settings)
    initialise(model, "default")
    return model.eval()


def make_language_model(context: int, **settings: Any) -> TransformerLanguageModel:
    torch.manual_seed(0)
    model = TransformerLanguageModel(**LANGUAGE_MODEL | {"context": context} | settings)
    initialise(model, "default")
    return model.eval()


def split_heads(x: Tensor) -> Tensor:
    """Split vectors of 8 numbers into two heads of 4."""
    return x.view(*x.shape[:2], 2, 4).transpose(1, 2)


def attention_weights(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """Return the weights of scaled dot-product attention for heads of 4 numbers."""
    return (q @ k.mT / math.sqrt(4)).masked_fill(~visible, -math.inf).softmax(-1)


def test_self_attention_matches_the_paper() -> None:
    torch.manual_seed(0)
    attention, x = SelfAttention(8, 2), torch.randn(3, 5, 8)
    q, k, v = (split_heads(part) for part in attention.queries_keys_values(x).chunk(3, -1))
    alpha = attention_weights(q, k, torch.ones(5, 5, dtype=torch.bool).tril())
    expected = attention.output((alpha @ v).transpose(1, 2).flatten(2))
    output, cache = attention.causal(x, x.new_empty(3, 0, 16))
    assert torch.allclose(output, expected, atol=1e-6)
    first_part, cache_in_parts = attention.causal(x[:, :2], x.new_empty(3, 0, 16))
    second_part, cache_in_parts = attention.causal(x[:, 2:], cache_in_parts)
    assert torch.allclose(torch.cat([first_part, second_part], 1), expected, atol=1e-6)
    assert torch.allclose(cache_in_parts, cache)


def test_cross_attention_matches_the_paper() -> None:
    """Each source has two target rows; the output is the same whether or not the weights are returned."""
    torch.manual_seed(0)
    attention, x, source = CrossAttention(8, 2), torch.randn(6, 4, 8), torch.randn(3, 5, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
    keys_values = attention.keys_values(source)
    k, v = (split_heads(part).repeat_interleave(2, 0) for part in keys_values.chunk(2, -1))
    alpha = attention_weights(split_heads(attention.queries(x)), k, mask.repeat_interleave(2, 0)[:, None, None])
    expected = attention.output((alpha @ v).transpose(1, 2).flatten(2))
    output, weights = attention(x, keys_values, bias_of(mask, x), return_weights=True)
    assert torch.allclose(output, expected, atol=1e-6) and torch.allclose(weights, alpha.transpose(1, 2), atol=1e-6)
    assert torch.allclose(attention(x, keys_values, bias_of(mask, x), return_weights=False)[0], expected, atol=1e-6)


def test_sinusoids_have_the_values_of_the_paper() -> None:
    table = sinusoids(torch.arange(50), 6)
    assert table[7, 0] == pytest.approx(math.sin(7)) and table[7, 1] == pytest.approx(math.cos(7))
    assert table[40, 5] == pytest.approx(math.cos(40 / 10_000 ** (4 / 6)))


def test_attention_layer_and_head_choose_the_returned_weights() -> None:
    """Without a head, the mean of all heads is returned; without a layer, the last is used. Training returns none."""
    source, target = make_source(random_sentences(4, seed=1)), make_target(random_sentences(4, seed=2))[:, :-1]
    weights: dict[tuple[int | None, int | None], Tensor] = {}
    for layer in (None, 1, 2):
        for head in (None, 1, 2):
            attention = make_translator(attention_layer=layer, attention_head=head)(source, target).attention
            assert attention is not None
            weights[layer, head] = attention
    for layer in (1, 2):
        assert torch.allclose(weights[layer, None], (weights[layer, 1] + weights[layer, 2]) / 2)
    assert torch.equal(weights[None, 1], weights[2, 1]) and not torch.allclose(weights[1, 1], weights[2, 1])
    assert make_translator().train()(source, target).attention is None


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoids", "learnt", "none"])
def test_reading_in_pieces_equals_reading_at_once(norm: str, positions: str) -> None:
    """Pieces may have any size, and each token is predicted from at least half a window."""
    model, tokens = make_language_model(6, norm=norm, positions=positions), torch.randint(VOCABULARY, (2, 23))
    features_at_once = model(None, tokens).features
    for sizes in ([1] * 23, [5, 1, 9, 8], [6, 6, 6, 5], [23]):
        state, features = None, []
        for piece in tokens.split(sizes, 1):
            output = model(None, piece, state)
            state = output.state
            features.append(output.features)
        assert torch.allclose(torch.cat(features, 1), features_at_once, atol=1e-5)
    for t in range(6, 23):
        # the first token of t's window of 6, which begins with the second half of the previous window
        start = 3 * ((t - 3) // 3)
        window_features = model(None, tokens[:, start : t + 1]).features
        assert torch.allclose(window_features[:, -1], features_at_once[:, t], atol=1e-5)


@pytest.mark.parametrize("positions", ["sinusoids", "learnt", "none"])
def test_stepping_and_prefilling_equal_forward(positions: str) -> None:
    """`forward`, stepping and prefilling agree over several windows, and a row does not depend on the other rows."""
    model, tokens = make_language_model(6, positions=positions), torch.randint(VOCABULARY, (3, 20))
    output = model(None, tokens)
    expected_logits = model.project(output.features)
    _, initial_state = model.encode(None)
    stepped = prefilled = select(initial_state, torch.zeros(3, dtype=torch.int64))
    for t in range(20):
        logits, stepped, attention, _ = model.step((), stepped, tokens[:, t])
        assert attention is None and torch.allclose(logits, expected_logits[:, t], atol=1e-5)
    for piece in tokens.split([4, 1, 9, 6], 1):
        prefilled = model.prefill((), prefilled, piece).state
    for state in (stepped, prefilled):
        assert torch.equal(state.tokens, output.state.tokens)
        for layer, expected_layer in zip(state.cache.layers, output.state.cache.layers, strict=True):
            assert torch.allclose(layer, expected_layer, atol=1e-5)
    assert torch.allclose(model(None, tokens[1:2]).features, output.features[1:2], atol=1e-5)
    assert model.prefill((), stepped, tokens[:, :0])[0] is stepped


def test_a_training_target_that_fits_a_window_starts_from_an_empty_one() -> None:
    model, tokens = make_language_model(6).train(), torch.randint(VOCABULARY, (2, 12))
    first, second = tokens.split(6, 1)
    features_after_first = model(None, second, model(None, first).state).features
    assert torch.equal(features_after_first, model(None, second).features)


def test_every_position_of_a_window_is_trained() -> None:
    model, tokens = make_language_model(6).train(), torch.randint(4, VOCABULARY, (2, 7))
    model.loss(model(None, tokens[:, :-1]).features, tokens[:, 1:], 0.0).total.backward()
    gradient = model.decoder.words.position_embedding.weight.grad
    assert len(gradient) == 6 and (gradient.abs().sum(1) > 0).all()


def test_a_sequence_longer_than_its_learnt_positions_is_refused() -> None:
    model = make_translator(positions="learnt", longest=5)
    source, target = make_source([[5, 6, 7]]), make_target([[5] * 6])[:, :-1]
    with pytest.raises(InputError, match=r"longer than model\.longest=5"):
        model(source, target)


@pytest.mark.parametrize("positions", ["sinusoids", "learnt", "none"])
def test_without_positions_the_output_of_the_encoder_is_permuted_with_its_input(positions: str) -> None:
    """Padding stays where it is. With positions this is not so."""
    model, order = make_translator(positions=positions), torch.tensor([3, 0, 4, 2, 1])
    source = make_source([[5, 6, 7, 8], [9, 5]])
    permuted = make_source([[5, 6, 7, 8], [9, 5]])
    permuted.tokens[0] = source.tokens[0, order]
    h, permuted_h = model.annotate(source)[0], model.annotate(permuted)[0]
    assert torch.allclose(permuted_h[0], h[0, order], atol=1e-5) == (positions == "none")
    assert torch.allclose(permuted_h[1], h[1], atol=1e-5)
    target = make_target([[5, 6], [7, 8]])[:, :-1]
    features = [model(words, target).features for words in (source, permuted)]
    assert torch.allclose(*features, atol=1e-5) == (positions == "none")


@pytest.mark.parametrize(("layers", "sees_order"), [(1, False), (2, True)])
def test_the_mask_of_a_decoder_tells_a_second_layer_the_order(layers: int, sees_order: bool) -> None:
    """Without positions, the last token sees the tokens before it as a set in the first layer. In the second they
    differ by how many tokens they have seen themselves.
    """
    model = make_language_model(8, layers=layers, positions="none")
    features = [model(None, torch.tensor([tokens])).features[0, -1] for tokens in ([5, 6, 7, 8, 9], [8, 6, 5, 7, 9])]
    assert torch.allclose(*features, atol=1e-5) != sees_order


def test_only_learnt_positions_limit_the_length_of_decoding() -> None:
    assert make_translator(positions="learnt", longest=7).max_positions == 7
    assert make_translator(longest=7).max_positions is None


@pytest.mark.parametrize("scheme", ["default", "bahdanau2015", "sutskever2014"])
def test_initialisation_leaves_layer_normalisation_unchanged(scheme: str) -> None:
    model = make_translator()
    initialise(model, scheme)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert norms and all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_transformer_learns_to_reverse_sequences(norm: str) -> None:
    """Greedy search must reverse at least 254 of the 256 training sequences exactly."""
    torch.manual_seed(0)
    sizes = {"width": 32, "feed_forward": 64, "source_vocabulary": 12, "target_vocabulary": 12}
    model = Transformer(**WORDS | TRANSFORMER | LAYERS | sizes | {"norm": norm})
    initialise(model, "default")
    sentences = [[4 + int(i) for i in torch.randint(8, (int(n),))] for n in torch.randint(3, 7, (256,))]
    batches = [sentences[i : i + 64] for i in range(0, 256, 64)]
    pairs = [(make_source(batch), make_target([sentence[::-1] for sentence in batch])) for batch in batches]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003, betas=(0.9, 0.98))
    for step in range(320):
        source, target = pairs[step % 4]
        optimiser.zero_grad()
        model.loss(model(source, target[:, :-1]).features, target[:, 1:], 0.0).total.backward()
        optimiser.step()
    model.eval()
    hypotheses = beam_search(
        model.step,
        *model.encode(make_source(sentences)),
        beam=1,
        maximum=[10] * 256,
        n_best=1,
        penalty=lambda length: length,
        coverage=0.0,
        keep_attention=False,
    )
    pairs_to_compare = zip(hypotheses, sentences, strict=True)
    correct_count = sum(n_best[0].tokens == sentence[::-1] for n_best, sentence in pairs_to_compare)
    assert correct_count >= 254


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "middle"}, "Unknown model.norm 'middle'"),
        ({"positions": "no"}, "Unknown model.positions 'no'"),
        ({"heads": 3}, "multiple of twice model.heads"),
        ({"attention_layer": 3}, "model.attention_layer must be from 1 to 2"),
        ({"attention_head": 0}, "model.attention_head must be from 1 to 2"),
        ({"tie": "both"}, "Unknown model.tie"),
    ],
)
def test_invalid_model_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_translator(**settings)


def test_an_excessive_window_is_refused_as_model_context() -> None:
    with pytest.raises(InputError, match=r"model\.context must be"):
        make_language_model(2_000_000)


def test_the_cost_of_a_token_grows_linearly_while_decoding() -> None:
    """Up to 500 tokens, each new token adds one key and one value per layer, and a constant number of operations."""
    model = make_translator(longest=600)
    memory, state = model.encode(make_source([[5, 6, 7, 8]]))
    operations, cache_sizes = {}, {}
    for t in range(1, 501):
        counting = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) if t in (2, 3, 500) else nullcontext()
        with counting as counter:
            state = model.step(memory, state, torch.tensor([4 + t % 7])).state
        if counter is not None:
            operations[t] = counter.get_total_flops()
            cache_sizes[t] = sum(layer.numel() for layer in state.layers)
    assert cache_sizes[500] == 500 * 2 * 2 * 8  # two layers, keys and values of 8 numbers
    growth = operations[3] - operations[2]
    assert growth > 0 and operations[500] == operations[2] + 498 * growth
