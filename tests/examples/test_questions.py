"""Tests of the example that answers questions about scenes: its questions are true, its model learns combinations."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from example_modules import imported
from small_models import ENCODER

from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, Item
from seqtool.models.backbone import EncoderSettings
from seqtool.models.inputs import Pixels
from seqtool.models.tokens import EOS
from seqtool.models.tree import map_tensors

TRAIN = 300  # scenes; enough to show every combination that is not held out
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
    corpus = questions.Questions(train=TRAIN)
    return {split: corpus.questions(split) for split in ("train", "test", "new")}


def right_answers(text: str, items: tuple[Item, ...]) -> set[str]:
    """All answers to a question, from the objects' boxes."""
    if text.startswith("what shape is "):
        return {item.shape for item in items if item.colour == text[14:-1]}
    if text.startswith("what colour is the "):
        return {item.colour for item in items if item.shape == text[19:-1]}
    words, shape = text.removeprefix("what is ")[:-1].split(" the ")
    anchors = [item for item in items if item.shape == shape]
    others = [item for item in items if item.shape != shape]
    return {item.shape for item in others if all(SIDES[words](item, anchor) for anchor in anchors)}


def test_every_question_has_one_answer(questions: Any, splits: dict[str, list[Any]]) -> None:
    texts = [(scene.items, question) for scenes in splits.values() for scene, asked in scenes for question in asked]
    assert all(right_answers(question.text, items) == {question.answer} for items, question in texts)
    assert {question.kind for _, question in texts} == {*questions.KINDS}


def test_combinations_are_held_out(questions: Any, splits: dict[str, list[Any]]) -> None:
    """Each shape is in one of them, and so is each colour but black; the training set has all others."""
    held_out = questions.HELD_OUT
    assert [{*names} for names in zip(*held_out, strict=True)] == [{*SHAPES}, {*COLOURS} - {"black"}]
    looks = {
        split: {(item.shape, item.colour) for scene, _ in scenes for item in scene.items}
        for split, scenes in splits.items()
    }
    assert looks["train"] == {(shape, colour) for shape in SHAPES for colour in COLOURS} - held_out
    assert not looks["test"] & held_out
    assert all(question.about & held_out for _, asked in splits["new"] for question in asked)


def test_no_answer_can_be_guessed(questions: Any, splits: dict[str, list[Any]]) -> None:
    """Nobody who knows only the kind is right in half of the cases, and no function of a question's text in 60 %. In
    `new`, the second is only true of those who know the training set, since a shape has one colour that was held out.
    """
    for split in ("test", "new"):
        by_kind, by_text = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
        for question in (question for _, asked in splits[split] for question in asked):
            by_kind[question.kind][question.answer] += 1
            by_text[question.kind + question.text][question.answer] += 1
        for kind, counts in by_kind.items():
            assert max(counts.values()) <= 0.5 * counts.total()
            best = sum(max(counter.values()) for text, counter in by_text.items() if text.startswith(kind))
            assert split == "new" or best <= 0.6 * counts.total()
        corpus = questions.Questions(train=TRAIN)
        assert max(questions.accuracies(questions.guesser(corpus), corpus, split).values()) <= 0.6


def small_model(questions: Any) -> Any:
    torch.manual_seed(0)
    encoder = EncoderSettings(**ENCODER)
    return questions.Answerer(target_vocabulary=11, pretrained=False, encoder=encoder, size=8).double().eval()


def test_forward_equals_stepping(questions: Any) -> None:
    model = small_model(questions)
    source, tokens = Pixels(torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8)), torch.randint(4, 11, (2, 5))
    output = model(source, tokens)
    torch.testing.assert_close(output.attention.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    memory, state = model.encode(source)
    state, tokens = (map_tensors(lambda tensor: tensor.repeat_interleave(2, 0), tree) for tree in (state, tokens))
    for t, token in enumerate(tokens.unbind(1)):  # two rows for each picture
        step = model.step(memory, state, token)
        state = step.state
        torch.testing.assert_close(step.logits[::2], model.project(output.features[:, t]))
        torch.testing.assert_close(step.attention[1::2], output.attention[:, t])
    torch.testing.assert_close(tuple(total[::2] for total in state), output.state)


def test_shapes_do_not_depend_on_colours(questions: Any) -> None:
    """The vectors of shapes are the same for an object in any colour, and those of a plain picture are not attended."""
    model = small_model(questions)
    pictures = torch.full((3, 3, 24, 24), 240, dtype=torch.uint8)
    for picture, colour in zip(pictures, ("red", "yellow"), strict=False):
        picture[:, 3:12, 4:13] = torch.tensor(COLOURS[colour], dtype=torch.uint8)[:, None, None]
    memory, _ = model.encode(Pixels(pictures))
    s, c = memory.values.chunk(2, -1)
    torch.testing.assert_close(s[0], s[1])
    assert not torch.allclose(s[0], s[2]) and not torch.allclose(c[0], c[1])
    assert memory.mask[0].tolist() == memory.mask[1].tolist() == [True, True, False] * 2 + [False] * 3
    assert memory.mask[2].all()  # there must be something to attend to


def test_only_the_answer_and_the_end_are_trained(questions: Any) -> None:
    labels = torch.tensor([[7, 8, 9, 10, 3], [7, 8, 5, 3, 0]])
    counted = small_model(questions).loss(torch.randn(2, 5, 8, dtype=torch.float64), labels, 0.0).nll > 0
    assert counted.tolist() == [[False, False, False, True, True], [False, False, True, True, False]]


def test_the_answer_is_that_of_the_formulas(questions: Any) -> None:
    """The formulas at the top of the example, computed anew for one picture and one question, word by word."""
    model = small_model(questions)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that nothing is nearly uniform
        source, tokens = Pixels(torch.randint(0, 256, (1, 3, 24, 24), dtype=torch.uint8)), [5, 9, 6, 10]
        features = model(source, torch.tensor([tokens])).features[0, -1]
        words, (memory, _) = model.target_embedding.weight, model.encode(source)
        cells = [cell.chunk(2) for cell, is_seen in zip(memory.values[0], memory.mask[0], strict=True) if is_seen]
        seen = memory.mask[0].nonzero().flatten()
        h = torch.tanh(sum(model.meaning_embedding.weight[w] for w in tokens))
        shape, colour, place, end = (0.3 * (model.kind.weight @ h + model.kind.bias)).softmax(0)
        beta = torch.cat([model.weight.weight[w] for w in tokens]).softmax(0)
        a = sum(share * words[w] for share, w in zip(beta, tokens, strict=True))
        scale = len(a) ** 0.5  # as if words and cells were of unit length
        alpha = torch.stack([scale * (shape * (a @ c) + (1 - shape) * (a @ s)) for s, c in cells]).softmax(0)
        found = sum(share * model.place_embedding.weight[i] for share, i in zip(alpha, seen, strict=True))
        delta = model.beside(torch.cat([h, found]))[seen].softmax(0)
        answer = end * words[EOS]
        for at, beside, (s, c) in zip(alpha, delta, cells, strict=True):
            answer = answer + shape * at * s + colour * at * c + place * beside * s
        torch.testing.assert_close(features, scale * answer)
        assert min(shape, colour, place) > 0.01 and max(alpha) > 2 * min(alpha) and max(delta) > 2 * min(delta)


def test_it_answers_each_kind_of_question(questions: Any, capsys: pytest.CaptureFixture[str]) -> None:
    questions.main([])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [row[0] for row in rows] == [*questions.KINDS]
    for _, _, *figures in rows:
        commonest, seen, new, *without = (float(figure.rstrip("%")) for figure in figures)
        assert min(seen, new) >= 85 and commonest <= 50 and max(without) <= 60
