"""`seqtool export PATH output=FOLDER`: write a trained model to share, as a small checkpoint with a model card."""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from omegaconf import DictConfig

from seqtool import tasks
from seqtool.cli.inspect import facts
from seqtool.data.preparation import corpus_settings
from seqtool.errors import InputError, printable
from seqtool.predict.translator import direction
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.training import checkpoint, moved_data
from seqtool.training.checkpoint import BUFFERS, VOCABULARY, Checkpoint
from seqtool.training.saving import STATE

CARD = "card.md"  # the name of the model card, and of its template in this directory
EXAMPLES = {"translation": "I have a cat.", "captioning": "photo.jpg", "language_modelling": "The old"}
UNITS = ("pairs", "images", "captions", "lines", "characters")


def export(config: DictConfig) -> None:
    """Write the model, and print its path, its size and the command that uses it."""
    settings = typed(declarations.Export, config)
    declarations.check_values(settings)
    paths = names(settings.checkpoint)
    if len(paths) != 1:
        raise InputError("export needs one path: seqtool export PATH output=FOLDER.")
    directory = Path(settings.output)
    if os.path.lexists(directory):
        raise InputError(f"output={directory} already exists: choose another name.")
    original = checkpoint.find(paths[0], trust=modules(settings.trust))
    weights = original.weights()
    if settings.precision == "fp16":
        weights = {name: _in_half_precision(name, weight) for name, weight in weights.items()}
    record = {
        "task": original.task,
        "config": _strip_directories(original.config),
        "progress": {name: value for name, value in original.progress.items() if name not in (*STATE, "seconds")},
        "versions": original.versions,
        "data": original.data,
    }
    vocabularies = sorted(original.path.glob(f"[!.]*{VOCABULARY}"))
    card = {CARD: _card(original, directory.name, settings)}
    checkpoint.save(directory, model=weights, training={}, record=record, vocabularies=vocabularies, unlisted=card)
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"Model: {directory}, {size / 1e6:.1f} MB ({_usage(original, str(directory))})")


def _in_half_precision(name: str, weight: torch.Tensor) -> torch.Tensor:
    """The weight in half precision. Buffers are returned unchanged, because half precision may be too coarse for them.

    Raises InputError if the weight has values outside the range of half precision.
    """
    if not weight.is_floating_point() or name.rpartition(".")[2] in BUFFERS:
        return weight
    half = weight.half()
    if not half.isfinite().all():
        raise InputError(f"'{name}' has values outside the range of fp16: use precision=fp32.")
    return half


def _usage(original: Checkpoint, path: str) -> str:
    """The command that uses the exported model at this path."""
    usage = tasks.task_of_checkpoint(original).usage.format(checkpoint=shlex.quote(path))
    return f"{usage} trust={','.join(original.trust)}" if original.trust else usage


def _strip_directories(value: Any) -> Any:
    """The value, such as a configuration, with the name of the file in place of each absolute path."""
    if isinstance(value, dict):
        return {key: _strip_directories(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_strip_directories, value))
    return Path(value).name or value if isinstance(value, str) and Path(value).is_absolute() else value


def _card(original: Checkpoint, name: str, settings: declarations.Export) -> str:
    """The model card: how the model is used, what it is, how it was trained, and how good it is. `name` is that of the
    exported model's directory.
    """
    config, data = original.config, original.config.get("data", {})
    kind, predictor = TASKS[original.task].model, resolve_name(tasks.task_of_checkpoint(original).predictor)
    is_foreign = original.task == "translation" and (direction(original) or ("",))[0] != "en"
    example = "…" if is_foreign else EXAMPLES.get(original.task, "…")  # a user's task has none
    descriptions = facts(replace(original, config=_strip_directories({**config, "data": corpus_settings(data)})))
    cache = moved_data.find_cache(original, data)
    sizes = [
        f"{split} {', '.join(f'{counts[unit]:,} {unit}' for unit in UNITS if unit in counts)}"
        for split, counts in ({} if cache is None else cache.summary["splits"]).items()
    ]
    trust = ",".join(original.trust)
    machine = [f"{key} {config[key]}" for key in ("device", "threads", "precision") if config.get(key) is not None]
    fields = {
        **{label: printable(text).replace("|", "\\|") for label, text in descriptions.items()},  # cells of a table
        **{"name": name, "path": repr(name), "quoted": shlex.quote(name), "usage": _usage(original, name)},
        **{"kind": kind[0].upper() + kind[1:], "command": predictor.command, "example": example},
        **{"trust": f", trust={trust!r}" if trust else "", "trust_option": f" trust={trust}" if trust else ""},
        **{"precision": settings.precision, "size": "; ".join(sizes) or "not recorded", "machine": ", ".join(machine)},
        "licence": settings.licence or "Not stated: ask whoever trained it, and see the licences of its data.",
    }
    return Path(__file__).with_name(CARD).read_text("utf-8").format_map(fields)
