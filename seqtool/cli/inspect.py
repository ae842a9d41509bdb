"""`seqtool inspect PATH`: what a run, a checkpoint or a cache is, or how the runs of a directory compare;
`seqtool inspect RUN … plot=FOLDER`: several runs in one figure.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seqtool import tasks
from seqtool.data.cache import Cache, is_cache
from seqtool.data.directories import SUMMARY
from seqtool.data.images.image_store import ImageStore, is_store
from seqtool.data.text import vocabulary
from seqtool.errors import InputError, naming, printable
from seqtool.metrics.scores import SCORES, score
from seqtool.runtime.tables import table
from seqtool.settings import declarations, typed
from seqtool.training import checkpoint, gradient_flow
from seqtool.training.recording import FLOW, GRADIENT_FLOW, LEARNING_CURVES, METRICS
from seqtool.training.runs import nearby
from seqtool.training.validation import format_scores
from seqtool.view import plots

log = logging.getLogger("seqtool")


def inspect(config: DictConfig) -> None:
    """Print what PATH is, or draw the curves of runs."""
    settings = typed(declarations.Inspect, config)
    paths = [settings.checkpoint] if isinstance(settings.checkpoint, str) else settings.checkpoint or []
    written = [override.partition("=")[0] for override in HydraConfig.get().overrides.task]
    is_one, is_drawn = len(paths) == 1, bool(paths and settings.plot)
    if not (is_one or is_drawn) or not all(paths) or settings.plot == "" or len({*written}) < len(written):
        raise InputError("inspect needs one path: seqtool inspect PATH, or runs: seqtool inspect RUN … plot=FOLDER.")
    if settings.plot is None:
        _print(Path(paths[0]))
    else:
        draw(paths, Path(settings.plot))


def _print(place: Path) -> None:
    """What a run, a checkpoint or a cache is; of a directory of them, a table or a line for each."""
    inside = sorted(place.iterdir()) if place.is_dir() else []
    if runs := _trained(inside):
        print(_table(runs))
    elif caches := [inner for inner in inside if is_cache(inner)]:
        print("\n".join(f"{printable(str(cache))}: {_prepared(Cache, cache).splitlines()[0]}" for cache in caches))
    elif is_store(place) or is_cache(place):
        description = _prepared(ImageStore if is_store(place) else Cache, place)
        print("\n".join(map(printable, description.split("\n"))))
    else:
        lines = facts(checkpoint.find(place))
        print("\n".join(f"{name:<13}{printable(text)}" for name, text in lines.items()))


def draw(paths: Sequence[str], folder: Path) -> None:
    """The runs' table, and their learning curves and gradients, each in one figure in `folder`. InputError for a path
    that is no run, and for two runs of one name.
    """
    runs = named(paths)
    flows = {}
    for name, run in runs.items():
        if (run / FLOW).is_file() and (measured := gradient_flow.read(run / FLOW)):
            flows[f"{name}, step {measured[-1]['step']:,}"] = measured[-1]
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if trained := _trained(runs.values()):
        print(_table(trained))
    figures = []
    with suppress(plots.NothingToDrawError):
        plots.gradient_flow(flows, folder / GRADIENT_FLOW, runs=True)
        figures.append(folder / GRADIENT_FLOW)
    try:
        plots.learning_curves({name: run / METRICS for name, run in runs.items()}, folder / LEARNING_CURVES)
        figures.insert(0, folder / LEARNING_CURVES)
    except plots.NothingToDrawError:
        if not figures:
            raise
    print(f"Figures: {', '.join(map(str, figures))}")


def named(paths: Sequence[str]) -> dict[str, Path]:
    """Runs by their names, those in a directory of runs too. InputError for a path that is neither, and for two runs of
    one name.
    """
    runs: dict[str, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"There is no run at {path}.{nearby(path)}")
        inside = [path / METRICS] if (path / METRICS).is_file() else sorted(path.glob(f"*/{METRICS}"))
        if not inside:
            raise InputError(f"{path} is not a run: it has no {METRICS}.")
        for run in (metrics.parent for metrics in inside):
            name = run.resolve().name
            if name in runs:
                raise InputError(f"{runs[name]} and {run} are runs with the same name: rename one folder.")
            runs[name] = run
    return runs


def compare(runs: Mapping[Path, str]) -> None:
    """The runs of a sweep as a table, if there are several; each has settings of its own."""
    if len(trained := _trained(runs)) > 1:
        print(_table(trained, settings=runs))


def _trained(runs: Iterable[Path]) -> list[Path]:
    """The runs that have a checkpoint."""
    return [run for run in runs if checkpoint.list_checkpoints(run)]


def _table(runs: Sequence[Path], *, settings: Mapping[Path, str] | None = None) -> str:
    """One line per run, with its own `settings` if there are any, and its best validation scores; a damaged run causes
    a warning and is left out.
    """
    checkpoints = {}
    for run in runs:
        try:
            checkpoints[run] = checkpoint.find(run, purpose="record")
        except InputError as damaged:
            log.warning("%s", damaged)
    bests = [opened.progress.get("best", {}) for opened in checkpoints.values()]
    others = dict.fromkeys(name for best in bests for name in best if "." in name)
    scores = [score(name) for name in (*SCORES, *others) if any(name in best for best in bests)]
    own = [] if settings is None else ["settings"]
    rows = []
    for (run, opened), best in zip(checkpoints.items(), bests, strict=True):
        parts = [_name(opened.config.get(part, {})) for part in ("model", "data")]
        values = [f"{best[one.name]:.{one.digits}f}" if one.name in best else "-" for one in scores]
        chosen = [] if settings is None else [settings[run]]
        row = (run.name, *chosen, *parts, *values, f"{opened.progress['step']:,}", _minutes(opened.progress))
        rows.append([printable(cell) for cell in row])
    labels = [one.label for one in scores]
    return "\n".join(table(("run", *own, "model", "data", *labels, "best at step", "after"), rows))


def facts(opened: checkpoint.Checkpoint) -> dict[str, str]:
    """What a checkpoint is, how it was trained and its scores, each under its name."""
    config, progress = opened.config, opened.progress
    return {
        "checkpoint": str(opened.path),
        "model": _settings(config["model"]),
        "parameters": f"{opened.parameters:,}",
        "vocabularies": _vocabularies(opened),
        "data": _settings(config.get("data", {})),
        "trained": f"{progress['step']:,} steps, {progress.get('epoch', 0)} epochs, {_minutes(progress)}",
        "optimiser": _settings(config.get("optim", {})) + "; schedule " + _settings(config.get("schedule", {})),
        "this one": _scores(progress.get("last", {})),
        "best of run": _scores(progress.get("best", {})),
        "versions": ", ".join(f"{name} {version}" for name, version in opened.versions.items()),
    }


def _prepared(kind: Any, path: Path) -> str:
    """The description of a cache or of an image store."""
    try:
        return str(kind(path).describe())
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:  # values we never write
        raise InputError(f"{path / SUMMARY} is damaged: remove {path} and prepare again.") from error


def _vocabularies(opened: checkpoint.Checkpoint) -> str:
    if "source" not in tasks.of_checkpoint(opened).corpus.sides:
        target = vocabulary.load(opened.path / vocabulary.TARGET)
        return f"{target.form.kind} {len(target):,}"
    source, target = vocabulary.load_all(opened.path, ("source", "target")).values()
    return f"source {source.form.kind} {len(source):,}, target {target.form.kind} {len(target):,}"


def _settings(settings: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in settings.items() if key not in ("_target_", "name")}
    written = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in rest.items())
    return f"{_name(settings)} {written}"


def _name(settings: Mapping[str, Any]) -> str:
    return str(settings.get("_target_", settings.get("name", ""))).rpartition(".")[2]


def _minutes(progress: Mapping[str, Any]) -> str:
    return f"{progress.get('seconds', 0) / 60:.1f} min"


def _scores(scores: Mapping[str, Any]) -> str:
    if not {"loss", "step"} <= scores.keys():
        return "not validated"
    return f"{', '.join(format_scores(scores))} (validation, step {scores['step']:,})"
