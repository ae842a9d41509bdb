"""Tests of training on tiny data, by the command's own functions: it learns, stops, resumes and keeps checkpoints."""

import importlib.machinery
import inspect
import json
import math
import os
import re
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from seqtool.cli import main as cli
from seqtool.cli import train as command
from seqtool.runtime.files import config_directory, locked
from seqtool.training import checkpoint, recording
from seqtool.training.losses import Loss, TrainingLoss
from seqtool.training.recording import MetricsLog
from seqtool.training.saving import Progress
from seqtool.training.trainer import Trainer
from seqtool.training.validation import Validator
from seqtool.view import plots

TINY = [
    "data=parallel",
    "data.train=train.tsv",
    "data.valid=valid.tsv",
    "data.vocabulary.kind=word",
    "data.processes=1",
    "device=cpu",
    "model.embedding=24",
    "train.batch_size=16",
]
BAHDANAU = [
    "model=bahdanau",
    "model.encoder_hidden=24",
    "model.decoder_hidden=48",
    "model.alignment=24",
    "model.maxout=24",
]
SUTSKEVER = ["model=sutskever", "model.hidden=64", "model.layers=1"]
DIVERGING = ["optim.lr=1e37", "train.clip_norm=null", "train.steps=100"]  # after one step no loss is finite
LUONG = ["model=luong", "model.hidden=32", "model.alignment=8"]
TIMES = ("seconds", "tokens_per_second", "decoded_tokens_per_second", "peak_memory")  # what differs between equal runs


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a corpus of the words a to f, whose targets are the sources reversed."""
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 1500), ("valid", 30)):
        rows = []
        for _ in range(count):
            length = int(torch.randint(2, 6, (1,), generator=generator))
            words = ["abcdef"[i] for i in torch.randint(0, 6, (length,), generator=generator).tolist()]
            rows.append(" ".join(words) + "\t" + " ".join(reversed(words)))
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str) -> int:
    return cli.run(["train", *TINY, *settings], config_directory())


def load_weights(run: str) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors")


def timeless_records(run: str) -> list[dict[str, float]]:
    """Return the records of metrics.jsonl without times."""
    return [{name: value for name, value in record.items() if name not in TIMES} for record in read_records(run)]


def read_records(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path("runs") / run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("model", [BAHDANAU, SUTSKEVER], ids=["bahdanau", "sutskever"])
def test_a_model_learns_to_reverse_sentences(workspace: Path, model: list[str]) -> None:
    """Free-running decoding must be perfect: a lower loss is not enough."""
    settings = ["model.dropout=0", "optim.lr=0.01", "train.batch_size=32", "schedule=plateau", "schedule.patience=1"]
    assert train(*model, *settings, "train.epochs=14", "train.minutes=null", "run=r") == 0
    assert checkpoint.find("runs/r").progress["best"]["bleu"] == pytest.approx(100)


@pytest.mark.parametrize("model", [BAHDANAU, SUTSKEVER, LUONG], ids=["bahdanau", "sutskever", "luong"])
def test_a_resumed_run_equals_an_uninterrupted_run(workspace: Path, model: list[str]) -> None:
    """The runs are equal bit for bit, with a stop in mid-epoch, dropout and a schedule that counts validations."""
    common = [*model, "schedule=plateau", "schedule.patience=1", "train.validate_every=10", "train.minutes=null"]
    assert train(*common, "run=whole", "train.steps=37") == 0
    assert train(*common, "run=parts", "train.steps=23") == 0
    assert train("run=parts", "train.resume=true", "train.steps=37") == 0
    whole, resumed = load_weights("whole"), load_weights("parts")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    scores = []
    for run in ("whole", "parts"):  # at step 23, only the stopped run validates
        validations = [record for record in read_records(run) if "valid_loss" in record and record["step"] != 23]
        scores.append([(record["step"], record["valid_loss"]) for record in validations])
    assert scores[0] == scores[1] and len(scores[0]) == 4


@pytest.mark.parametrize("step", [10, 13, 25], ids=["before-a-validation", "between", "at-the-limit"])
def test_a_run_stopped_by_a_signal_resumes_exactly(
    workspace: Path, step: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On SIGTERM, the step is finished and saved. The resumed run equals an uninterrupted run."""
    common = [*SUTSKEVER, "train.validate_every=10", "train.minutes=null", "schedule=plateau", "schedule.patience=1"]
    assert train(*common, "run=whole", "train.steps=25") == 0
    updated = MetricsLog.updated  # called after each update

    def update_and_stop(self: MetricsLog, progress: Progress, rate: float) -> None:
        updated(self, progress, rate)
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "updated", update_and_stop)
        assert train(*common, "run=parts", "train.steps=25") == 130
    assert f"Stopped at step {step}. Resume with: seqtool train run=parts train.resume=true" in capsys.readouterr().out
    assert train("run=parts", "train.resume=true") == 0
    whole, resumed = load_weights("whole"), load_weights("parts")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    progress = [checkpoint.newest(Path("runs") / run).progress for run in ("whole", "parts")]
    assert all(progress[0][key] == progress[1][key] for key in ("stale", "plateaus", "since_halving", "best"))
    assert timeless_records("whole") == timeless_records("parts")
    assert checkpoint.find("runs/parts").path.name == progress[0]["best"]["checkpoint"]


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize(
    ("where", "step"),
    [("MetricsLog", 0), ("Validator.__call__", 2), ("checkpoint.save", 2)],
    ids=["start", "valid", "save"],
)
def test_a_signal_is_obeyed_at_any_time(
    where: str, step: int, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validation or saving is finished first, if it is under way."""
    owner: Any = {"MetricsLog": command, "Validator.__call__": Validator, "checkpoint.save": checkpoint}[where]
    name = where.rpartition(".")[2]
    function = getattr(owner, name)

    def signal_and_call(*arguments: Any, **keywords: Any) -> Any:
        os.kill(os.getpid(), number)
        return function(*arguments, **keywords)

    settings = [*SUTSKEVER, "run=r", "train.minutes=null", "train.validate_every=2"]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signal_and_call)
        assert train(*settings, "train.steps=4") == 130
    assert f"Stopped at step {step}. Resume with: seqtool train run=r train.resume=true" in capsys.readouterr().out
    assert checkpoint.newest(Path("runs/r")).progress["step"] == step
    assert train("run=r", "train.resume=true") == 0
    assert [record["step"] for record in read_records("r")] == [2, 4]


def test_a_second_sigint_stops_at_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The signal interrupts a save, and nothing of the save is left."""

    def interrupt_twice(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    settings = [*SUTSKEVER, "run=r", "train.minutes=null", "train.validate_every=2"]
    assert train(*settings, "train.steps=2") == 0
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_sync", interrupt_twice)
        assert train("run=r", "train.resume=true", "train.steps=4") == 130
    assert [path.name for path in (workspace / "runs/r/checkpoints").iterdir()] == ["step-0000002"]
    advice = (
        "The last checkpoint is runs/r/checkpoints/step-0000002: resume from it with seqtool train run=r train.resume"
    )
    assert f"Stopped at once. {advice}=true.\n" in capfd.readouterr().err
    assert train("run=r", "train.resume=true", "train.steps=4") == 0


def test_resume_auto_starts_resumes_and_ends_a_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [*SUTSKEVER, "run=r", "train.resume=auto", "train.minutes=null", "train.log_every=1"]
    assert train(*common, "train.steps=2") == 0
    assert train(*common, "train.steps=4") == 0
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in Path("runs/r").rglob("[!.]*")}
    assert train(*common, "train.steps=4", "train.tensorboard=true") == 0  # TensorBoard is not needed any more
    assert capsys.readouterr().out.startswith("Run runs/r is finished: to continue, raise the limit")
    assert before == {path: path.stat().st_mtime_ns for path in Path("runs/r").rglob("[!.]*")}
    assert [record["step"] for record in read_records("r")] == [1, 2, 2, 3, 4, 4]
    removed = Path("runs/r/checkpoints/.step-0000002-removed")  # as if the process had been killed while removing it
    removed.mkdir()
    assert train(*common, "train.steps=4") == 0
    assert not removed.exists()


def test_resume_auto_restarts_a_run_without_a_checkpoint(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workspace / "runs/r/checkpoints/.step-0000002-abc").mkdir(parents=True)
    for name in (".config.yaml.7", ".learning_curves.png.1a2b3c4d", ".averaged.txt.1a2b3c4d"):
        (workspace / "runs/r" / name).write_text("run: ")
    (workspace / "runs/r/config.yaml").write_text("run: r\n")
    (workspace / "runs/r/metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    common = [*SUTSKEVER, "run=r", "train.steps=2", "train.minutes=null"]
    assert train(*common, "train.resume=true") == 2
    assert (
        "Run runs/r was stopped before it saved anything: train.resume=auto starts it again." in capfd.readouterr().err
    )
    assert train(*common, "train.resume=auto") == 0
    assert [record["step"] for record in read_records("r")] == [2]
    assert sorted(path.name for path in Path("runs/r").rglob(".*")) == [".lock"]


def test_accumulating_equals_a_larger_batch(workspace: Path) -> None:
    """The loss is normalised by the tokens of all batches of an update, although the last batch is smaller."""
    common = [*BAHDANAU, "model.dropout=0", "optim=sgd", "train.steps=3", "train.minutes=null", "train.pool=1000"]
    assert train(*common, "run=large", "train.batch_size=1500") == 0
    assert train(*common, "run=small", "train.batch_size=215", "train.accumulate=7") == 0
    for name, tensor in load_weights("large").items():
        assert torch.allclose(tensor, load_weights("small")[name], atol=1e-5)


def test_the_best_and_the_last_checkpoints_are_kept(workspace: Path, curves: None) -> None:
    settings = ["train.steps=12", "train.validate_every=2", "train.keep_last=2", "train.minutes=null"]
    assert train(*SUTSKEVER, *settings, "run=r") == 0
    names = [path.name for path in checkpoint.list_checkpoints(Path("runs/r"))]
    best = checkpoint.newest(Path("runs/r")).progress["best"]["checkpoint"]
    assert names == sorted({"step-0000010", "step-0000012", best})
    valid = {record["step"]: record["valid_bleu"] for record in read_records("r") if "valid_bleu" in record}
    assert valid[int(best.removeprefix("step-"))] == max(valid.values())
    assert (workspace / "runs/r/learning_curves.png").stat().st_size > 5000


@pytest.mark.parametrize(("seconds", "drawings"), [(1000, 1), (0, 4)])
def test_curves_are_drawn_at_the_end_and_before_if_time_has_passed(
    workspace: Path, curves: None, monkeypatch: pytest.MonkeyPatch, seconds: float, drawings: int
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(recording, "DRAW_SECONDS", seconds)
    monkeypatch.setattr(plots, "learning_curves", lambda *_: drawn.append(len(read_records("r"))))
    assert train(*SUTSKEVER, "train.steps=3", "train.validate_every=1", "train.minutes=null", "run=r") == 0
    assert len(drawn) == drawings and drawn[-1] == len(read_records("r"))


def test_patience_stops_a_run(workspace: Path) -> None:
    settings = ["optim=sgd", "optim.lr=0", "train.validate_every=1", "train.patience=3", "train.minutes=null"]
    assert train(*SUTSKEVER, *settings, "run=r") == 0
    assert checkpoint.newest(Path("runs/r")).progress["step"] == 4


def test_patience_stops_a_run_whose_losses_are_not_finite(workspace: Path) -> None:
    """A loss that is not finite is neither an improvement nor the best."""
    settings = ["train.validate_every=1", "train.patience=3", "train.minutes=null", "run=r"]
    assert train(*SUTSKEVER, *settings, *DIVERGING) == 0
    progress = checkpoint.newest(Path("runs/r")).progress
    assert (progress["step"], progress["stale"], progress["best"]) == (3, 3, {})


def test_a_finite_loss_is_better_than_any_other(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([(math.inf, 9.0), (math.nan, 9.0), (2.0, 1.0), (math.nan, 9.0), (1.5, 2.0)])
    monkeypatch.setattr(Validator, "__call__", lambda *_: dict(zip(("loss", "bleu"), next(results), strict=True)))
    for score in ("bleu", "loss"):
        results = iter([(math.inf, 9.0), (math.nan, 9.0), (2.0, 1.0), (math.nan, 9.0), (1.5, 2.0)])
        settings = ["train.steps=5", "train.validate_every=1", "train.minutes=null", f"train.best_by={score}"]
        assert train(*SUTSKEVER, *settings, f"run={score}", "train.keep_last=5") == 0
        paths = checkpoint.list_checkpoints(Path("runs", score))
        assert [checkpoint.read(path).progress["best"].get("step") for path in paths] == [None, None, 3, 3, 5]


def test_an_average_of_checkpoints_is_kept_if_it_is_better(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of three checkpoints scores better than each of them here."""
    losses = iter([3.0, 2.0, 2.5, 1.0, 4.0])
    monkeypatch.setattr(Validator, "__call__", lambda *_: {"loss": next(losses), "bleu": 0.0})
    settings = ["train.steps=60", "train.validate_every=20", "train.average_last=3", "train.minutes=null"]
    assert train(*BAHDANAU, *settings, "run=r", "train.best_by=loss") == 0
    paths = checkpoint.list_checkpoints(Path("runs/r"))
    assert [path.name for path in paths] == ["step-0000020", "step-0000040", "step-0000060"]
    best = checkpoint.find("runs/r")
    assert best.path.name == "average-3"
    mean = checkpoint.average([checkpoint.read(path) for path in paths])
    assert torch.equal(load_file(best.path / "model.safetensors")["output.bias"], mean["output.bias"])
    assert best.progress["best"] == {"checkpoint": "average-3", "step": 60, "loss": 1.0, "bleu": 0.0}
    assert checkpoint.find("runs/r/last").progress["best"]["checkpoint"] == "step-0000040"
    assert train("run=r", "train.resume=true", "train.steps=61", "train.average_last=0") == 0
    assert checkpoint.find("runs/r").path.name == "step-0000040"  # the average is outdated


def test_a_run_whose_average_was_not_kept_is_finished(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = iter([3.0, 2.0, 4.0, 1.5, 4.0])
    monkeypatch.setattr(Validator, "__call__", lambda *_: {"loss": next(losses), "bleu": 0.0})
    settings = [*BAHDANAU, "train.validate_every=2", "train.average_last=2", "train.minutes=null", "train.best_by=loss"]
    for steps, is_finished in ((4, False), (4, True), (6, False), (6, True)):
        assert train(*settings, "run=r", "train.resume=auto", f"train.steps={steps}") == 0
        assert ("Run runs/r is finished" in capsys.readouterr().out) == is_finished
    assert next(losses, None) is None and not checkpoint.list_averages(Path("runs/r"))


@pytest.mark.parametrize("stop", [14, 19, 23])
def test_interruptions_change_neither_patience_nor_averages(workspace: Path, stop: int) -> None:
    common = [*SUTSKEVER, "train.validate_every=5", "train.minutes=null", "schedule=plateau", "schedule.patience=1"]
    common += ["train.average_last=3", "train.accumulate=2", "optim.lr=0.01"]
    assert train(*common, "run=whole", "train.steps=30") == 0
    assert train(*common, "run=parts", f"train.steps={stop}") == 0
    assert train("run=parts", "train.resume=true", "train.steps=30") == 0
    whole, resumed = load_weights("whole"), load_weights("parts")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    progress = [checkpoint.newest(Path("runs") / run).progress for run in ("whole", "parts")]
    assert all(progress[0][key] == progress[1][key] for key in ("stale", "plateaus", "yardstick", "scheduled"))


def test_only_gradients_longer_than_the_norm_are_clipped(workspace: Path) -> None:
    common = [*SUTSKEVER, "optim=sgd", "optim.lr=1", "train.minutes=null", "train.steps=1"]
    norms = {"unmoved": 1e-9, "short": 0.01, "triple": 0.03, "long": 1e6, "unclipped": "null"}
    for name, norm in norms.items():
        assert train(*common, f"run={name}", f"train.clip_norm={norm}") == 0
    vectors = [torch.cat([tensor.flatten() for tensor in load_weights(run).values()]) for run in norms]
    initial, short, triple, long, unclipped = vectors
    assert float((short - initial).norm()) == pytest.approx(0.01, rel=1e-3)
    assert torch.allclose(triple - initial, 3 * (short - initial), atol=1e-6)
    assert torch.equal(long, unclipped) and float((unclipped - initial).norm()) > 0.03


def test_the_training_loop_fits_on_a_screen() -> None:
    """A single function has the whole way from batch to loss, gradient, clipping, step and log."""
    assert len(inspect.getsource(Trainer.train).splitlines()) <= 60


def test_a_diverging_run_stops_with_advice(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(*SUTSKEVER, *DIVERGING, "train.minutes=null", "run=r") == 2
    error = capfd.readouterr().err
    assert "The loss or its gradient was not finite in 20 steps in a row, up to step " in error
    assert "lower optim.lr or train.clip_norm. No good checkpoint was saved before: start again." in error


def test_tensorboard_gets_only_finite_losses(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard's writer takes only numbers. The run continues to its checkpoints and to the advice."""
    scalars: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, *_: Any, **keywords: Any) -> None:
            pass

        def add_scalar(self, name: str, value: float, step: int) -> None:
            scalars.append((name, float(value), step))

    for name in ("tensorboard", "torch.utils.tensorboard", "torch.utils.tensorboard.writer"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    settings = ["train.tensorboard=true", "train.validate_every=5", "train.log_every=1", "train.minutes=null"]
    assert train(*SUTSKEVER, *settings, *DIVERGING, "run=r") == 2
    assert "The loss or its gradient was not finite in 20 steps in a row, up to step 21: " in capfd.readouterr().err
    assert [path.name for path in checkpoint.list_checkpoints(Path("runs/r"))][-1] == "step-0000020"
    assert [step for name, _, step in scalars if name == "loss"] == [1]
    assert max(step for _, _, step in scalars) == 20


def spoil_losses(monkeypatch: pytest.MonkeyPatch, *, steps: range, part: str) -> None:
    """Make a part of the loss of these training steps, counted from 1, NaN."""
    forward, calls = TrainingLoss.forward, []

    def forward_and_spoil(self: TrainingLoss, batch: Any, state: Any = None) -> Loss:
        loss = forward(self, batch, state)
        if not self.training:
            return loss
        calls.append(1)
        return loss._replace(**{part: getattr(loss, part) * float("nan")}) if len(calls) in steps else loss

    monkeypatch.setattr(TrainingLoss, "forward", forward_and_spoil)


@pytest.mark.parametrize("part", ["total", "nll"])
def test_steps_that_are_not_finite_are_skipped_and_counted(
    workspace: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics count them and have no loss for them, and the weights do not change."""
    common = [*SUTSKEVER, "train.minutes=null", "train.validate_every=100", "train.log_every=1"]
    assert train(*common, "run=before", "train.steps=2") == 0
    spoil_losses(monkeypatch, steps=range(3, 5), part=part)
    assert train(*common, "run=skipped", "train.steps=4") == 0
    assert all(torch.equal(tensor, load_weights("skipped")[name]) for name, tensor in load_weights("before").items())
    rows = [record for record in read_records("skipped") if "skipped_steps" in record]
    assert [row["skipped_steps"] for row in rows] == [0, 0, 1, 2]
    assert [row["loss"] is None for row in rows] == [False, False, True, True]


def test_a_diverged_run_resumes_from_its_last_good_checkpoint(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    common = [*SUTSKEVER, "run=r", "train.minutes=null", "train.validate_every=4", "train.steps=40"]
    with monkeypatch.context() as patch:
        spoil_losses(patch, steps=range(6, 100), part="total")
        assert train(*common) == 2
    good = "runs/r/checkpoints/step-0000004"
    error = capfd.readouterr().err
    assert f"up to step 25: lower optim.lr or train.clip_norm. The last good checkpoint is {good}: resume from" in error
    assert [str(path) for path in checkpoint.list_checkpoints(Path("runs/r"))] == [good]
    assert train("run=r", "train.resume=true", "train.steps=8", "optim.lr=0.0001") == 0
    assert checkpoint.newest(Path("runs/r")).progress["step"] == 8


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] not enough memory: you tried"),
        MemoryError(),
    ],
    ids=["gpu", "cpu", "python"],
)
def test_out_of_memory_names_the_batch_and_what_to_lower(
    workspace: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise error

    assert train(*SUTSKEVER, "run=r", "train.steps=1", "train.minutes=null") == 0
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoss, "forward", fail)
        assert train("run=r", "train.resume=true", "train.steps=2") == 2
    assert re.search(
        r"Out of memory on cpu at step 2, whose batch has 16 sentences, the longest source of \d and longest target of "
        r"\d tokens: start a run with a lower train\.batch_size, now 16, and a higher train\.accumulate, or with a "
        r"lower data\.limits\.maximum \(init_from=runs/r starts from its weights\)\.",
        capfd.readouterr().err,
    )
    monkeypatch.setattr(Validator, "_loss", fail)
    assert train("run=r", "train.resume=true", "train.steps=2") == 2
    advice = "while validating, 128 at a time: use shorter validation examples, or a smaller model or vocabulary."
    assert f"Out of memory on cpu {advice}" in capfd.readouterr().err


def test_a_run_is_not_resumed_with_changed_data(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same sentences in another order have the same vocabulary, but make other batches."""
    assert train(*SUTSKEVER, "run=r", "train.steps=2", "train.minutes=null") == 0
    text = (workspace / "train.tsv").read_text()
    first_line, other_lines = text.split("\n", 1)
    (workspace / "train.tsv").write_text(f"{other_lines}{first_line}\n")
    assert train("run=r", "train.resume=true", "train.steps=4") == 2
    saved = "runs/r/checkpoints/step-0000002"
    assert f"The data changed since {saved} was saved (data.train=train.tsv): a run resumes" in capfd.readouterr().err
    (workspace / "train.tsv").write_text(text)
    assert train("run=r", "train.resume=true", "train.steps=4") == 0


def test_settings_of_a_resumed_run_are_recorded(workspace: Path) -> None:
    assert train(*SUTSKEVER, "run=r", "train.steps=2", "train.minutes=null") == 0
    assert train("run=r", "train.resume=true", "train.steps=4") == 0
    assert "steps: 4" in (workspace / "runs/r/config.yaml").read_text()


def test_two_processes_do_not_train_one_run(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(*SUTSKEVER, "run=r", "train.steps=2", "train.minutes=null") == 0
    with locked(Path("runs/r/.lock"), lambda: None):
        assert train("run=r", "train.resume=true", "train.steps=4") == 2
    assert "Another process is training runs/r: wait for it or stop it." in capfd.readouterr().err


def test_a_run_of_any_name_can_be_resumed(workspace: Path) -> None:
    assert train(*SUTSKEVER, "run=${x} ü (1)", "train.steps=2", "train.minutes=null") == 0
    assert train("run=${x} ü (1)", "train.resume=true", "train.steps=3") == 0
    assert checkpoint.newest(Path("runs/${x} ü (1)")).progress["step"] == 3


def test_damage_is_noticed_and_an_older_checkpoint_is_used(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    common = [*SUTSKEVER, "train.validate_every=2", "train.minutes=null", "train.keep_last=2", "train.log_every=1"]
    assert train(*common, "run=r", "train.steps=6") == 0
    assert train(*common, "run=whole", "train.steps=9") == 0
    damaged = Path("runs/r/checkpoints/step-0000006/model.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with (workspace / "runs/r/metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 7, "lo')
    assert train("run=r", "train.resume=true", "train.steps=9") == 0
    message = "step-0000006 is damaged: model.safetensors does not match manifest.json; use another one. Using runs/"
    assert message in caplog.text
    whole, resumed = load_weights("whole"), load_weights("r")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert timeless_records("whole") == timeless_records("r")
    progress = [checkpoint.newest(Path("runs") / run).progress for run in ("whole", "r")]
    assert progress[0]["best"] == progress[1]["best"]


def test_bf16_lowers_the_loss(workspace: Path) -> None:
    assert train(*BAHDANAU, "precision=bf16", "run=r", "train.epochs=3", "train.minutes=null", "optim.lr=0.005") == 0
    losses = [record["valid_loss"] for record in read_records("r") if "valid_loss" in record]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(("steps", "measured_steps"), [(4, [0, 2, 4]), (5, [0, 2, 4, 5]), (1, [0, 1])])
def test_gradient_flow_is_drawn_at_the_end_of_every_run(
    workspace: Path, curves: None, steps: int, measured_steps: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A short run has a figure as well, and the closing lines name the figures."""
    settings = [f"train.steps={steps}", "train.validate_every=2", "train.gradient_flow=true", "train.minutes=null"]
    assert train(*SUTSKEVER, *settings, "run=r") == 0
    assert "Figures: runs/r/learning_curves.png, runs/r/gradient_flow.png\n" in capsys.readouterr().out
    measurements = [json.loads(line) for line in (workspace / "runs/r/gradient_flow.jsonl").read_text().splitlines()]
    assert [measurement["step"] for measurement in measurements] == measured_steps
    states = [state for measurement in measurements for state in measurement["gradients"].values()]
    assert all(norm > 0 for state in states for norm in state["h"] + state["c"])
    assert (workspace / "runs/r/gradient_flow.png").stat().st_size > 5000


def test_fine_tuning_starts_from_weights_of_another_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*BAHDANAU, "run=first", "train.steps=20", "train.minutes=null") == 0
    unmoved = ["optim=sgd", "optim.lr=0", "train.steps=1", "train.minutes=null"]
    assert train(*BAHDANAU, "run=second", "init_from=runs/first", *unmoved) == 0
    assert all(torch.equal(tensor, load_weights("second")[name]) for name, tensor in load_weights("first").items())
    assert train(*BAHDANAU, "run=third", "init_from=runs/first", "model.embedding=7") == 2
    sizes = checkpoint.find(Path("runs/first")).config["model"]
    assert f" Its model has model.embedding={sizes['embedding']} model.cell=" in capsys.readouterr().err


def test_pretrained_vectors_initialise_embeddings(workspace: Path) -> None:
    (workspace / "vectors.txt").write_text("a " + " ".join(["0.5"] * 24) + "\nzebra " + " ".join(["1"] * 24) + "\n")
    settings = ["optim=sgd", "optim.lr=0", "train.steps=1", "train.minutes=null", "embeddings.source=vectors.txt"]
    assert train(*BAHDANAU, *settings, "run=r") == 0
    rows = load_weights("r")["source_embedding.weight"]
    assert sum(bool((row == 0.5).all()) for row in rows) == 1


REFUSED_SETTINGS = {
    "model=null": (
        r"Unknown model 'null'; choose from bahdanau, language_model, luong, show_attend_tell, show_tell, "
        r"sutskever, transformer, transformer_captioner, transformer_language_model\."
    ),
    "train=5": r"Setting 'train' is a group of settings, not 5\.",
    "seed=-1": r"seed must be at least 0, not -1\.",
    "device=meta": r"device=meta cannot be used by seqtool here",
    "train.label_smoothing=2": r"train\.label_smoothing must be below 1, not 2",
    "schedule.warmup=-1": r"schedule\.warmup must be at least 0, not -1\.",
    "schedule=sutskever schedule.every=0": r"schedule\.every must be above 0, not 0\.0\.",
    "schedule=cosine schedule.epochs=0": r"schedule\.epochs must be above 0, not 0\.0\.",
    "run=r train.resume=true seed=2": r"Run runs/r was started with other settings of seed",
    "run=r train.resume=true data.limits.maximum=7": r"Run runs/r was started with other settings of data",
    "model.tie=all": r"model\.tie=all needs one vocabulary for both sides: set data\.vocabulary\.joint=true\.",
    "model.dropout=1.5 model.decoder_layers=0": r"layers must be at least 1, not 0\. model\.dropout must .* not 1\.5",
    "schedule.warmup=many": r"[Ss]etting 'schedule\.warmup' must be a whole number, not 'many'\.",
    "seed=abc": r"[Ss]etting 'seed' must be a whole number, not 'abc'\.",
    "validation.sentences=0": r"validation\.sentences must be at least 1, not 0\.",
    "train.tensorboard=true": r"train\.tensorboard=true needs TensorBoard: pip install 'seqtool\[tensorboard\]'\.",
    "run=r": r"Run 'r' already exists in runs/r: choose another name with run=…, or resume it",
    "train.resume=true": r"train\.resume=true needs run=NAME",
    "train.resume=auto": r"train\.resume=auto needs run=NAME",
    "train.resume=atuo": r"Unknown train\.resume 'atuo'; choose from true, false, auto\.",
    "run=new train.resume=true": r"There is no run to resume at runs/new",
    "run=r train.resume=true optim=sgd": r"Run runs/r was started with other settings of optim\.name",
    "device=cuda:7": r"device=cuda:7 does not exist here",
    "device=gpu": r"Unknown device 'gpu'",
    "precision=fp8": r"Unknown precision 'fp8'; choose from fp32, bf16, fp16\.",
    "precision=fp16": r"precision=fp16 needs a GPU; on a CPU use precision=bf16 or fp32\.",
    "train.show=5000000": r"train\.show must be at most 1,000, not 5,000,000\.",
    "threads=0": r"threads must be at least 1, not 0\.",
    "initialisation=zero": r"Unknown initialisation 'zero'",
    "train.batch_by=words": r"^seqtool: Unknown train\.batch_by 'words'; choose from sentences, tokens\.$",
    "train.batch_size=0 train.clip_norm=-1": r"size must be above 0, not 0\. train\.clip_norm must be above 0, not -1",
    "train.epochs=many": r"[Ss]etting 'train\.epochs' must be a whole number or null, not 'many'\.",
    "model.cell=gur": r"Unknown cell 'gur'",
    "init_from=runs/r forget_bias=4": r"init_from= brings its own weights: leave initialisation_gain and forget_bias",
    "init_from=runs/none": r"There is no run or checkpoint at runs/none\.",
    "embeddings.source=vectors.txt": r"vectors\.txt line 1 has a vector of 2 values, but .* have 24",
    "embeddings.target=other.txt": r"No word of other\.txt is in the vocabulary",
}


@pytest.mark.parametrize("settings", REFUSED_SETTINGS)
def test_invalid_settings_are_refused(workspace: Path, settings: str, capfd: pytest.CaptureFixture[str]) -> None:
    """There is a single message, the exit status is 2, and no run is left."""
    (workspace / "vectors.txt").write_text("a 1 2\n")
    (workspace / "other.txt").write_text("zebra " + " ".join(["1"] * 24) + "\n")
    assert train(*BAHDANAU, "run=r", "train.steps=1", "train.minutes=null") == 0
    capfd.readouterr()
    assert train(*BAHDANAU, "train.steps=1", "train.minutes=null", *settings.split()) == 2
    error = capfd.readouterr().err.strip().splitlines()
    assert re.search(REFUSED_SETTINGS[settings], error[-1]), error
    assert sum(line.startswith("seqtool:") for line in error) == 1
    assert [path.name for path in (workspace / "runs").iterdir()] == ["r"]
