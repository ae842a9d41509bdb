"""Checkpoints: complete or not there, and damaged ones refused by name."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import make_model

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
    """A run with three checkpoints of which the first is the best."""
    model = make_model("bahdanau-gru")
    for step in (1, 2, 3):
        with torch.no_grad():
            model.output.bias.fill_(step)
        best = {"checkpoint": "step-0000001", "step": 1, "loss": 2.0}
        write(tmp_path / "run" / "checkpoints" / f"step-000000{step}", model, step, best=best)
    return tmp_path / "run"


def test_round_trip(run: Path) -> None:
    found = checkpoint.find(run / "checkpoints" / "step-0000002")
    assert found.config == {"model": {"größe": 3}} and found.progress["step"] == 2
    model = make_model("bahdanau-gru", seed=5)
    found.load_weights(model)
    original = make_model("bahdanau-gru")
    for (name, ours), theirs in zip(model.named_parameters(), original.parameters(), strict=True):
        assert torch.equal(ours, torch.full_like(ours, 2) if name == "output.bias" else theirs)
    assert torch.equal(found.training_tensors()["random.cpu"], torch.get_rng_state())
    assert (found.path / "source.vocabulary").read_text() == "words"
    assert [path.name for path in found.path.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_its_files_have_the_mode_that_the_user_gives_new_files(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "run" / "checkpoints" / "step-0000001", make_model("bahdanau-gru"))
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    assert len(files) == 5 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}


def test_a_tied_matrix_is_stored_once(tmp_path: Path) -> None:
    from small_models import BAHDANAU

    from seqtool.models.bahdanau import Bahdanau

    model = Bahdanau(**BAHDANAU | {"tie": "all"})
    write(tmp_path / "checkpoints" / "step-0000001", model)
    other = Bahdanau(**BAHDANAU | {"tie": "all"})
    checkpoint.find(tmp_path / "checkpoints" / "step-0000001").load_weights(other)
    assert torch.equal(other.output.weight, model.source_embedding.weight)


def test_paths(run: Path) -> None:
    assert checkpoint.find(run).path.name == "step-0000001"
    assert checkpoint.find(run / "best").path.name == "step-0000001"
    assert checkpoint.find(run / "last").path.name == "step-0000003"


def test_a_damaged_average_is_left_behind(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An average of an earlier last checkpoint is not looked at."""
    for count, step in ((2, 2), (4, 3)):
        write(run / f"checkpoints/average-{count}", make_model("bahdanau-gru"), step)
    assert checkpoint.find(run).path.name == "average-4"
    (run / "checkpoints/average-4/model.safetensors").write_bytes(b"")
    assert checkpoint.find(run).path.name == "step-0000001"
    (run / "checkpoints/step-0000001/model.safetensors").unlink()
    caplog.clear()
    assert checkpoint.find(run).path.name == "step-0000003"
    average, best = (record.getMessage() for record in caplog.records)
    assert "average-4 is damaged" in average and "step-0000001 is incomplete" in best
    assert all(text.endswith(f"Using {run}/checkpoints/step-0000003 instead.") for text in (average, best))


def test_missing(run: Path) -> None:
    with pytest.raises(InputError, match=r"^There is no run or checkpoint at .*/rum\. .* holds run\.$"):
        checkpoint.find(run.with_name("rum"))
    (run.parent / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no checkpoint: give a run directory"):
        checkpoint.find(run.parent / "empty")


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "source.vocabulary", "training.safetensors"])
def test_damage_is_noticed_and_the_one_before_is_used(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(bytes(content))
    with pytest.raises(
        InputError, match=rf"^Checkpoint .*step-0000003 is damaged: {name} does not match manifest\.json"
    ):
        checkpoint.find(path, purpose="training")
    assert checkpoint.newest(run).path.name == "step-0000002"
    used = "step-0000003" if name == "training.safetensors" else "step-0000002"  # to decode does without
    assert checkpoint.find(run / "last").path.name == used


def test_only_what_is_used_is_hashed_and_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    sha256 = checkpoint.sha256

    def noted(file: Path) -> str:
        hashed.append(f"{file.parent.name[-1]} {file.name}")
        return sha256(file)

    monkeypatch.setattr(checkpoint, "sha256", noted)
    best = checkpoint.find(run)
    model = ["1 checkpoint.json", "1 model.safetensors", "1 source.vocabulary"]
    assert sorted(hashed) == [*model, "3 checkpoint.json"]
    assert checkpoint.find(best) is best and best.load_weights(make_model("bahdanau-gru")) is None
    assert len(hashed) == 4
    hashed.clear()
    assert checkpoint.find(run, purpose="record").path == best.path
    assert sorted(hashed) == ["1 checkpoint.json", "3 checkpoint.json"]
    hashed.clear()
    checkpoint.newest(run)
    assert sorted(hashed) == [f"3 {name}" for name in (*(one[2:] for one in model), "training.safetensors")]


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "manifest.json"])
def test_a_missing_file_is_named(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    (path / name).unlink()
    with pytest.raises(InputError, match=rf"^Checkpoint .*step-0000003 is incomplete: it has no {name}"):
        checkpoint.read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"checkpoint.json": 3}', "\x00"])
def test_a_broken_manifest(run: Path, text: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    (path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"is damaged|is incomplete"):
        checkpoint.read(path)


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "source.vocabulary", "training.safetensors"])
def test_a_manifest_that_leaves_out_a_file(run: Path, name: str) -> None:
    path = run / "checkpoints" / "step-0000003"
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest[name]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        InputError, match=rf"step-0000003 is damaged: manifest\.json does not list {name}; use another one"
    ):
        checkpoint.read(path)


def test_another_format(run: Path) -> None:
    path = run / "checkpoints" / "step-0000003"
    record = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(record | {"format": 99}))
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["checkpoint.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"has format 99, but this version of seqtool reads format 1\.$"):
        checkpoint.read(path)


def test_another_model_is_refused_by_name(run: Path) -> None:
    with pytest.raises(InputError, match=r"does not fit the model: .*(lacks|has no) '"):
        checkpoint.find(run).load_weights(make_model("sutskever-lstm"))
    with pytest.raises(
        InputError, match=r"does not fit the model: '[\w.]+' is \([\d, ]+\) there and \([\d, ]+\) here\.$"
    ):
        checkpoint.find(run).load_weights(make_model("bahdanau-rnn"))


def test_a_failed_save_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        write(run / "checkpoints" / "step-0000004", make_model("bahdanau-gru"))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"step-000000{n}" for n in (1, 2, 3)]


def test_what_could_not_be_deleted_is_in_nobodys_way(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps files that another process has open, and the run may come by that step again."""
    path = checkpoint.newest(run).path
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    for _ in range(2):
        copy = {file.name: file.read_bytes() for file in path.iterdir()}
        checkpoint.remove(path)
        path.mkdir()
        for name, content in copy.items():
            (path / name).write_bytes(content)
    monkeypatch.undo()
    assert len(list((run / "checkpoints").glob(".*"))) == 2
    checkpoint.remove_unfinished(run)
    assert not list((run / "checkpoints").glob(".*"))


def test_average(run: Path) -> None:
    mean = checkpoint.average([checkpoint.read(path) for path in checkpoint.list_checkpoints(run)])
    assert torch.allclose(mean["output.bias"], torch.tensor(2.0))
