"""`seqtool inspect PATH` describes a run, a checkpoint or a cache, or compares the runs in a directory.

`seqtool inspect RUN … plot=FOLDER` draws several runs in one figure.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seqtool.cli.looking_inside import asked, look_inside
from seqtool.data.cache import Cache, is_cache
from seqtool.data.directories import SUMMARY
from seqtool.data.images.image_store import ImageStore, is_store
from seqtool.data.text import vocabulary
from seqtool.errors import InputError, counted, place, printable
from seqtool.evaluation.captions import picture
from seqtool.metrics.scores import SCORES, score
from seqtool.runtime.files import check_directory
from seqtool.runtime.log import log
from seqtool.runtime.tables import table
from seqtool.settings import declarations, leaves, typed
from seqtool.training import checkpoint, gradient_flow
from seqtool.training.recording import GRADIENT_FLOW, LEARNING_CURVES, METRICS, read_samples
from seqtool.training.runs import check_exists, located
from seqtool.training.validation import format_scores
from seqtool.view import plots

NOT_COMPARED = "seed", "run", "device", "threads", "train.resume"  # settings in which runs with other seeds may differ
# The last columns of the table of runs, by the names of the last measurements in metrics.jsonl.
MEASURED = {"tokens_per_second": "trained/s", "decoded_tokens_per_second": "decoded/s", "peak_memory": "MB"}


def inspect(config: DictConfig) -> None:
    """Describe a run, a checkpoint or a cache, or draw the curves of runs.

    For a directory of runs, print a table; for a directory of caches, print a line for each.
    """
    settings = typed(declarations.Inspect, config)
    paths = [settings.checkpoint] if isinstance(settings.checkpoint, str) else settings.checkpoint or []
    keys = [override.partition("=")[0] for override in HydraConfig.get().overrides.task]
    has_one_path, is_drawn = len(paths) == 1, bool(paths and settings.plot and not asked(settings))
    is_repeated = len(set(keys)) < len(keys)
    if not (has_one_path or is_drawn) or not all(paths) or settings.plot == "" or is_repeated:
        raise InputError("inspect needs one path: seqtool inspect PATH, or runs: seqtool inspect RUN … plot=FOLDER.")
    path = Path(paths[0])
    entries = sorted(path.iterdir()) if path.is_dir() else []
    if asked(settings):
        look_inside(settings, path)
    elif settings.output is not None:
        raise InputError("output= needs what the model is to read: text=, pair= or image=, or units= with input=.")
    elif settings.plot is not None:
        draw(paths, Path(settings.plot), f".{settings.figures}")
    elif runs := _trained_runs(entries):
        print(_table(runs))
    elif caches := [entry for entry in entries if is_cache(entry)]:
        print("\n".join(f"{printable(str(cache))}: {_description(Cache, cache).splitlines()[0]}" for cache in caches))
    elif is_store(path) or is_cache(path):
        description = _description(ImageStore if is_store(path) else Cache, path)
        print("\n".join(map(printable, description.split("\n"))))
    else:
        lines = facts(checkpoint.find(path))
        print("\n".join(f"{name:<13}{printable(text)}" for name, text in lines.items()))


def draw(paths: Sequence[str], folder: Path, suffix: str) -> None:
    """Print a table of the runs, and draw their learning curves and their gradients, in two figures in `folder` with
    this suffix.

    Raises InputError for a path without runs, and for two runs with the same name.
    """
    runs = runs_by_name(paths)
    measurements = {name: gradient_flow.read(run) for name, run in runs.items()}
    flows = {name: of_run[-1] for name, of_run in measurements.items() if of_run}
    check_directory(folder, "plot")
    if trained_runs := _trained_runs(runs.values()):
        print(_table(trained_runs))
    curves, gradients = ((folder / name).with_suffix(suffix) for name in (LEARNING_CURVES, GRADIENT_FLOW))
    figures = []
    with suppress(plots.NothingToDrawError):
        plots.gradient_flow(flows, gradients, runs=list(runs))
        figures.append(gradients)
    try:
        plots.learning_curves({name: run / METRICS for name, run in runs.items()}, curves)
        figures.insert(0, curves)
    except plots.NothingToDrawError:
        if not figures:
            raise
    for name, run in runs.items():
        samples = {record["step"]: sample for record in read_samples(run) for sample in record["samples"][:1]}
        if shown := {step: sample for step, sample in samples.items() if "attention" in sample}:
            figures.append(folder / (f"learning-{name}.gif" if len(runs) > 1 else "learning.gif"))
            plots.learning(shown, picture, figures[-1])
    print(f"Figures: {', '.join(map(str, figures))}")


def runs_by_name(paths: Sequence[str]) -> dict[str, Path]:
    """The runs at the paths, by name. A path may be a directory of runs.

    Raises InputError for a path without runs, and for two runs with the same name.
    """
    runs: dict[str, Path] = {}
    for path in map(located, map(Path, paths)):
        check_exists(path, "run")
        files = [path / METRICS] if (path / METRICS).is_file() else sorted(path.glob(f"*/{METRICS}"))
        if not files:
            raise InputError(f"{place(path)} is not a run: it has no {METRICS}.")
        for run in (file.parent for file in files):
            name = run.resolve().name
            if name in runs:
                raise InputError(f"{runs[name]} and {run} are runs with the same name: rename one directory.")
            runs[name] = run
    return runs


def compare(runs: Mapping[Path, str]) -> None:
    """Print the runs of a sweep as a table, if there are several, each with the settings that distinguish it."""
    if len(trained_runs := _trained_runs(runs)) > 1:
        print(_table(trained_runs, settings=runs))


def _trained_runs(runs: Iterable[Path]) -> list[Path]:
    """The runs that have checkpoints."""
    return [run for run in runs if checkpoint.list_checkpoints(run)]


def _table(runs: Sequence[Path], *, settings: Mapping[Path, str] | None = None) -> str:
    """A table with a row for each run: its best validation scores and, if passed, its `settings`. For runs that differ
    only in the seed, a second table has the mean and the sample standard deviation of each score.

    Damaged runs cause a warning and are left out.
    """
    checkpoints, measured = {}, {}
    for run in runs:
        try:
            measured[run] = plots.read_metrics(run / METRICS) if (run / METRICS).is_file() else {}
            checkpoints[run] = checkpoint.find(run, purpose="record")
        except InputError as error:
            log.warning("%s", error)
    best_records = [run_checkpoint.progress.get("best", {}) for run_checkpoint in checkpoints.values()]
    user_scores = dict.fromkeys(name for best in best_records for name in best if "." in name)
    scores = [score(name) for name in (*SCORES, *user_scores) if any(name in best for best in best_records)]
    shown = {name: MEASURED[name] for name in MEASURED if any(name in series for series in measured.values())}
    rows: list[list[str]] = []
    groups: dict[str, dict[Any, Any]] = {}  # runs that differ only in the seed, by seed
    for (run, run_checkpoint), best in zip(checkpoints.items(), best_records, strict=True):
        compared = {name: value for name, value in leaves(run_checkpoint.config) if name not in NOT_COMPARED}
        seed = run_checkpoint.config.get("seed")
        # of the numbers in the name of the run that it started from, the last that equals the seed
        compared["init_from"] = re.sub(
            rf"(.*)(?<!\d){seed}(?!\d)", r"\1${seed}", str(compared.get("init_from")), count=1, flags=re.DOTALL
        )
        groups.setdefault(json.dumps(compared), {})[seed] = run.name, best
        classes = [_class_name(run_checkpoint.config.get(group, {})) for group in ("model", "data")]
        values = [f"{best[metric.name]:z.{metric.digits}f}" if metric.name in best else "-" for metric in scores]
        row = [run.name] if settings is None else [run.name, settings[run]]
        row += [*classes, *values, f"{run_checkpoint.progress['step']:,}", _minutes(run_checkpoint.progress)]
        row += [f"{measured[run][name][1][-1]:,.0f}" if name in measured[run] else "-" for name in shown]
        rows.append([printable(cell) for cell in row])
    labels, columns = [metric.label for metric in scores], ["run"] if settings is None else ["run", "settings"]
    columns += ["model", "data", *labels, "best at step", "after", *shown.values()]
    lines, rows = table(columns, rows), []
    for seeds in (group.values() for group in groups.values() if len(group) > 1):
        rows.append([printable(", ".join(run_name for run_name, _ in seeds))])
        for name, digits in ((metric.name, metric.digits) for metric in scores):
            bests: list[float] = [best[name] for _, best in seeds if name in best]
            of = f" ({len(bests)} of {len(seeds)} runs)" * (len(bests) < len(seeds))
            rows[-1].append(f"{fmean(bests):z.{digits}f} ± {stdev(bests):.{digits}f}{of}" if bests[1:] else "-")
    return "\n".join([*lines, "", *table(["mean ± sd over seeds", *labels], rows)] if rows else lines)


def facts(model_checkpoint: checkpoint.Checkpoint) -> dict[str, str]:
    """Describe the content of a checkpoint, its training and its scores, by label."""
    config, progress = model_checkpoint.config, model_checkpoint.progress
    duration = f", {_minutes(progress)}" if "seconds" in progress else ""  # exported models have none
    return {
        "checkpoint": str(model_checkpoint.path),
        "model": _settings(config["model"]),
        "parameters": f"{model_checkpoint.parameters:,}",
        "vocabularies": _vocabularies(model_checkpoint),
        "data": _settings(config.get("data", {})),
        "trained": f"{counted(progress['step'], 'step')}, {counted(progress.get('epoch', 0), 'epoch')}{duration}",
        "optimiser": _settings(config.get("optim", {})) + "; schedule " + _settings(config.get("schedule", {})),
        "scores": _scores(progress.get("last", {})),
        "best of run": _scores(progress.get("best", {})),
        "versions": ", ".join(f"{name} {version}" for name, version in model_checkpoint.versions.items()),
    }


def _description(kind: Any, path: Path) -> str:
    """The description of a cache or of an image store."""
    try:
        return str(kind(path).describe())
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:  # an unexpected summary
        raise InputError(f"{path / SUMMARY} is damaged: remove {path} and prepare again.") from error


def _vocabularies(model_checkpoint: checkpoint.Checkpoint) -> str:
    """The kinds and sizes of a checkpoint's vocabularies."""
    # the files tell, since the task may be a user's that is not trusted
    if not any((model_checkpoint.path / name).exists() for name in (vocabulary.SOURCE, vocabulary.JOINT)):
        target = vocabulary.load(model_checkpoint.path / vocabulary.TARGET)
        return f"{target.form.kind} {len(target):,}"
    source, target = vocabulary.load_all(model_checkpoint.path, ("source", "target")).values()
    return f"source {source.form.kind} {len(source):,}, target {target.form.kind} {len(target):,}"


def _settings(settings: Mapping[str, Any]) -> str:
    """Describe a group: the name of its class, its settings that are not null, and those of each group within it."""
    groups: dict[str, list[str]] = {"": []}
    for key, value in leaves(settings):
        group, _, name = key.rpartition(".")
        if name != "_target_" and key not in ("name", "cache", "processes") and value not in (None, {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            groups.setdefault(group, []).append(f"{name.replace('_', ' ')} {text}")
    parts = ((group or _class_name(settings), ", ".join(texts)) for group, texts in groups.items())
    return "; ".join(": ".join(filter(None, part)) for part in parts)


def _class_name(settings: Mapping[str, Any]) -> str:
    """The name of the class that a group of settings chooses."""
    return str(settings.get("_target_", settings.get("name", ""))).rpartition(".")[2]


def _minutes(progress: Mapping[str, Any]) -> str:
    return f"{progress.get('seconds', 0) / 60:.1f} min"


def _scores(scores: Mapping[str, Any]) -> str:
    if not {"loss", "step"} <= scores.keys():
        return "not validated"
    return f"{', '.join(format_scores(scores))} (validation, step {scores['step']:,})"
