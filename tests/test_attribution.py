"""Tests of attributions: they obey the laws of their methods for every family, and find what a model uses."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import (
    BAHDANAU,
    CAPTIONERS,
    DIMENSION,
    LOCATIONS,
    TRANSFORMER,
    VOCABULARY,
    make_captioner,
    make_model,
)
from torch import Tensor, nn

import seqtool
from seqtool.cli import main as cli
from seqtool.data.corpora.scene_drawing import Item, Scene, render
from seqtool.data.text.vocabulary import Form, WordVocabulary
from seqtool.errors import InputError
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.contract import EncoderDecoder, Memory, Output, Step
from seqtool.models.initialisation import initialise
from seqtool.models.inputs import Annotations, Source
from seqtool.models.language_model import LanguageModel
from seqtool.models.tokens import BOS, EOS
from seqtool.models.transformer import TransformerLanguageModel
from seqtool.predict import attribution
from seqtool.predict.attribution import METHODS, Attribution
from seqtool.predict.predictor import EncodedText
from seqtool.predict.trace import Example
from seqtool.runtime.files import config_directory

WORDS = WordVocabulary([f"▁{letter}" for letter in "abcdefg"], Form("word", "none", False))
assert len(WORDS) == VOCABULARY
SENTENCE, TEXT = [4, 9, 6, 7], [10, 5, 8]  # distinct words, so that a word is a position
WINDOW = {**TRANSFORMER, "context": 2, "layers": 1}  # the second half of a full window is read again
LANGUAGE_MODELS: dict[str, Callable[[], EncoderDecoder[Any]]] = {
    "lstm": lambda: LanguageModel(
        target_vocabulary=VOCABULARY, embedding=6, hidden=8, layers=2, cell="lstm", dropout=0.0, tie="none"
    ),
    "window": lambda: TransformerLanguageModel(
        target_vocabulary=VOCABULARY,
        tie="output",
        dropout=0.0,
        **{
            name: value
            for name, value in WINDOW.items()
            if name not in ("longest", "attention_layer", "attention_head")
        },
    ),
}
TRANSLATORS = ["bahdanau-gru_cho", "luong", "sutskever-lstm", "sutskever-both-mean", "transformer", "transformer-post"]
SHOWN = ["show_tell-first_step", "show_attend_tell-soft", "show_attend_tell-no-gate", "transformer-captioner"]
OTHERS = {"tied": lambda: Bahdanau(**BAHDANAU | {"tie": "all"}), **LANGUAGE_MODELS}  # tied: one matrix for all words
FAMILIES = [*TRANSLATORS, *SHOWN, *OTHERS]


def text(ids: list[int] = TEXT) -> EncodedText:
    return EncodedText(WORDS.decode(ids), ids, WORDS)


def case(name: str, scale: float = 2.0) -> tuple[EncoderDecoder[Any], Tensor | None]:
    """A model in double precision, and the source that it reads."""
    if name in CAPTIONERS:
        values = torch.randn(LOCATIONS, DIMENSION, generator=torch.Generator().manual_seed(0))
        return make_captioner(name, scale=scale).double(), values.double()
    source = None if name in LANGUAGE_MODELS else torch.tensor([*SENTENCE, EOS])
    if name in TRANSLATORS:
        return make_model(name, scale=scale).double(), source
    torch.manual_seed(0)
    model = OTHERS[name]()
    initialise(model, "default")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model.double().eval(), source


def log_p(model: EncoderDecoder[Any], source: Tensor | None, ids: list[int] = TEXT) -> Tensor:
    """The log-probabilities of a text's tokens and, unless the model is a language model, of EOS."""
    labels: list[int] = [*ids, EOS]
    model_input: Any = None
    if source is None:
        labels = ids
    elif source.is_floating_point():
        model_input = Annotations(source[None])
    else:
        model_input = Source(source[None], torch.tensor([len(source)]))
    with torch.no_grad():
        output = model(model_input, torch.tensor([[BOS, *ids]])[:, : len(labels)])
        return model.project(output.features[0]).log_softmax(-1)[range(len(labels)), labels]


@contextmanager
def changed_words(embedding: nn.Embedding, change: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Change embedded words by a function of ids and vectors."""
    with embedding.register_forward_hook(lambda _, arguments, vectors: change(arguments[0], vectors)):
        yield


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_equal_finite_differences(name: str) -> None:
    """Gradient × input is the derivative with respect to a factor of a word's or location's vector."""
    model, source = case(name)
    found, h = Attribution.of(model, Example(text(), source), "gradient"), 1e-6
    assert np.allclose(found.explained, log_p(model, source))

    def scaled(side: str, j: int, factor: float) -> Tensor:
        if side == "source" and source is not None and source.is_floating_point():
            return log_p(model, torch.cat([source[:j], factor * source[j : j + 1], source[j + 1 :]]))
        ids, embedding = [BOS, *TEXT], model.target_embedding
        if side == "source" and source is not None:
            ids, embedding = source.tolist(), model.source_embedding

        def change(tokens: Tensor, vectors: Tensor) -> Tensor:
            return torch.where((tokens == ids[j])[..., None], factor * vectors, vectors)

        with changed_words(embedding, change):
            return log_p(model, source)

    for side, values in (("source", found.source), ("target", found.prefix)):
        assert (values is None) == (side == "source" and source is None)
        for j, column in enumerate([] if values is None else values.T):
            expected = (scaled(side, j, 1 + h) - scaled(side, j, 1 - h)) / (2 * h)
            assert np.allclose(column, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_integrated_gradients_add_up(name: str) -> None:
    """They add up to the difference from a text of mean words and an image of mean annotation vectors."""
    model, source = case(name, scale=0.5)  # with large weights, the gradient jumps, and many more steps are needed
    found = Attribution.of(model, Example(text(), source), "integrated", steps=128)

    def mean_words(embedding: nn.Embedding) -> Any:
        return changed_words(embedding, lambda _, vectors: embedding.weight.mean(0).expand_as(vectors))

    with ExitStack() as stack:
        stack.enter_context(mean_words(model.target_embedding))
        if source is not None and source.is_floating_point():
            source = source.mean(0).expand_as(source)
        elif source is not None:
            stack.enter_context(mean_words(model.source_embedding))
        baseline = log_p(model, source)
    total = sum(values.sum(1) for values in (found.source, found.prefix) if values is not None)
    assert found.baseline is not None and np.allclose(found.baseline, baseline)
    assert np.allclose(total, found.explained - found.baseline, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_occlusion_equals_forced_decoding_without_the_token(name: str) -> None:
    model, source = case(name)
    found: Any = Attribution.of(model, Example(text(), source), "occlusion")
    whole = log_p(model, source)
    assert found.prefix is not None and np.isnan(found.prefix[0, 0])
    for j in range(len(TEXT)):
        shorter = log_p(model, source, TEXT[:j] + TEXT[j + 1 :])
        expected = np.zeros(len(whole))
        expected[j + 1 :] = (whole[j + 1 :] - shorter[j:]).numpy()
        if j + 1 < len(whole):
            assert np.allclose(found.prefix[:, j + 1], expected)
    if source is None:
        assert found.source is None
    elif source.is_floating_point():
        for j in range(len(source)):
            hidden = source.clone()
            hidden[j] = source.mean(0)
            assert np.allclose(found.source[:, j], whole - log_p(model, hidden))
    else:
        for j in range(len(SENTENCE)):
            shorter_source = torch.tensor([*SENTENCE[:j], *SENTENCE[j + 1 :], EOS])
            assert np.allclose(found.source[:, j], whole - log_p(model, shorter_source))
        assert np.isnan(found.source[:, -1]).all()


@pytest.mark.parametrize("method", ["gradient", "integrated", "occlusion"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_contrast_is_the_difference_of_two_texts(name: str, method: str) -> None:
    """Why b and not d at position 1: the attribution to b minus that to d, after the same beginning."""
    model, source = case(name)
    found = Attribution.of(model, Example(text([10, 5, 8]), source), method, {1: "d"}, steps=4)
    one, other = (Attribution.of(model, Example(text([10, id_, 8]), source), method, steps=4) for id_ in (5, 7))
    assert found.contrast == {1: "▁d"}
    for array in ("explained", "baseline", "source", "prefix"):
        values, first, second = (getattr(each, array) for each in (found, one, other))
        if values is not None:
            assert np.allclose(values[1], first[1] - second[1], equal_nan=True)
            assert np.allclose(values[0], first[0], equal_nan=True)  # no contrast here


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_are_read_together_do_not_change_each_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = case(name)
    for method in ("integrated", "occlusion"):
        together = Attribution.of(model, Example(text(), source), method, steps=5)
        monkeypatch.setattr(attribution, "ROWS", 2)
        apart = Attribution.of(model, Example(text(), source), method, steps=5)
        monkeypatch.undo()
        for array in ("source", "prefix"):
            if getattr(together, array) is not None:
                assert np.allclose(getattr(together, array), getattr(apart, array), equal_nan=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_is_left_as_it_was(name: str) -> None:
    model, source = case(name)
    before, modules = {name: value.clone() for name, value in model.state_dict().items()}, [*model.modules()]
    for method in METHODS if model.attends else ("gradient", "integrated", "occlusion"):
        Attribution.of(model, Example(text(), source), method, steps=2)
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(value, after[key]) for key, value in before.items())
    assert all(parameter.grad is None and parameter.is_leaf for parameter in model.parameters())
    assert modules == [*model.modules()] and not any(module._forward_hooks for module in modules)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["luong", "transformer-captioner", "window"])
def test_a_gpu_gives_the_same_attributions(name: str) -> None:
    model, source = case(name, scale=0.5)
    model, source = model.float(), source if source is None or name == "luong" else source.float()
    for method in METHODS if model.attends else ("gradient", "integrated", "occlusion"):
        on_cpu = Attribution.of(model.cpu(), Example(text(), source), method, steps=2)
        on_gpu = Attribution.of(
            model.cuda(), Example(text(), None if source is None else source.cuda()), method, steps=2
        )
        for array in ("source", "prefix"):
            if getattr(on_cpu, array) is not None:
                assert np.allclose(getattr(on_gpu, array), getattr(on_cpu, array), atol=1e-4, equal_nan=True)


class Pointer(EncoderDecoder[Tensor]):
    """A model that looks at one word of the source, the last, and at one word of the text, the first. With `copies`, it
    also makes the words of the source likelier.
    """

    task = "translation"
    attends = True

    def __init__(self, *, copies: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.copies = copies
        self.source_embedding, self.target_embedding = (nn.Embedding(VOCABULARY, 6, padding_idx=0) for _ in range(2))
        self.output = nn.Linear(6 + VOCABULARY, VOCABULARY)

    def encode(self, source: Source) -> tuple[Memory, Tensor]:
        words = self.source_embedding(source.tokens)
        copied = nn.functional.one_hot(source.tokens % VOCABULARY, VOCABULARY).sum(1) * float(self.copies)
        return Memory(words, words[..., :0], source.mask), copied.to(words)

    def step(self, memory: Memory, state: Tensor, token: Tensor) -> Step[Tensor]:
        raise NotImplementedError

    def forward(self, source: Source, target: Tensor, state: Tensor | None = None) -> Output:
        memory, copied = self.encode(source)
        alpha = torch.zeros(len(target), target.shape[1], source.tokens.shape[1])
        alpha[range(len(target)), :, source.lengths - 2] = 1
        x = alpha.to(memory.values) @ memory.values
        first_word = self.target_embedding(target)[:, 1:2] * (torch.arange(target.shape[1]) > 0)[:, None]
        x = x + first_word if first_word.shape[1] else x
        return Output(torch.cat([x, copied[:, None].expand(*x.shape[:2], -1)], -1), alpha, copied)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_model_uses_is_found(method: str) -> None:
    """Only the last word of the source and the first of the text count. `padding_idx` hides no gradient."""
    found = Attribution.of(Pointer().eval(), Example(text(), torch.tensor([*SENTENCE, EOS])), method)
    used = np.zeros((4, 5), bool)
    used[:, 3] = True
    assert found.source is not None
    source = np.nan_to_num(found.source)
    assert (source[used] != 0).all() and np.allclose(source[~used], 0, atol=1e-6)
    if method != "attention":
        used = np.zeros((4, 4), bool)
        used[1:, 1] = True
        assert found.prefix is not None
        prefix = np.nan_to_num(found.prefix)
        assert (prefix[used] != 0).all() and np.allclose(prefix[~used], 0, atol=1e-6)


def test_a_model_that_uses_words_otherwise_is_refused() -> None:
    """Gradients would miss what a word does as an id; occlusion does not."""
    model, source = Pointer(copies=True).eval(), torch.tensor([*SENTENCE, EOS])
    for method in ("gradient", "integrated"):
        with pytest.raises(InputError, match=r"^Pointer does not read words by their embeddings alone: choose the"):
            Attribution.of(model, Example(text(), source), method)
    found = Attribution.of(model, Example(text(), source), "occlusion")
    assert found.source is not None and (found.source[:, :-1] != 0).all()


def test_attention_is_that_of_the_model() -> None:
    model, source = case("transformer")
    found = Attribution.of(model, Example(text(), source), "attention")
    with torch.no_grad():
        output = model(Source(torch.tensor([[*SENTENCE, EOS]]), torch.tensor([5])), torch.tensor([[BOS, *TEXT]]))
    assert output.attention is not None and found.source is not None and found.prefix is None
    assert np.allclose(found.source, output.attention[0]) and np.allclose(found.source.sum(1), 1)


def test_a_source_without_words_and_a_text_of_one_token() -> None:
    cases: list[tuple[str, list[int]]] = [("luong", []), ("lstm", [5])]
    for name, ids in cases:
        model, source = case(name)
        source = None if source is None else torch.tensor([EOS])
        for method in ("gradient", "integrated", "occlusion"):
            found = Attribution.of(model, Example(text(ids), source), method, steps=2)
            assert found.explained.shape == (1,) and found.prefix is not None and found.prefix.shape == (1, 1)


@pytest.mark.parametrize(
    ("name", "method", "contrast", "message"),
    [
        (
            "luong",
            "saliency",
            None,
            "Unknown method 'saliency'; choose from gradient, integrated, occlusion, attention.",
        ),
        (
            "lstm",
            "attention",
            None,
            "LanguageModel does not attend to a source: choose from gradient, integrated, occlu",
        ),
        (
            "sutskever-lstm",
            "attention",
            None,
            "Sutskever does not attend to a source: choose from gradient, integrated",
        ),
        ("luong", "attention", {0: "a"}, "Attention has no contrast, since it is the same for every next token: leave"),
        ("luong", "gradient", {4: "a"}, "contrast names token 4, but the tokens are numbered from 0 to 3."),
        ("luong", "gradient", {-1: "a"}, "contrast names token -1, but the tokens are numbered from 0 to 3."),
        ("luong", "gradient", {0: "zebra"}, "contrast names 'zebra', which is not a piece of the vocabulary."),
        ("lstm", "gradient", {0: "<end>"}, "contrast names '<end>', which is not a piece of the vocabulary."),
    ],
)
def test_impossible_questions(name: str, method: str, contrast: dict[int, str] | None, message: str) -> None:
    model, source = case(name)
    with pytest.raises(InputError, match="^" + re.escape(message)):
        Attribution.of(model, Example(text(), source), method, contrast)


def test_nothing_to_explain() -> None:
    model, _ = case("lstm")
    with pytest.raises(InputError, match=r"^The text is empty: there is no token to explain\.$"):
        Attribution.of(model, Example(text([])), "gradient")
    with pytest.raises(InputError, match=r"^steps must be at least 1, not 0\.$"):
        Attribution.of(model, Example(text()), "integrated", steps=0)


def test_the_end_is_a_contrast_too() -> None:
    model, source = case("luong")
    found = Attribution.of(model, Example(text(), source), "gradient", {1: "<end>"})
    whole = log_p(model, source)
    assert found.contrast == {1: "<end>"} and found.tokens[-1] == "<end>"
    assert np.isclose(found.explained[1], whole[1] - log_p(model, source, TEXT[:1])[1])


def test_words_are_sums_over_pieces() -> None:
    """Pieces of "ab c" are explained for the source "de f"; white space at the end of a text belongs to no word."""
    form = Form("bpe", "none", False)
    source_text, target = (
        EncodedText(*pair, WordVocabulary([], form)) for pair in (("de f", [4, 5]), ("ab c", [6, 7]))
    )
    source_text.all_pieces, target.all_pieces = ["▁d", "e", "▁f"], ["▁a", "b", "▁c"]
    found = Attribution(
        Example(target, source_text=source_text),
        "occlusion",
        ["▁a", "b", "▁c", "<end>"],
        ["<begin>", "▁a", "b", "▁c"],
        explained=np.array([1.0, 2, 4, 8]),
        contrast={2: "▁x"},
        source=np.array([[1, 2, 3, np.nan], [10, 20, 30, np.nan], [4, 4, 4, np.nan], [0, 1, 0, np.nan]]),
        prefix=np.array([[np.nan, 0, 0, 0], [np.nan, 5, 0, 0], [np.nan, 6, 7, 0], [np.nan, 8, 8, 9]]),
        source_tokens=["▁d", "e", "▁f", "<end>"],
    )
    words = found.by_word()
    assert (words.tokens, words.read) == (["ab", "c", "<end>"], ["<begin>", "ab", "c"])
    assert words.source_tokens == ["de", "f", "<end>"] and words.contrast == {1: "▁x"}
    assert words.record() == {
        "method": "occlusion",
        "tokens": ["ab", "c", "<end>"],
        "read": ["<begin>", "ab", "c"],
        "contrast": [None, "▁x", None],
        "source_tokens": ["de", "f", "<end>"],
        "explained": [3, 4, 8],
        "source": [[33, 33, None], [8, 4, None], [1, 0, None]],
        "prefix": [[None, 5, 0], [None, 13, 0], [None, 16, 9]],
    }
    weights: Any = replace(found, method="attention", prefix=None).by_word().source
    assert np.array_equal(weights[:, :2], np.array([[16.5, 16.5], [8, 4], [1, 0]]))
    spaced = EncodedText("ab ", [6, 7, 8], WordVocabulary([], form))
    spaced.all_pieces = ["▁a", "b", "▁"]
    tokens, ones = [*spaced.all_pieces, "<end>"], np.ones((4, 4))
    found = Attribution(Example(spaced), "gradient", tokens, ["<begin>", *spaced.all_pieces], ones[0], {}, prefix=ones)
    assert np.array_equal(found.by_word().prefix, [[2, 4], [1, 2]])  # type: ignore[arg-type]


def test_a_translator_explains_its_words(tmp_path: Path) -> None:
    """The built-in translator looks at the right words, also to choose between two genders."""
    translator: Any = seqtool.load("builtin/words", device="cpu")
    source, target = "The small dog sees the old house.", "El perro pequeño ve la casa vieja."
    for method in METHODS:
        found = translator.attribute(source, method=method, steps=16)
        words = found.by_word()
        assert words.tokens == ["El", "perro", "pequeño", "ve", "la", "casa", "vieja.", "<end>"]
        assert words.source_tokens == [*source.split(), "<end>"] and words.source is not None
        best = dict(zip(words.tokens, np.nanargmax(words.source, 1), strict=True))
        assert [best[word] for word in ("perro", "pequeño", "casa", "vieja.")] == [2, 1, 6, 5], method
        for each in (found, words):
            json.dumps(each.record(), allow_nan=False)
    why = translator.attribute(source, target, method="occlusion", contrast={5: "el"})
    assert why.tokens[5] == "▁la" and why.contrast == {5: "el"} and why.source is not None
    assert why.source_tokens is not None and why.source_tokens[int(np.nanargmax(why.source[5]))] == "▁house"
    rest = np.delete(why.explained, 5)
    assert np.allclose(rest, np.delete(translator.forced([source], [target])[0].log_probabilities, 5), atol=1e-4)
    why.plot(tmp_path / "why.png")
    with pytest.raises(InputError, match=r"^Only one model can be looked into, not an ensemble: name one run"):
        seqtool.load(["builtin/words"] * 2, device="cpu").attribute(source, target)


def test_a_captioner_explains_where_it_looks(tmp_path: Path) -> None:
    captioner: Any = seqtool.load("builtin/soft", device="cpu")
    scene = Scene(
        (Item("circle", "blue", "small", 0, (14, 2, 27, 15)), Item("triangle", "green", "large", 6, (22, 39, 40, 56))),
        1,
    )
    image = np.asarray(render(scene))
    found = captioner.attribute(image, "a blue circle above a green triangle", steps=8)
    assert found.source is not None and found.example.grid == (8, 8)
    for token, (left, top, right, bottom) in (("▁circle", scene.items[0].box), ("▁triangle", scene.items[1].box)):
        row, column = divmod(int(found.source[found.tokens.index(token)].argmax()), 8)
        assert left - 8 <= 8 * column + 4 <= right + 8 and top - 8 <= 8 * row + 4 <= bottom + 8
    found.by_word().plot(tmp_path / "caption.png")
    attention = captioner.attribute(image, method="attention")
    assert attention.source is not None and attention.prefix is None
    assert json.loads(json.dumps(attention.record(), allow_nan=False))["grid"] == [8, 8]


def test_a_generator_explains_its_letters(tmp_path: Path) -> None:
    generator: Any = seqtool.load("builtin/text", device="cpu")
    text_ = "The cat sees\nthe dog"
    found = generator.attribute(text_, method="gradient")
    assert found.source is None and found.tokens == list(text_.replace(" ", "▁"))
    assert np.allclose(found.explained, generator.forced(None, [text_])[0].log_probabilities, atol=1e-4)
    words = found.by_word()
    assert words.tokens == text_.split() and words.read == ["<begin>", *text_.split()]
    assert found.prefix is not None and words.prefix is not None
    assert words.prefix.shape == (5, 6) and np.isclose(words.prefix.sum(), found.prefix.sum())
    words.plot(tmp_path / "words.png")


def test_a_contrast_of_words_is_that_of_their_first_different_pieces() -> None:
    """Only whole words of the text count, whatever mark follows them."""
    translator: Any = seqtool.load("builtin/words", device="cpu")
    source, target = "I have a house.", "Tengo una casa."
    found = translator.attribute(source, target, method="occlusion", contrast="Tengo/Tenga")
    same = translator.attribute(source, target, method="occlusion", contrast={3: "a"})
    assert found.tokens[:4] == ["▁Te", "n", "g", "o"] and (found.contrast, same.contrast) == ({3: "Tenga"}, {3: "a"})
    assert np.allclose(found.explained, same.explained) and np.allclose(found.source, same.source, equal_nan=True)
    assert [*translator.attribute(source, target, method="gradient", contrast="casa/camisa").contrast] == [
        found.tokens.index("▁casa")
    ]
    assert not translator.attribute(source, target, method="gradient", contrast="perro/gato").contrast
    source, target = "A house is old.", "Una casa es vieja."  # Un a casa, not Un casa
    found = translator.attribute(source, target, method="occlusion", contrast="Una/Un")
    same = translator.attribute(source, target, method="occlusion", contrast={3: "casa"})
    assert found.tokens[:5] == ["▁", "U", "n", "a", "▁casa"] and found.contrast == {3: "Un"}
    assert np.allclose(found.explained, same.explained)
    generator: Any = seqtool.load("builtin/text", device="cpu")
    assert generator.attribute("a cat and a", method="gradient", contrast="a/o").contrast == {0: "o", 10: "o"}
    assert generator.attribute("a cat and a", method="gradient", contrast="a/an").contrast == {
        1: "an"
    }  # the last has no next token


@pytest.mark.parametrize("contrast", ["a", "a/", "/a", "a/a", "a/zebra"])
def test_impossible_contrasts_of_words(contrast: str) -> None:
    message = f"contrast={contrast} must be WORD/OTHER, such as dog/cat."
    if "zebra" in contrast:
        message = "contrast=a/zebra: the vocabulary has no 'zebra'."
    model, source = case("luong")
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Attribution.of(model, Example(text(), source), "gradient", contrast)


def command(*arguments: str) -> int:
    return cli.run([*arguments, "device=cpu", "threads=1"], config_directory())


def test_commands_write_attributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`translate` and `score` write what `attribute` returns for the best translation and for the reference."""
    monkeypatch.chdir(tmp_path)
    sources, targets = ["The dog sees the house.", "", "I have a cat."], ["El gato ve la casa.", "", "Tengo un gato."]
    for name, lines in (("sources", sources), ("targets", targets)):
        Path(f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    settings = ["checkpoint=builtin/words", "format=jsonl", "attribution=occlusion", "contrast=la/el", "words=marks"]
    assert command("translate", *settings, "input=sources.txt", "plot=figures", "n_best=2") == 0
    assert sorted(file.name for file in Path("figures").iterdir()) == [
        f"{kind}-{number:04}.png" for kind in ("alignment", "attribution") for number in (1, 3)
    ]
    translations = [json.loads(line)["translations"] for line in capsys.readouterr().out.splitlines()]
    assert command("score", *settings, "sources=sources.txt", "references=targets.txt") == 0
    scored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    translator: Any = seqtool.load("builtin/words", device="cpu", threads=1)
    for source, target, n_best, record in zip(sources, targets, translations, scored, strict=True):
        assert all("attribution" not in other for other in n_best[1:])
        for text_, written in ((n_best[0]["text"], n_best[0]), (target, record)):
            assert ("attribution" in written) == bool(source)
            if source:
                expected = translator.attribute(source, text_, method="occlusion", contrast="la/el").record()
                assert written["attribution"] == json.loads(json.dumps(expected))
                assert ("contrast" in expected) == (" la " in text_)
    assert command("translate", *settings[:3], "input=sources.txt", "contrast=dog/cat") == 0
    assert "contrast=dog/cat changed nothing: no output has the first word." in capsys.readouterr().err


def test_what_was_read_is_explained() -> None:
    """A source that was cut, words that are not in the vocabulary, and a prediction in place of two texts."""
    translator: Any = seqtool.load("builtin/words", device="cpu", max_source_length=4)
    best = translator.hypotheses(["I have a big cat."], prefixes=["Tengo 猫"])[0][0]
    found = translator.attribute(best, method="occlusion")
    assert found.source_tokens == [*best.source_pieces, "<end>"] and found.source.shape[1] == 4
    assert found.tokens == [*best.pieces, "<end>"] and "猫" in "".join(found.tokens)
    (forced,) = translator.forced(["I have a big cat."], ["Tengo 猫"])
    found = translator.attribute(forced, method="gradient")
    assert np.allclose(found.explained, forced.log_probabilities, atol=1e-4) and "猫" in "".join(found.tokens)


def test_commands_explain_pictures_and_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also models without attention, whose figures are only those of attributions."""
    monkeypatch.chdir(tmp_path)
    scene = Scene((Item("heart", "red", "large", 0, (22, 20, 42, 38)),), 1)
    render(scene).save("scene.png")
    Path("texts.txt").write_text("The cat sees\n")
    picture = ["caption", "checkpoint=builtin/soft", "images=scene.png", "plot=figures", "format=jsonl"]
    assert command(*picture, "attribution=gradient", "contrast=heart/star") == 0
    (caption,) = json.loads(capsys.readouterr().out)["captions"]
    captioner: Any = seqtool.load("builtin/soft", device="cpu", threads=1)
    found = captioner.attribute("scene.png", caption["text"], method="gradient", contrast="heart/star")
    assert caption["attribution"] == json.loads(json.dumps(found.record()))
    assert caption["attribution"]["contrast"][found.tokens.index("▁heart")] == "star"
    assert sorted(file.name for file in Path("figures").iterdir()) == ["attribution-0001.png", "caption-0001-scene.png"]
    texts = ["score", "checkpoint=builtin/text", "references=texts.txt", "plot=texts"]
    assert command(*texts, "attribution=gradient", "contrast=cat/cow") == 0
    assert [file.name for file in Path("texts").iterdir()] == ["attribution-0001.png"]
    assert command(*texts) == 2
    assert "plot=… needs a model with attention over a source; this one reads only the text." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("attribution=gradient", "attribution= needs format=jsonl or plot=DIRECTORY."),
        ("contrast=la/el format=jsonl", "contrast= needs attribution=gradient, integrated or occlusion."),
        (
            "attribution=magic format=jsonl",
            "Unknown attribution 'magic'; choose from gradient, integrated, occlusion, attention.",
        ),
        ("attribution=gradient format=jsonl contrast=la", "contrast=la must be WORD/OTHER, such as dog/cat."),
        ("attribution=attention format=jsonl contrast=un/una", "contrast= needs attribution=gradient, integrated or"),
        ("attribution=gradient format=jsonl checkpoint=builtin/words,builtin/words", "Only one model can be looked"),
    ],
)
def test_unfit_settings_of_commands(
    settings: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sources.txt"
    file.write_text("I have a cat.\n")
    assert command("translate", "checkpoint=builtin/words", f"input={file}", *settings.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_the_end_is_explained_only_of_outputs_that_end() -> None:
    translator: Any = seqtool.load("builtin/words", device="cpu", threads=1, max_length=3)
    cut = translator.hypotheses(["I have a house."])[0][0]
    found = translator.attribute(cut, method="occlusion")
    assert not cut.ended and found.tokens == cut.pieces == found.by_word().example.text.pieces
    assert found.explained.sum() == pytest.approx(cut.log_probability, abs=1e-4)
    translator.max_positions = len(cut.pieces)  # without <end>, it fills all of a model's learnt positions
    assert translator.attribute(cut, method="gradient").tokens == cut.pieces
    with pytest.raises(InputError, match="has 4 tokens with its end, but the model reads at most 3"):
        translator.encode_text(cut.pieces)
    captioner: Any = seqtool.load("builtin/soft", device="cpu", threads=1, max_length=2)
    cut = captioner.describe([np.zeros((64, 64, 3), np.uint8)])[0][0]
    assert not cut.ended and captioner.attribute(cut, method="gradient").tokens == cut.pieces
