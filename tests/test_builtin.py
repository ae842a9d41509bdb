"""The models that the package ships score what their record says, and training continues from each of them."""

import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import record_builtin
from record_builtin import BUILT_IN, RECORD, SCORES

import seqtool
from seqtool.data.corpora import toy
from seqtool.errors import InputError

MARGINS = {"bleu": 1.0, "true": 0.03, "bits": 0.02}  # what other processors and versions of torch may change
SCENES = {"experiment": "scenes_soft", "validation": {"max_length": 5}}
SMALL_DATA = {"train": 300, "valid": 4, "test": 4, "processes": 1}
TRAINING: dict[str, dict[str, Any]] = {
    "words": {"experiment": "quickstart", "data": SMALL_DATA},
    "soft": {**SCENES, "data": SMALL_DATA | {"train": 60}},
    "hard": {**SCENES, "experiment": "scenes_hard", "data": SMALL_DATA | {"train": 60}},
    "text": {"model": {"embedding": 64, "hidden": 256}, "data": {"train": "text.txt", "processes": 1}},
}
CHANCE = 0.15  # nats per token: how much higher ten losses of small batches may be than ten others by chance
ROOT = Path(__file__).resolve().parent.parent


@cache
def record() -> dict[str, Any]:
    return json.loads((BUILT_IN / RECORD).read_text("utf-8"))["models"]


def test_the_record_is_of_these_models() -> None:
    assert sorted(path.name for path in BUILT_IN.iterdir()) == sorted([*SCORES, RECORD])
    for name, recorded in record().items():
        assert record_builtin.facts(BUILT_IN / name) == {key: recorded[key] for key in recorded if key != "scores"}
    assert sum(recorded["bytes"] for recorded in record().values()) < 12_000_000


def test_a_missing_model_names_those_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name like that of a built-in model lists these; beside the user's runs, the runs are listed instead."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^There is no run or checkpoint at builtin/wrods\. builtin holds words, "):
        seqtool.load("builtin/wrods")
    with pytest.raises(InputError, match=r"^There is no run or checkpoint at mine\. builtin holds "):
        seqtool.load("mine")
    (tmp_path / "runs" / "first" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match=r"^There is no run or checkpoint at mine\. runs holds first\. The current "):
        seqtool.load("mine")
    assert seqtool.load("builtin/words/best").name == "words"


@pytest.mark.parametrize("name", SCORES)
def test_a_model_scores_what_is_recorded(name: str) -> None:
    for score, value in record_builtin.scores(name, BUILT_IN).items():
        assert value == pytest.approx(record()[name]["scores"][score], abs=MARGINS[score]), score


@pytest.mark.parametrize("name", SCORES)
def test_training_continues_from_a_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"steps": 50, "minutes": None, "epochs": None, "log_every": 1, "validate_every": 1000, "batch_size": 8}
    text = "".join(f"{pair.source}\n" for pair in toy.generate(seed=2, train=300, valid=0, test=0)["train"])
    Path("text.txt").write_text(text, encoding="utf-8")
    task = ["data=text", "model=language_model"] if name == "text" else []
    start = [f"init_from=builtin/{name}", f"data.vocabulary.reuse=builtin/{name}", "schedule=constant", "device=cpu"]
    run = seqtool.train(*task, *start, "optim.lr=1e-4", "schedule.warmup=0", train=settings, **TRAINING[name])
    losses = [step["loss"] for step in run.metrics if "loss" in step]
    assert len(losses) == 50
    assert mean(losses[-10:]) < mean(losses[:10]) + CHANCE  # false if one is not finite


def test_the_wheel_contains_them() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the wheel")
    packed = {file.relative_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {str(file.relative_to(ROOT)) for file in BUILT_IN.rglob("*") if file.is_file()} <= packed
