"""A run is used from any directory, and after its data have moved."""

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
TEXT = [
    *("data=parallel", "data.train=text/train.tsv", "data.valid=text/valid.tsv", "data.test=text/test.tsv"),
    *("model=sutskever", "model.hidden=8"),
]
LETTERS = [
    *("data=text", "data.train=text/train.tsv", "data.valid=text/valid.tsv", "data.test=text/test.tsv"),
    *("model=language_model", "model.hidden=8", "train.bptt=5"),
]
PHOTOS = [
    *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "model=show_attend_tell"),
    *("model.hidden=8", "model.alignment=8", "model.encoder.size=32", "model.encoder.fine_tune_from=1"),
]
DECODING = ["device=cpu", "threads=1", "max_length=8", "format=json"]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory `here`, with text and photos; the tests work in it, or in `there` beside it."""
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


def trained(*settings: str, steps: int = 3) -> None:
    assert run("train", *settings, *COMMON, "run=x", f"train.steps={steps}") == 0


def scores(capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, Any]:
    """What eval finds of the run, but for where it is."""
    capsys.readouterr()
    assert run("eval", *settings, *DECODING) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found.pop("checkpoints")
    return found


def test_a_run_is_used_from_another_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relative names of its data are looked for where it was started."""
    trained(*TEXT)
    here = scores(capsys, "checkpoint=runs/x")
    run_directory = Path("runs/x").resolve()
    monkeypatch.chdir(place / "there")
    assert scores(capsys, f"checkpoint={run_directory}") == here
    assert run("translate", f"checkpoint={run_directory}", f"input={place}/here/text/test.tsv", "device=cpu") == 0


def test_a_captioner_is_used_from_another_directory_and_after_its_photos_moved(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(*PHOTOS)
    here = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    run_directory = Path("runs/x").resolve()
    monkeypatch.chdir(place / "there")
    assert scores(capfd, f"checkpoint={run_directory}") == here  # type: ignore[arg-type]
    assert run("caption", f"checkpoint={run_directory}", f"images={place}/here/photos/1.png", "device=cpu") == 0
    (place / "here" / "photos").rename(place / "moved")
    assert run("eval", f"checkpoint={run_directory}", *DECODING) == 2
    assert "photos is not a directory: set data.directory to where the images are." in capfd.readouterr().err
    moved = [f"data.directory={place}/moved", f"data.train={place}/moved/captions.jsonl"]
    assert scores(capfd, f"checkpoint={run_directory}", *moved) == here  # type: ignore[arg-type]


def test_a_test_set_whose_files_have_gone_is_found_in_the_cache(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(*TEXT)
    here = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    (place / "here" / "text").rename(place / "moved")
    assert scores(capfd, "checkpoint=runs/x") == here  # type: ignore[arg-type]
    assert scores(capfd, "checkpoint=runs/x", f"data.test={place}/moved/test.tsv") == here  # type: ignore[arg-type]
    (place / "here" / "cache").rename(place / "caches")
    monkeypatch.chdir(place / "there")
    assert run("eval", f"checkpoint={place}/here/runs/x", *DECODING) == 2
    assert (
        f"seqtool: text/test.tsv does not exist. No cache of it is in cache and {place}/here/cache either: "
        "give the files with data.test=…, or the caches with data.cache=….\n"
    ) in capfd.readouterr().err
    assert scores(capfd, f"checkpoint={place}/here/runs/x", f"data.cache={place}/caches") == here  # type: ignore[arg-type]


def test_where_a_run_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the directory that it was started in; and what is different from then on is said."""
    trained(*TEXT)
    monkeypatch.chdir(place / "there")
    assert run("train", f"run={place}/here/runs/x", "train.resume=true") == 2
    assert f"started in: cd {place}/here, then run=x." in capfd.readouterr().err
    assert run("train", "run=x", "train.resume=true") == 2
    assert "There is no run to resume at runs/x" in capfd.readouterr().err
    monkeypatch.chdir(place / "here")
    assert run("train", "run=x", "train.resume=true", "model=sutskever", "model.hidden=9") == 2
    assert "model.hidden (8, now 9)" in capfd.readouterr().err
    assert run("train", "run=x", "train.resume=true", "train.steps=4", "optim.lr=0.25") == 0
    assert "From now on optim.lr is 0.25; it was 0.001." in caplog.text and "train.steps" not in caplog.text


def test_a_misspelt_place_is_refused(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained(*TEXT)
    assert run("eval", "checkpoint=runs/x", "data.tets=text/test.tsv") == 2
    assert "nknown setting 'data.tets'; did you mean 'data.test'?" in capfd.readouterr().err
    assert run("eval", "checkpoint=runs/x", "data.test=none.tsv") == 2
    assert "none.tsv does not exist." in capfd.readouterr().err


@pytest.mark.parametrize("data", [TEXT, PHOTOS], ids=["text", "photos"])
def test_a_run_goes_on_with_its_data_at_another_place(
    place: Path, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """They are the same by their content; others are refused."""
    trained(*data)
    name = "text" if data is TEXT else "photos"
    (place / "here" / name).rename(place / "moved")
    new = [one.split("=")[0] + "=" + one.split("=")[1].replace(name, f"{place}/moved") for one in data if name in one]
    new = [one for one in new if one.startswith("data.")]
    assert run("train", "run=x", "train.resume=true", "train.steps=5", *new) == 0
    assert checkpoint.newest(Path("runs/x")).progress["step"] == 5
    if data is TEXT:
        shutil.copy(place / "moved/valid.tsv", place / "moved/other.tsv")
        new = [f"data.train={place}/moved/other.tsv"]
        assert run("train", "run=x", "train.resume=true", "train.steps=7", *new) == 2
        assert f"(data.train={place}/moved/other.tsv): a run resumes with the data it was" in capfd.readouterr().err


@pytest.mark.parametrize("settings", [TEXT, LETTERS], ids=["pairs", "letters"])
def test_a_run_goes_on_with_its_cache_alone(
    place: Path, settings: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    trained(*settings, steps=5)
    assert run("train", *settings, *COMMON, "run=y", "train.steps=3") == 0
    shutil.rmtree(place / "here" / "text")
    assert run("train", "run=y", "train.resume=true", "train.steps=5") == 0
    pair = [load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors") for run in "xy"]
    assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[0])
    shutil.rmtree(place / "here" / "cache")
    assert run("train", "run=y", "train.resume=true", "train.steps=7") == 2
    assert (
        "text/train.tsv does not exist. No cache of it is in cache either: give the files with data.train=… or "
        "data.valid=… or data.test=…, or the caches with data.cache=…."
    ) in capfd.readouterr().err


def test_other_data_of_the_same_name_are_not_taken_for_those_of_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Where the run's own are there, they are scored; where they have changed, it is said."""
    trained(*TEXT)
    here = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    run_directory = Path("runs/x").resolve()
    monkeypatch.chdir(place / "there")
    Path("text").mkdir()
    shutil.copy(place / "here/text/valid.tsv", "text/test.tsv")
    assert scores(capfd, f"checkpoint={run_directory}") == here  # type: ignore[arg-type]
    shutil.copy(place / "here/text/valid.tsv", place / "here/text/test.tsv")
    assert run("eval", f"checkpoint={run_directory}", *DECODING) == 0
    assert "The data have changed since" in caplog.text


def test_a_cache_is_found_among_others(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the directory of the run too where there is one of that name here, and beside a damaged one."""
    trained(*TEXT)
    here = scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]
    (place / "here" / "text").rename(place / "moved")
    cache = next((place / "here" / "cache").glob("*/"))
    shutil.copytree(cache, cache.with_name("a-damaged-one"))
    (cache.parent / "a-damaged-one" / "test.source.txt").write_text("")
    monkeypatch.chdir(place / "there")
    Path("cache").mkdir()
    assert scores(capfd, f"checkpoint={place}/here/runs/x") == here  # type: ignore[arg-type]


def test_a_name_with_a_dollar_is_only_a_name(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing of a checkpoint's settings is looked up in the environment."""
    Path("${oc.env:HOME}").mkdir()
    for file in Path("text").iterdir():
        shutil.copy(file, "${oc.env:HOME}")
    trained(*(one.replace("=text/", "=${oc.env:HOME}/") for one in TEXT))
    scores(capfd, "checkpoint=runs/x")  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["cache", "test", "train"])
@pytest.mark.parametrize("value", [None, 3, [["a"], ["b"]], [1, None], ["a" * 5000, "b"], ["a\0", "b"]])
def test_odd_data_of_a_strangers_checkpoint(
    place: Path, setting: str, value: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is needed is refused in one sentence, and what is not needed may be odd."""
    trained(*TEXT)
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
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("seqtool: ")]
    assert (status, len(said)) in ((0, 0), (2, 1))
