"""Tests of scripts/reproduce.py: deviations that are planted are named, and rows.yaml agrees with what it describes."""

import json
import re
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import reproduce
import torch

import seqtool
from seqtool.cli import main as cli
from seqtool.data.corpora.parallel import Toy
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
ROWS = reproduce.read_rows(reproduce.ROWS)
TRAIN = (
    "data=parallel data.train=train.en,train.es data.valid=valid.en,valid.es data.test=test.en,test.es "
    "data.vocabulary.size=150 data.processes=1 model.embedding=12 model.encoder_hidden=8 model.decoder_hidden=12 "
    "model.alignment=8 model.maxout=8 optim.lr=0.02 train.batch_size=16 train.steps=4 train.minutes=null "
    "train.log_every=1 train.validate_every=1000 validation.sentences=2 validation.max_length=4 device=cpu threads=1"
)
EVAL = "ter=false bootstrap=100 max_length=15 threads=1"
ROWS_FILE = f"""
rows:
  mine:
    train: {TRAIN}
    evaluate: seqtool eval checkpoint={{run}} split=test format=json {EVAL}
    hardware: any
    scores: {{BLEU: {{}}, chrF2: {{}}}}
"""


SETTINGS = declarations.command_settings("train").keys()
COLUMNS = {  # of the tables in results/README.md: the score, and the factor by which the table shows it
    **{name: (name, 1) for name in ("BLEU", "chrF2", "TER")},
    "AER": ("aer", 1),
    **{name: (name, 100) for name in ("true", "recall", "attention")},
    **{"BLEU-1": ("bleu1", 100), "BLEU-4": ("bleu4", 100), "ROUGE-L": ("rouge_l", 100), "CIDEr-D": ("cider_d", 1)},
    **{f"{unit} a character": (f"{unit}_per_character", 1) for unit in ("nats", "bits")},
}


def run_here(words: Sequence[str], *, capture: bool = False) -> str | None:
    """Run a command in this process, which saves the time of imports."""
    with redirect_stdout(StringIO()) as output:
        assert cli.run(words[1:], config_directory()) == 0
    return output.getvalue() if capture else None


@dataclass
class Bench:
    """A directory with data, the run of a row, and the row's record."""

    rows: Path

    def reproduce(self, *words: str, rows: Path | None = None) -> tuple[int, list[str]]:
        """The exit status and the lines of the script's output."""
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
            patch.setattr("sys.argv", ["reproduce.py", "--rows", str(rows or self.rows), *words])
            patch.setattr(reproduce, "run", run_here)
            try:
                reproduce.main()
                status = 0
            except SystemExit as ended:
                status = int(ended.code or 0)
        return status, output.getvalue().splitlines()

    def differences(self, *words: str) -> list[str]:
        """What the script says differs."""
        _, lines = self.reproduce("mine", "--check", *words)
        return [line.strip() for line in lines if " instead of " in line]

    def train(self, name: str, *settings: str) -> str:
        """Train as the row does, but with other settings, and return a file with the row's scores that names it."""
        run_here(["seqtool", "train", f"run={name}", *TRAIN.split(), *settings])
        return self.scores_of(name)

    def evaluate(self, name: str, *settings: str) -> str:
        """Evaluate the row's run with other settings, and return the file of scores."""
        from_file = any(setting.startswith("hypotheses=") for setting in settings)
        options = EVAL.split()[:2] if from_file else ["checkpoint=runs/mine-seed-1", *EVAL.split()]
        scores = run_here(["seqtool", "eval", "format=json", *options, *settings], capture=True)
        Path(f"{name}.json").write_text(scores or "", encoding="utf-8")
        return f"{name}.json"

    def edited(self, name: str, edit: Callable[[dict[str, Any]], None]) -> str:
        """A copy of the row's run, the records of whose checkpoints are edited."""
        shutil.copytree("runs/mine-seed-1", f"runs/{name}")
        for file in Path("runs", name).glob("checkpoints/*/checkpoint.json"):
            self.rewrite(file, edit)
        return self.scores_of(name)

    def rewrite(self, file: Path, edit: Callable[[dict[str, Any]], None]) -> None:
        """Edit the record of a checkpoint, and its manifest so that the checkpoint counts as undamaged."""
        record = json.loads(file.read_text(encoding="utf-8"))
        edit(record)
        file.write_text(json.dumps(record), encoding="utf-8")
        manifest = json.loads(file.with_name("manifest.json").read_text(encoding="utf-8"))
        manifest[file.name] = {"bytes": file.stat().st_size, "sha256": sha256(file.read_bytes()).hexdigest()}
        file.with_name("manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    def with_record(self, folder: str, edit: Callable[[dict[str, Any]], None]) -> Path:
        """A copy of the rows in a folder, with a copy of the record, which is edited."""
        rows = Path(folder, "rows.yaml")
        shutil.copytree("rows", rows.parent / "rows")
        shutil.copy(self.rows, rows)
        record = json.loads((rows.parent / "rows/mine.json").read_text(encoding="utf-8"))
        edit(record)
        (rows.parent / "rows/mine.json").write_text(json.dumps(record), encoding="utf-8")
        return rows

    def scores_of(self, name: str) -> str:
        """Write a file with the row's scores as if they were another run's."""
        scores = Path("runs/mine-seed-1/scores.json").read_text(encoding="utf-8")
        Path(f"{name}.json").write_text(scores.replace("mine-seed-1", name), encoding="utf-8")
        return f"{name}.json"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The row `mine`, trained and recorded once; the data are files of built-in sentences."""
    directory = tmp_path_factory.mktemp("reproduce")
    corpus = Toy(seed=1, train=96, valid=12, test=24, longest=25)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # shapes are checked elsewhere
        for split in corpus.splits():
            for language, lines in zip(("en", "es"), zip(*corpus.pairs(split), strict=True), strict=True):
                Path(f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        bench = Bench(directory / "rows.yaml")
        bench.rows.write_text(ROWS_FILE, encoding="utf-8")
        _, lines = bench.reproduce("mine", "--record")
        entry = "".join(
            f"    {line}\n" for line in lines[: next(i for i, x in enumerate(lines) if x.startswith("mine"))]
        )
        old = "    scores: {BLEU: {}, chrF2: {}}\n"
        bench.rows.write_text(ROWS_FILE.replace(old, entry), encoding="utf-8")
        yield bench


def test_an_undisturbed_run_is_within_and_nothing_differs(bench: Bench) -> None:
    status, lines = bench.reproduce("mine")
    assert status == 0
    assert [" within " in line for line in lines[1:3]] == [True, True]
    assert lines[3:] == [
        "Nothing differs from what is stored.",
        "Not trained again, since finished before: runs/mine-seed-1. Remove them for a new measurement.",
    ]
    assert bench.reproduce("mine", "--check", "runs/mine-seed-1/scores.json")[1] == lines[:4]
    before = Path("runs/mine-seed-1/scores.json").read_bytes()
    message = (
        "runs/mine-seed-1 was finished before, with setting optim.lr: 0.02 instead of 0.01: remove it, or see --check"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        bench.reproduce("mine", "optim.lr=0.01")
    assert Path("runs/mine-seed-1/scores.json").read_bytes() == before


def test_an_exported_model_is_checked_without_its_training_times(bench: Bench) -> None:
    run_here(["seqtool", "export", "checkpoint=runs/mine-seed-1", "output=exported"])
    assert bench.differences("exported") == ['checkpoint: "exported" instead of "step-0000004"']


def test_the_checkpoint_is_compared_with_that_of_the_same_seed(bench: Bench) -> None:
    def edit(record: dict[str, Any]) -> None:
        record["seeds"]["2"] = {**record["seeds"]["1"], "checkpoint": "average-3"}

    rows = bench.with_record("seeds", edit)
    assert bench.reproduce("mine", "--check", "runs/mine-seed-1/scores.json", rows=rows)[1][3:] == [
        "Nothing differs from what is stored."
    ]
    second = bench.edited("second", lambda record: record["config"].update(seed=2))
    _, lines = bench.reproduce("mine", "--check", second, rows=rows)
    assert lines[3:5] == [
        "What differs; the first is the likeliest cause (see also results/different_numbers.md):",
        '  checkpoint: "step-0000004" instead of "average-3"',
    ]


def test_a_score_beyond_its_interval_fails(bench: Bench, tmp_path: Path) -> None:
    score = reproduce.Expected(mean=30.0, low=29.0, high=31.0)
    assert [score.judge([value], 1)[0] for value in (28.99, 28.996, 31.004, 31.006)] == [False, True, True, False]
    # t's quantile for two degrees of freedom is 4.30; 4.30 · 0.5 · √(1/3 + 1) = 2.48
    score = reproduce.Expected(mean=30.0, sd=0.5)
    assert [score.judge([value], 3)[0] for value in (27.4, 27.6, 32.4, 32.6)] == [False, True, True, False]
    assert reproduce.Expected(mean=30.0).judge([29.7], 1) == (None, "one seed: no spread is stored; difference -0.3")
    rows = bench.rows.with_name("higher.yaml")
    text = re.sub(r"mean: [\d.]+, low: [\d.]+", "mean: 99, low: 98", bench.rows.read_text(encoding="utf-8"))
    rows.write_text(re.sub(r"high: [\d.]+", "high: 100", text), encoding="utf-8")
    status, lines = bench.reproduce("mine", "--check", "runs/mine-seed-1/scores.json", rows=rows)
    assert status == 1
    assert lines[1].startswith("  BLEU ") and ": BEYOND 99 [98, 100] (one seed" in lines[1]
    assert lines[-1].startswith("Measured at None, not compared since")


def change_line(split: str) -> str:
    """Write the split's target file with one other word, and return its name."""
    lines = Path(f"{split}.es").read_text(encoding="utf-8").splitlines()
    lines[3] = f"No {lines[3]}"
    Path("changed.es").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return "changed.es"


def write_forced_outputs() -> None:
    """Write the likeliest piece at each position after the reference's pieces before it: teacher forcing."""
    sources, references = (Path(f"test.{name}").read_text(encoding="utf-8").splitlines() for name in ("en", "es"))
    forced = seqtool.load("runs/mine-seed-1", threads=1).forced(sources, references, likeliest=1)
    likeliest = ["".join(record["likeliest"][0][0] for record in each.predicted or ()) for each in forced]
    texts = [text.replace("▁", " ").replace("<end>", "").strip() for text in likeliest]
    Path("forced.es").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def test_deviations_of_training_are_named(bench: Bench) -> None:
    """The first line is the cause, and the losses say from which update on it has an effect."""
    seed = bench.differences(bench.train("seed", "seed=2"))
    assert seed[0] == "setting seed: 2 instead of 1"
    assert re.fullmatch(r"training loss: [\d.]+ instead of [\d.]+ at update 1, the first that differs", seed[1])

    rate = bench.differences(bench.train("rate", "optim.lr=0.01"))
    assert rate[0] == "setting optim.lr: 0.01 instead of 0.02"
    assert re.fullmatch(r"training loss: .* at update 2, the first that differs", rate[1])

    vocabulary = bench.differences(bench.train("vocabulary", "data.vocabulary.size=120"))
    assert [line.split(":")[0] for line in vocabulary[:3]] == [
        "vocabulary, source",
        "vocabulary, target",
        "setting data.vocabulary.size",
    ]
    data = bench.differences(bench.train("data", f"data.train=train.en,{change_line('train')}"))
    assert data[0].startswith("data, train: ")

    def as_elsewhere(record: dict[str, Any]) -> None:
        record["config"] |= {"threads": 4, "precision": "bf16"}
        record["versions"]["torch"] = "2.6.0"

    def before_rewards(record: dict[str, Any]) -> None:
        del record["training"]["setting train.objective"]

    rows = bench.with_record("older", before_rewards)
    assert bench.reproduce("mine", "--check", "runs/mine-seed-1/scores.json", rows=rows)[0] == 0
    rewarded = bench.edited("rewarded", lambda record: record["config"]["train"].update(objective="sequence"))
    _, lines = bench.reproduce("mine", "--check", rewarded, rows=rows)
    assert lines[4] == '  setting train.objective: "sequence" instead of "cross_entropy"'

    assert bench.differences(bench.edited("elsewhere", as_elsewhere)) == [
        "setting threads: 4 instead of 1",
        'setting precision: "bf16" instead of "fp32"',
        f'version of torch: "2.6.0" instead of {json.dumps(torch.__version__)}',
    ]


def test_deviations_of_evaluation_are_named(bench: Bench) -> None:
    """They are named alone, before the scores that they change."""

    def causes(*words: str) -> list[str]:
        return [line for line in bench.differences(*words) if " of seed " not in line]

    assert causes(bench.evaluate("lower", "lowercase=true")) == ['metric, lower-casing (case): "lc" instead of "mixed"']
    assert causes(bench.evaluate("tok", "tokenize=char")) == ['metric, tokenisation: "char" instead of "13a"']
    assert causes(bench.evaluate("beam", "beam=2")) == ["search, beam: 2 instead of 5"]
    split = causes("runs/mine-seed-1", "split=valid")
    assert split[:2] == ['split: "valid" instead of "test"', "sentences: 12 instead of 24"]
    split = causes(bench.evaluate("split", "split=valid"))  # a file does not say which split it scores
    assert split[0] == "sentences: 12 instead of 24" and split[1].startswith("sentences by length (another split?)")
    for name in ("en", "es"):
        lines = Path(f"test.{name}").read_text(encoding="utf-8").splitlines(keepends=True)
        Path(f"fewer.{name}").write_text("".join(lines[:18]), encoding="utf-8")
    fewer = causes(bench.evaluate("fewer", "sources=fewer.en", "references=fewer.es"))
    assert fewer[0] == "sentences: 18 instead of 24"

    write_forced_outputs()
    forced = bench.evaluate("forced", "hypotheses=forced.es", "references=test.es", "sources=test.en")
    assert causes(forced) == ["search: none, instead of beam 5: a file of outputs, perhaps of teacher forcing"]
    unknown = "Training is not compared: the checkpoint that was evaluated is not here."
    assert unknown in bench.reproduce("mine", "--check", forced)[1]


def test_a_missing_brevity_penalty_is_named(bench: Bench) -> None:
    """The photos of album-60 have short captions: without the penalty, BLEU-4 is higher."""
    scores = json.loads((RESULTS / "album/60.json").read_text(encoding="utf-8"))
    Path("album.json").write_text(json.dumps(scores), encoding="utf-8")
    assert (
        "Nothing differs from what is stored."
        in bench.reproduce("album-60", "--check", "album.json", rows=reproduce.ROWS)[1]
    )
    scores["bleu4"] = scores["bleu4_no_bp"]
    Path("album.json").write_text(json.dumps(scores), encoding="utf-8")
    lines = bench.reproduce("album-60", "--check", "album.json", rows=reproduce.ROWS)[1]
    assert '  metric, brevity penalty: "none" instead of "closest"' in lines
    assert lines[1].startswith("  bleu4 0.036749")


def test_windows_instead_of_one_stream_are_named() -> None:
    stream, windows = (reproduce.evaluation_facts({"text": "a.txt", **more}, None) for more in ({}, {"window": 9}))
    assert list(reproduce.changed(windows, stream)) == ['text: "a.txt, windows of 9" instead of "a.txt"']
    assert list(reproduce.changed(stream, windows)) == ['text: "a.txt" instead of "a.txt, windows of 9"']


def test_losses_are_compared_at_the_same_updates(bench: Bench) -> None:
    """A run that logs every second update logs means over two."""
    lines = bench.differences(bench.train("rarely", "train.log_every=2"))
    assert lines[0] == "setting train.log_every: 2 instead of 1"
    assert not any(line.startswith("training loss") for line in lines)


def test_a_record_is_of_the_rows_seeds_and_settings(bench: Bench) -> None:
    before = bench.rows.with_name("rows").joinpath("mine.json").read_bytes()
    for words, message in (
        (["seed=3", "optim.lr=0.01"], "the row's own settings, but the run has setting optim.lr"),
        (["seed=3"], "--record needs one of the row's seeds, 1."),
        (
            ["--check", bench.train("other", "optim.lr=0.01")],
            "the row's own settings, but the run has setting optim.lr",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            bench.reproduce("mine", "--record", *words)
    assert not Path("runs/mine-seed-3").exists(), "refused before training"
    assert bench.rows.with_name("rows").joinpath("mine.json").read_bytes() == before


def test_seeds_that_were_recorded_before_stay(bench: Bench) -> None:
    """Unless they were measured in another way or lack a score; a seed that the row no longer has goes."""

    def edit(record: dict[str, Any]) -> None:
        record["seeds"] = {seed: {**record["seeds"]["1"], "minutes": 5.0} for seed in ("1", "2", "3")}

    rows = bench.with_record("before", edit)
    text = bench.rows.read_text(encoding="utf-8")
    rows.write_text(text.replace("seeds: [1]", "seeds: [1, 2]"), encoding="utf-8")
    _, lines = bench.reproduce("mine", "--record", "seed=1", rows=rows)
    seeds = json.loads(rows.with_name("rows").joinpath("mine.json").read_text(encoding="utf-8"))["seeds"]
    assert list(seeds) == ["1", "2"]
    assert seeds["1"]["minutes"] < 5.0 == seeds["2"]["minutes"]
    assert "seeds: [1, 2]" in lines
    assert any(line.endswith("sd: 0}") for line in lines)

    def another_version(record: dict[str, Any]) -> None:
        edit(record)
        record["training"]["version of torch"] = "2.6.0"

    def another_search(record: dict[str, Any]) -> None:
        edit(record)
        record["evaluation"]["search, beam"] = 7

    def fewer_scores(record: dict[str, Any]) -> None:
        edit(record)
        del record["seeds"]["2"]["scores"]["chrF2"]

    for change in (another_version, another_search, fewer_scores):
        rows = bench.with_record(change.__name__, change)
        rows.write_text(text.replace("seeds: [1]", "seeds: [1, 2]"), encoding="utf-8")
        stored = rows.with_name("rows").joinpath("mine.json").read_bytes()
        with pytest.raises(InputError, match="--record needs a run of each of the row's seeds, 1, 2"):
            bench.reproduce("mine", "--record", "seed=1", rows=rows)
        assert rows.with_name("rows").joinpath("mine.json").read_bytes() == stored


def test_a_trial_is_logged_with_the_settings_that_are_not_the_rows(bench: Bench) -> None:
    def edit(record: Any) -> None:
        record["config"]["optim"].update(lr=0.5)
        record["config"]["data"]["valid"] = 500
        record["config"]["init_from"] = "runs/before"

    bench.edited("trial", edit)
    bench.reproduce("mine", "--tried", "runs/trial", "a large rate")
    trial = json.loads((bench.rows.with_name("tried.jsonl")).read_text(encoding="utf-8").splitlines()[-1])
    assert (
        trial["settings"] == {"optim.lr": 0.5, "data.valid": 500}
        and trial["updates"] == 4
        and trial["note"] == "a large rate"
    )
    assert trial["init_from"] == "runs/before"
    assert trial["valid"].keys() >= {"loss", "bleu"}


def test_a_trial_has_the_scores_of_an_average_that_is_better(bench: Bench) -> None:
    bench.edited("averaged", lambda record: None)
    checkpoints = Path("runs/averaged/checkpoints")
    shutil.copytree(checkpoints / "step-0000004", checkpoints / "average-2")
    better = {"checkpoint": "average-2", "bleu": 77.0}
    bench.rewrite(checkpoints / "average-2/checkpoint.json", lambda record: record["progress"]["best"].update(better))
    _, lines = bench.reproduce("mine", "--tried", "runs/averaged", "an average")
    assert json.loads(lines[-1])["valid"]["bleu"] == 77.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["yours"], "There is no row 'yours': choose from mine."),
        (["mine", "seed"], "'seed' is not a setting: write key=value."),
        (
            ["mine", "--check", "missing.json"],
            "missing.json is neither a run nor what `seqtool eval format=json` printed",
        ),
        (["mine", "--check", "rows.yaml"], "rows.yaml is neither a run nor what"),
        (["mine", "--check", "runs/mine-seed-1/scores.json", "beam=2"], "has been evaluated, so it takes no settings"),
        (["mine", "--check", "odd.json"], "odd.json is neither a run nor what"),
        (["mine", "run=other"], "run= is not yours to set"),
        (
            ["mine", "--check", "runs/mine-seed-1", "beam=1", "--record"],
            "--record needs the row's own evaluation: leave ",
        ),
        (["mine", "seed=1,2"], "seed=1,2 must be one whole number."),
        (["mine", "--check", "bare.json", "--record"], "--record needs the run whose checkpoint was evaluated"),
        (["mine", "--tried", "runs", "note"], "runs is not a run with checkpoints"),
        (["--check", "runs/mine-seed-1"], "--check, --record and --tried need the name of a row."),
    ],
)
def test_mistakes_are_explained(bench: Bench, words: list[str], message: str) -> None:
    Path("odd.json").write_text('{"checkpoints": []}', encoding="utf-8")
    scores = [{"name": name, "value": 1.0} for name in ("BLEU", "chrF2")]
    Path("bare.json").write_text(json.dumps({"system": {"scores": scores}}), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(message)):
        bench.reproduce(*words)


def test_a_missing_record_is_made_again_or_named(bench: Bench) -> None:
    record = bench.rows.parent / "rows" / "mine.json"
    before = record.read_bytes()
    record.unlink()
    with pytest.raises(InputError, match=r"The record of the row 'mine', .*mine.json, is missing: make it with --rec"):
        bench.reproduce("mine", "--check", "runs/mine-seed-1/scores.json")
    status, _ = bench.reproduce("mine", "--check", "runs/mine-seed-1", "--record")
    assert status == 0
    assert json.loads(record.read_bytes())["seeds"] == json.loads(before)["seeds"]


def readme_tables() -> Iterator[tuple[reproduce.Row, dict[str, str]]]:
    """Yield each row of rows.yaml that a table of results/README.md names, with its cells by column."""
    header: list[str] = []
    for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        name = cells[0].strip("`") if cells else ""
        if name == "row":
            header = cells
        elif header and name in ROWS:
            yield ROWS[name], dict(zip(header, cells, strict=True))
        else:
            header = header if cells else []


def numbers(text: str) -> list[tuple[float, float]]:
    """The numbers of a cell, each with half a unit of its last digit."""
    return [(float(x), 0.5 * 10.0 ** -len(x.partition(".")[2])) for x in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_the_tables_of_the_readme_agree_with_the_rows() -> None:
    """So do the minutes, where the table has them; every row that was measured is in a table."""
    seen = set()
    for row, cells in readme_tables():
        seen.add(row.name)
        for column, (score, factor) in COLUMNS.items():
            if not cells.get(column):
                continue
            expected = row.scores[score]
            stored = [x for x in (expected.mean, expected.sd, expected.low, expected.high) if x is not None]
            shown = numbers(cells[column])
            assert all(abs(factor * x - y) <= unit * 1.01 for x, (y, unit) in zip(stored, shown, strict=False)), (
                row.name
            )
            assert shown, row.name
        minutes = re.match(r"([\d.]+) min", cells.get("training", ""))
        assert minutes is None or float(minutes[1]) == row.minutes, row.name
    assert seen == {name for name, row in ROWS.items() if row.commit is not None}


def test_the_settings_of_the_rows_exist() -> None:
    """Hydra's composition, which takes a while, is only needed for the settings of models."""
    composed: set[tuple[str, ...]] = set()
    for row in ROWS.values():
        words = dict(word.split("=", 1) for word in shlex.split(f"{row.train} {row.needs}"))
        experiment = words.pop("experiment", "")
        assert not experiment or (config_directory() / "experiment" / f"{experiment}.yaml").exists()
        of_model = tuple(sorted(f"setting {name}" for name in words.keys() - SETTINGS))
        if of_model and (experiment, *of_model) not in composed:
            composed.add((experiment, *of_model))
            assert row.facts.keys() >= set(of_model), row.name


def test_rows_agree_with_their_records_and_are_listed_with_cost_and_expectation() -> None:
    listing = "\n".join(reproduce.listing(ROWS.values()))
    for row in ROWS.values():
        assert f"| {row.name} " in listing and row.hardware in listing
        record = json.loads((RESULTS / row.record).read_text(encoding="utf-8")) if row.record else {}
        by_seed = [seed["scores"] for seed in record.get("seeds", {}).values()] or [reproduce.scores(record)]
        assert "seeds" not in record or list(map(str, row.seeds)) == list(record["seeds"])
        for name, expected in row.scores.items():
            assert f"{name} {expected}" in listing
            if row.record:
                values = [scores[name]["value"] for scores in by_seed]
                assert statistics.fmean(values) == pytest.approx(expected.mean, rel=2e-3)
                ends = (expected.low, expected.high) if expected.low is not None else ()
                assert [by_seed[0][name][end] for end in ("low", "high")[: len(ends)]] == pytest.approx(ends, abs=6e-3)
                assert expected.sd is None or statistics.stdev(values) == pytest.approx(expected.sd, rel=0.05)


def test_trials_have_the_documented_fields() -> None:
    for line in (RESULTS / "tried.jsonl").read_text(encoding="utf-8").splitlines():
        fields = json.loads(line).keys() - {"init_from"}
        assert fields == {"date", "row", "settings", "updates", "minutes", "valid", "note"}


def test_commands_of_rows_find_seqtool(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run beside this Python, whose environment need not be activated."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = reproduce.run(["bash", "-c", "command -v seqtool"], capture=True)
    assert found is not None and Path(found.strip()).parent == Path(sys.executable).parent
