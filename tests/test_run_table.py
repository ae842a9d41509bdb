"""Tests of the table that shows runs side by side."""

from pathlib import Path

import pytest

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

DATA = ["data.train=20", "data.valid=5", "data.test=5", "data.vocabulary.kind=word", "data.processes=1"]
SIZES = ["model=sutskever", "model.hidden=4", "model.embedding=4", "device=cpu", "threads=1", "validation.max_length=5"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_sweep_ends_with_a_table_of_its_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`inspect` prints the table of any directory of runs, without other directories. Damaged runs are reported."""
    monkeypatch.chdir(tmp_path)
    sweep = ["train", "-m", *DATA, *SIZES, "train.steps=1,2"]
    assert cli.run([*sweep, "run=a"], config_directory()) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    headings = ["run", "settings", "model", "data", "loss", "BLEU", "best at step", "after", "decoded/s", "MB"]
    assert cells(lines[0]) == headings
    for line, name, steps in zip(lines[2:], ("a-0", "a-1"), ("1", "2"), strict=True):
        best = checkpoint.find(Path("runs") / name).progress["best"]
        scores = [f"{best['loss']:.3f}", f"{best['bleu']:.2f}"]
        *values, speed, memory = cells(line)
        assert values == [name, f"train.steps={steps}", "Sutskever", "Toy", *scores, steps, "0.0 min"]
        assert int(speed.replace(",", "")) > 0 and 50 < int(memory.replace(",", "")) < 100_000
    assert cli.run(sweep, config_directory()) == 0  # these runs get default names
    names = [cells(line)[0] for line in capsys.readouterr().out.splitlines()[-2:]]
    assert names == ["toy-sutskever", "toy-sutskever-2"]
    (tmp_path / "runs" / "other").mkdir()
    metrics = Path("runs/a-1/metrics.jsonl")
    metrics.write_text(metrics.read_text() + '{"step": 2, "tokens_per_second": 1234.4}\n')
    assert cli.run(["inspect", "runs"], config_directory()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[0])[-3:] == ["trained/s", "decoded/s", "MB"]
    assert [cells(line)[-3] for line in lines[2:4]] == ["-", "1,234"]  # only the second run recorded it
    metrics.unlink()
    (checkpoint.newest(Path("runs/a-0")).path / "model.safetensors").write_bytes(b"")
    assert cli.run(["inspect", "runs"], config_directory()) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 5 and rows[2].startswith("| a-1 ")
    assert any("a-0" in message for message in caplog.messages)
    assert cli.run(["inspect", "cache"], config_directory()) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("cache/toy-en-es-") and ": toy, en → es; vocabulary" in line
