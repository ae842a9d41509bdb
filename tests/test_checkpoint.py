"""Tests of checkpoints: they are written whole or not at all, and damaged checkpoints are named and refused."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import make_model

from seqtool.cli.inspect import runs_by_name
from seqtool.data.text.vocabulary import load_all
from seqtool.errors import InputError
from seqtool.training import checkpoint


def write(path: Path, model: Any, step: int = 1, **progress: Any) -> None:
    vocabulary = path.parents[1] / "source.vocabulary"
    vocabulary.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_text("words")
    checkpoint.save(
        path,
        model=checkpoint.weights(model),
        training={"random.cpu": torch.get_rng_state()},
        record={
            "task": "translation",
            "config": {"model": {"größe": 3}},
            "progress": {"step": step, **progress},
            "versions": {"seqtool": "0"},
            "data": {},
        },
        vocabularies=[vocabulary],
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints, of which that of step 1 is the best."""
    model = make_model("bahdanau-gru")
    for step in (1, 2, 3):
        with torch.no_grad():
            model.output.bias.fill_(step)
        best = {"checkpoint": "step-0000001", "step": 1, "loss": 2.0}
        write(tmp_path / "run" / "checkpoints" / f"step-000000{step}", model, step, best=best)
    return tmp_path / "run"


def test_a_saved_checkpoint_is_loaded_unchanged(run: Path) -> None:
    stored = checkpoint.find(run / "checkpoints" / "step-0000002")
    assert stored.config == {"model": {"größe": 3}} and stored.progress["step"] == 2
    model = make_model("bahdanau-gru", seed=5)
    stored.load_weights(model)
    original = make_model("bahdanau-gru")
    for (name, parameter), expected in zip(model.named_parameters(), original.parameters(), strict=True):
        assert torch.equal(parameter, torch.full_like(parameter, 2) if name == "output.bias" else expected)
    assert torch.equal(stored.training_tensors()["random.cpu"], torch.get_rng_state())
    assert (stored.path / "source.vocabulary").read_text() == "words"
    assert [path.name for path in stored.path.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_checkpoint_files_follow_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    previous_umask = os.umask(umask)
    try:
        write(tmp_path / "run" / "checkpoints" / "step-0000001", make_model("bahdanau-gru"))
    finally:
        os.umask(previous_umask)
    files = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    assert len(files) == 5 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}


def test_a_tied_matrix_is_stored_once(tmp_path: Path) -> None:
    from small_models import BAHDANAU

    from seqtool.models.bahdanau import Bahdanau

    model = Bahdanau(**BAHDANAU | {"tie": "all"})
    write(tmp_path / "checkpoints" / "step-0000001", model)
    loaded = Bahdanau(**BAHDANAU | {"tie": "all"})
    checkpoint.find(tmp_path / "checkpoints" / "step-0000001").load_weights(loaded)
    assert torch.equal(loaded.output.weight, model.source_embedding.weight)


def test_best_and_last_name_checkpoints_of_a_run(run: Path) -> None:
    assert checkpoint.find(run).path.name == "step-0000001"
    assert checkpoint.find(run / "best").path.name == "step-0000001"
    assert checkpoint.find(run / "last").path.name == "step-0000003"


def test_a_damaged_average_is_replaced_by_another_checkpoint(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The best checkpoint is used, and then the last; an average that ends at an earlier step is ignored."""
    for count, step in ((2, 2), (4, 3)):
        write(run / f"checkpoints/average-{count}", make_model("bahdanau-gru"), step)
    assert checkpoint.find(run).path.name == "average-4"
    (run / "checkpoints/average-4/model.safetensors").write_bytes(b"")
    assert checkpoint.find(run).path.name == "step-0000001"
    (run / "checkpoints/step-0000001/model.safetensors").unlink()
    caplog.clear()
    assert checkpoint.find(run).path.name == "step-0000003"
    average_warning, best_warning = caplog.messages
    assert "average-4 is damaged" in average_warning and "step-0000001 is incomplete" in best_warning
    assert all(text.endswith(f"Using {run}/checkpoints/step-0000003 instead.") for text in caplog.messages)


def test_a_missing_run_or_checkpoint_is_reported(run: Path) -> None:
    with pytest.raises(InputError, match=r"^There is no run or checkpoint at .*/rum\. .* holds run\.$"):
        checkpoint.find(run.with_name("rum"))
    (run.parent / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no checkpoint: give a run directory"):
        checkpoint.find(run.parent / "empty")


def test_a_file_in_place_of_a_directory_is_reported(run: Path) -> None:
    archive, directory = run.with_name("mine.tar.gz"), run / "checkpoints" / "step-0000003"
    archive.touch()
    advice = "is a file: unpack it first, and give the directory of the run or checkpoint in it."
    for path in (archive, archive / "last"):
        with pytest.raises(InputError, match=f"mine.tar.gz {advice}$"):
            checkpoint.find(path)
    for file in (directory / "model.safetensors", run / "config.yaml"):
        file.touch()
        advice = f"is a file: give its directory, {file.parent}, if that is a run or checkpoint."
        with pytest.raises(InputError, match=f"{file.name} {advice}$"):
            checkpoint.find(file)
    with pytest.raises(InputError, match=r"mine.tar.gz is a file: unpack it first"):
        runs_by_name([str(archive)])


def test_the_current_directory_is_named_in_full(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    with pytest.raises(InputError) as error:
        checkpoint.find(".")
    name = str(run.parent)
    advice = "give a run directory (runs/NAME) or a checkpoint inside one."
    assert str(error.value) == f"{name} holds no checkpoint: {advice} {name} holds run."
    with pytest.raises(InputError, match=rf"^There is no run or checkpoint at rum\. {name} holds run\. The current "):
        checkpoint.find("rum")
    (run.parent / "empty").mkdir()
    monkeypatch.chdir(run.parent / "empty")
    with pytest.raises(InputError, match=rf"^{name}/empty is not a run: it has no metrics\.jsonl\.$"):
        runs_by_name(["."])
    with pytest.raises(InputError, match=rf"^{name}/empty has no vocabulary: expected a directory with "):
        load_all(Path(), ["source", "target"])


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "source.vocabulary", "training.safetensors"])
def test_damage_is_noticed_and_the_previous_checkpoint_is_used(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(bytes(content))
    with pytest.raises(
        InputError, match=rf"^Checkpoint .*step-0000003 is damaged: {name} does not match manifest\.json"
    ):
        checkpoint.find(path, purpose="training")
    assert checkpoint.newest(run).path.name == "step-0000002"
    expected = "step-0000003" if name == "training.safetensors" else "step-0000002"  # decoding needs no training state
    assert checkpoint.find(run / "last").path.name == expected


def test_only_files_that_are_used_are_hashed_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    sha256 = checkpoint.sha256

    def recording_sha256(file: Path) -> str:
        hashed.append(f"{file.parent.name[-1]} {file.name}")
        return sha256(file)

    monkeypatch.setattr(checkpoint, "sha256", recording_sha256)
    best = checkpoint.find(run)
    expected = ["1 checkpoint.json", "1 model.safetensors", "1 source.vocabulary"]
    assert sorted(hashed) == [*expected, "3 checkpoint.json"]
    assert checkpoint.find(best) is best and best.load_weights(make_model("bahdanau-gru")) is None
    assert len(hashed) == 4
    hashed.clear()
    assert checkpoint.find(run, purpose="record").path == best.path
    assert sorted(hashed) == ["1 checkpoint.json", "3 checkpoint.json"]
    hashed.clear()
    checkpoint.newest(run)
    assert sorted(hashed) == [*(entry.replace("1", "3") for entry in expected), "3 training.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "manifest.json"])
def test_a_missing_file_is_named(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    (path / name).unlink()
    with pytest.raises(InputError, match=rf"^Checkpoint .*step-0000003 is incomplete: it has no {name}"):
        checkpoint.read(path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"checkpoint.json": 3}', "\x00"])
def test_a_broken_manifest_is_refused(run: Path, content: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    (path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"is damaged|is incomplete"):
        checkpoint.read(path)


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "source.vocabulary", "training.safetensors"])
def test_a_manifest_without_one_of_the_files_is_refused(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest[name]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        InputError, match=rf"step-0000003 is damaged: manifest\.json does not list {name}; use another one"
    ):
        checkpoint.read(path)


def test_a_checkpoint_of_another_format_is_refused(run: Path) -> None:
    path = run / "checkpoints" / "step-0000003"
    record = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(record | {"format": 99}))
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["checkpoint.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"has format 99, but this version of seqtool reads format 1\.$"):
        checkpoint.read(path)


def test_weights_of_another_model_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match=r"does not fit the model: .*(lacks|has no) '"):
        checkpoint.find(run).load_weights(make_model("sutskever-lstm"))
    with pytest.raises(
        InputError,
        match=r"model: '[\w.]+' is \([\d, ]+\) in the checkpoint and \([\d, ]+\) in the model\.$",
    ):
        checkpoint.find(run).load_weights(make_model("bahdanau-rnn"))


def test_a_failed_save_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        write(run / "checkpoints" / "step-0000004", make_model("bahdanau-gru"))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"step-000000{n}" for n in (1, 2, 3)]


def test_checkpoints_that_cannot_be_deleted_are_hidden(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps files that another process has open, and the run may save the same step again."""
    path = checkpoint.newest(run).path
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    for _ in range(2):
        contents = {file.name: file.read_bytes() for file in path.iterdir()}
        checkpoint.remove(path)
        path.mkdir()
        for name, content in contents.items():
            (path / name).write_bytes(content)
    monkeypatch.undo()
    assert len(list((run / "checkpoints").glob(".*"))) == 2
    checkpoint.remove_unfinished(run)
    assert not list((run / "checkpoints").glob(".*"))


def test_average_is_the_mean_of_the_weights(run: Path) -> None:
    mean = checkpoint.average([checkpoint.read(path) for path in checkpoint.list_checkpoints(run)])
    assert torch.allclose(mean["output.bias"], torch.tensor(2.0))
