"""Tests of a full disk: the message names the path, earlier files are kept, and no partial files are left."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

TEXT = [
    *("data=parallel", "data.train=train.tsv", "data.valid=valid.tsv", "data.vocabulary.kind=word"),
    *("data.vocabulary.minimum_count=1", "data.processes=1"),
]
TRAIN = [
    *("train", *TEXT, "device=cpu", "model=sutskever", "model.embedding=64", "model.hidden=64", "model.layers=1"),
    *("train.minutes=null", "train.validate_every=2"),
]
IMAGES = [
    *("data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.vocabulary.minimum_count=1"),
    *("data.processes=1", "device=cpu", "model=show_tell", "model.embedding=8", "model.hidden=8", "train.minutes=null"),
    *("validation.max_length=5",),
]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 16 MB in memory, which is the working directory."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        with monkeypatch.context() as patch:
            patch.chdir(directory)
            yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def write_text(count: int) -> None:
    generator = np.random.default_rng(0)
    for name, lines in (("train", count), ("valid", 4)):
        rows = generator.choice(list("abcdef"), (lines, 5)).tolist()
        Path(f"{name}.tsv").write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))


def fill(disk: Path, *, free_bytes: int) -> None:
    """Fill the disk, except for this number of bytes."""
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - free_bytes))


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.mark.parametrize(
    ("free_bytes", "path"),
    [(64 << 10, "checkpoints/step-0000004"), (0, "metrics.jsonl")],
    ids=["checkpoint", "metrics"],
)
def test_training_is_resumed_after_the_disk_was_full(
    disk: Path, free_bytes: int, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write_text(100)
    assert run(*TRAIN, "run=whole", "train.steps=4") == 0
    assert run(*TRAIN, "run=r", "train.steps=2") == 0
    metrics = Path("runs/r/metrics.jsonl").read_text()
    fill(disk, free_bytes=free_bytes)
    capfd.readouterr()
    assert run("train", "run=r", "train.resume=true", "train.steps=4") == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"seqtool: The disk is full: runs/r/{path} cannot be written; make room. The last checkpoint is "
        "runs/r/checkpoints/step-0000002: resume from it with seqtool train run=r train.resume=true."
    )
    assert Path("runs/r/metrics.jsonl").read_text().startswith(metrics)
    assert [file.name for file in Path("runs/r").rglob(".*")] == [".lock"]
    assert checkpoint.newest(Path("runs/r")).progress["step"] == 2
    Path("filler").unlink()
    assert run("train", "run=r", "train.resume=true", "train.steps=4") == 0
    for name in ("model.safetensors", "training.safetensors"):
        expected, resumed = (Path("runs", run, "checkpoints/step-0000004", name) for run in ("whole", "r"))
        assert resumed.read_bytes() == expected.read_bytes()


def test_preparing_succeeds_after_the_disk_was_full(disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(20_000)
    fill(disk, free_bytes=64 << 10)
    assert run("prepare", *TEXT) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("seqtool: The disk is full: cache/parallel-")
    assert error.endswith(" cannot be written; make room and try again.")
    assert {path.suffix for path in Path("cache").iterdir()} <= {".json", ".partial"}
    Path("filler").unlink()
    assert run("prepare", *TEXT) == 0


def test_preparing_is_resumed_after_the_disk_was_full(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pairs are encoded 10,000 at a time; those that were finished before the disk was full are kept."""
    write_text(40_000)
    assert run("prepare", *TEXT, "data.cache=whole") == 0
    fill(disk, free_bytes=900 << 10)  # the cache needs 1.4 MB
    assert run("prepare", *TEXT) == 2
    Path("filler").unlink()
    caplog.clear()
    assert run("prepare", *TEXT) == 0
    assert "Resuming after 20,000 training pairs of an interrupted preparation." in caplog.messages
    (expected_cache,), (resumed_cache,) = (list(Path(name).glob("parallel-*")) for name in ("whole", "cache"))
    expected = {file.name: file.read_bytes() for file in expected_cache.iterdir()}
    assert {file.name: file.read_bytes() for file in resumed_cache.iterdir()} == expected


def test_translate_leaves_the_output_file_unchanged(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_text(20)
    assert run(*TRAIN, "run=r", "train.steps=1") == 0
    Path("out.txt").write_text("what was there before\n")
    Path("in.txt").write_text("a b c\n" * 200)
    capfd.readouterr()
    fill(disk, free_bytes=0)
    translate = ("translate", "checkpoint=runs/r", "input=in.txt", "device=cpu")
    assert run(*translate, "output=out.txt", "format=jsonl") == 2
    message = f"seqtool: The disk is full: {disk / 'out.txt'} cannot be written; make room and try again."
    assert capfd.readouterr().err.splitlines()[-1] == message
    assert Path("out.txt").read_text() == "what was there before\n"
    assert sorted(path.name for path in disk.iterdir() if "out" in path.name) == ["out.txt"]
    with Path("/dev/full").open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run(*translate) == 2
    assert capfd.readouterr().err.splitlines()[-1] == message.replace(str(disk / "out.txt"), "standard output")


@pytest.mark.parametrize("form", ["text", "coco"])
def test_caption_leaves_the_output_file_unchanged(disk: Path, form: str, capfd: pytest.CaptureFixture[str]) -> None:
    """COCO's format is written at the end, and text image by image."""
    Path("photos").mkdir()
    rows = []
    for number in range(30):
        Image.fromarray(np.full((16, 16, 3), 8 * number, np.uint8)).save(f"photos/{number}.png")
        rows.append(json.dumps({"file": f"{number}.png", "captions": ["a grey square"]}))
    Path("photos/captions.jsonl").write_text("\n".join(rows))
    assert run("train", *IMAGES, "run=r", "train.steps=1") == 0
    Path("out").write_text("what was there before\n")
    capfd.readouterr()
    fill(disk, free_bytes=0)
    assert run("caption", "checkpoint=runs/r", "images=photos", f"format={form}", "output=out", "device=cpu") == 2
    message = f"seqtool: The disk is full: {disk / 'out'} cannot be written; make room and try again."
    assert capfd.readouterr().err.splitlines()[-1] == message
    assert Path("out").read_text() == "what was there before\n"
    assert sorted(path.name for path in disk.iterdir() if "out" in path.name) == ["out"]
