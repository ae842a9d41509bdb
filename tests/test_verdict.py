"""Tests of the verdict on a run, at the end of `train` and in its report, and of warm-ups longer than the run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_report import blocks

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training.verdict import verdict

COMMON = ["data.processes=1", "device=cpu", "threads=1", "train.batch_size=4", "model.embedding=4"]
TASKS = {
    "translation": ["data=parallel", "data.train=a.tsv", "data.valid=a.tsv", "model=sutskever", "model.layers=1"],
    "captioning": [
        "data=photos",
        "data.directory=.",
        "data.train=a.jsonl",
        "model=show_tell",
        "data.vocabulary.minimum_count=1",
    ],
    "language modelling": ["data=text", "data.train=a.tsv", "data.valid=a.tsv", "model=language_model"],
}
WORDS = ["model.hidden=4", "data.vocabulary.kind=word"]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with 16 pairs of lines, and with pictures captioned by these lines."""
    lines = [f"{a} {b}" for a in "abcd" for b in "efgh"]
    (tmp_path / "a.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    for number in range(16):
        Image.fromarray(np.full((8, 8, 3), 15 * number, np.uint8)).save(tmp_path / f"{number}.png")
    photos = [{"file": f"{number}.png", "captions": [line]} for number, line in enumerate(lines)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(photo)}\n" for photo in photos))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*line: str) -> int:
    return cli.run(line, config_directory())


@pytest.mark.parametrize(
    ("task", "settings", "steps"),
    [
        ("translation", "schedule=cosine train.epochs=5", 20),
        ("translation", "schedule=inverse_square_root train.steps=30", 30),
        ("translation", "schedule=constant train.epochs=50 train.steps=12", 12),
        ("translation", "schedule=plateau train.epochs=5 train.accumulate=3 train.minutes=5", 10),
        ("captioning", "schedule=cosine train.epochs=5", 15),  # 12 of the 16 pictures are for training
        ("language modelling", "schedule=cosine train.epochs=2 train.bptt=4", 12),
    ],
)
def test_a_warm_up_longer_than_the_run_is_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str], task: str, settings: str, steps: int
) -> None:
    """The message has a number that fits. The run has no directory yet, so its name is still free."""
    assert run("train", *TASKS[task], *COMMON, *WORDS, *settings.split(), "schedule.warmup=500", "run=r") == 2
    assert (
        f"schedule.warmup=500 is longer than this run of {steps} steps, so the learning rate would never rise to "
        f"optim.lr: set schedule.warmup={steps // 10}, or raise train.epochs or train.steps." in capsys.readouterr().err
    )
    assert not Path("runs/r").exists()


def test_a_warm_up_longer_than_train_steps_is_refused_at_once(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is refused before data are prepared, whatever the number of epochs."""
    for task, settings in TASKS.items():
        limits = ["train.steps=20", "train.epochs=9", "schedule.warmup=1000"]
        assert run("train", *settings, *COMMON, *WORDS, *limits) == 2, task
        assert "longer than this run of 20 steps" in capsys.readouterr().err
        assert not Path("cache").exists()


@pytest.mark.parametrize("settings", ["train.steps=3 schedule.warmup=3", "train.steps=0 schedule.warmup=9"])
def test_a_warm_up_that_fits_is_accepted(workspace: Path, settings: str) -> None:
    assert run("train", *TASKS["translation"], *COMMON, *WORDS, "run=r", *settings.split()) == 0


@pytest.mark.parametrize("stop", ["train.minutes=0.01", "train.patience=1 train.validate_every=1 optim=sgd optim.lr=0"])
def test_a_warm_up_cut_short_by_time_or_patience_is_in_the_verdict(
    workspace: Path, capsys: pytest.CaptureFixture[str], stop: str
) -> None:
    settings = [*TASKS["translation"], *COMMON, *WORDS, "schedule.warmup=9000", *stop.split()]
    assert run("train", *settings, "run=r") == 0
    assert "Verdict: The learning rate never rose to optim.lr: the warm-up has 9,000 steps" in capsys.readouterr().out
    assert "the learning rate never rose to its value" in findings("r")


def findings(name: str) -> list[str]:
    """Return the findings in the run's report, which is written first."""
    assert run("report", f"runs/{name}") == 0
    sections = blocks(Path(f"runs/{name}/report.html"))["report"]["sections"]
    return [row[0] for section in sections if section["title"] == f"Verdict on {name}" for row in section["rows"]]


def test_equal_outputs_and_a_too_large_model_are_in_the_verdict(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The captioner is untrained, and has few pictures and words."""
    sizes = ["model.hidden=64", "data.vocabulary.kind=word", "data.valid=a.jsonl", "validation.max_length=9"]
    assert run("train", *TASKS["captioning"], *COMMON, *sizes, "train.steps=1", "run=r") == 0
    out = capsys.readouterr().out
    assert "Verdict: Many outputs do not end, repeat themselves or are all alike" in out
    assert "Verdict: There is little data for a model of this size: add data, or lower its sizes (model.*). (" in out
    assert "too little data for the model" in findings("r")


def test_unknown_words_are_in_the_report(workspace: Path) -> None:
    (workspace / "a.tsv").write_text("".join(f"the {word} sleeps\tder {word} schläft\n" for word in "abcdefgh"))
    settings = [*TASKS["translation"], *COMMON, *WORDS, "data.vocabulary.minimum_count=5", "train.steps=1"]
    assert run("train", *settings, "run=r") == 0
    assert "unknown words" in findings("r")
    assert any(finding.figure.endswith(" of the training tokens") for finding in verdict(Path("runs/r")))


def test_a_rising_loss_is_in_the_verdict_with_its_epoch(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The validation pairs differ from the training pairs, which are learnt by heart."""
    (workspace / "b.tsv").write_text("".join(f"{b} {a}\t{a} {b}\n" for a in "abcd" for b in "efgh"))
    settings = [*TASKS["translation"], *COMMON, "data.vocabulary.kind=word", "model.hidden=32", "model.dropout=0"]
    settings += ["data.valid=b.tsv", "optim.lr=0.02", "train.validate_every=4", "validation.sentences=4"]
    assert run("train", *settings, "train.epochs=20", "run=r") == 0
    losses = [json.loads(line).get("valid_loss") for line in Path("runs/r/metrics.jsonl").read_text().splitlines()]
    scored = [loss for loss in losses if loss is not None]
    best = scored.index(min(scored)) + 1
    assert (
        f"Verdict: The validation loss has risen since epoch {best}: the model is overfitting"
        in capsys.readouterr().out
    )


def write_run(name: str, losses: list[float], **settings: Any) -> None:
    """Write a run whose validations had these losses, one every hundred steps."""
    (run := Path("runs") / name).mkdir(parents=True)
    sizes = {"parameters": 1e6, "train_tokens": 1e6, "train_unknown": 1e4, "outputs_unended": 0.01}
    records = [{"step": 100 * i, "epoch": i, "valid_loss": loss, **sizes} for i, loss in enumerate(losses, 1)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps({**record, **settings})}\n" for record in records))
    (run / "config.yaml").write_text("schedule: {name: cosine, warmup: 100}\n")


# Validation losses by epoch, of a preset that trains well and of a run that ended too early.
QUICKSTART = [1.117, 0.145, 0.060, 0.035, 0.024, 0.019, 0.017, 0.016]
EARLY = [5.0, 4.0, 3.5, 3.2, 3.0]
OUTPUTS = "outputs that do not end, repeat themselves or are all alike"


@pytest.mark.parametrize(
    ("losses", "settings", "expected"),
    [
        (QUICKSTART, {}, []),
        ([*EARLY, 2.9, 2.85, 2.84, 2.83, 2.86, 2.9], {}, []),
        (EARLY, {}, ["the validation loss still falls"]),
        ([1000 * loss for loss in EARLY], {"outputs_alike": 0.6}, [OUTPUTS]),  # training longer would not help
        ([5.0, 2.0, 1.9, 2.05, 2.2], {}, ["the validation loss rises"]),
        (QUICKSTART, {"train_unknown": 2e5}, ["unknown words"]),
        (QUICKSTART, {"parameters": 2e8}, ["too little data for the model"]),
        *((QUICKSTART, {f"outputs_{name}": 0.6}, [OUTPUTS]) for name in ("unended", "repeating", "alike")),
    ],
)
def test_findings_follow_from_the_records(
    workspace: Path, losses: list[float], settings: dict[str, float], expected: list[str]
) -> None:
    write_run("r", losses, **settings)
    assert findings("r") == expected


def test_the_loss_may_rise_when_sequences_are_rewarded(workspace: Path) -> None:
    write_run("r", [5.0, 2.0, 1.9, 2.05, 2.2])
    with Path("runs/r/config.yaml").open("a") as file:
        file.write("train: {objective: sequence}\n")
    assert findings("r") == []


def test_runs_with_few_values_have_a_verdict(workspace: Path) -> None:
    write_run("r", EARLY)
    lines = [json.loads(line) for line in Path("runs/r/metrics.jsonl").read_text().splitlines()]
    shortened = [{name: line[name] for name in ("step", "epoch", "valid_loss")} for line in lines]
    Path("runs/r/metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in shortened))
    assert findings("r") == ["the validation loss still falls"]
    Path("runs/r/metrics.jsonl").write_text("")
    assert findings("r") == []
