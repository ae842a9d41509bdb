"""Tests of a limit on file sizes: a message names the file, and no incomplete file is left."""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

TEXT = ["data=parallel", "data.train=a.en,a.de", "data.valid=a.en,a.de"]
TEXT += ["data.processes=1", "data.vocabulary.kind=char"]
PHOTOS = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.processes=1"]
TRAIN = ["train", *TEXT, "device=cpu", "model=sutskever", "model.embedding=8", "train.minutes=null", "train.steps=1"]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Within the context, no file may have more than `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with texts, pictures and the run `r`."""
    path = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        Path("photos").mkdir()
        for number in range(10):
            Image.fromarray(np.full((64, 64, 3), 20 * number, np.uint8)).save(f"photos/{number}.png")
        rows = [json.dumps({"file": f"{number}.png", "captions": ["a grey square"]}) for number in range(10)]
        Path("photos/captions.jsonl").write_text("\n".join(rows))
        for name in ("a.en", "a.de"):
            Path(name).write_text("a b c\nb c a d\nc d\nd a b\n" * 100)
        assert run(*TRAIN, "model.hidden=8", "run=r") == 0
        yield path


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ([*TRAIN, "model.hidden=64", "run=large"], "runs/large/checkpoints/step-0000001"),
        (["prepare", *TEXT, "data.cache=new"], "new/parallel-source-target-"),
        (["prepare", *PHOTOS, "model=show_tell", "data.cache=new"], "new/images-"),
        (["translate", "checkpoint=runs/r", "device=cpu", "beam=1", "input=a.en", "output=o.txt"], "o.txt"),
        (["translate", "checkpoint=runs/r", "device=cpu", "beam=1", "input=a.en", "format=jsonl"], "standard output"),
        (["eval", "hypotheses=a.en", "references=a.de", "ter=false", "bootstrap=2", "report=r.html"], "r.html"),
        (["inspect", "runs", "plot=figures"], "figures/learning_curves.png"),
        (["report", "runs/r"], "runs/r/report.html"),
    ],
)
def test_a_file_over_the_limit_is_reported_and_removed(
    command: list[str], file: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    with Path("stdout").open("w") as output, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        with file_size_limit(4096 if "train" not in command else 16384):
            assert run(*command) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("seqtool: ") and file in message
    assert " cannot be written: it would exceed the limit on file sizes; raise it (ulimit -f unlimited)" in message
    Path("stdout").unlink()
    assert not [name for name in ("o.txt", "r.html", "runs/r/report.html") if Path(name).exists()]
