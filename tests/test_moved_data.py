"""Tests that a run can be used from any directory, and after its data have moved."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

COMMON = [
    *("device=cpu", "threads=1", "data.processes=1", "data.vocabulary.kind=word", "data.vocabulary.minimum_count=1"),
    *("model.embedding=8", "train.minutes=null", "train.batch_size=4", "train.validate_every=3"),
]
TRANSLATION = [
    *("data=parallel", "data.train=text/train.tsv", "data.valid=text/valid.tsv", "data.test=text/test.tsv"),
    *("model=sutskever", "model.hidden=8"),
]
LANGUAGE_MODEL = [
    *("data=text", "data.train=text/train.tsv", "data.valid=text/valid.tsv", "data.test=text/test.tsv"),
    *("model=language_model", "model.hidden=8", "train.bptt=5"),
]
CAPTIONING = [
    *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model=show_attend_tell"),
    *("model.hidden=8", "model.alignment=8", "model.encoder.size=32", "model.encoder.fine_tune_from=1"),
]
DECODING = ["device=cpu", "threads=1", "max_length=8", "format=json"]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the parent of `here`, the current directory, with text and photos, and of `there`, which is empty."""
    here = tmp_path / "here"
    generator = np.random.default_rng(0)
    (here / "text").mkdir(parents=True)
    (here / "photos").mkdir()
    (tmp_path / "there").mkdir()
    for name, count in (("train", 20), ("valid", 5), ("test", 5)):
        rows = [generator.choice(list("abcdef"), generator.integers(2, 6)).tolist() for _ in range(count)]
        text = "".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows)
        (here / "text" / f"{name}.tsv").write_text(text)
    with (here / "photos" / "captions.jsonl").open("w") as file:
        for number in range(10):
            Image.fromarray(np.full((16, 16, 3), 20 * number, np.uint8)).save(here / f"photos/{number}.png")
            file.write(json.dumps({"file": f"{number}.png", "captions": [f"number {number}"]}) + "\n")
    monkeypatch.chdir(here)
    return tmp_path


def train(*settings: str, steps: int = 3) -> None:
    assert run("train", *settings, *COMMON, "run=x", f"train.steps={steps}") == 0


def scores(capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, Any]:
    """Return what eval reports of the run, without the paths of its checkpoints."""
    capsys.readouterr()
    assert run("eval", *settings, *DECODING) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report.pop("checkpoints")
    return report


def test_a_run_is_used_from_another_directory(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relative paths of its data are looked up in the directory where it was started."""
    train(*TRANSLATION)
    expected = scores(capsys, "checkpoint=runs/x")
    run_directory = Path("runs/x").resolve()
    monkeypatch.chdir(parent / "there")
    assert scores(capsys, f"checkpoint={run_directory}") == expected
    assert run("translate", f"checkpoint={run_directory}", f"input={parent}/here/text/test.tsv", "device=cpu") == 0


def test_a_captioner_is_used_from_elsewhere_and_after_its_photos_moved(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train(*CAPTIONING)
    expected = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    run_directory = Path("runs/x").resolve()
    monkeypatch.chdir(parent / "there")
    assert scores(capfd, f"checkpoint={run_directory}") == expected  # type: ignore[arg-type]
    assert run("caption", f"checkpoint={run_directory}", f"images={parent}/here/photos/1.png", "device=cpu") == 0
    (parent / "here" / "photos").rename(parent / "moved")
    assert run("eval", f"checkpoint={run_directory}", *DECODING) == 2
    assert "photos is not a directory: set data.directory to where the images are." in capfd.readouterr().err
    moved = [f"data.directory={parent}/moved", f"data.train={parent}/moved/captions.jsonl"]
    assert scores(capfd, f"checkpoint={run_directory}", *moved) == expected  # type: ignore[arg-type]


def test_a_deleted_test_set_is_read_from_the_cache(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train(*TRANSLATION)
    expected = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    (parent / "here" / "text").rename(parent / "moved")
    assert scores(capfd, "checkpoint=runs/x") == expected  # type: ignore[arg-type]
    assert scores(capfd, "checkpoint=runs/x", f"data.test={parent}/moved/test.tsv") == expected  # type: ignore[arg-type]
    (parent / "here" / "cache").rename(parent / "caches")
    assert run("export", "runs/x", "output=exported") == 0
    assert run("eval", "checkpoint=exported", *DECODING) == 2
    assert "text/test.tsv does not exist. No cache of it is in cache either: give" in capfd.readouterr().err
    monkeypatch.chdir(parent / "there")
    assert run("eval", f"checkpoint={parent}/here/runs/x", *DECODING) == 2
    assert (
        f"seqtool: text/test.tsv does not exist. No cache of it is in cache and {parent}/here/cache either: "
        "give the files with data.test=…, or the caches with data.cache=….\n"
    ) in capfd.readouterr().err
    assert scores(capfd, f"checkpoint={parent}/here/runs/x", f"data.cache={parent}/caches") == expected  # type: ignore[arg-type]


def test_a_run_resumes_only_where_it_was_started(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A setting that changes when a run resumes is logged."""
    train(*TRANSLATION)
    monkeypatch.chdir(parent / "there")
    assert run("train", f"run={parent}/here/runs/x", "train.resume=true") == 2
    assert f"started in: cd {parent}/here, then run=x." in capfd.readouterr().err
    assert run("train", "run=x", "train.resume=true") == 2
    assert "There is no run to resume at runs/x" in capfd.readouterr().err
    monkeypatch.chdir(parent / "here")
    assert run("train", "run=x", "train.resume=true", "model=sutskever", "model.hidden=9") == 2
    assert "model.hidden (8, now 9)" in capfd.readouterr().err
    assert run("train", "run=x", "train.resume=true", "train.steps=4", "optim.lr=0.25") == 0
    assert "From now on optim.lr is 0.25; it was 0.001." in caplog.text and "train.steps" not in caplog.text


def test_misspelt_data_settings_and_files_are_refused(parent: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(*TRANSLATION)
    assert run("eval", "checkpoint=runs/x", "data.tets=text/test.tsv") == 2
    assert "nknown setting 'data.tets'; did you mean 'data.test'?" in capfd.readouterr().err
    assert run("eval", "checkpoint=runs/x", "data.test=none.tsv") == 2
    assert "none.tsv does not exist." in capfd.readouterr().err


@pytest.mark.parametrize("data", [TRANSLATION, CAPTIONING], ids=["text", "photos"])
def test_a_run_resumes_after_its_data_have_moved(
    parent: Path, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Data are recognised by their content, and other data are refused."""
    train(*data)
    name = "text" if data is TRANSLATION else "photos"
    (parent / "here" / name).rename(parent / "moved")
    moved = [setting.split("=") for setting in data if setting.startswith("data.") and name in setting]
    new_paths = [f"{key}={path.replace(name, str(parent / 'moved'))}" for key, path in moved]
    if data is TRANSLATION:
        train_paths = [path for path in new_paths if not path.startswith("data.test")]
        assert run("train", "run=x", "train.resume=true", "train.steps=5", *train_paths) == 2
        assert "test.tsv does not exist. If it was moved too, add data.test=….\n" in capfd.readouterr().err
    assert run("train", "run=x", "train.resume=true", "train.steps=5", *new_paths) == 0
    assert checkpoint.newest(Path("runs/x")).progress["step"] == 5
    if data is TRANSLATION:
        shutil.copy(parent / "moved/valid.tsv", parent / "moved/other.tsv")
        new_paths = [f"data.train={parent}/moved/other.tsv"]
        assert run("train", "run=x", "train.resume=true", "train.steps=7", *new_paths) == 2
        assert f"(data.train={parent}/moved/other.tsv): a run resumes with the data it was" in capfd.readouterr().err


@pytest.mark.parametrize("settings", [TRANSLATION, LANGUAGE_MODEL], ids=["pairs", "letters"])
def test_a_run_resumes_with_only_its_cache(
    parent: Path, settings: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    train(*settings, steps=5)
    assert run("train", *settings, *COMMON, "run=y", "train.steps=3") == 0
    shutil.rmtree(parent / "here" / "text")
    assert run("train", "run=y", "train.resume=true", "train.steps=5") == 0
    whole, resumed = (load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors") for run in "xy")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    shutil.rmtree(parent / "here" / "cache")
    assert run("train", "run=y", "train.resume=true", "train.steps=7") == 2
    assert (
        "text/train.tsv does not exist. No cache of it is in cache either: give the files with data.train=… or "
        "data.valid=… or data.test=…, or the caches with data.cache=…."
    ) in capfd.readouterr().err


def test_other_data_of_the_same_name_are_not_used(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The run's data are scored if they are still there. If they have changed, a warning is logged."""
    train(*TRANSLATION)
    expected = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    run_directory = Path("runs/x").resolve()
    monkeypatch.chdir(parent / "there")
    Path("text").mkdir()
    shutil.copy(parent / "here/text/valid.tsv", "text/test.tsv")
    assert scores(capfd, f"checkpoint={run_directory}") == expected  # type: ignore[arg-type]
    shutil.copy(parent / "here/text/valid.tsv", parent / "here/text/test.tsv")
    assert run("eval", f"checkpoint={run_directory}", *DECODING) == 0
    assert "The data have changed since" in caplog.text


def test_the_right_cache_is_found_among_several(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run's cache is found although there is a damaged one beside it and an empty `cache` in this directory."""
    train(*TRANSLATION)
    expected = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    (parent / "here" / "text").rename(parent / "moved")
    cache = next((parent / "here" / "cache").glob("*/"))
    shutil.copytree(cache, cache.with_name("a-damaged-one"))
    (cache.parent / "a-damaged-one" / "test.source.txt").write_text("")
    monkeypatch.chdir(parent / "there")
    Path("cache").mkdir()
    assert scores(capfd, f"checkpoint={parent}/here/runs/x") == expected  # type: ignore[arg-type]


def test_file_names_are_not_interpolated(parent: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No setting in a checkpoint is looked up in the environment."""
    Path("${oc.env:HOME}").mkdir()
    for file in Path("text").iterdir():
        shutil.copy(file, "${oc.env:HOME}")
    train(*(setting.replace("=text/", "=${oc.env:HOME}/") for setting in TRANSLATION))
    scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["cache", "test", "train"])
@pytest.mark.parametrize("value", [None, 3, [["a"], ["b"]], [1, None], ["a" * 5000, "b"], ["a\0", "b"]])
def test_invalid_data_settings_in_a_checkpoint_are_refused_or_ignored(
    parent: Path, setting: str, value: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A setting that is needed is refused in one message; a setting that is not needed is ignored."""
    train(*TRANSLATION)
    path = checkpoint.newest(Path("runs/x")).path
    record = json.loads((path / "checkpoint.json").read_text())
    record["config"]["data"][setting] = value
    (path / "checkpoint.json").write_text(json.dumps(record))
    content = (path / "checkpoint.json").read_bytes()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["checkpoint.json"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    capfd.readouterr()
    status = run("eval", "checkpoint=runs/x", *DECODING)
    messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("seqtool: ")]
    assert (status, len(messages)) in ((0, 0), (2, 1))
