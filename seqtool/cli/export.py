"""`seqtool export PATH output=FOLDER`: write a trained model to share, as a small checkpoint with a model card."""

import os
import shlex
from pathlib import Path

import torch
from omegaconf import DictConfig

from seqtool import tasks
from seqtool.cli.inspect import facts
from seqtool.errors import InputError, printable
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.training import checkpoint
from seqtool.training.checkpoint import BUFFERS, VOCABULARY, Checkpoint
from seqtool.training.saving import STATE

CARD = "card.md"
PATH_LABEL = "checkpoint"  # of the fact that the card leaves out: the path on the machine that trained the model


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
        "config": original.config,
        "progress": {name: value for name, value in original.progress.items() if name not in (*STATE, "seconds")},
        "versions": original.versions,
        "data": original.data,
    }
    checkpoint.save(
        directory,
        model=weights,
        training={},
        record=record,
        vocabularies=sorted(original.path.glob(f"[!.]*{VOCABULARY}")),
        unlisted={CARD: _card(original, directory.name, settings)},
    )
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


def _card(original: Checkpoint, name: str, settings: declarations.Export) -> str:
    """The model card, in Markdown: what the model is, how it was trained and how it is used.

    original: the checkpoint that is exported
    name: the name of the exported model's directory
    settings: the settings of `export`
    """
    kind = TASKS[original.task].model
    rows = {label: text for label, text in facts(original).items() if label != PATH_LABEL}
    rows["weights"] = settings.precision
    table = "\n".join(f"| {label} | {_cell(text)} |" for label, text in rows.items())
    licence = settings.licence or "Not stated: ask whoever trained the model, and see the licences of its data."
    return f"""\
# {name}

{kind[0].upper()}{kind[1:]}, trained with seqtool {original.versions.get("seqtool", "")}.

| | |
|---|---|
{table}

## Use

    {_usage(original, name)}

## Licence

{licence}
"""


def _cell(text: str) -> str:
    """The text as a cell of a table in Markdown."""
    return printable(text).replace("|", "\\|")
