"""Tests of the example that answers questions about scenes: its questions are true, its model learns combinations."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from example_modules import imported
from small_models import ENCODER

from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, Item
from seqtool.data.corpora.scenes import PLURALS
from seqtool.decoding.tree import map_tensors
from seqtool.models.backbone import EncoderSettings
from seqtool.models.inputs import Annotations

STEPS = 400
NUMBERS = ("one", "two", "three", "four")
SIDES = {  # of one object beside another, by the words of a question: which edge is less than which
    "left of": lambda a, b: a.box[2] < b.box[0],
    "right of": lambda a, b: b.box[2] < a.box[0],
    "above": lambda a, b: a.box[3] < b.box[1],
    "below": lambda a, b: b.box[3] < a.box[1],
}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with imported("questions", tmp_path_factory.mktemp("questions")) as module:
        yield module


@pytest.fixture(scope="module")
def splits(questions: Any) -> dict[str, list[Any]]:
    corpus = questions.Questions(train=300, test=250)
    return {split: list(corpus.questions(split)) for split in ("train", "test", "new")}


def answers(text: str, items: tuple[Item, ...]) -> set[str]:
    """All answers to a question, from the objects' boxes."""
    if text.startswith("what shape is "):
        return {item.shape for item in items if item.colour == text[14:-1]}
    if text.startswith("what colour is the "):
        return {item.colour for item in items if item.shape == text[19:-1]}
    if text.startswith("how many "):
        return {NUMBERS[sum(f"how many {PLURALS[item.shape]}?" == text for item in items) - 1]}
    words, shape = text.removeprefix("what is ")[:-1].split(" the ")
    anchors = [item for item in items if item.shape == shape]
    others = [item for item in items if item.shape != shape]
    return {item.shape for item in others if all(SIDES[words](item, anchor) for anchor in anchors)}


def test_every_question_has_one_answer(splits: dict[str, list[Any]]) -> None:
    texts = [(scene.items, question) for split in splits.values() for scene, asked in split for question in asked]
    assert all(answers(question.text, items) == {question.answer} for items, question in texts)
    assert {question.kind for _, question in texts} == {"colour", "shape", "number", "place"}


def test_combinations_are_held_out(questions: Any, splits: dict[str, list[Any]]) -> None:
    """Each shape is in one of them, as is each colour but black; other pictures show all others."""
    held_out = questions.HELD_OUT
    assert {shape for shape, _ in held_out} == {*SHAPES} and {colour for _, colour in held_out} == {*COLOURS} - {
        "black"
    }
    looks = {
        split: {(item.shape, item.colour) for scene, _ in scenes for item in scene.items}
        for split, scenes in splits.items()
    }
    assert looks["train"] == {(shape, colour) for shape in SHAPES for colour in COLOURS} - held_out
    assert not looks["test"] & held_out
    assert all(question.about & held_out for _, asked in splits["new"] for question in asked)


def shares(asked: list[Any]) -> dict[str, tuple[float, float]]:
    """By kind, the share of the commonest answer, and of each question's commonest answer: nobody who does not see the
    picture is right more often than the second.
    """
    by_kind, by_text = defaultdict(Counter), defaultdict(Counter)
    for question in asked:
        by_kind[question.kind][question.answer] += 1
        by_text[question.kind, question.text][question.answer] += 1
    blind = {kind: sum(max(c.values()) for (k, _), c in by_text.items() if k == kind) for kind in by_kind}
    totals = {kind: counts.total() for kind, counts in by_kind.items()}
    return {kind: (max(by_kind[kind].values()) / total, blind[kind] / total) for kind, total in totals.items()}


def test_no_answer_can_be_guessed(splits: dict[str, list[Any]]) -> None:
    """In `new`, where a shape has the one colour that was held out, a question's answer is new instead."""
    for split, scenes in splits.items():
        for commonest, of_each_question in shares([question for _, asked in scenes for question in asked]).values():
            assert commonest <= 0.5 and (split == "new" or of_each_question <= 0.6)


def test_forward_equals_stepping(questions: Any) -> None:
    torch.manual_seed(0)
    encoder = EncoderSettings(**ENCODER)
    model = questions.Answerer(target_vocabulary=11, pretrained=False, encoder=encoder, size=8).double().eval()
    source, tokens = Annotations(torch.randn(2, 9, 96, dtype=torch.float64)), torch.randint(4, 11, (2, 5))
    output = model(source, tokens)
    torch.testing.assert_close(output.attention.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    memory, state = model.encode(source)
    state, tokens = (map_tensors(lambda tensor: tensor.repeat_interleave(2, 0), tree) for tree in (state, tokens))
    for t, token in enumerate(tokens.unbind(1)):  # two rows for each picture
        step = model.step(memory, state, token)
        state = step.state
        torch.testing.assert_close(step.logits[::2], model.project(output.features[:, t]))
        torch.testing.assert_close(step.attention[1::2], output.attention[:, t])
    torch.testing.assert_close(model.prefill(memory, model.encode(source)[1], tokens[::2]).state.top, state.top[::2])


def test_only_the_answer_and_the_end_are_trained(questions: Any) -> None:
    model = questions.Answerer(target_vocabulary=11, pretrained=False, encoder=EncoderSettings(**ENCODER), size=8)
    labels = torch.tensor([[7, 8, 9, 10, 3], [7, 8, 5, 3, 0]])
    counted = model.loss(torch.randn(2, 5, 24), labels, 0.0).nll > 0
    assert counted.tolist() == [[False, False, False, True, True], [False, False, True, True, False]]


def test_it_answers_each_kind_of_question(questions: Any) -> None:
    model, corpus = questions.train("sighted", STEPS, picture=True), questions.Questions()
    for split in ("test", "new"):
        assert min(questions.accuracies(model, corpus, split).values()) >= 0.85
    image, (_, asked) = corpus.images("new")[0], next(corpus.questions("new"))
    ((caption,),) = model.describe([image.file], prefix=asked[0].text)
    assert caption.text == f"{asked[0].text} {asked[0].answer}"
    blind = questions.train("blind", STEPS // 4, picture=False)
    for split in ("test", "new"):
        assert max(questions.accuracies(blind, corpus, split).values()) <= 0.6
