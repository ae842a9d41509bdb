"""Tests of settings that a resumed run may not change: they are refused, and the command in the message works."""

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.settings import leaves
from seqtool.training import checkpoint

COMMON = ["device=cpu", "threads=1", "data.processes=1", "train.minutes=null", "train.steps=1", "train.batch_size=4"]
WORDS = ["data.vocabulary.kind=word", "data.vocabulary.minimum_count=1", "model.embedding=8", "model.hidden=8"]
PAIRS = ["data=parallel", "data.train=[a file.en,a.de]", "data.valid=a file.en,a.de"]
PHOTOS = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model.encoder.size=32"]
FROZEN = ["model.encoder.fine_tune_from=null", "model.encoder.augment=false"]
RUNS = {
    "recurrent": [*PAIRS, *WORDS, "model=sutskever", "model.layers=1"],
    "text": ["data=text", "data.train=a.de", "data.valid=a.de", *WORDS, "model=language_model", "train.bptt=5"],
    "photos": [*PHOTOS, *WORDS, "model=show_attend_tell", "model.alignment=8", *FROZEN],
    "tuned": [*PHOTOS, *WORDS, "model=show_tell", "model.encoder.augment=false"],
    "preset": ["--config-dir=mine", "experiment=small"],
}
ADDED_CHANGES = {"tuned": {"model.encoder.weights"}}  # a frozen CNN takes its weights from a file
PRESET = """# @package _global_
defaults: [override /data: parallel, override /model: luong, override /schedule: plateau]
data: {train: [a file.en, a.de], valid: [a file.en, a.de], processes: 1, vocabulary: {kind: char}}
model: {embedding: 8, hidden: 8, layers: 1}
device: cpu
threads: 1
train: {minutes: null, steps: 1, batch_size: 4}
"""


def train(*settings: str) -> int:
    return cli.run(["train", *settings], config_directory())


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of every kind, each trained for one step."""
    directory = tmp_path_factory.mktemp("changing")
    previous_directory = Path.cwd()
    os.chdir(directory)
    try:
        for name in ("a file.en", "a.de"):
            Path(name).write_text("a b c\nb c a d\nc d\nd a b\n" * 3)
        Path("photos").mkdir()
        for number in range(10):
            Image.fromarray(np.full((16, 16, 3), 20 * number, np.uint8)).save(f"photos/{number}.png")
        rows = [json.dumps({"file": f"{number}.png", "captions": ["a grey square"]}) for number in range(10)]
        Path("photos/captions.jsonl").write_text("\n".join(rows))
        Path("mine/experiment").mkdir(parents=True)
        Path("mine/experiment/small.yaml").write_text(PRESET)
        for name, settings in RUNS.items():
            assert train(*settings, *([] if name == "preset" else COMMON), f"run={name}") == 0
    finally:
        os.chdir(previous_directory)
    return directory


def refusal(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    capsys.readouterr()
    assert train(*settings) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("run", "changes", "listed"),
    [
        ("recurrent", ["data.limits.maximum=7"], "data.limits.maximum (100, now 7)"),
        (
            "recurrent",
            ["model.dropout=0.3", "seed=4", "optim=sgd", "schedule=plateau"],
            "model.dropout (0.2, now 0.3), seed (1, now 4), optim.name (adam, now sgd), "
            "schedule.name (constant, now halve_on_plateau)",
        ),
        ("recurrent", ["optim.amsgrad=true"], "optim.amsgrad (null, now true)"),
        ("photos", ["model.encoder.fine_tune_from=1"], "model.encoder.fine_tune_from (null, now 1)"),
        ("tuned", FROZEN[:1], "model.encoder.fine_tune_from (0, now null)"),
        ("preset", ["--config-dir=mine", "train.accumulate=2"], "train.accumulate (1, now 2)"),
    ],
)
def test_the_suggested_command_starts_a_new_run(
    run: str,
    changes: list[str],
    listed: str,
    trained_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained_runs)
    message = refusal(capsys, f"run={run}", "train.resume=true", *changes)
    pronoun = "them" if ", now" in listed.partition("), ")[2] else "it"
    start = f"seqtool: Run runs/{run} was started with other settings of {listed}: a resumed run keeps them. "
    assert message.startswith(f"{start}Leave {pronoun} out, or start a new run with its weights: seqtool train ")
    runs_before = set(Path("runs").iterdir())
    assert train(*shlex.split(message.partition("seqtool train ")[2])) == 0
    (new_run,) = set(Path("runs").iterdir()) - runs_before
    old_config, new_config = (checkpoint.find(path).config for path in (f"runs/{run}", new_run))
    assert new_config["init_from"] == f"runs/{run}" and new_config["train"]["steps"] == 1
    changed = {change.partition("=")[0] for change in changes}
    differing = {
        name
        for name, value in leaves(new_config["model"], "model")
        if OmegaConf.select(OmegaConf.create(old_config), name) != value
    }
    assert differing == {name for name in changed if name.startswith("model.")} | ADDED_CHANGES.get(run, set())


@pytest.mark.parametrize(
    ("run", "changes"),
    [
        ("recurrent", "model.hidden=9"),
        ("recurrent", "data.vocabulary.kind=char"),
        ("text", "initialisation=sutskever2014"),
        ("text", "init_from=runs/text"),
        ("photos", "embeddings.target=vectors.txt"),
    ],
)
def test_no_command_is_suggested_if_the_weights_do_not_fit(
    run: str, changes: str, trained_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained_runs)
    message = refusal(capsys, f"run={run}", "train.resume=true", *changes.split())
    assert message.startswith(f"seqtool: Run runs/{run} was started with other settings of ")
    assert re.search(r": a resumed run keeps them\. Leave (it|them) out, or start a new run\.$", message)


@pytest.mark.parametrize(
    ("run", "change", "suggestion"),
    [
        ("photos", "model.hiden=8", "; did you mean 'model.hidden'?"),
        ("recurrent", "optim.momentum=0.5", "; choose from optim.amsgrad, "),
        ("text", "schedule.epochs=3", "; choose from schedule.warmup."),
        ("preset", "schedule.patence=2", "; did you mean 'schedule.patience'?"),
    ],
)
def test_unknown_settings_of_a_resumed_run_are_refused(
    run: str,
    change: str,
    suggestion: str,
    trained_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Settings are compared with those of the run, not with those of the default model."""
    monkeypatch.chdir(trained_runs)
    message = refusal(capsys, f"run={run}", "train.resume=true", change)
    assert message.startswith(f"seqtool: Unknown setting '{change.partition('=')[0]}'{suggestion}")


def test_schedule_settings_change_without_naming_the_schedule(
    trained_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained_runs)
    assert train("run=preset", "train.resume=true", "schedule.patience=7", "train.steps=2") == 0
    schedule = checkpoint.find("runs/preset/last").config["schedule"]
    assert schedule == {"name": "halve_on_plateau", "patience": 7, "warmup": 0}


def test_other_data_are_refused_with_a_command_that_works(
    trained_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained_runs)
    Path("b.de").write_text("a b\nb c\n")
    message = refusal(capsys, "run=text", "train.resume=true", "train.steps=3", "data.train=b.de")
    assert "The data changed since runs/text/checkpoints/step-0000001 was saved (data.train=b.de): " in message
    assert train(*shlex.split(message.partition("seqtool train ")[2])) == 0
