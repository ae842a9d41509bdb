"""`seqtool inspect PATH`: what a run, a checkpoint or a cache is."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqtool import tasks
from seqtool.data.cache import Cache, is_cache
from seqtool.data.directories import SUMMARY
from seqtool.data.images.image_store import ImageStore, is_store
from seqtool.data.text import vocabulary
from seqtool.errors import InputError, printable
from seqtool.training import checkpoint
from seqtool.training.validation import told


def describe(path: Path) -> str:
    """A few lines for a person, without control characters; InputError where the path is none of them."""
    kinds = {ImageStore: is_store, Cache: is_cache}
    for kind, is_one in kinds.items():
        if is_one(path):
            return "\n".join(map(printable, _prepared(kind, path).split("\n")))
    found = checkpoint.find(path)
    config, progress = found.config, found.progress
    best = progress.get("best", {})
    lines = [
        ("checkpoint", str(found.path)),
        ("model", _settings(config["model"])),
        ("parameters", f"{sum(map(math.prod, found.shapes().values())):,}"),
        ("vocabularies", _vocabularies(found)),
        ("data", _settings(config.get("data", {}))),
        (
            "trained",
            f"{progress['step']:,} steps, {progress.get('epoch', 0)} epochs, {progress.get('seconds', 0) / 60:.1f} min",
        ),
        ("optimiser", _settings(config.get("optim", {})) + "; schedule " + _settings(config.get("schedule", {}))),
        ("this one", _scores(progress.get("last", {}))),
        ("best of run", _scores(best)),
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
    ]
    return "\n".join(f"{name:<13}{printable(text)}" for name, text in lines)


def _prepared(kind: Any, path: Path) -> str:
    try:
        return str(kind(path).describe())
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:  # of another kind than we write
        raise InputError(f"{path / SUMMARY} is damaged: remove {path} and prepare again.") from error


def _vocabularies(found: checkpoint.Checkpoint) -> str:
    if tasks.of_checkpoint(found).reads != "text":
        target = vocabulary.load(found.path / vocabulary.TARGET)
        return f"{target.kind} {len(target):,}"
    source, target = vocabulary.load_pair(found.path)
    return f"source {source.kind} {len(source):,}, target {target.kind} {len(target):,}"


def _settings(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("_target_", settings.get("name", ""))).rsplit(".", 1)[-1]
    rest = {key: value for key, value in settings.items() if key not in ("_target_", "name")}
    return f"{name} " + " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in rest.items())


def _scores(scores: Mapping[str, Any]) -> str:
    if not {"loss", "step"} <= scores.keys():
        return "not validated"
    return f"{', '.join(told(scores))} (validation, step {scores['step']:,})"
