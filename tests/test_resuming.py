"""Tests of resuming runs with vocabularies of every kind, and of saving them by time and when they are stopped."""

import json
import os
import pty
import shutil
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fuzz import repair
from PIL import Image
from processes import Command
from safetensors.torch import load_file
from small_models import make_model

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint, trainer
from seqtool.training.checkpoint import BASELINE
from seqtool.training.compiling import Graphs
from seqtool.training.losses import TrainingLoss
from seqtool.training.saving import Progress, TrainingState
from seqtool.training.trainer import Trainer

COMMON = [
    *("device=cpu", "threads=1", "data.processes=1", "data.vocabulary.minimum_count=1"),
    *("model.dropout=0.3", "train.minutes=null", "train.batch_size=4", "train.validate_every=2"),
]
PAIRS = ["data=parallel", "data.train=train.tsv", "data.valid=valid.tsv"]
SUTSKEVER = [*PAIRS, "model=sutskever", "model.hidden=12", "model.embedding=8"]
CAPTIONING = [
    *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model=show_attend_tell"),
    *("model.hidden=12", "model.alignment=8", "model.encoder.size=32", "model.encoder.fine_tune_from=1"),
    "model.embedding=8",
]
TRANSFORMER_SIZES = ["model.width=8", "model.heads=2", "model.feed_forward=12"]
PLAIN_TEXT = ["data=text", "data.train=train.tsv", "train.bptt=5"]
UNIGRAM = ["data.vocabulary.kind=unigram", "data.vocabulary.size=14"]
VOCABULARIES = {
    "joint": [*SUTSKEVER, *UNIGRAM, "data.vocabulary.joint=true"],
    "separate": [*SUTSKEVER, *UNIGRAM],
    "word": [*SUTSKEVER, "data.vocabulary.kind=word"],
    "char": [*SUTSKEVER, "data.vocabulary.kind=char"],
    "captions": [*CAPTIONING, "data.vocabulary.kind=word"],
    "sequences": [
        *(*PAIRS, "data.vocabulary.kind=word", "model=bahdanau", "model.encoder_hidden=8", "model.decoder_hidden=8"),
        *("model.alignment=8", "model.maxout=8", "model.embedding=8", "train.objective=sequence", "train.samples=3"),
        "train.cross_entropy=0.2",
    ],
    "sequences, hard attention": [
        *(*CAPTIONING, "model.attention=hard", "train.objective=sequence", "train.baseline=greedy"),
        "train.reward=cider_d+0.5*bleu4",
    ],
    "scheduled sampling": [*SUTSKEVER, "train.teacher=exponential", "train.teacher_k=0.8"],
    "text": [*PLAIN_TEXT, "model=language_model", "model.hidden=12", "model.embedding=8"],
    "transformer": [*PAIRS, "data.vocabulary.kind=word", "model=transformer", *TRANSFORMER_SIZES],
    "transformer, text": [*PLAIN_TEXT, "model=transformer_language_model", "model.context=4", *TRANSFORMER_SIZES],
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with sentences to reverse, and pictures of a single colour; it is the current directory."""
    generator = np.random.default_rng(0)
    for name, count in (("train", 40), ("valid", 6)):
        rows = [generator.choice(list("abcdef"), generator.integers(2, 6)).tolist() for _ in range(count)]
        text = "".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows)
        (tmp_path / f"{name}.tsv").write_text(text)
    (tmp_path / "photos").mkdir()
    with (tmp_path / "photos" / "captions.jsonl").open("w") as file:
        for number in range(12):
            colour = generator.integers(0, 2, 3)
            Image.fromarray(np.full((16, 16, 3), 200 * colour, np.uint8)).save(tmp_path / f"photos/{number}.png")
            caption = " ".join(f"{'much' if lit else 'no'} {name}" for lit, name in zip(colour, "rgb", strict=True))
            file.write(json.dumps({"file": f"{number}.png", "captions": [caption]}) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str) -> int:
    return cli.run(["train", *settings], config_directory())


def load_weights(run: str) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors")


def same_weights(*runs: str) -> bool:
    first, second = (load_weights(run) for run in runs)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_run_is_resumed_and_fine_tuned_with_any_vocabulary(workspace: Path, vocabulary: str) -> None:
    """A resumed run equals an uninterrupted run bit for bit. Another run may begin with its weights."""
    settings = [*VOCABULARIES[vocabulary], *COMMON]
    assert train(*settings, "run=whole", "train.steps=5") == 0
    assert train(*settings, "run=parts", "train.steps=3") == 0
    assert train("run=parts", "train.resume=true", "train.steps=4") == 0
    assert train(*settings, "run=parts", "train.resume=auto", "train.steps=5") == 0
    assert same_weights("whole", "parts")
    tensors = [checkpoint.newest(Path("runs") / run).training_tensors() for run in ("whole", "parts")]
    assert tensors[0].keys() == tensors[1].keys() and ("data=text" in settings) == ("carried.000" in tensors[0])
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0] if name != BASELINE)
    fine_tuning = ["init_from=runs/whole/last", "optim=sgd", "optim.lr=0", "train.steps=1"]
    assert train(*settings, "run=tuned", *fine_tuning) == 0
    assert same_weights("whole", "tuned")


def test_a_run_that_lost_a_checkpoint_of_its_average_can_be_finished(workspace: Path) -> None:
    settings = [*VOCABULARIES["word"], *COMMON, "run=r", "train.validate_every=1", "train.average_last=3"]
    assert train(*settings, "train.steps=3") == 0
    shutil.rmtree(workspace / "runs/r/checkpoints/step-0000002")
    assert train("run=r", "train.resume=true", "train.steps=4", "train.average_last=4") == 0
    assert checkpoint.find("runs/r/last").progress["scheduled"] == [f"step-000000{step}" for step in (1, 3, 4)]


@pytest.mark.parametrize("name", [".DS_Store", ".nfs00000000001", "._step-0000002", "average-3.zip"])
def test_unknown_files_in_a_run_are_left_alone(workspace: Path, name: str) -> None:
    settings = [*VOCABULARIES["word"], *COMMON, "run=r"]
    assert train(*settings, "train.steps=2") == 0
    checkpoints = workspace / "runs/r/checkpoints"
    (checkpoints / name).write_bytes(b"not ours")
    (checkpoints / ".step-0000001-removed").mkdir()
    (checkpoints / ".step-0000001-removed" / "model.safetensors").write_bytes(b"ours")
    assert train("run=r", "train.resume=true", "train.steps=4") == 0
    assert (checkpoints / name).read_bytes() == b"not ours"
    assert not (checkpoints / ".step-0000001-removed").exists()
    assert checkpoint.find("runs/r/last").progress["step"] == 4


SAVING = [*VOCABULARIES["word"], *COMMON, "schedule=plateau", "schedule.patience=1", "train.log_every=3"]


def test_timed_checkpoints_are_exact(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each timed checkpoint replaces the previous one, and none is left at the end."""
    common = [*SAVING, "train.validate_every=4", "train.keep_last=2", "train.average_last=2", "train.steps=11"]
    assert train(*common, "run=whole", "train.save_minutes=null") == 0
    begin_update = Trainer._begin_update

    def interrupt(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return begin_update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_begin_update", interrupt)
        assert train(*common, "run=parts", "train.save_minutes=1e-6") == 130
    names = [path.name for path in checkpoint.list_checkpoints(Path("runs/parts"))]
    assert names == ["step-0000004", "step-0000006-saved"]
    assert "The last checkpoint is runs/parts/checkpoints/step-0000006-saved: resume from it" in capfd.readouterr().err
    assert checkpoint.find("runs/parts").path.name == "step-0000004"
    assert train("run=parts", "train.resume=true") == 0
    files = [sorted(path.name for path in Path("runs", run, "checkpoints").iterdir()) for run in ("whole", "parts")]
    assert files[0] == files[1]
    assert same_weights("whole", "parts")
    progress = [checkpoint.newest(Path("runs") / run).progress for run in ("whole", "parts")]
    assert all(progress[0][key] == progress[1][key] for key in ("best", "yardstick", "scheduled", "stale", "good"))
    assert timeless_records("whole") == timeless_records("parts")


def timeless_records(run: str) -> list[dict[str, float]]:
    """Return the records of metrics.jsonl without times."""
    records = [json.loads(line) for line in Path("runs", run, "metrics.jsonl").read_text().splitlines()]
    times = ("seconds", "tokens_per_second", "decoded_tokens_per_second", "peak_memory")
    return [{name: value for name, value in record.items() if name not in times} for record in records]


def test_timed_checkpoints_have_an_interval(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval begins anew with every checkpoint, including those of validations."""
    saved_names = []
    save = checkpoint.save

    def record_and_save(path: Path, **keywords: Any) -> None:
        saved_names.append(path.name)
        save(path, **keywords)

    monkeypatch.setattr(checkpoint, "save", record_and_save)
    seconds = iter(range(0, 10_000, 60))
    monkeypatch.setattr("seqtool.training.trainer.time.monotonic", lambda: next(seconds))
    settings = ["train.save_minutes=3", "train.validate_every=5", "train.steps=8", "train.log_every=100"]
    assert train(*SAVING, *settings, "run=r") == 0
    assert [name for name in saved_names if "saved" in name] and saved_names[-1] == "step-0000008"
    assert not {"step-0000000-saved", "step-0000001-saved", "step-0000006-saved"} & set(saved_names)


def test_a_run_without_a_setting_is_not_resumed(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No default replaces a setting that its checkpoint lacks."""
    assert train(*VOCABULARIES["word"], *COMMON, "run=r", "train.steps=2") == 0
    (last,) = (workspace / "runs/r/checkpoints").iterdir()
    record = json.loads((last / "checkpoint.json").read_text())
    del record["config"]["train"]["save_minutes"]
    (last / "checkpoint.json").write_text(json.dumps(record))
    repair(last)
    assert train("run=r", "train.resume=true", "train.steps=3") == 2
    assert "issing setting 'train.save_minutes'" in capsys.readouterr().err


def test_a_resumed_run_may_be_compiled_or_not(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint does not depend on it."""
    monkeypatch.setattr(trainer, "Graphs", GraphsOfNothing)
    monkeypatch.setattr(GraphsOfNothing, "losses", [])
    assert train(*VOCABULARIES["transformer"], *COMMON, "run=r", "train.steps=1") == 0
    for steps, settings, compiled in ((2, ["compile=true"], 1), (3, [], 2), (4, ["compile=false"], 2)):
        assert train("run=r", "train.resume=true", f"train.steps={steps}", *settings) == 0
        assert len(GraphsOfNothing.losses) == compiled


class GraphsOfNothing(Graphs):
    """`Graphs` that compiles nothing, and its losses."""

    losses: ClassVar[list[TrainingLoss]] = []

    def __init__(self, loss: TrainingLoss) -> None:
        self.losses.append(loss)
        self.shapes, self.batches, self.without = set(), 0, 0
        self.compute = loss.compute

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.compute(*arguments, **settings)

    def facts(self) -> dict[str, float]:
        return {"graphs": 0, "compile_seconds": 0.0}


@pytest.mark.parametrize(
    ("group", "name", "value", "message"),
    [
        ("model", "encoder", [3], "setting 'model.encoder' is a group of settings, not [3]."),
        ("validation", "scores", 5, "setting 'validation.scores' is a name or a list of names, not 5."),
        ("data", "valid", "${model}", None),
        ("data", "valid", "${", None),
    ],
)
def test_damaged_settings_of_a_checkpoint_are_refused_or_taken_literally(
    workspace: Path, capsys: pytest.CaptureFixture[str], group: str, name: str, value: Any, message: str | None
) -> None:
    assert train(*CAPTIONING, "run=damaged", "train.steps=1") == 0
    (path,) = checkpoint.list_checkpoints(Path("runs/damaged"))
    record = json.loads((path / "checkpoint.json").read_bytes())
    record["config"][group][name] = value
    (path / "checkpoint.json").write_text(json.dumps(record))
    repair(path)
    capsys.readouterr()
    assert train("run=damaged", "train.resume=true", "train.steps=2") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    expected = f"{path} is damaged: {message}" if message else f"{value} does not exist"
    assert error.startswith(f"seqtool: {expected}")


def test_a_run_may_resume_with_another_score() -> None:
    """The best checkpoint so far has no such score, so the next validation becomes the best."""
    earlier = {"step": 2, "loss": 0.5, "bleu": 30.0}
    progress = Progress(step=4, best={"checkpoint": "step-0000002", **earlier}, yardstick=earlier, stale=3)
    scores = {"loss": 1.5, "bleu": 20.0, "chrf": 40.0}
    assert progress.add_scores(scores, by="chrf")
    assert progress.best == {"checkpoint": "step-0000004", "step": 4, **scores}
    progress.add_scheduled(scores, by="chrf", plateau=None, kept=1)
    assert progress.stale == 0 and progress.yardstick == scores


def start_training(workspace: Path, *settings: str, **options: Any) -> Command:
    """Start `seqtool train` in another process, and return when it has validated once."""
    arguments = ["train", *VOCABULARIES["word"], *COMMON, "run=r", *settings]
    process = Command(arguments, cwd=workspace, **options)
    while process.poll() is None and not list(workspace.glob("runs/r/checkpoints/step-*")):
        time.sleep(0.05)
    return process


def test_a_run_is_saved_when_its_terminal_is_closed(workspace: Path) -> None:
    """Writing to a terminal that has been closed is an error."""
    outer, inner = pty.openpty()
    settings = ["train.validate_every=5", "train.log_every=1"]
    process = start_training(workspace, *settings, stdin=inner, stdout=inner, stderr=inner, leads_session=True)
    os.close(inner)
    os.close(outer)
    assert process.wait(timeout=60) == 130
    newest = checkpoint.newest(workspace / "runs/r")
    assert newest.path.name in (f"step-{newest.progress['step']:07d}", f"step-{newest.progress['step']:07d}-stopped")
    logged = [json.loads(line)["step"] for line in (workspace / "runs/r/metrics.jsonl").read_text().splitlines()]
    assert max(logged) == newest.progress["step"]


def test_under_nohup_a_run_outlives_its_terminal(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_update = Trainer._begin_update

    def hang_up(self: Trainer, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return begin_update(self, *arguments)

    monkeypatch.setattr(Trainer, "_begin_update", hang_up)
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(*VOCABULARIES["word"], *COMMON, "run=r", "train.steps=3") == 0
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert checkpoint.newest(workspace / "runs/r").progress["step"] == 3


ENDINGS = {
    "train.steps=4": "Ended by train.steps=4 at step 4\n",
    "train.minutes=1e-6": "Ended by train.minutes=1e-06 at step 0\n",
    "train.minutes=1e-6 train.steps=50": "before train.steps=50. Resume with: seqtool train run=r train.resume=true "
    "train.minutes=null",
    "train.minutes=1e-6 train.steps=50 train.epochs=9": "before train.steps=50 and train.epochs=9. Resume with",
    "train.minutes=1e-6 train.epochs=9 schedule=cosine schedule.warmup=9": "before train.epochs=9 and "
    "schedule.epochs=9, where the learning rate is 0. Resume with",
    "train.minutes=1e-6 schedule=cosine schedule.epochs=3": "before schedule.epochs=3, where the learning rate is 0.",
    "train.minutes=1e-6 train.steps=1234567": "before train.steps=1234567. Resume with",
    "train.minutes=30 train.steps=4": "Ended by train.steps=4 at step 4\n",
}


@pytest.mark.parametrize("settings", ENDINGS)
def test_the_log_names_what_ended_a_run_and_its_other_limits(
    workspace: Path, settings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*VOCABULARIES["word"], *COMMON, "run=r", *settings.split()) == 0
    output = capsys.readouterr().out
    assert ENDINGS[settings] in output
    assert ("Ended by train.minutes=1e-06 at step 0, in epoch 1, before" in output) == ("before" in ENDINGS[settings])


def test_random_numbers_of_an_apple_gpu_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a Mac has its generator, so another stands in for it."""
    generator = {"state": torch.tensor([1], dtype=torch.uint8)}
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: generator["state"])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: generator.update(state=state))
    loss = TrainingLoss(make_model("bahdanau-gru"), 0.0)
    optimiser, scaler = torch.optim.SGD(loss.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
    state = TrainingState(loss, optimiser, scaler, None, torch.device("mps"))
    tensors, scalars = state.state_dicts()
    generator["state"] = torch.tensor([2], dtype=torch.uint8)
    state.restore(tensors, scalars)
    assert generator["state"].tolist() == [1]
