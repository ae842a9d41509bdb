#!/usr/bin/env python
"""Repeat a row of results/: train and evaluate as it says, and compare the scores with those that are stored.

    python scripts/reproduce.py --list                      # every row: cost, what to expect, where it was measured
    python scripts/reproduce.py tiny                        # train with each of the row's seeds, evaluate, compare
    python scripts/reproduce.py multi30k-bahdanau data.directory=data/multi30k     # with settings for `seqtool train`
    python scripts/reproduce.py tiny --check runs/mine      # evaluate a run as the row does, with settings for `eval`
    python scripts/reproduce.py tiny --check scores.json    # compare what `seqtool eval format=json` wrote

Each score is within or beyond the spread that is stored: over seeds, or of one seed's test set (bootstrap). Then comes
what differs from what the row was measured with, in the order in which causes come before their effects: data,
vocabulary, seed, settings, versions, losses, examples, search, metric. The exit status is 1 if a score is beyond.

    python scripts/reproduce.py tiny --record               # also store what was measured, as the row's record
    python scripts/reproduce.py tiny --record seed=3        # the last of its seeds, beside those that are stored
    python scripts/reproduce.py tiny --tried runs/mine "a smaller rate"            # a line of results/tried.jsonl

results/rows.yaml explains its fields; results/README.md says what has been measured how.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hydra import compose, initialize_config_dir

from seqtool.cli import arguments
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory, finite_json, read_record, write_whole
from seqtool.runtime.tables import table
from seqtool.settings import declarations, leaves, plain
from seqtool.training.checkpoint import find

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "results" / "rows.yaml"
LOSSES = 20  # logged losses that a record keeps
SAME = 1e-5  # relative difference up to which losses and scores are the same, since processors round differently
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # t's 97.5 % quantiles, 1, 2, … degrees of freedom
# Settings that change no numbers or, as the tokeniser, follow from the data. Those that name files are left out, too.
NOT_COMPARED = {"run", "train.resume", "data.cache", "data.processes", "validation.tokenize"}
SIGNATURE = {  # what the fields of a score's signature mean
    "nrefs": "references for each example",
    "case": "lower-casing (case)",
    "tok": "tokenisation",
    "smooth": "smoothing",
    "bp": "brevity penalty",
    "df": "document frequencies",
    "version": "version of the metric",
}

Facts = dict[str, Any]  # what a score depends on, by a name for people; causes come before their effects
Losses = list[list[float]]  # pairs of an update's number and its training loss in nats per token


@dataclass(frozen=True)
class Expected:
    """A score as it is stored: the mean over the row's seeds, and with it the standard deviation over seeds, or the
    bootstrap interval of the only seed's test set, or neither. A mean of None has not been measured.
    """

    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.mean is None:
            return "not measured"
        interval = "" if self.low is None else f" [{self.low:g}, {self.high:g}]"
        return f"{self.mean:g}{interval if self.sd is None else f' ± {self.sd:g}'}"

    def judge(self, values: Sequence[float], seeds: int) -> tuple[bool | None, str]:
        """Whether the mean of new values is within the spread, which is None if no spread is stored, and the reason."""
        if self.mean is None:
            return None, "no value is stored yet"
        difference = statistics.fmean(values) - self.mean
        if self.sd is not None:
            quantile = STUDENT[min(seeds - 1, len(STUDENT)) - 1]
            margin = quantile * self.sd * math.sqrt(1 / seeds + 1 / len(values))
            reason = f"over {seeds} seeds: 95 % of such runs differ from it by at most {margin:.2g}"
            return abs(difference) <= margin + self.rounding, reason
        if self.low is not None and self.high is not None:
            within = self.low - self.rounding <= self.mean + difference <= self.high + self.rounding
            return within, "one seed: no spread over seeds is stored, so this is the interval of its test set"
        return None, f"one seed: no spread is stored; difference {difference:+.2g}"

    @property
    def rounding(self) -> float:
        """Half a unit of the fourth of the mean's digits, the last that is stored."""
        return 0.5 * 10.0 ** (math.floor(math.log10(abs(self.mean))) - 3) if self.mean else 0.0


@dataclass(frozen=True)
class Row:
    """A row of rows.yaml, which explains the fields."""

    name: str
    train: str
    evaluate: str
    scores: Mapping[str, Expected]
    hardware: str
    seeds: Sequence[int] = (1,)
    minutes: float | None = None
    commit: str | None = None
    compared: str | None = None
    record: str | None = None
    prepare: str | None = None
    needs: str = ""
    remark: str = ""

    @cached_property
    def facts(self) -> Facts:
        """The settings of training by the row's command."""
        return command_facts(shlex.split(self.train))


@dataclass(frozen=True)
class Measured:
    """What an evaluation says, and what the run says that it evaluated, if it is here.

    scores: value, and with it low and high if there is an interval, by the score's name
    evaluation, training: what the scores depend on
    seed, minutes, losses: of training; the losses are the first that were logged
    finished: the run if it was finished before, so that it was not trained now
    """

    scores: Mapping[str, Mapping[str, float]]
    evaluation: Facts
    training: Facts = field(default_factory=dict)
    seed: int | None = None
    minutes: float = math.nan
    losses: Losses = field(default_factory=list)
    finished: Path | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="the name of a row")
    parser.add_argument("settings", nargs="*", help="further settings, key=value")
    parser.add_argument("--list", action="store_true", help="list the rows, or the one that is named")
    parser.add_argument("--check", type=Path, metavar="RUN_OR_JSON", help="compare this without training")
    parser.add_argument("--record", action="store_true", help="store what was measured as the row's record")
    parser.add_argument("--tried", nargs=2, metavar=("RUN", "NOTE"), help="log how a run did on the validation set")
    parser.add_argument("--rows", type=Path, default=ROWS, help="another file of rows, beside whose records it lies")
    options = parser.parse_intermixed_args()
    rows = read_rows(options.rows)
    if options.name is not None and options.name not in rows:
        raise InputError(f"There is no row '{options.name}': choose from {', '.join(rows)}.")
    if options.name is None and (options.check or options.record or options.tried):
        raise InputError("--check, --record and --tried need the name of a row.")
    if options.list or options.name is None:
        print("\n".join(listing(rows.values() if options.name is None else [rows[options.name]])))
        return
    if wrong := [setting for setting in options.settings if "=" not in setting]:
        raise InputError(f"'{wrong[0]}' is not a setting: write key=value.")
    row = rows[options.name]
    if options.tried:
        print(log_trial(row, Path(options.tried[0]), options.tried[1], options.rows.with_name("tried.jsonl")))
        return
    if options.record and options.check is not None and options.settings:
        raise InputError(f"--record needs the row's own evaluation: leave out {shlex.join(options.settings)}.")
    if options.record and options.check is None:  # before any training
        facts = command_facts([*shlex.split(row.train), *options.settings])
        check_settings(row, [facts])
        if any(setting.startswith("seed=") for setting in options.settings) and facts["setting seed"] not in row.seeds:
            raise InputError(f"--record needs one of the row's seeds, {', '.join(map(str, row.seeds))}.")
    before = stored(row, options.rows.parent, may_be_missing=options.record)
    if options.check is not None:
        measured = [check(row, options.check, options.settings)]
    else:
        measured = list(repeat(row, options.settings))
    within, lines = report(row, measured, before)
    try:
        if options.record:
            store(row, measured, before, options.rows.parent)
    finally:  # what was measured is shown even if it cannot be the row's record
        print("\n".join(lines))
    sys.exit(0 if within else 1)


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of a YAML file, by name."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["rows"]
    rows = {}
    for name, entry in entries.items():
        train = entry["train"] if isinstance(entry["train"], str) else " ".join(entry["train"])
        scores = {key: Expected(**value) for key, value in entry["scores"].items()}
        rows[name] = Row(**{**entry, "name": name, "train": train, "scores": scores})
    return rows


def listing(rows: Iterable[Row]) -> Iterator[str]:
    """A table of the rows."""
    cells = []
    for row in rows:
        minutes = "?" if row.minutes is None else f"{row.minutes:g}"
        scores = ", ".join(f"{name} {expected}" for name, expected in row.scores.items()) or "not measured"
        at = f"{row.commit or '–'}, losses compared up to {row.compared}" if row.compared else row.commit or "–"
        remark = "; ".join(filter(None, (row.needs and f"needs {row.needs}", row.remark)))
        cells.append([row.name, f"{len(row.seeds)} × {minutes} min, {row.hardware}", scores, at, remark])
    yield from table(["row", "cost", "expected", "measured at", "remark"], cells)


def repeat(row: Row, settings: Sequence[str]) -> Iterator[Measured]:
    """Train with each seed of the row, or the one that is set, and evaluate. Runs that were finished before are not
    trained again. Raises InputError if one has other settings.
    """
    overrides = dict(setting.split("=", 1) for setting in settings)
    if "run" in overrides:
        raise InputError("run= is not yours to set: the runs have the names of the row and the seed.")
    if not overrides.get("seed", "1").isdecimal():
        raise InputError(f"seed={overrides['seed']} must be one whole number.")
    if row.prepare:
        run(["bash", "-euc", row.prepare, row.name, overrides.get("data.directory", "")])
    for seed in [int(overrides["seed"])] if "seed" in overrides else row.seeds:
        name = f"{row.name}-seed-{seed}"
        start, path = ["seqtool", "train", f"run={name}", "train.resume=auto"], Path("runs", name)
        words, before = [*shlex.split(row.train), *settings, f"seed={seed}"], newest(path)
        run([*start, *words])
        finished = path if before is not None and before == newest(path) else None
        if finished:
            facts = setting_facts(read_record(before / "checkpoint.json")["config"])
            if others := list(changed(facts, command_facts(words))):
                raise InputError(f"{path} was finished before, with {'; '.join(others)}: remove it, or see --check.")
        yield replace(evaluate(row, path, [], path / "scores.json"), finished=finished)


def newest(path: Path) -> Path | None:
    """The newest checkpoint of a run, without averages; None if there is none."""
    return max((path / "checkpoints").glob("step-*"), default=None)


def evaluate(row: Row, path: Path, settings: Sequence[str], output: Path) -> Measured:
    """Evaluate a run as the row says, with further settings, and write the evaluation to `output`."""
    words = [*shlex.split(row.evaluate.format(run=shlex.quote(str(path)), output=shlex.quote(str(output)))), *settings]
    printed = run(words, capture="{output}" not in row.evaluate)
    if printed is not None:
        output.write_text(printed, encoding="utf-8")
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    return measure(read_record(output), path, split=chosen.get("split"))


def check(row: Row, path: Path, settings: Sequence[str]) -> Measured:
    """What a run, which is evaluated, or an evaluation says."""
    if path.is_dir():
        with TemporaryDirectory() as folder:
            return evaluate(row, path, settings, Path(folder, "scores.json"))
    if settings:
        raise InputError(f"{path} has been evaluated, so it takes no settings: {shlex.join(settings)}.")
    try:
        return measure(read_record(path), None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is neither a run nor what `seqtool eval format=json` printed ({error}).") from error


def run(words: Sequence[str], *, capture: bool = False) -> str | None:
    """Run a command of the row, and return its output if it is captured."""
    print("$", shlex.join(words), file=sys.stderr, flush=True)
    programs = {"seqtool": [sys.executable, "-m", "seqtool"], "python": [sys.executable]}
    if words[0] == "python":
        words = ["python", str(ROOT / words[1]), *words[2:]]
    command = [*programs.get(words[0], words[:1]), *words[1:]]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # scripts may use `seqtool`
    environment, output = {**os.environ, "PATH": path}, subprocess.PIPE if capture else None
    ended = subprocess.run(command, check=False, text=True, stdout=output, env=environment)
    if ended.returncode:
        raise InputError(f"The command failed with status {ended.returncode}: {shlex.join(words)}")
    return ended.stdout


def measure(evaluation: Mapping[str, Any], path: Path | None, split: str | None = None) -> Measured:
    """Read an evaluation, and the checkpoint that it names or that its run has, as far as it is here."""
    checkpoint = Path(evaluation["checkpoints"][0]) if "checkpoints" in evaluation else path
    if checkpoint is not None:
        checkpoint = newest(checkpoint) or checkpoint
    values, facts = scores(evaluation), evaluation_facts(evaluation, split)
    if checkpoint is None or not (checkpoint / "checkpoint.json").exists():
        return Measured(values, facts)
    record, manifest = (read_record(checkpoint / name) for name in ("checkpoint.json", "manifest.json"))
    training, seed = training_facts(record, manifest), record["config"]["seed"]
    path = checkpoint.parent.parent
    if (last := newest(path)) is None or checkpoint.parent.name != "checkpoints":  # a model that was exported
        return Measured(values, facts, training, seed)
    minutes = read_record(last / "checkpoint.json")["progress"]["seconds"] / 60
    return Measured(values, facts, training, seed, minutes, first_losses(path / "metrics.jsonl"))


def scores(evaluation: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The scores of an evaluation by name: value, and with it low and high if there is an interval."""
    system, intervals = evaluation.get("system", {}), evaluation.get("intervals", {})
    shares = {name: x for name, x in {**evaluation, **evaluation.get("alignment", {})}.items() if isinstance(x, float)}
    values = {**evaluation, **{name: {**intervals.get(name, {}), "value": x} for name, x in shares.items()}}
    values |= {score["name"]: score for score in system.get("scores", [])}
    values |= {"BLEU": system["bleu"]} if "bleu" in system else {}
    return {
        name: {key: value[key] for key in ("value", "low", "high") if value.get(key) is not None}
        for name, value in values.items()
        if isinstance(value, dict) and "value" in value
    }


def training_facts(record: Mapping[str, Any], manifest: Mapping[str, Any]) -> Facts:
    """What the scores of a checkpoint depend on: its data, vocabularies, settings and versions."""
    facts = {f"data, {name}": digest(value) for name, value in record["data"].items()}
    vocabularies = {name: file["sha256"] for name, file in manifest.items() if name.endswith(".vocabulary")}
    facts |= {f"vocabulary, {name.removesuffix('.vocabulary')}": digest(value) for name, value in vocabularies.items()}
    facts |= setting_facts(record["config"])
    return facts | {f"version of {name}": value for name, value in record["versions"].items()}


def setting_facts(config: Mapping[str, Any]) -> Facts:
    """The settings of training, except those that name files, whose digests are compared, or change no numbers."""
    declared = declarations.command_settings("train")
    sources = declarations.declared(declarations.Sources)
    files = {name for name, setting in declared.items() if setting.reads or setting.writes}
    files |= {f"data.{name}" for name in sources}
    return {
        f"setting {name}": value
        for name, value in leaves(config)
        if name not in NOT_COMPARED and (name not in files or isinstance(value, int))  # a size of the built-in data
    }


def command_facts(words: Sequence[str]) -> Facts:
    """The settings of training by a command: what is known of the training of a row that has no record."""
    _, settings, paths = arguments.split(words, "train")
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        files = arguments.ConfigFiles("train", [config_directory()])
        return setting_facts(plain(compose("train", arguments.hydra_overrides(settings, paths, files))))


def evaluation_facts(evaluation: Mapping[str, Any], split: str | None) -> Facts:
    """What the scores of an evaluation depend on: checkpoint, examples, search, and the score's signature."""
    system = evaluation.get("system", {})
    checkpoint = ", ".join(Path(path).name for path in evaluation.get("checkpoints", [])) or None
    text = evaluation.get("text")
    if "window" in evaluation:
        text = f"{text}, windows of {evaluation['window']}"
    facts: Facts = {"checkpoint": checkpoint, "split": split, "text": text}
    counts = {name: evaluation.get(name) for name in ("scenes", "images", "tokens")}
    facts |= {"sentences": system.get("sentences"), **counts}
    lengths = {each["label"]: each["sentences"] for each in system.get("by_length", [])}
    facts["sentences by length (another split?)"] = ", ".join(f"{n} of {label}" for label, n in lengths.items()) or None
    facts |= {f"search, {name}": value for name, value in evaluation.get("decoding", {}).items()}
    signature = evaluation.get("signature") or system.get("scores", [{}])[0].get("signature", "")
    fields = dict(field.partition(":")[::2] for field in signature.split("|") if field)
    if evaluation.get("brevity_penalty", 1) < 1 and evaluation.get("bleu4") == evaluation.get("bleu4_no_bp", ""):
        fields["bp"] = "none"
    facts |= {f"metric, {SIGNATURE.get(name, name)}": value for name, value in fields.items()}
    return {name: value for name, value in facts.items() if value is not None}


def digest(value: Any) -> Any:
    """Numbers and short names as they are; of anything else, the beginning of its SHA-256."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return value if len(text) <= 20 else sha256(text.encode()).hexdigest()[:12]


def first_losses(file: Path) -> Losses:
    """The first losses in a run's metrics.jsonl."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = [record for record in map(json.loads, lines) if record.get("loss") is not None]
    return [[record["step"], float(f"{record['loss']:.7g}")] for record in records[:LOSSES]]


def stored(row: Row, folder: Path, *, may_be_missing: bool = False) -> dict[str, Any]:
    """A row's record: "training" and "evaluation", what its scores depend on, and "seeds", scores and losses by seed. A
    row from before there were records has the settings of its command, and an evaluation if it was kept. Raises
    InputError if rows.yaml names a record that is missing, unless it may be.
    """
    file = folder / (row.record or "")
    is_missing = not file.exists()
    if is_missing and not may_be_missing:
        raise InputError(f"The record of the row '{row.name}', {file}, is missing: make it with --record.")
    record = read_record(file) if row.record and not is_missing else {}
    if "training" in record:
        return record
    return {"training": row.facts, "evaluation": evaluation_facts(record, None), "seeds": {}}


def check_settings(row: Row, trainings: Iterable[Facts]) -> None:
    """Raise InputError for a training with other settings than the row's, besides the seed."""
    expected = {name: value for name, value in row.facts.items() if name != "setting seed"}
    if others := list(dict.fromkeys(line for facts in trainings for line in changed(facts, expected))):
        raise InputError(f"--record needs the row's own settings, but the run has {'; '.join(others)}.")


def store(row: Row, measured: Sequence[Measured], before: Mapping[str, Any], folder: Path) -> None:
    """Write the row's record, rows/NAME.json, and print what rows.yaml should say of it. Seeds that were not measured
    now stay as they were stored `before`, if they were measured in the same way and have all of the row's scores.
    """
    if not all(each.training for each in measured):
        raise InputError("--record needs the run whose checkpoint was evaluated, which is not here.")
    check_settings(row, [each.training for each in measured])
    seeds = {
        each.seed: {
            "checkpoint": each.evaluation.get("checkpoint"),
            "minutes": round(each.minutes, 2),
            "scores": {name: each.scores[name] for name in row.scores},
            "losses": each.losses,
        }
        for each in measured
    }
    evaluation = {name: value for name, value in measured[0].evaluation.items() if name != "checkpoint"}
    record = {"training": {**measured[0].training, "setting seed": row.seeds[0]}, "evaluation": evaluation}
    if record == {name: before[name] for name in record}:
        kept = {int(seed): each for seed, each in before["seeds"].items() if each["scores"].keys() >= row.scores.keys()}
        seeds = {seed: each for seed, each in kept.items() if seed in row.seeds} | seeds
    if set(seeds) != set(row.seeds):
        raise InputError(f"--record needs a run of each of the row's seeds, {', '.join(map(str, row.seeds))}.")
    record["seeds"] = {str(seed): seeds[seed] for seed in row.seeds}
    file = folder / "rows" / f"{row.name}.json"
    file.parent.mkdir(exist_ok=True)
    write_whole(file, f"{finite_json(record)}\n".encode())
    lines = [f"record: rows/{file.name}", f"seeds: [{', '.join(record['seeds'])}]", "scores:"]
    for name in row.scores:
        all_scores = [each["scores"][name] for each in seeds.values()]
        values, first = [score["value"] for score in all_scores], all_scores[0]
        interval = f", low: {first['low']:.4g}, high: {first['high']:.4g}" if "low" in first else ""
        spread = interval if len(values) == 1 else f", sd: {statistics.stdev(values):.2g}"
        lines.append(f"  {name}: {{mean: {statistics.fmean(values):.4g}{spread}}}")
    minutes = [each["minutes"] for each in seeds.values() if each.get("minutes") is not None]  # older records have none
    print("\n".join([*lines, f"minutes: {statistics.fmean(minutes):.1f}"]))


def report(row: Row, measured: Sequence[Measured], record: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Whether no score is beyond its spread, and lines that say so and what differs."""
    seeds = ", ".join(str(each.seed) if each.training else "unknown" for each in measured)
    lines, verdicts = [f"{row.name}, seed {seeds}"], []
    for name, expected in row.scores.items():
        values = [each.scores[name]["value"] for each in measured if name in each.scores]
        if not values:
            raise InputError(f"The evaluation has no {name}, which {row.name} is measured by.")
        within, reason = expected.judge(values, len(row.seeds))
        verdicts.append(within)
        word = {True: "within", False: "BEYOND", None: "beside"}[within]
        lines.append(f"  {name} {statistics.fmean(values):.5g}: {word} {expected} ({reason})")
    differences = list(dict.fromkeys(line for each in measured for line in differing(row, each, record)))
    if differences:
        lines.append("What differs; the first is the likeliest cause (see also results/different_numbers.md):")
        lines += [f"  {line}" for line in differences]
    else:
        lines.append("Nothing differs from what is stored.")
    if finished := [str(each.finished) for each in measured if each.finished]:
        lines.append(
            f"Not trained again, since finished before: {', '.join(finished)}. Remove them for a new measurement."
        )
    if not all(each.training for each in measured):
        lines.append("Training is not compared: the checkpoint that was evaluated is not here.")
    if False in verdicts:
        since = f"with the same training losses up to {row.compared}" if row.compared else "not compared since"
        remark = f" ({row.remark})" if row.remark else ""
        lines.append(f"Measured at {row.commit}{remark}, {since} (scripts/development/compare_checkouts.py).")
    return False not in verdicts, lines


def differing(row: Row, now: Measured, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs from the row's record, causes before their effects."""
    then, seeds, seed = record["training"], record["seeds"], str(now.seed)
    if now.training:
        # a record from before a setting existed has its value in the row's command
        then = then | {x: value for x, value in row.facts.items() if x in now.training and x not in then}
        is_stored = seed in (seeds or map(str, row.seeds))
        yield from changed(now.training, then | ({"setting seed": now.seed} if is_stored else {}))
    losses = seeds.get(seed, next(iter(seeds.values()), {})).get("losses", [])
    for (update, loss), (stored_update, stored_loss) in zip(now.losses, losses, strict=False):
        if update != stored_update:  # each is a mean since the update before it
            break
        if not math.isclose(loss, stored_loss, rel_tol=SAME):
            yield f"training loss: {loss:.6g} instead of {stored_loss:.6g} at update {update:g}, the first that differs"
            break
    then = record["evaluation"]
    if (best := seeds.get(seed, {}).get("checkpoint")) is not None:
        then = {"checkpoint": best, **then}
    if not any(name.startswith("search, ") for name in now.evaluation) and "search, precision" in then:
        yield f"search: none, instead of beam {then.get('search, beam')}: a file of outputs, perhaps of teacher forcing"
        then = {name: value for name, value in then.items() if not name.startswith("search, ")}
    yield from changed(now.evaluation, then)
    for name, score in seeds.get(seed, {}).get("scores", {}).items():
        if not math.isclose(now.scores[name]["value"], score["value"], rel_tol=SAME):
            yield f"{name} of seed {seed}: {now.scores[name]['value']:.6g} instead of {score['value']:.6g}"


def changed(now: Facts, then: Facts) -> Iterator[str]:
    """Yield the facts that are not as they were. Some files of scores do not say the split or the checkpoint."""
    for name, value in then.items():
        if now.get(name) != value and (name in now or name not in ("split", "checkpoint")):
            yield f"{name}: {finite_json(now.get(name))} instead of {finite_json(value)}"


def log_trial(row: Row, path: Path, note: str, log: Path) -> str:
    """Append how a run did on the validation set, the settings that are not the row's and the run that it started from,
    and return the line.
    """
    if (last := newest(path)) is None:
        raise InputError(f"{path} is not a run with checkpoints: --tried takes a run, and a note in quotes.")
    record, base = read_record(last / "checkpoint.json"), row.facts
    progress, facts = record["progress"], setting_facts(record["config"])
    best = find(path, purpose="record").progress["best"]  # perhaps of an average
    trial = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "row": row.name,
        "settings": {
            name.removeprefix("setting "): x for name, x in facts.items() if name not in base or base[name] != x
        },
        **({"init_from": record["config"]["init_from"]} if record["config"]["init_from"] else {}),
        "updates": progress["step"],
        "minutes": round(progress["seconds"] / 60, 2),
        "valid": {name: value for name, value in best.items() if name != "checkpoint"},
        "note": note,
    }
    line = finite_json(trial)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return line


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
