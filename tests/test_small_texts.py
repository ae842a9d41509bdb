"""Tests of small corpora.

Plain text is read in fewer streams than `train.batch_size`, each of `train.bptt` tokens or more. Without a size, the
vocabulary of a few pairs has as many entries as they allow.
"""

import json
import logging
from pathlib import Path

import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

MODELS = {
    "lstm": ["model=language_model", "model.hidden=24", "model.layers=1"],
    "transformer": ["model=transformer_language_model", "model.width=16", "model.layers=1", "model.heads=2"],
}
COMMON = ["data=text", "data.processes=1", "device=cpu", "threads=1", "train.minutes=null"]


def train(*settings: str) -> int:
    return cli.run(["train", *COMMON, *settings], config_directory())


def records(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(f"runs/{run}/metrics.jsonl").read_text().splitlines()]


def steps_per_epoch(run: str) -> float:
    return next(record["step"] for record in records(run) if record["epoch"] == 1 and "valid_loss" in record)


def test_hello_is_learnt_by_what_precedes_each_l(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default settings suffice. Only the letters before the first l tell that another l follows."""
    monkeypatch.chdir(tmp_path)
    Path("hello.txt").write_text("hello")
    model = ["model=language_model", "model.embedding=16", "model.hidden=32", "optim.lr=0.02"]
    limits = ["train.steps=60", "train.validate_every=60"]
    assert train(*model, "data.train=hello.txt", "data.valid=hello.txt", *limits, "run=r") == 0
    generator = seqtool.load("runs/r", device="cpu", max_length=4, top_k=1)
    assert generator.generate(["h"]) == ["ello"]
    assert records("r")[-1]["valid_loss"] < 0.1


@pytest.mark.parametrize(
    ("symbols", "rows", "steps", "updates", "message"),
    [
        (600, 6, 100, 1, None),  # as many streams as train.batch_size, each of train.bptt symbols
        (1300, 6, 100, 3, None),  # a larger text has as many streams
        (599, 6, 100, 2, "599 tokens and is read in 5 streams"),
        (250, 64, 100, 2, "250 tokens and is read in 2 streams"),
        (60, 64, 100, 1, "60 tokens and is read in one stream"),
        (60, 64, 25, 2, "60 tokens and is read in 2 streams"),
        (60, 1, 100, 1, None),
    ],
)
def test_no_stream_is_shorter_than_bptt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    symbols: int,
    rows: int,
    steps: int,
    updates: int,
    message: str | None,
) -> None:
    """The log tells the number of streams of both splits, and an epoch has the expected number of updates."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("the cat sees a dog. "[: symbols % 20] + "the cat sees a dog. " * (symbols // 20))
    settings = ["data.train=a.txt", "data.valid=a.txt", f"train.batch_size={rows}", f"train.bptt={steps}"]
    with caplog.at_level(logging.INFO, "seqtool"):
        assert train(*MODELS["lstm"], *settings, "train.epochs=1", "run=r") == 0
    for split in ("train", "valid"):
        lines = [line for line in caplog.messages if line.startswith(f"The split '{split}'")]
        assert [message in line and f"batch_size={rows} " in line for line in lines] == ([True] if message else [])
    assert steps_per_epoch("r") == updates


@pytest.mark.parametrize("model", MODELS)
def test_validation_of_a_short_text_matches_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    """The validation text is read in one stream. The training text is long enough for all of its streams."""
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("the cat sees a dog. " * 100)
    Path("valid.txt").write_text("a dog sees the cat. " * 3)
    settings = ["data.train=train.txt", "data.valid=valid.txt", "train.batch_size=16", "train.bptt=40"]
    settings += ["model.context=40"] if model == "transformer" else []
    assert train(*MODELS[model], *settings, "optim.lr=0.02", "train.steps=15", "run=r") == 0
    capsys.readouterr()
    evaluation = ["eval", "checkpoint=runs/r/last", "bootstrap=9", "format=json", "device=cpu"]
    assert cli.run(evaluation, config_directory()) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(records("r")[-1]["valid_loss"], abs=1e-5)


def timeless_records(run: str) -> list[dict[str, float]]:
    """Return the values in the records that do not depend on the clock."""
    names = ("step", "epoch", "loss", "valid_loss", "bits")
    return [{name: record[name] for name in names if name in record} for record in records(run)]


@pytest.mark.parametrize("fewer", ["true", "false"])
def test_a_resumed_run_keeps_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewer: str) -> None:
    """The data have moved before the run is resumed."""
    monkeypatch.chdir(tmp_path)
    for folder in ("before", "after"):
        Path(folder).mkdir()
        Path(folder, "train.txt").write_text("the cat sees a dog. " * 30)
        Path(folder, "valid.txt").write_text("a dog sees the cat. " * 5)
    before, after = (
        [f"data.train={folder}/train.txt", f"data.valid={folder}/valid.txt"] for folder in ("before", "after")
    )
    settings = [*before, "train.batch_size=16", "train.bptt=60", "train.validate_every=1", "train.log_every=1"]
    settings.append(f"train.fewer_streams={fewer}")
    assert train(*MODELS["lstm"], *settings, "train.steps=4", "run=whole") == 0
    assert train(*MODELS["lstm"], *settings, "train.steps=2", "run=r") == 0
    assert train("run=r", "train.resume=true", *after, "train.steps=4") == 0
    assert timeless_records("r") == timeless_records("whole")
    assert f"fewer_streams: {fewer}\n" in Path("runs/r/config.yaml").read_text()


def test_a_few_pairs_need_no_size_of_their_vocabulary(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [f"the {noun} {verb}\tdie {verb} {noun}\n" for noun in ("cat", "dog") for verb in ("runs", "sees")]
    for name in ("train", "valid"):
        Path(f"{name}.tsv").write_text("".join(pairs))
    settings = ["data=parallel", "data.train=train.tsv", "data.valid=valid.tsv", "data.vocabulary.kind=bpe"]
    model = ["model=sutskever", "model.embedding=8", "model.hidden=8", "train.steps=1"]
    with caplog.at_level(logging.INFO, "seqtool"):
        assert train(*settings, *model, "run=r") == 0
    source, target = (len(getattr(seqtool.load("runs/r"), f"{side}_vocabulary")) for side in ("source", "target"))
    note = "The vocabulary has {} entries, the size nearest to 8,000 that the {} side of the training text allows."
    assert "also stand in training" in caplog.messages[0]
    assert caplog.messages[1:3] == [note.format(source, "source"), note.format(target, "target")]
    assert train(*settings, *model, "data.vocabulary.size=700", "run=s") == 2
    problem = f"is more than is possible with the source side of the training text: set it to {source} or less."
    assert f"data.vocabulary.size=700 {problem}" in capsys.readouterr().err
