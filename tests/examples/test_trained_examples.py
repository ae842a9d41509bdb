"""Tests of the examples that the toolkit trains: their printed accuracies, and the laws of their data and models."""

import importlib
import re
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import jaxtyping
import pytest
import torch
from small_models import random_sentences

import seqtool
from seqtool.cli import main as cli
from seqtool.data.batches import make_source, make_target
from seqtool.decoding.batching import encoded_sentences
from seqtool.errors import InputError
from seqtool.models.tokens import EOS
from seqtool.predict.generator import Generator
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
NAMES = ("labelling", "tagging", "dialogue", "endings")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModuleType]]:
    """The examples, imported by the names by which commands know them, in a working directory of their own."""
    path = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("examples"))
        patch.syspath_prepend(str(EXAMPLES))
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # tests/models checks the shapes
        yield {name: importlib.import_module(name) for name in NAMES}
    sys.path[:] = path
    for name in NAMES:
        del sys.modules[name]


def table(module: ModuleType, capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, tuple[float, float]]:
    """Run the example with additional settings of its trainings; return the accuracy and the baseline of each row of
    its table.
    """
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TRAINING", " ".join([module.TRAINING, "validation.sentences=2", *settings]))
        module.main()
    _, *rows = capsys.readouterr().out.splitlines()
    matches = [re.fullmatch(r"(.+?)  +([\d.]+) %  ([\d.]+) % by .+", row) for row in rows]
    return {match[1]: (float(match[2]), float(match[3])) for match in matches if match is not None}


def test_labelling(modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    ((accuracy, bag),) = table(modules["labelling"], capsys, "train.batch_size=128", "optim.lr=0.01").values()
    assert accuracy >= 95
    assert 100 / 6 < bag <= 50  # better than a guess among six animals, no better than one between two
    run = checkpoint.find("runs/labelling", purpose="record")
    assert run.task == "labelling.Labelling"
    assert run.progress["epoch"] == 10  # five before the run was resumed, and five after
    labeller = seqtool.load("runs/labelling", trust="labelling", device="cpu", beam=6, n_best=6)
    assert labeller.translate(["the fox that the bear sees sleeps"]) == ["bear"]
    (hypotheses,) = labeller.hypotheses(["the fox that the bear sees sleeps"])
    assert {hypothesis.text for hypothesis in hypotheses} == {*modules["labelling"].ACTORS}
    assert sum(torch.tensor([hypothesis.log_probability for hypothesis in hypotheses]).exp()) == pytest.approx(1)
    for line in ("inspect runs/labelling", "inspect runs/labelling text='the fox sleeps' trust=labelling"):
        assert cli.run(shlex.split(line), config_directory()) == 0, capsys.readouterr().err
    assert "encoder.ahead.0.h | source × unit" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"holds a model for labelling\.Labelling: use seqtool eval\.$"):
        Generator.load("runs/labelling", trust="labelling", device="cpu")
    with pytest.raises(InputError, match=r"names 'labelling\.Labelling': only classes of seqtool may be built"):
        seqtool.load("runs/labelling", device="cpu")


def test_tagging(modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(modules["tagging"], capsys, "train.steps=25", "optim.lr=0.01")
    (one, baseline), (two, _) = rows["word classes, one direction"], rows["word classes, two directions"]
    assert baseline <= 85
    assert baseline < one < 90 < 97 <= two
    tagger = seqtool.load("runs/tagging_two", trust="tagging", device="cpu")
    tags = ["DET ADJ NOUN VERB DET NOUN", "PRON VERB PRON"]
    assert tagger.translate(["that split cast cut her set", "that cut her"]) == tags


def test_dialogue(modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(modules["dialogue"], capsys)
    (with_turns, chance), (without, _) = rows["answers, two earlier turns"], rows["answers, no earlier turns"]
    assert with_turns >= 90
    assert without <= chance + 3


def test_commands_of_the_page_and_of_the_examples(modules: dict[str, ModuleType]) -> None:
    """They train small models with two steps; of commands that differ only in the run and the number of epochs, the
    first is run. Those of the built-in models, which would draw all scenes, are left out.
    """
    pages = [EXAMPLES.parent / "docs" / "examples.md", *(EXAMPLES / f"{name}.py" for name in NAMES)]
    lines = [re.findall(r"^    seqtool ((?:train|eval) .*)$", page.read_text("utf-8"), re.MULTILINE) for page in pages]
    lines = [[line for line in page if "checkpoint=builtin" not in line] for page in lines]
    assert list(map(len, lines)) == [4, 1, 1, 1, 0]
    distinct: dict[str, str] = {}
    for line in chain.from_iterable(lines):
        distinct.setdefault(re.sub(r" (run|train\.epochs)=\w+", "", line), line)
    assert len(distinct) == 5
    brief = "train.steps=2 train.epochs=1 validation.sentences=2 model.dropout=0 model.embedding=8 model.hidden=8"
    brief = f"{brief} device=cpu threads=1 data.processes=1"
    for number, line in enumerate(distinct.values()):
        name = "labels" if "run=labels" in line else f"brief{number}"
        settings = f"{brief} run={name}" if line.startswith("train") else ""
        assert cli.run([*shlex.split(line), *settings.split()], config_directory()) == 0, line
    assert cli.run(["export", "checkpoint=runs/labels", "output=labels", "trust=labelling"], config_directory()) == 0
    assert 'model.translate(["…"])' in Path("labels/card.md").read_text("utf-8")


def test_splits_are_disjoint_and_their_bounds_are_laws(modules: dict[str, ModuleType]) -> None:
    """No function of a bag of words names more than half of the actors, and none of a question alone more than a sixth
    of the answers.
    """
    actors, dialogues = modules["labelling"].Actors(), modules["dialogue"].Dialogues
    for corpus in (actors, modules["tagging"].WordClasses(), dialogues()):
        sources = [source for split in corpus.splits() for source, _ in corpus.pairs(split)]
        assert len({*sources}) == len(sources)
    for pairs, share in ((actors.pairs("test"), 1 / 2), (dialogues(turns=0).pairs("test"), 1 / 6)):
        answers: dict[str, Counter[str]] = defaultdict(Counter)
        for source, answer in pairs:
            answers[" ".join(sorted(source.split()))][answer] += 1
        assert all(max(counts.values()) == share * counts.total() for counts in answers.values())


@pytest.mark.parametrize("name", ["labelling.Labeller", "tagging.Tagger"])
def test_labels_depend_only_on_their_text(modules: dict[str, ModuleType], name: str) -> None:
    """Teacher forcing and steps agree; padding, other rows and earlier labels change nothing; </s> follows the last."""
    module, _, class_name = name.partition(".")
    torch.manual_seed(0)
    model: Any = getattr(modules[module], class_name)(source_vocabulary=13, target_vocabulary=13).eval()
    sentences = random_sentences(5, seed=0)
    counts = [len(ids) if module == "tagging" else 1 for ids in sentences]
    targets = [ids[:count] for ids, count in zip(random_sentences(5, seed=1, longest=1), [1] * 5, strict=True)]
    targets = [(ids * 9)[:count] for ids, count in zip(targets, counts, strict=True)]
    target = make_target(targets)
    log_p = model.project(model(make_source(sentences), target[:, :-1]).features).log_softmax(-1)
    memory, state = model.encode(encoded_sentences(sentences).batch(range(5)))
    for t, token in enumerate(target[:, :-1].unbind(1)):
        step = model.step(memory, state, token * 0 + 4)  # another label before
        state = step.state
        torch.testing.assert_close(step.logits.log_softmax(-1), log_p[:, t])
    for row, (ids, count) in enumerate(zip(sentences, counts, strict=True)):
        alone = model.project(model(make_source([ids]), make_target([targets[row]])[:, :-1]).features).log_softmax(-1)
        torch.testing.assert_close(alone[0], log_p[row, : count + 1])
        assert alone[0, count, EOS] == 0
        assert bool((alone[0, :count, :4].exp() == 0).all())


def test_captions_that_stop_too_early_are_counted(modules: dict[str, ModuleType]) -> None:
    metric = modules["endings"].BadEndings([], name="endings.BadEndings")
    texts = ["a dog on a", "a dog looks up", "Two men talk with .", "", "the theatre", "…", "a cat and", "a red ball"]
    assert metric.statistics(texts)[:, 0].tolist() == [1, 0, 1, 1, 0, 1, 1, 0]
    assert metric.score(metric.statistics(texts)) == 62.5 and not metric.higher_is_better
