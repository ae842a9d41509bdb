"""Runs that an earlier version trained, used today: tests/earlier has them, and what that version made of them (but for
the number of parameters, in which it counted six numbers of a backbone that are not learnt).
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

EARLIER = Path(__file__).parent / "earlier"
FOUND = json.loads((EARLIER / "found.json").read_text(encoding="utf-8"))


@pytest.fixture
def place(tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the runs, the text and the pictures, in which they were trained."""
    for name in ("runs", "text"):
        shutil.copytree(EARLIER / name, tmp_path / name)
    shutil.copytree(pictures, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in pictures, drawn by today's code."""
    directory = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert run(FOUND["pictures"]) == 0
    return directory / "data"


def run(line: str) -> int:
    return cli.run(shlex.split(line), config_directory())


@pytest.mark.parametrize("line", FOUND["answers"])
def test_the_same_output(place: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts and their scores are what they were; probabilities differ by less than a thousandth."""
    earlier = FOUND["answers"][line]
    capsys.readouterr()
    assert run(line) == 0
    now = capsys.readouterr().out
    if "format=jsonl" in line:
        for one, other in zip(now.splitlines(), earlier.splitlines(), strict=True):
            check(json.loads(one), json.loads(other), within=1e-3)
    elif "format=json" in line:
        check(json.loads(now), json.loads(earlier), within=1e-9)
    else:
        assert now == earlier


def check(now: Any, earlier: Any, *, within: float) -> None:
    """Everything that was said earlier is still said; more may be."""
    if isinstance(earlier, dict):
        assert earlier.keys() <= now.keys()
        for name, value in earlier.items():
            check(now[name], value, within=within)
    elif isinstance(earlier, list):
        assert len(now) == len(earlier)
        for one, other in zip(now, earlier, strict=True):
            check(one, other, within=within)
    elif isinstance(earlier, float):
        assert now == pytest.approx(earlier, rel=within)
    else:
        assert now == earlier


@pytest.mark.parametrize("line", FOUND["continued"])
def test_training_from_their_weights(place: Path, line: str) -> None:
    """A run goes on, and another begins with its weights, as they did."""
    name = shlex.split(line)[1].removeprefix("run=")
    assert run(line) == 0
    records = map(json.loads, Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-3:] == pytest.approx(FOUND["continued"][line], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (
            "words",
            "data=toy data.train=100 data.valid=20 data.test=20 data.vocabulary.kind=word "
            "model=sutskever model.embedding=8 model.hidden=16 model.layers=1 model.dropout=0",
        ),
        (
            "fixed",
            "data=scenes data.train=16 data.valid=4 data.test=6 data.vocabulary.minimum_count=2 "
            "model=show_tell model.embedding=8 model.hidden=16 model.context=every_step model.dropout=0 "
            "model.encoder.fine_tune_from=null model.encoder.augment=false",
        ),
    ],
)
def test_going_on_by_the_command_line_that_began(place: Path, name: str, data: str) -> None:
    """Which names the data and the model, as a line does that a cluster starts again and again."""
    data += " data.processes=1"
    (line,) = [one for one in FOUND["continued"] if one.startswith(f"train run={name} train.resume=true")]
    assert run(f"{line.replace('=true', '=AUTO')} {data}") == 0
    records = map(json.loads, Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-3:] == pytest.approx(FOUND["continued"][line], rel=1e-3)


def test_the_api(place: Path) -> None:
    for line, output in FOUND["answers"].items():
        if not line.endswith("max_length=20"):  # those with a beam of 5
            continue
        command, checkpoint, given, *_ = shlex.split(line)
        model: Any = seqtool.load(checkpoint.removeprefix("checkpoint="), device="cpu", threads=1, max_length=20)
        if command == "translate":
            sentences = Path(given.removeprefix("input=")).read_text(encoding="utf-8").splitlines()
            assert model.translate(sentences) == output.splitlines()
        else:
            rows = [row.split("\t") for row in output.splitlines()]
            assert model.caption([name for name, _ in rows]) == [text for _, text in rows]
