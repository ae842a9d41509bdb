"""Tests of losses and scores that are not finite: they are never the best, and figures without data are not drawn."""

import json
import math
from pathlib import Path

import pytest

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint
from seqtool.training.validation import StreamValidator, Validator

SMALL = {
    "translation": [
        "model=sutskever",
        "model.layers=1",
        "data=toy",
        "data.train=400",
        "data.valid=8",
        "data.test=8",
        "data.vocabulary.kind=word",
    ],
    "captioning": ["model=show_tell", "data=scenes", "data.train=8", "data.valid=2", "data.test=2"],
    "language modelling": ["model=language_model", "model.layers=1", "data=text", "data.train=a.txt"],
}
COMMON = ["data.processes=1", "model.embedding=8", "model.hidden=8", "device=cpu", "threads=1", "train.minutes=null"]
DIVERGING = ["optim.lr=1e37", "train.clip_norm=null", "train.batch_size=4", "train.bptt=5"]
LINEAR = '''"""A cell without a nonlinearity."""

from seqtool.models.cells import RNN


class Linear(RNN):
    def forward(self, x, state):
        (h,) = state
        return (x + self.recurrent(h),)
'''


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a.txt").write_text("the cat sees a dog. " * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*line: str) -> int:
    return cli.run(line, config_directory())


def best_scores(name: str) -> dict[str, float]:
    scores: dict[str, float] = checkpoint.newest(Path("runs") / name).progress["best"]
    return scores


@pytest.mark.parametrize("task", SMALL)
def test_a_checkpoint_without_a_finite_loss_is_never_the_best(
    workspace: Path, curves: None, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    """The diverged run is kept, its log says what to lower, and it can be resumed, inspected and reported."""
    bptt = [] if task == "language modelling" else ["train.bptt=100"]
    settings = [
        *SMALL[task],
        *COMMON,
        *DIVERGING,
        *bptt,
        "train.steps=2",
        "train.validate_every=1",
        "train.log_every=1",
    ]
    assert run("train", *settings, "run=r") == 0
    out = capsys.readouterr().out
    assert "the best" not in out.replace("no checkpoint is the best", "") and "Best:" not in out
    assert "start again with a lower optim.lr, train.clip_norm or initialisation_gain." in out
    assert best_scores("r") == {} and run("inspect", "runs/r") == 0 and run("report", "runs/r") == 0
    assert run("train", "run=r", "train.resume=true", "train.steps=2", *SMALL[task], *COMMON) == 0
    assert "No validation was finite" in capsys.readouterr().out


@pytest.mark.parametrize(("loss", "bits"), [(math.nan, math.nan), (math.inf, math.inf), (3.5, math.nan)])
def test_a_run_whose_best_is_not_finite_can_be_resumed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, loss: float, bits: float
) -> None:
    """Earlier versions recorded such validations as the best."""
    losses = iter([{"loss": loss, "bits": bits}, {"loss": loss, "bits": bits}, {"loss": 3.0, "bits": 2.0}])
    monkeypatch.setattr(StreamValidator, "__call__", lambda *_: next(losses))
    settings = [*SMALL["language modelling"], *COMMON, "train.batch_size=4", "train.bptt=5", "train.validate_every=1"]
    assert run("train", *settings, "run=r", "train.steps=1") == 0
    (saved,) = checkpoint.list_checkpoints(Path("runs/r"))
    record = json.loads((saved / "checkpoint.json").read_text())
    scores = {"loss": loss, "bits": bits}
    record["progress"] |= {"best": {"checkpoint": saved.name, "step": 1, **scores}, "yardstick": scores}
    (saved / "checkpoint.json").write_text(json.dumps(record))
    manifest = json.loads((saved / "manifest.json").read_text())
    file = saved / "checkpoint.json"
    manifest[file.name] = {"bytes": file.stat().st_size, "sha256": checkpoint.sha256(file)}
    (saved / "manifest.json").write_text(json.dumps(manifest))
    assert run("train", "run=r", "train.resume=true", "train.steps=3") == 0
    assert best_scores("r") == {"checkpoint": "step-0000003", "step": 3, "loss": 3.0, "bits": 2.0}


def test_a_score_that_is_not_a_number_is_never_the_best(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is finite. Scores that are not come before and after the first finite score, and count for patience."""
    scores = iter([math.nan, 1.0, math.nan, 0.5, math.inf])
    monkeypatch.setattr(Validator, "__call__", lambda *_: {"loss": 2.0, "bleu": next(scores)})
    settings = [*SMALL["translation"], *COMMON, "train.validate_every=1", "train.patience=3"]
    assert run("train", *settings, "run=r", "train.steps=9") == 0
    assert best_scores("r")["step"] == 2 and checkpoint.newest(Path("runs/r")).progress["step"] == 5
    monkeypatch.setattr(Validator, "__call__", lambda *_: {"loss": 2.0, "bleu": math.nan})
    assert run("train", *settings, "run=never", "train.steps=1") == 0
    assert "no checkpoint is the best: start again with another train.best_by." in capsys.readouterr().out


def test_figures_without_data_are_not_drawn(workspace: Path, curves: None, capsys: pytest.CaptureFixture[str]) -> None:
    """The states of an untrained linear cell explode: it has gradients, but no losses. A diverged run has neither."""
    (workspace / "linear_cell.py").write_text(LINEAR)
    settings = ["experiment=gradients", "model.cell=linear_cell.Linear", "initialisation_gain=10", "data.train=a.txt"]
    settings += ["model.embedding=8", "model.hidden=8", "train.batch_size=2", "device=cpu"]
    assert run("train", *settings, "run=linear") == 0
    assert run("train", *SMALL["language modelling"], *COMMON, *DIVERGING, "train.steps=2", "run=diverged") == 0
    linear, diverged = capsys.readouterr().out.split("runs/linear (")
    assert "validation loss nan" in linear and "No validation was finite" in linear
    assert "Figures: runs/linear/gradient_flow.png\n" in linear and "Figures: " not in diverged
    assert [str(path) for path in Path().glob("runs/*/*.png")] == ["runs/linear/gradient_flow.png"]
    assert run("report", "runs/linear") == 0 and run("report", "runs/diverged") == 0
    assert run("inspect", "runs/linear", "runs/diverged", "plot=figures") == 0
    assert capsys.readouterr().out.endswith("Figures: figures/gradient_flow.png\n")
    assert run("inspect", "runs/diverged", "plot=figures") == 2
    assert "holds no losses, scores or learning rates to draw" in capsys.readouterr().err
