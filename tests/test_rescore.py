"""Tests of `rescore`: further models score n-best lists, and the weights of the scores are tuned."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.metrics.translation import Bleu, bleu_parts, tune
from seqtool.predict.translator import Translator
from seqtool.runtime.files import config_directory, write_lines

SOURCES = ["I have a big cat.", "She sees the house, but not the dogs.", "", "The old dog sleeps in the garden."]
REFERENCES = ["Yo tengo un gato grande.", "Ve la casa, pero no los perros.", "", "Un perro viejo duerme."]
MACHINE = ["device=cpu", "threads=1"]
MODELS = ["checkpoint=builtin/words", "reverse=runs/back", "lm=builtin/text"]
LABELS = ["search", *MODELS, "length"]
Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(scope="module", autouse=True)
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A directory with n-best lists of a built-in model, and a model of the other direction."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        write_lines(Path("in.en"), SOURCES)
        write_lines(Path("in.es"), REFERENCES)
        write_lines(Path("train.en"), [*SOURCES[:2], SOURCES[3]])
        write_lines(Path("train.es"), [*REFERENCES[:2], REFERENCES[3]])
        settings = ["data=parallel", "data.vocabulary.kind=word", "data.processes=1", "validation.max_length=5"]
        settings += ["model=sutskever", "model.hidden=4", "model.embedding=4", "train.steps=1", *MACHINE]
        for directory, train, joint in (
            ("back", "train.es,train.en", "false"),
            ("back-joint", "train.es,train.en", "true"),
            ("forth-joint", "train.en,train.es", "true"),
        ):
            data = [f"data.train={train}", f"data.valid={train}", f"data.vocabulary.joint={joint}"]
            assert run("train", *data, *settings, f"run={directory}") == 0
        search = ["checkpoint=builtin/words", "input=in.en", "beam=5", "n_best=5", "format=jsonl"]
        assert run("translate", *search, "output=lists.jsonl", *MACHINE) == 0
        yield


def rescore(*settings: str) -> int:
    return run("rescore", "nbest=lists.jsonl", *settings, *MACHINE)


def records(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_each_model_scores_each_text(capsys: Capture) -> None:
    """The log-probabilities are those of `score`; of the same model those of the list; the sum orders the lists."""
    assert rescore(*MODELS, "weights=1,0.5,0.25,0.1,-1", "format=jsonl", "output=o.jsonl") == 0
    words, back, text = (seqtool.load(model.partition("=")[2], device="cpu") for model in MODELS)
    assert isinstance(words, Translator) and isinstance(back, Translator)
    for before, after in zip(records("lists.jsonl"), records("o.jsonl"), strict=True):
        by_text = {hypothesis["text"]: hypothesis for hypothesis in before["translations"]}
        assert {hypothesis["text"] for hypothesis in after["translations"]} == set(by_text)
        totals = [hypothesis["score"] for hypothesis in after["translations"]]
        assert totals == sorted(totals, reverse=True)
        for hypothesis, total in zip(after["translations"], totals, strict=True):
            scores, given = hypothesis["scores"], by_text[hypothesis["text"]]
            assert list(scores) == LABELS and scores["search"] == given["score"]
            assert scores["length"] == len(hypothesis["text"].split())
            assert total == pytest.approx(np.dot([1, 0.5, 0.25, 0.1, -1], list(scores.values())))
            source, target = [before["source"]], [hypothesis["text"]]
            assert scores[MODELS[1]] == pytest.approx(back.score(target, source)[0], abs=1e-3)
            assert scores[MODELS[2]] == pytest.approx(text.forced(None, target)[0].log_probability, abs=1e-3)
            if given["ended"] and words.target_vocabulary.pieces(target[0]) == given["tokens"] and source[0]:
                assert scores[MODELS[0]] == pytest.approx(given["log_probability"], abs=1e-3)


def test_the_file_s_own_score_keeps_the_order(capsys: Capture) -> None:
    assert rescore("weights=2,0") == 0
    firsts = [record["translations"][0]["text"] for record in records("lists.jsonl")]
    assert capsys.readouterr().out.splitlines() == firsts


def test_tuned_weights_are_read_by_a_test_run(capsys: Capture) -> None:
    """They choose the same texts again, of the BLEU that is printed; tuning is deterministic."""
    tuning = ["checkpoint=builtin/words", "tune=in.es", "output=tuned.es"]
    for name in ("a", "b"):
        assert rescore(*tuning, f"save_weights={name}.json") == 0
    assert Path("a.json").read_text() == Path("b.json").read_text()
    printed = capsys.readouterr().err.split(" before, ")[-1].split()[0]
    assert run("eval", "hypotheses=tuned.es", "references=in.es", "ter=false", "format=json", "bootstrap=0") == 0
    assert f"{json.loads(capsys.readouterr().out)['system']['bleu']['value']:.2f}" == printed
    assert rescore("checkpoint=builtin/words", "weights=a.json", "output=again.es") == 0
    assert Path("again.es").read_text() == Path("tuned.es").read_text()


@pytest.mark.parametrize("seed", [1, 2])
def test_tuning_is_no_worse_than_each_score_alone(seed: int) -> None:
    """It finds the score that orders the texts by quality among noise, whatever the units of the scores."""
    generator, lists = np.random.default_rng(seed), np.arange(30)
    references = [f"the {n} small dogs run over the wet grass in the park of the town" for n in lists]
    damage = generator.permuted(np.tile(np.arange(4), (30, 1)), axis=1)  # each list has one text of each quality
    texts = [
        " ".join(word for word in line.split() if generator.random() >= share / 8)
        for line, shares in zip(references, damage, strict=True)
        for share in shares
    ]
    scorer = Bleu([[line] for line in references for _ in range(4)], tokenize="13a", lowercase=False)
    statistics = scorer.statistics(texts).reshape(30, 4, -1)
    noisy = generator.normal(size=(30, 4, 3)) - damage[..., np.newaxis] * [0.3, 0.4, 0]
    scores = np.concatenate([noisy, np.ones((30, 4, 1))], -1) * [1e-3, 1.0, 1e3, 1.0]  # the last is always the same

    def reached(sums: Any) -> float:
        return bleu_parts(statistics[lists, sums.argmax(1)]).score

    bleu, weights = tune(scores, statistics)
    assert bleu == reached(scores @ weights) > max(reached(scores[..., k]) for k in range(4))
    assert tune(np.dstack([scores, -damage]), statistics)[0] == pytest.approx(100)


def test_ctrl_c_leaves_the_old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    Path("old.es").write_text("old\n")
    monkeypatch.setattr(Translator, "forced", interrupt)
    before = sorted(Path.cwd().iterdir())
    assert rescore(MODELS[0], "tune=in.es", "output=old.es", "save_weights=new.json") == cli.INTERRUPTED
    assert sorted(Path.cwd().iterdir()) == before and Path("old.es").read_text() == "old\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "rescore needs either weights=FILE or numbers, or tune=FILE, the references of the lists."),
        ("weights=1,0 tune=in.es", "rescore needs either weights=FILE or numbers, or tune=FILE"),
        ("weights=1,2,3", "weights=1,2,3 must have a number for each of search, length."),
        ("weights=1", "weights=1 must have a number for each of search, length."),
        ("weights=1,x", "weights=1,x must have a number for each of search, length."),
        ("weights=1,nan", "weights=1,nan must have a number for each of search, length."),
        ("weights=other.json", "weights=other.json must have a number for each of search, length."),
        ("weights=nested.json", "weights=nested.json must have a number for each of search, length."),
        ("weights=none.json", "'none.json' cannot be used: no such file or directory."),
        ("nbest=none.jsonl weights=1,0", "none.jsonl does not exist."),
        ("nbest=in.en weights=1,0", "in.en line 1 is not a record as written by translate format=jsonl."),
        ("nbest=empty.jsonl weights=1,0", "empty.jsonl line 2 is not a record as written by translate format=jsonl."),
        ("nbest=broken.jsonl weights=1,0", "broken.jsonl line 1 is not a record as written by translate format=jsonl."),
        ("weights=1,1,1,0 checkpoint=a,a", "rescore has checkpoint=a twice: name each model once."),
        ("weights=1,0,0 checkpoint=none output=no/o", "no/o cannot be written: there is no directory"),
        ("tune=in.es checkpoint=none save_weights=no/w.json", "no/w.json cannot be written: there is no directory"),
        ("tune=train.es", "lists.jsonl has 4 lines but train.es has 3: they must be parallel, line by line."),
        ("weights=1,0,0 checkpoint=none", "There is no run or checkpoint at none."),
        ("weights=1,0,0 checkpoint=builtin/text", "builtin/text holds a language model: use seqtool generate."),
        ("weights=1,0,0 lm=builtin/words", "builtin/words holds a translation model: use seqtool translate."),
        ("weights=1,0,0 checkpoint=runs/back", "checkpoint=runs/back does not know most words of its source side: is "),
        (
            "weights=1,0,0,0 checkpoint=runs/back reverse=runs/back-joint",
            "reverse=runs/back-joint translates from es to en: beside ",
        ),
        (
            "weights=1,0,0,0 checkpoint=runs/back,runs/forth-joint",
            "checkpoint=runs/forth-joint translates from en to es: beside ",
        ),
        ("weights=1,0 output=lists.jsonl", "output=lists.jsonl is the same file as nbest=lists.jsonl, which is read"),
        ("weights=1,0 format=json", "Unknown format 'json'; choose from text, jsonl."),
        ("weights=1,0 beam=2", "'beam' is not a setting of rescore"),
    ],
)
def test_unfit_settings_are_refused(settings: str, message: str, capsys: Capture) -> None:
    Path("other.json").write_text('{"search": 1, "length": 0, "lm=a": 1}')
    first_line = Path("lists.jsonl").read_text().splitlines()[0]
    Path("empty.jsonl").write_text(f'{first_line}\n{{"source": "a", "translations": []}}\n')
    Path("nested.json").write_text('{"search": [1], "length": [0]}')
    Path("broken.jsonl").write_text('{"source": "a", "translations": [{"text": "b\\nc", "score": 1}]}\n')
    before = sorted(Path.cwd().iterdir())
    nbest = [] if "nbest=" in settings else ["nbest=lists.jsonl"]
    assert run("rescore", *nbest, *settings.split(), *MACHINE) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(Path.cwd().iterdir()) == before


def test_models_of_opposite_directions_are_no_ensemble(capsys: Capture) -> None:
    """Both have the same joint vocabulary. The languages are read off the names of the training files."""
    models = ["checkpoint=runs/forth-joint,runs/back-joint", "input=in.en"]
    assert run("translate", *models, *MACHINE) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    expected = r"back-joint\S* translates from es to en: beside \S*forth-joint\S*, it must translate from en to es\.$"
    assert re.search(expected, message)
    assert run("translate", "checkpoint=runs/forth-joint,runs/forth-joint", "input=in.en", *MACHINE) == 0


def test_an_error_names_the_model(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("a text has too many tokens.")

    monkeypatch.setattr(Translator, "forced", refuse)
    assert rescore(MODELS[0], "weights=1,1,0") == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"seqtool: {MODELS[0]}: a text has too many tokens."


def test_a_built_in_model_does_not_translate_back(capsys: Capture) -> None:
    assert rescore("checkpoint=builtin/words", "reverse=builtin/words", "weights=1,1,1,0") == 2
    assert "reverse=builtin/words translates from en to es: beside checkpoint=" in capsys.readouterr().err
