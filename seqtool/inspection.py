"""`seqtool inspect PATH`: what a run, a checkpoint or a cache is."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from seqtool import checkpoint
from seqtool.data import vocabulary
from seqtool.data.cache import Cache, is_cache
from seqtool.data.caption_cache import CaptionCache, is_caption_cache
from seqtool.data.image_store import ImageStore, is_store


def describe(path: Path) -> str:
    """A few lines for a person; InputError where the path is none of them."""
    if is_store(path):
        return ImageStore(path).describe()
    if is_caption_cache(path):
        return CaptionCache(path).describe()
    if is_cache(path):
        return Cache(path).describe()
    found = checkpoint.find(path)
    config, progress = found.config, found.progress
    best = progress.get("best", {})
    lines = [
        ("checkpoint", str(found.path)),
        ("model", _settings(config["model"])),
        ("parameters", f"{_parameters(found.path):,}"),
        ("vocabularies", _vocabularies(found)),
        ("data", _settings(config["data"])),
        (
            "trained",
            f"{progress['step']:,} steps, {progress['epoch']} epochs, {progress['seconds'] / 60:.1f} min",
        ),
        ("optimiser", _settings(config["optim"]) + "; schedule " + _settings(config["schedule"])),
        ("this one", _scores(progress.get("last", {}))),
        ("best of run", _scores(best)),
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
    ]
    return "\n".join(f"{name:<13}{text}" for name, text in lines)


def _vocabularies(found: checkpoint.Checkpoint) -> str:
    if found.describes_images:
        target = vocabulary.load(found.path / vocabulary.TARGET)
        return f"{target.kind} {len(target):,}"
    source, target = vocabulary.load_pair(found.path)
    return f"source {source.kind} {len(source):,}, target {target.kind} {len(target):,}"


def _parameters(path: Path) -> int:
    with safe_open(path / checkpoint.WEIGHTS, framework="numpy") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def _settings(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("_target_", settings.get("name", ""))).rsplit(".", 1)[-1]
    rest = {key: value for key, value in settings.items() if key not in ("_target_", "name")}
    return f"{name} " + " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in rest.items())


def _scores(scores: Mapping[str, Any]) -> str:
    if not scores:
        return "not validated"
    cider = f", CIDEr-D {scores['cider']:.3f}" if "cider" in scores else ""
    loss = f"loss {scores['loss']:.3f} nats/token"
    return f"BLEU {scores['bleu']:.2f}{cider}, {loss} (validation, step {scores['step']:,})"
