"""Tests of laws that every model obeys."""

from typing import Any

import pytest
import torch
from small_models import BAHDANAU, LUONG, MODELS, SUTSKEVER, make_model, random_sentences

from seqtool.data.batches import make_source, make_target
from seqtool.errors import InputError
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.contract import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.models.inputs import Source
from seqtool.models.luong import Luong
from seqtool.models.sutskever import Sutskever
from seqtool.models.tokens import EOS

Model = EncoderDecoder[Any]


def test_forward_equals_stepping(model: Model) -> None:
    source = make_source(random_sentences(5, seed=1))
    target = make_target(random_sentences(5, seed=2))[:, :-1]
    output = model(source, target)
    logits = model.project(output.features)
    memory, state = model.encode(source)
    for t, token in enumerate(target.T):
        step = model.step(memory, state, token)
        state = step.state
        assert torch.allclose(step.logits, logits[:, t], atol=1e-5, rtol=1e-4)
        if output.attention is not None:
            assert torch.allclose(step.attention, output.attention[:, t], atol=1e-5, rtol=1e-4)


def test_padding_changes_nothing(model: Model) -> None:
    """Outputs are equal bit for bit for any padding of one width, and up to rounding for wider padding."""
    sentences = random_sentences(6, seed=3)
    source, target = make_source(sentences), make_target(random_sentences(6, seed=4))[:, :-1]
    expected = model(source, target).features
    noisy = torch.where(source.mask, source.tokens, torch.full_like(source.tokens, 7))
    assert torch.equal(model(Source(noisy, source.lengths), target).features, expected)
    wider = torch.cat([source.tokens, torch.zeros(6, 5, dtype=torch.int64)], 1)
    assert torch.allclose(model(Source(wider, source.lengths), target).features, expected, atol=1e-5, rtol=1e-4)


def test_permuting_the_batch_permutes_the_output(model: Model) -> None:
    source, target = (
        make_source(random_sentences(6, seed=5)),
        make_target(random_sentences(6, seed=6))[:, :-1],
    )
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = model(Source(source.tokens[order], source.lengths[order]), target[order]).features
    assert torch.allclose(permuted, model(source, target).features[order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("sutskever")])
def test_attention_is_a_distribution_over_real_positions(name: str) -> None:
    source, target = (
        make_source(random_sentences(6, seed=7)),
        make_target(random_sentences(6, seed=8))[:, :-1],
    )
    alpha = make_model(name)(source, target).attention
    assert alpha is not None and alpha.shape == (6, target.shape[1], source.tokens.shape[1])
    assert torch.allclose(alpha.sum(-1), torch.ones(alpha.shape[:2]))
    assert (alpha * ~source.mask[:, None] == 0).all()
    assert (alpha[:, 0] - alpha[:, 1]).abs().max() > 1e-4, "attention depends on the state"


def test_bahdanau_attends_with_the_state_before_the_update() -> None:
    """Bahdanau's first alignment depends only on the source; Luong's depends on the first word as well."""
    source = make_source(random_sentences(2, seed=9))
    equal_words, different_words = torch.tensor([[4], [4]]), torch.tensor([[5], [6]])
    bahdanau, luong = make_model("bahdanau-gru"), make_model("luong")
    assert torch.equal(bahdanau(source, equal_words).attention, bahdanau(source, different_words).attention)
    luong_attention = luong(source, equal_words).attention
    assert not torch.allclose(luong_attention, luong(source, different_words).attention, atol=1e-4)


def test_sutskever_reads_in_reverse() -> None:
    """The model gives what a forward model gives for reversed words; <eos> stays last."""
    backward, forward = (Sutskever(**SUTSKEVER | {"reverse": reverse}) for reverse in (True, False))
    forward.load_state_dict(backward.state_dict())
    sentences = random_sentences(4, seed=10)
    target = make_target(random_sentences(4, seed=11))[:, :-1]
    reversed_sentences = make_source([sentence[::-1] for sentence in sentences])
    assert all(row[length - 1] == EOS for row, length in zip(*token_rows_and_lengths(reversed_sentences), strict=True))
    assert torch.equal(backward(make_source(sentences), target).features, forward(reversed_sentences, target).features)


def test_every_parameter_gets_a_gradient(model: Model) -> None:
    output = model(make_source(random_sentences(5, seed=12)), make_target(random_sentences(5, seed=13))[:, :-1])
    model.project(output.features).square().sum().backward()
    names = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not names


def test_tied_layers_share_one_matrix() -> None:
    model = Bahdanau(**BAHDANAU | {"tie": "all"})
    assert model.output.weight is model.target_embedding.weight is model.source_embedding.weight
    model = Bahdanau(**BAHDANAU | {"tie": "output", "source_vocabulary": 5})
    assert model.output.weight is model.target_embedding.weight
    with pytest.raises(InputError, match=r"model.tie=all needs one vocabulary .* have 5 and 11 entries"):
        Bahdanau(**BAHDANAU | {"tie": "all", "source_vocabulary": 5})
    with pytest.raises(InputError, match=r"model.tie=output needs the output features to be .* are 7 and 6"):
        Sutskever(**SUTSKEVER | {"tie": "output"})
    with pytest.raises(InputError, match=r"^Unknown model.tie 'both'; choose from none, output, all\.$"):
        Luong(**LUONG | {"tie": "both"})


def test_unusable_scores_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"^Unknown score 'bilinear'; choose from additive, dot, general, scaled_dot\.$"
    ):
        Bahdanau(**BAHDANAU | {"score": "bilinear"})
    with pytest.raises(InputError, match=r"need states and annotation vectors of one size, but they have 7 and 8 "):
        Bahdanau(**BAHDANAU | {"score": "dot", "decoder_hidden": 7})


@pytest.mark.parametrize("name", ["default", "sutskever2014", "bahdanau2015"])
def test_initialisations_have_their_distributions(name: str) -> None:
    torch.manual_seed(0)
    model = Bahdanau(**BAHDANAU | {"embedding": 60, "decoder_hidden": 50, "alignment": 40})
    initialise(model, name)
    score = model.attention.score
    recurrent = model.cell.recurrent.weight[:50]
    if name == "sutskever2014":
        assert all(parameter.abs().max() <= 0.08 for parameter in model.parameters())
        assert float(model.output.weight.detach().std()) == pytest.approx(0.08 / 3**0.5, rel=0.1)
    else:
        assert torch.allclose(recurrent @ recurrent.T, torch.eye(50), atol=1e-5, rtol=1e-4)
    if name == "bahdanau2015":
        assert score.v.weight.abs().max() == 0
        assert float(score.W.weight.detach().std()) == pytest.approx(0.001, rel=0.1)
        assert float(model.cell_word.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    with pytest.raises(InputError, match=r"^Unknown initialisation 'x'; choose from default, sutskever2014"):
        initialise(model, "x")


def token_rows_and_lengths(source: Source) -> tuple[list[list[int]], list[int]]:
    return source.tokens.tolist(), source.lengths.tolist()
