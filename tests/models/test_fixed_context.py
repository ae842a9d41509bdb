"""Tests of the ways to summarise a source in one vector, and to pass it to the decoder."""

import pytest
import torch
from small_models import MODELS, SHOW_TELL, SUTSKEVER, make_captioner, make_model, random_images, random_sentences
from torch import Tensor

from seqtool.data.batches import make_source
from seqtool.errors import InputError
from seqtool.models.inputs import Annotations
from seqtool.models.show_tell import ShowTell
from seqtool.models.sutskever import Sutskever

BOS = 2


def encode_reversed(model: Sutskever) -> tuple[Tensor, list[int]]:
    """Return the top layer's outputs for sentences whose words are read in reverse, and the sentences' lengths."""
    source = make_source(sentences := random_sentences(4, seed=1))
    backwards = make_source([ids[::-1] for ids in sentences])
    x = model.source_embedding(backwards.tokens)
    return model.encoder(x, source.lengths).annotations, source.lengths.tolist()


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("sutskever-")])
def test_a_sentence_is_summarised_in_one_vector(name: str) -> None:
    model = make_model(name)
    assert isinstance(model, Sutskever)
    if not model.reverse:
        return
    h, lengths = encode_reversed(model)
    summaries = {
        "last": [h[i, length - 1] for i, length in enumerate(lengths)],
        "mean": [h[i, :length].mean(0) for i, length in enumerate(lengths)],
        "max": [h[i, :length].amax(0) for i, length in enumerate(lengths)],
    }
    c = torch.stack(summaries[model.summary])
    memory, state = model.encode(make_source(random_sentences(4, seed=1)))
    if model.context == "initial_state":
        assert memory.values.shape == (4, 1, 0)
    else:
        assert torch.allclose(memory.values[:, 0], c, atol=1e-6)
    first = torch.cat([tensor for layer in state.layers for tensor in layer], -1)
    if model.context == "every_step":
        assert not first.any()
    elif model.summary == "last":
        assert torch.allclose(state.top, c, atol=1e-6)
    else:
        assert model.initial is not None
        assert torch.allclose(first, torch.tanh(c @ model.initial.weight.T + model.initial.bias), atol=1e-6)


def test_a_context_at_every_step_enters_the_lowest_layer() -> None:
    """The cell of the lowest layer reads W_ih [y, c]."""
    model = make_model("sutskever-every_step-last")
    assert isinstance(model, Sutskever)
    memory, state = model.encode(make_source(random_sentences(4, seed=1)))
    tokens = torch.full((4,), BOS)
    x = torch.cat([model.target_embedding(tokens), memory.values[:, 0]], -1)
    for recurrence, old in zip(model.decoder, state.layers, strict=True):
        x = recurrence.cell(x @ recurrence.input.weight.T + recurrence.input.bias, old)[0]
    assert torch.allclose(model.step(memory, state, tokens).logits, model.output(x), atol=1e-6)


def test_an_image_is_summarised_by_its_mean_or_maximum() -> None:
    images = random_images(3, seed=2)
    for name, a in (
        ("show_tell-every_step", images.values.float().mean(1)),
        ("show_tell-both-max", images.values.float().amax(1)),
    ):
        model = make_captioner(name)
        assert isinstance(model, ShowTell)
        memory, state = model.encode(images)
        v = model.image(a)
        assert torch.allclose(memory.values[:, 0], v, atol=1e-5)
        first = torch.cat([tensor for layer in state.layers for tensor in layer], -1)
        assert first.any() == (model.initial is not None)
        if model.initial is not None:
            assert torch.allclose(first, torch.tanh(model.initial(v)), atol=1e-5)


def test_mean_and_maximum_of_one_vector_are_equal() -> None:
    vector = Annotations(random_images(2, seed=3).values[:, :1])
    mean_model, maximum_model = (make_captioner("show_tell-first_step") for _ in range(2))
    assert isinstance(maximum_model, ShowTell)
    maximum_model.summary = "max"
    assert torch.equal(mean_model.encode(vector)[1].top, maximum_model.encode(vector)[1].top)


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(InputError, match=r"^Unknown model.context 'all'; choose from initial_state, every_step"):
        Sutskever(**SUTSKEVER | {"context": "all"})
    with pytest.raises(InputError, match=r"^Unknown model.summary 'sum'; choose from last, mean, max\.$"):
        Sutskever(**SUTSKEVER | {"summary": "sum"})
    with pytest.raises(InputError, match=r"^Unknown model.summary 'last'; choose from mean, max\.$"):
        ShowTell(**SHOW_TELL | {"summary": "last"})
