"""`seqtool export PATH output=FOLDER`: a trained model to share, as a small checkpoint with a card about it."""

import os
from pathlib import Path

import torch
from omegaconf import DictConfig

from seqtool import tasks
from seqtool.cli.inspect import facts
from seqtool.errors import InputError
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.training import checkpoint
from seqtool.training.checkpoint import BUFFERS, Checkpoint

CARD = "card.md"
OWN_PATH = "checkpoint"  # the fact that a card leaves out


def export(config: DictConfig) -> None:
    """Write the model, and print where it is and how large."""
    settings = typed(declarations.Export, config)
    declarations.check_values(settings)
    path, *others = names(settings.checkpoint) or [""]
    if others or not path:
        raise InputError("export needs one path: seqtool export PATH output=FOLDER.")
    folder = Path(settings.output)
    if os.path.lexists(folder):
        raise InputError(f"output={folder} exists: name a new folder.")
    opened = checkpoint.find(path, trust=modules(settings.trust))
    weights = opened.weights()
    if settings.precision == "fp16":
        weights = {name: _half(name, weight) for name, weight in weights.items()}
    progress = {name: value for name, value in opened.progress.items() if name not in ("optimiser", "scaler")}
    record = {"task": opened.task, "config": opened.config, "progress": progress}
    checkpoint.save(
        folder,
        model=weights,
        training={},
        record={**record, "versions": opened.versions, "data": opened.data},
        vocabularies=sorted(opened.path.glob(f"[!.]*{checkpoint.VOCABULARY}")),
        others={CARD: _card(opened, folder, settings)},
    )
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"Model: {folder}, {size / 1e6:.1f} MB ({tasks.of_checkpoint(opened).use(str(folder))})")


def _half(name: str, weight: torch.Tensor) -> torch.Tensor:
    """The weight in half precision, if it is learnt; statistics may be too small for that."""
    if not weight.is_floating_point() or name.rpartition(".")[2] in BUFFERS:
        return weight
    half = weight.half()
    if not half.isfinite().all():
        raise InputError(f"'{name}' has numbers that fp16 cannot hold: use precision=fp32.")
    return half


def _card(opened: Checkpoint, folder: Path, settings: declarations.Export) -> str:
    """What the model is, for people, in Markdown."""
    kind = TASKS[opened.task].model
    rows = [f"| {name} | {text} |" for name, text in facts(opened).items() if name != OWN_PATH]
    licence = settings.licence or "not stated: ask whoever made it, and see the licences of the data."
    return "\n".join(
        [
            f"# {folder.name}\n",
            f"{kind[0].upper()}{kind[1:]}, trained with seqtool {opened.versions.get('seqtool', '')}.\n",
            "| | |\n|---|---|",
            *rows,
            f"| weights | {settings.precision} |\n",
            f"## Use\n\n    {tasks.of_checkpoint(opened).use(folder.name)}\n",
            f"## Licence\n\n{licence}\n",
        ]
    )
