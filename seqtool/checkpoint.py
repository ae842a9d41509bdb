"""Checkpoints: directories without pickle that are complete or are not there.

    runs/NAME/checkpoints/step-0001234/
        model.safetensors      the weights
        training.safetensors   tensors of the optimiser and of the random generators (not in exported models)
        checkpoint.json        config, progress, versions, what the data were
        source.vocabulary …    as the cache has them
        manifest.json          size and SHA-256 of every file above

A checkpoint is written beside its place, synced and renamed into it; one that a signal asked for, before its step was
validated, is called step-0001234-stopped. The progress of the newest one says which is the best.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seqtool.config import describes_images
from seqtool.errors import InputError, naming

FORMAT = 1
log = logging.getLogger("seqtool")
AVERAGE = "average-"
STEP = re.compile(r"step-(\d+)(-stopped)?")
WEIGHTS, TRAINING, RECORD, MANIFEST = (
    "model.safetensors",
    "training.safetensors",
    "checkpoint.json",
    "manifest.json",
)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint directory says, its tensors not yet read."""

    path: Path
    config: dict[str, Any]
    progress: dict[str, Any]
    versions: dict[str, str]
    data: dict[str, Any]

    @property
    def describes_images(self) -> bool:
        """Whether the model is a captioner: it has an image encoder."""
        return describes_images(self.config["model"])

    def load_weights(self, model: nn.Module) -> None:
        """Fill the model's parameters; InputError names one that is missing, left over or of another shape."""
        tensors = _tensors(self.path / WEIGHTS)
        parameters = weights(model)
        for name in sorted(parameters.keys() ^ tensors.keys()):
            where = "the checkpoint lacks" if name in parameters else "the model has no"
            raise InputError(f"{self.path} does not fit the model: {where} '{name}'.")
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise InputError(
                    f"{self.path} does not fit the model: '{name}' is {tuple(tensors[name].shape)} there and "
                    f"{tuple(parameter.shape)} here."
                )
        fill(model, tensors)

    def training_tensors(self) -> dict[str, Tensor]:
        return _tensors(self.path / TRAINING)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name; a matrix that is tied stands under its first name alone."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model's parameters and buffers of the same names."""
    with torch.no_grad():
        for name, tensor in weights(model).items():
            tensor.copy_(tensors[name])


def save(
    path: Path,
    *,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    config: Mapping[str, Any],
    progress: Mapping[str, Any],
    versions: Mapping[str, str],
    data: Mapping[str, Any],
    vocabularies: list[Path],
) -> None:
    """Write a checkpoint at `path`, which a reader sees complete or not at all.

    `data` is what a cache says of the files it was made from. OSError with `path` where the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        with naming(path), _full_disk_as_oserror():
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in model.items()}, temporary / WEIGHTS)
            if training:
                save_file({name: t.detach().cpu().contiguous() for name, t in training.items()}, temporary / TRAINING)
            record = {"format": FORMAT, "config": config, "progress": progress, "versions": versions, "data": data}
            (temporary / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
            for vocabulary in vocabularies:
                (temporary / vocabulary.name).write_bytes(vocabulary.read_bytes())
            files = sorted(temporary.iterdir())
            manifest = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for file in (*files, temporary / MANIFEST, temporary):
                _sync(file)
        temporary.chmod(0o755)
        temporary.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(path: Path) -> Checkpoint:
    """The checkpoint in a directory; InputError where it is damaged, incomplete or of another format."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        for name, expected in manifest.items():
            file = path / Path(name).name
            if file.stat().st_size != expected["bytes"] or _sha256(file) != expected["sha256"]:
                raise InputError(f"Checkpoint {path} is damaged: {name} is not what was written; use another one.")
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise InputError(f"Checkpoint {path} has format {record['format']}, this version reads {FORMAT}.")
        if not isinstance(record["config"]["model"], dict):
            raise TypeError("model")
        return Checkpoint(path, record["config"], record["progress"], record["versions"], record.get("data", {}))
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise InputError(f"Checkpoint {path} is incomplete: it has no {missing}; use another one.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"Checkpoint {path} is damaged: its record cannot be read; use another one.") from error


def find(path: str | Path) -> Checkpoint:
    """The checkpoint meant by a path: a checkpoint itself, `RUN` or `RUN/best` (its best), `RUN/last`."""
    path = Path(path)
    if (path / RECORD).exists() or (path / MANIFEST).exists():
        return read(path)
    run, which = (path.parent, path.name) if path.name in ("best", "last") and not path.exists() else (path, "best")
    if not run.exists():
        raise InputError(f"There is no run or checkpoint at {path}.{_runs_nearby(path)}")
    steps = list_checkpoints(run)
    if not steps:
        raise InputError(f"{run} holds no checkpoint: give a run directory (runs/NAME) or a checkpoint inside one.")
    last = newest(run)
    if which == "last":
        return last
    averages = [read(path) for path in (run / "checkpoints").glob(f"{AVERAGE}*")]
    for average_of_last in averages:  # made when the run ended, and only where it scored better
        if average_of_last.progress["step"] == last.progress["step"]:
            return average_of_last
    best = run / "checkpoints" / str(last.progress.get("best", {}).get("checkpoint", last.path.name))
    if best == last.path:
        return last
    try:
        return read(best)
    except InputError as damaged:
        log.warning("%s Going by %s.", damaged, last.path)
        return last


def newest(run: Path) -> Checkpoint:
    """The newest checkpoint of a run that is not damaged; a warning says which were."""
    errors: list[InputError] = []
    for path in reversed(list_checkpoints(run)):
        try:
            found = read(path)
        except InputError as damaged:
            errors.append(damaged)
            continue
        for error in errors:
            log.warning("%s Going by %s.", error, path)
        return found
    raise errors[0] if errors else InputError(f"{run} holds no checkpoint yet.")


def list_checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints by step, oldest first, without averages; of one step that before its validation first."""
    found = [(STEP.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*")]
    return [path for *_, path in sorted((int(match[1]), match[2] is None, path) for match, path in found if match)]


def remove_all_but_good(run: Path, newest_good: Path) -> None:
    """Remove what is of no use once a run goes on from its newest good checkpoint: damaged newer ones, and averages of
    what will no longer be the last ones.
    """
    paths = list_checkpoints(run)
    for path in (*paths[paths.index(newest_good) + 1 :], *(run / "checkpoints").glob(f"{AVERAGE}*")):
        remove(path)


def remove_unfinished(run: Path) -> None:
    """Remove the parts that a killed process left."""
    for path in (run / "checkpoints").glob(".*"):
        shutil.rmtree(path)


def remove(path: Path) -> None:
    """Delete a checkpoint; it first takes a name nobody looks for, so it is never seen in part."""
    doomed = path.with_name(f".{path.name}-removed")
    path.rename(doomed)
    shutil.rmtree(doomed)


def average(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights."""
    tensors = [_tensors(checkpoint.path / WEIGHTS) for checkpoint in checkpoints]
    return {
        name: torch.stack([t[name].double() for t in tensors]).mean(0).to(first.dtype)
        for name, first in tensors[0].items()
    }


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError as error:
        raise InputError(f"Checkpoint {path.parent} has no {path.name}.") from error
    except SafetensorError as error:
        raise InputError(
            f"Checkpoint {path.parent} is damaged: {path.name} cannot be read; use another one."
        ) from error
    return tensors


@contextmanager
def _full_disk_as_oserror() -> Iterator[None]:
    """safetensors says what the system said in words alone."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _runs_nearby(path: Path) -> str:
    runs = [run.parent.name for run in path.parent.glob("*/checkpoints")] if path.parent.is_dir() else []
    return f" {path.parent} holds {', '.join(sorted(runs)[:12])}." if runs else ""


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
