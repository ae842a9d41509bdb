"""Settings that a resumed run may not change: the refusal, and the command line in it, which works as it stands."""

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
    "own": ["--config-dir=mine", "experiment=small"],
}
WEIGHTS = {"tuned": {"model.encoder.weights"}}  # a frozen CNN has its own
SMALL = """# @package _global_
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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of every kind, of one step."""
    place = tmp_path_factory.mktemp("changing")
    before = Path.cwd()
    os.chdir(place)
    try:
        for name in ("a file.en", "a.de"):
            Path(name).write_text("a b c\nb c a d\nc d\nd a b\n" * 3)
        Path("photos").mkdir()
        for number in range(10):
            Image.fromarray(np.full((16, 16, 3), 20 * number, np.uint8)).save(f"photos/{number}.png")
        rows = [json.dumps({"file": f"{number}.png", "captions": ["a grey square"]}) for number in range(10)]
        Path("photos/captions.jsonl").write_text("\n".join(rows))
        Path("mine/experiment").mkdir(parents=True)
        Path("mine/experiment/small.yaml").write_text(SMALL)
        for name, settings in RUNS.items():
            assert train(*settings, *([] if name == "own" else COMMON), f"run={name}") == 0
    finally:
        os.chdir(before)
    return place


def refusal(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    capsys.readouterr()
    assert train(*settings) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("run", "changes", "said"),
    [
        ("recurrent", ["data.limits.maximum=7"], "data.limits.maximum (100, now 7)"),
        (
            "recurrent",
            ["model.dropout=0.3", "seed=4", "optim=sgd", "schedule=plateau"],
            "model.dropout (0.2, now 0.3), seed (1, now 4), optim.name (adam, now sgd), "
            "schedule.name (constant, now halve_on_plateau)",
        ),
        ("photos", ["model.encoder.fine_tune_from=1"], "model.encoder.fine_tune_from (null, now 1)"),
        ("tuned", FROZEN[:1], "model.encoder.fine_tune_from (0, now null)"),
        ("own", ["--config-dir=mine", "train.accumulate=2"], "train.accumulate (1, now 2)"),
    ],
)
def test_the_line_that_starts_a_new_run_works(
    run: str,
    changes: list[str],
    said: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    sentence = refusal(capsys, f"run={run}", "train.resume=true", *changes)
    leave = "them" if len(changes) > 1 and run != "own" else "it"
    start = f"seqtool: Run runs/{run} was started with other settings of {said}: a resumed run keeps them. "
    assert sentence.startswith(f"{start}Leave {leave} out, or start a new run with its weights: seqtool train ")
    before = set(Path("runs").iterdir())
    assert train(*shlex.split(sentence.partition("seqtool train ")[2])) == 0
    (new,) = set(Path("runs").iterdir()) - before
    old, config = (checkpoint.find(place).config for place in (f"runs/{run}", new))
    assert config["init_from"] == f"runs/{run}" and config["train"]["steps"] == 1
    changed = {change.partition("=")[0] for change in changes}
    differing = {
        name
        for name, value in leaves(config["model"], "model")
        if OmegaConf.select(OmegaConf.create(old), name) != value
    }
    assert differing == {name for name in changed if name.startswith("model.")} | WEIGHTS.get(run, set())


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
def test_no_line_where_the_weights_would_not_fit(
    run: str, changes: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    sentence = refusal(capsys, f"run={run}", "train.resume=true", *changes.split())
    assert sentence.startswith(f"seqtool: Run runs/{run} was started with other settings of ")
    assert re.search(r": a resumed run keeps them\. Leave (it|them) out, or start a new run\.$", sentence)


@pytest.mark.parametrize(
    ("run", "change", "near"),
    [
        ("photos", "model.hiden=8", "; did you mean 'model.hidden'?"),
        ("recurrent", "optim.momentum=0.5", "; choose from optim.amsgrad, "),
        ("text", "schedule.epochs=3", "; choose from schedule.warmup."),
        ("own", "schedule.patence=2", "; did you mean 'schedule.patience'?"),
    ],
)
def test_settings_that_a_run_does_not_have(
    run: str, change: str, near: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are compared with the run's own, not with those of the default model."""
    monkeypatch.chdir(trained)
    sentence = refusal(capsys, f"run={run}", "train.resume=true", change)
    assert sentence.startswith(f"seqtool: Unknown setting '{change.partition('=')[0]}'{near}")


def test_a_run_keeps_the_settings_of_its_own_schedule(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that may change are taken without naming the schedule again."""
    monkeypatch.chdir(trained)
    assert train("run=own", "train.resume=true", "schedule.patience=7", "train.steps=2") == 0
    schedule = checkpoint.find("runs/own/last").config["schedule"]
    assert schedule == {"name": "halve_on_plateau", "patience": 7, "warmup": 0}


def test_other_data_than_the_run_began_with(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    Path("b.de").write_text("a b\nb c\n")
    sentence = refusal(capsys, "run=text", "train.resume=true", "train.steps=3", "data.train=b.de")
    assert "The data changed since runs/text/checkpoints/step-0000001 was saved (data.train=b.de): " in sentence
    assert train(*shlex.split(sentence.partition("seqtool train ")[2])) == 0
