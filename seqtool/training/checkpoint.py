"""Checkpoints: directories without pickle that are either complete or absent.

    runs/NAME/checkpoints/step-0001234/
        model.safetensors      the weights
        training.safetensors   tensors of the optimiser and of the random generators (not in exported models)
        checkpoint.json        config, progress, versions, digests of the data
        source.vocabulary …    the cache's vocabularies
        manifest.json          size and SHA-256 of every file above

A checkpoint is written beside its place, synced and renamed into it. One whose step was not validated is called
step-0001234-stopped if a signal asked for it, and step-0001234-saved if train.save_minutes did; the next one
replaces it. The progress in the newest one says which is the best.

A checkpoint from elsewhere runs no code except that of modules which the user trusts, and everything in it is
checked before use: the files must match the manifest, the record must have the right kinds of values, and a
model is built without memory and compared with the tensors' shapes before any tensor is read.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from seqtool.errors import InputError, naming
from seqtool.models.contract import EncoderDecoder
from seqtool.runtime.classes import located
from seqtool.runtime.files import expanded, read_record
from seqtool.training import runs
from seqtool.training.checkpoint_record import AVERAGE, CHECKPOINT, FORMAT, check_record
from seqtool.training.tensors import Unfilled, fill, opened, replace, weights, write

M = TypeVar("M", bound=nn.Module)

log = logging.getLogger("seqtool")
STEP = re.compile(r"step-(\d+)(-stopped|-saved)?")
WEIGHTS, TRAINING = "model.safetensors", "training.safetensors"
RECORD, MANIFEST = "checkpoint.json", "manifest.json"
BUFFERS = {"mean", "std", "running_mean", "running_var", "num_batches_tracked"}  # of a backbone
UNFINISHED = re.compile(rf"\.({CHECKPOINT.pattern})-(\w+)")  # what `save` writes and `remove` deletes


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory's record; its tensors are not yet read. task: None in checkpoints of earlier versions;
    trust: the modules, besides this package, whose classes it may name.
    """

    path: Path
    task: str | None
    config: dict[str, Any]
    progress: dict[str, Any]
    versions: dict[str, str]
    data: dict[str, Any]
    trust: Sequence[str] = ()

    @property
    def reads(self) -> str:
        """What the model reads, as its class says. InputError if that is not the class of a model."""
        model: type[EncoderDecoder[Any]] = located(self.config["model"], trusted=self.trust, base=EncoderDecoder)
        return model.reads

    def load_weights(self, model: nn.Module) -> None:
        """Fill the model's parameters; InputError names one that is missing, left over, or of another shape or kind."""
        fill(model, self._weights_of(model))

    def load_model(self, make: Callable[[], M]) -> M:
        """The model that `make` builds, with these weights; InputError as for `load_weights`.

        It is built on torch's meta device, so it takes no memory before its tensors are known to exist.
        """
        with torch.device("meta"), Unfilled():
            model = make()
        replace(model, self._weights_of(model))
        return model

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by name; no weight is read."""
        with opened(self.path / WEIGHTS) as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    @property
    def parameters(self) -> int:
        """How many numbers can be learnt: without the means and deviations of images and of batch normalisation."""
        return sum(math.prod(shape) for name, shape in self.shapes().items() if name.rpartition(".")[2] not in BUFFERS)

    def training_tensors(self) -> dict[str, Tensor]:
        with opened(self.path / TRAINING) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def _weights_of(self, model: nn.Module) -> dict[str, Tensor]:
        parameters, shapes = weights(model), self.shapes()
        for name in sorted(parameters.keys() ^ shapes.keys()):
            where = "the checkpoint lacks" if name in parameters else "the model has no"
            raise self._unfit(f"{where} '{name}'")
        for name, parameter in parameters.items():
            if parameter.shape != shapes[name]:
                raise self._unfit(f"'{name}' is {shapes[name]} there and {tuple(parameter.shape)} here")
        with opened(self.path / WEIGHTS) as file:
            tensors = {name: file.get_tensor(name) for name in parameters}
        for name, parameter in parameters.items():
            there, here = (str(one.dtype).removeprefix("torch.") for one in (tensors[name], parameter))
            if tensors[name].dtype.is_floating_point != parameter.dtype.is_floating_point:
                raise self._unfit(f"'{name}' is {there} there and {here} here")
        return tensors

    def _unfit(self, why: str) -> InputError:
        return InputError(f"{self.path} does not fit the model: {why}.")


def save(
    path: Path,
    *,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    task: str,
    config: Mapping[str, Any],
    progress: Mapping[str, Any],
    versions: Mapping[str, str],
    data: Mapping[str, Any],
    vocabularies: list[Path],
) -> None:
    """Write a checkpoint at `path`, which a reader sees complete or not at all.

    `data` are a cache's digests of the files it was made from. OSError with `path` if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        with naming(path):
            write(temporary / WEIGHTS, model)
            if training:
                write(temporary / TRAINING, training)
            record = {"format": FORMAT, "task": task, "config": config, "progress": progress, "versions": versions}
            record["data"] = data
            (temporary / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
            for vocabulary in vocabularies:
                (temporary / vocabulary.name).write_bytes(vocabulary.read_bytes())
            files = sorted(temporary.iterdir())
            manifest = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for file in (*files, temporary / MANIFEST, temporary):
                _sync(file)
        temporary.chmod(0o755)
        temporary.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(path: Path) -> Checkpoint:
    """The checkpoint in a directory; InputError if it is damaged, incomplete or of another format."""
    try:
        manifest = read_record(path / MANIFEST)
        for name, expected in manifest.items():
            file = path / Path(name).name
            size = file.stat().st_size
            if not file.is_file() or size != expected["bytes"] or sha256(file) != expected["sha256"]:
                raise InputError(f"Checkpoint {path} is damaged: {name} is not what was written; use another one.")
        record = read_record(path / RECORD)
        if record["format"] != FORMAT and isinstance(record["format"], int):
            raise InputError(f"Checkpoint {path} has format {record['format']}, this version reads {FORMAT}.")
        needed = {RECORD, WEIGHTS, *(one.name for kind in ("[!.]*.vocabulary", TRAINING) for one in path.glob(kind))}
        if left_out := sorted(needed - manifest.keys()):
            raise InputError(f"Checkpoint {path} is damaged: {MANIFEST} leaves out {left_out[0]}; use another one.")
        check_record(record)
        task, data = record.get("task"), record.get("data", {})
        return Checkpoint(path, task, record["config"], record["progress"], record["versions"], data)
    except InputError:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise InputError(f"Checkpoint {path} is incomplete: it has no {missing}; use another one.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"Checkpoint {path} is damaged: its record cannot be read; use another one.") from error


def find(path: str | Path, *, trust: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint meant by a path: a checkpoint itself, `RUN` or `RUN/best` (its best), `RUN/last`."""
    return dataclasses.replace(_find(Path(expanded(os.fspath(path)))), trust=trust)


def run_name(path: Path) -> str:
    """The name of the run that a checkpoint belongs to; of one by itself, that of its folder."""
    place = path.absolute()
    return place.parents[1].name if place.parent.name == "checkpoints" else place.name


def _find(path: Path) -> Checkpoint:
    if (path / RECORD).exists() or (path / MANIFEST).exists():
        return read(path)
    run, which = (path.parent, path.name) if path.name in ("best", "last") and not path.exists() else (path, "best")
    if not run.exists():
        raise InputError(f"There is no run or checkpoint at {path}.{runs.nearby(run)}")
    last = newest(run)
    best = run / "checkpoints" / str(last.progress.get("best", {}).get("checkpoint", last.path.name))
    paths = [*list_averages(run), best]  # an average is made when the run ends, and kept only if it scores better
    if which == "last" or paths == [last.path]:
        return last
    return _first_readable([*paths, last.path], step=last.progress["step"])


def newest(run: Path) -> Checkpoint:
    """The newest checkpoint of a run that is not damaged; a warning says which were."""
    paths = list_checkpoints(run)
    if not paths:
        raise InputError(
            f"{run} holds no checkpoint: give a run directory (runs/NAME) or a checkpoint inside one."
            f"{runs.nearby(run / 'checkpoints')}"
        )
    return _first_readable(reversed(paths))


def _first_readable(paths: Iterable[Path], *, step: int | None = None) -> Checkpoint:
    """The first that is not damaged, and no average but one of this step; a warning says which were damaged."""
    errors: list[InputError] = []
    for path in paths:
        try:
            found = read(path)
        except InputError as damaged:
            errors.append(damaged)
            continue
        if not path.name.startswith(AVERAGE) or found.progress["step"] == step:
            for error in errors:
                log.warning("%s Going by %s.", error, path)
            return found
    raise errors[0]


def step_name(step: int) -> str:
    """The name of the checkpoint of a step that was validated."""
    return f"step-{step:07d}"


def list_checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints by step, oldest first, without averages; of one step, that before its validation first."""
    found = [(STEP.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*")]
    return [path for *_, path in sorted((int(match[1]), match[2] is None, path) for match, path in found if match)]


def list_averages(run: Path) -> list[Path]:
    return [path for path in (run / "checkpoints").glob(f"{AVERAGE}*") if CHECKPOINT.fullmatch(path.name)]


def remove_unfinished(run: Path) -> None:
    """Remove partial checkpoints left by a killed process. Other files, such as .DS_Store and .nfs…, stay."""
    for path in (run / "checkpoints").glob(".*"):
        if UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a checkpoint; it is first renamed to a name that nothing looks for, so no one ever sees part of it."""
    doomed = path.with_name(f".{path.name}-{secrets.token_hex(4)}")  # NFS may still have files under an earlier one
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # NFS keeps the files that another process has open


def average(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights."""
    mean = {}
    with ExitStack() as stack:
        files = [stack.enter_context(opened(checkpoint.path / WEIGHTS)) for checkpoint in checkpoints]
        for name in files[0].keys():  # noqa: SIM118
            tensors = torch.stack([file.get_tensor(name) for file in files])
            mean[name] = tensors.double().mean(0).to(tensors.dtype)
    return mean


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
