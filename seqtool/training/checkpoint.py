"""Checkpoints: directories without pickle that are either complete or absent. Everything in one is listed here.

    runs/NAME/checkpoints/step-0001234/
        manifest.json          size and SHA-256 of every file below
        checkpoint.json        the record
        model.safetensors      the model's parameters and buffers by name; a tied matrix only under its first name
        training.safetensors   what only resuming needs (not in averages, nor in exported models)
        source.vocabulary …    the cache's vocabularies

The record has `format`; `task`, the task's name; `config`, all settings of the run; `progress`, the fields of
`progress.Progress`, besides `optimiser` and `scaler`, which are the optimiser's numbers that are not tensors and the
state of the loss scale; `versions` of the software; and `data`, digests of the files that the cache was made from.

The tensors in training.safetensors:

    optimiser.INDEX.NAME       the optimiser's state of the parameter with this index
    loss.baseline              hard attention's moving average of the reward; NaN before the first
    carried.NUMBER             for streams, the tensors of the state that the next batch starts from, a row for each
    random.cpu, random.cuda    torch's generators; those of further processes end in .1, .2 and so on

A checkpoint is written beside its place, synced and renamed into it. One whose step was not validated is called
step-0001234-stopped if a signal asked for it, and step-0001234-saved if train.save_minutes did; the next one replaces
it. average-N is the mean of the last N. The progress in the newest one says which is the best.

A command opens a checkpoint once, with `find`, and hands on the `Checkpoint`. A checkpoint from elsewhere runs no code
except that of modules which the user trusts, and everything in it is checked before use: the files that are used must
match the manifest, the record must have the right kinds of values, and a model is built without memory and compared
with the tensors' shapes before any tensor is read.
"""

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
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from seqtool.errors import InputError, naming
from seqtool.models.contract import EncoderDecoder
from seqtool.runtime.files import expanded, read_record
from seqtool.runtime.task_table import TASKS
from seqtool.settings.classes import located
from seqtool.training import runs, tensors
from seqtool.training.tensors import Unfilled, opened

M = TypeVar("M", bound=nn.Module)
Purpose = Literal["record", "model", "training"]
"""What a checkpoint is opened for: to read its record alone; to use the model; or to resume training."""

log = logging.getLogger("seqtool")
FORMAT = 1
WEIGHTS, TRAINING = "model.safetensors", "training.safetensors"
RECORD, MANIFEST = "checkpoint.json", "manifest.json"
VOCABULARY = ".vocabulary"
OPTIMISER, BASELINE, CARRIED = "optimiser.", "loss.baseline", "carried."
CPU_RANDOM, CUDA_RANDOM = "random.cpu", "random.cuda"
BUFFERS = {"mean", "std", "running_mean", "running_var", "num_batches_tracked"}  # of a backbone
AVERAGE = "average-"
NAME = re.compile(rf"step-[0-9]+(-stopped|-saved)?|{AVERAGE}[0-9]+")  # no path to another directory
STEP = re.compile(r"step-(\d+)(-stopped|-saved)?")
UNFINISHED = re.compile(rf"\.({NAME.pattern})-(\w+)")  # what `save` writes and `remove` deletes


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that `find` opened: its record was read and checked, and the files that its purpose needs match the
    manifest. No tensor is read before it is asked for.

    path: its directory. task: the name of the task that the model was trained for. config: the run's settings.
    progress: see `progress.Progress`. versions: of the software that wrote it. data: digests of the data's files.
    trust: the modules, besides this package, whose classes it may name.
    """

    path: Path
    task: str
    config: dict[str, Any]
    progress: dict[str, Any]
    versions: dict[str, str]
    data: dict[str, Any]
    trust: Sequence[str] = ()

    @property
    def model_task(self) -> str:
        """The task of the model's class, which is `task` unless someone changed the record. InputError if it is not the
        class of a model, or not one that may be named.
        """
        model: type[EncoderDecoder[Any]] = located(self.config["model"], trusted=self.trust, base=EncoderDecoder)
        task = getattr(model, "task", None)
        if task not in TASKS:
            raise InputError(f"{self.path} has a model, {model.__name__}, which does not say its task.")
        return str(task)

    def load_weights(self, model: nn.Module) -> None:
        """Fill the model's parameters; InputError names one that is missing, left over, or of another shape or kind."""
        tensors.fill(model, self._weights_of(model))

    def load_model(self, make: Callable[[], M]) -> M:
        """The model that `make` builds, with these weights; InputError as for `load_weights`.

        It is built on torch's meta device, so it takes no memory before its tensors are known to exist.
        """
        with torch.device("meta"), Unfilled():
            model = make()
        tensors.replace(model, self._weights_of(model))
        return model

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by name; no weight is read, and a run that goes on may remove the files afterwards."""
        with opened(self.path / WEIGHTS) as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    @property
    def parameters(self) -> int:
        """How many numbers can be learnt: without the means and deviations of images and of batch normalisation."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if name.rpartition(".")[2] not in BUFFERS)

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by name."""
        with opened(self.path / WEIGHTS) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def training_tensors(self) -> dict[str, Tensor]:
        """The tensors of training.safetensors, by name. Open the checkpoint for `training` before."""
        with opened(self.path / TRAINING) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def _weights_of(self, model: nn.Module) -> dict[str, Tensor]:
        parameters, shapes = tensors.weights(model), self.shapes
        for name in sorted(parameters.keys() ^ shapes.keys()):
            where = "the checkpoint lacks" if name in parameters else "the model has no"
            raise self._unfit(f"{where} '{name}'")
        for name, parameter in parameters.items():
            if parameter.shape != shapes[name]:
                raise self._unfit(f"'{name}' is {shapes[name]} there and {tuple(parameter.shape)} here")
        with opened(self.path / WEIGHTS) as file:
            stored = {name: file.get_tensor(name) for name in parameters}
        for name, parameter in parameters.items():
            there, here = (str(tensor.dtype).removeprefix("torch.") for tensor in (stored[name], parameter))
            if stored[name].dtype.is_floating_point != parameter.dtype.is_floating_point:
                raise self._unfit(f"'{name}' is {there} there and {here} here")
        return stored

    def _unfit(self, why: str) -> InputError:
        return InputError(f"{self.path} does not fit the model: {why}.")


def find(checkpoint: str | Path | Checkpoint, *, trust: Sequence[str] = (), purpose: Purpose = "model") -> Checkpoint:
    """Open the checkpoint meant by a path: a checkpoint itself, `RUN` or `RUN/best` (the run's best), `RUN/last`.

    Only the record and the files for this purpose are read and compared with the manifest; of a run, the files of the
    checkpoint that is returned. One that is damaged gives place to another of its run, with a warning.

    Args:
        checkpoint: the path; a checkpoint that was opened is returned as it is.
        trust: the modules, besides this package, whose classes the checkpoint may name.
        purpose: what it is opened for.

    Raises:
        InputError: if there is no checkpoint, or none that is intact.
    """
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return replace(_find(Path(expanded(os.fspath(checkpoint))), purpose), trust=trust)


def _find(path: Path, purpose: Purpose) -> Checkpoint:
    if (path / RECORD).exists() or (path / MANIFEST).exists():
        return read(path, purpose)
    run, which = (path.parent, path.name) if path.name in ("best", "last") and not path.exists() else (path, "best")
    if not run.exists():
        raise InputError(f"There is no run or checkpoint at {path}.{runs.nearby(run)}")
    if which == "last":
        return newest(run, purpose)
    last = newest(run, "record")
    best = run / "checkpoints" / str(last.progress.get("best", {}).get("checkpoint", last.path.name))
    checkpoints = list_checkpoints(run)
    older = reversed(checkpoints[: checkpoints.index(last.path) + 1])
    # an average is made when the run ends, and kept only if it scores better
    paths = dict.fromkeys([*list_averages(run), best, *older])
    return _first_intact(paths, purpose, averaged_at=last.progress["step"])


def newest(run: Path, purpose: Purpose = "training") -> Checkpoint:
    """The newest checkpoint of a run that is intact, opened; a warning says which were not."""
    paths = list_checkpoints(run)
    if not paths:
        raise InputError(
            f"{run} holds no checkpoint: give a run directory (runs/NAME) or a checkpoint inside one."
            f"{runs.nearby(run / 'checkpoints')}"
        )
    return _first_intact(reversed(paths), purpose)


def _first_intact(paths: Iterable[Path], purpose: Purpose, *, averaged_at: int | None = None) -> Checkpoint:
    """The first that is not damaged, and no average but one of this step; a warning says which were damaged."""
    errors: list[InputError] = []
    for path in paths:
        try:
            if path.name.startswith(AVERAGE) and read(path, "record").progress["step"] != averaged_at:
                continue
            checkpoint = read(path, purpose)
        except InputError as damaged:
            errors.append(damaged)
            continue
        for error in errors:
            log.warning("%s Going by %s.", error, path)
        return checkpoint
    raise errors[0]


def read(path: Path, purpose: Purpose = "model") -> Checkpoint:
    """Open the checkpoint in a directory; InputError if it is damaged, incomplete or of another format."""
    try:
        manifest = read_record(path / MANIFEST)
        for name, expected in manifest.items():
            file = path / Path(name).name
            same = file.stat().st_size == expected["bytes"] and file.is_file()
            if not same or (_is_used(name, purpose) and sha256(file) != expected["sha256"]):
                raise _is_damaged(path, f"{name} is not what was written")
        record = read_record(path / RECORD)
        if record["format"] != FORMAT and isinstance(record["format"], int):
            raise InputError(f"Checkpoint {path} has format {record['format']}, this version reads {FORMAT}.")
        files = [file.name for pattern in (f"[!.]*{VOCABULARY}", TRAINING) for file in path.glob(pattern)]
        if left_out := sorted({RECORD, WEIGHTS, *files} - manifest.keys()):
            raise _is_damaged(path, f"{MANIFEST} leaves out {left_out[0]}")
        if not _is_record(record):
            raise _is_damaged(path, "its record cannot be read")
        return Checkpoint(path, **{name: record[name] for name in ("task", "config", "progress", "versions", "data")})
    except InputError:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise InputError(f"Checkpoint {path} is incomplete: it has no {missing}; use another one.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _is_damaged(path, "its record cannot be read") from error


def _is_damaged(path: Path, why: str) -> InputError:
    return InputError(f"Checkpoint {path} is damaged: {why}; use another one.")


def _is_used(name: str, purpose: Purpose) -> bool:
    """Whether a file is used for this purpose."""
    if name == TRAINING:
        return purpose == "training"
    return name == RECORD or (purpose != "record" and (name == WEIGHTS or name.endswith(VOCABULARY)))


COUNTS = ("epoch", "position", "stale", "since_halving", "plateaus", "skipped", "skipped_in_a_row")
NEEDED = {"best": {"checkpoint", "step", "loss"}, "yardstick": {"loss"}}  # unless empty
LARGEST = 2**53  # the largest number allowed


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether every value in the record is of the right kind; TypeError, KeyError or AttributeError if one is not."""
    config, progress = record["config"], record["progress"]
    scores = [progress.get(name, {}) for name in ("best", "last", "yardstick")]
    groups = [config["model"], record["versions"], record["data"], progress.get("meter", {}), *scores]
    groups += [config.get(name, {}) for name in ("data", "optim", "schedule")]
    names = [score["checkpoint"] for score in scores if "checkpoint" in score] + progress.get("scheduled", [])
    names += [progress["good"]] if progress.get("good") is not None else []
    numbers = [value for score in scores for name, value in score.items() if name != "checkpoint"]
    numbers += [progress.get("seconds", 0), *progress.get("meter", {}).values()]
    counts = [progress["step"], *(progress.get(name, 0) for name in COUNTS)]
    whole = [number for number in (*numbers, *counts) if not isinstance(number, float)]  # a float may be infinite
    return (
        record["format"] == FORMAT
        and isinstance(record["task"], str)
        and all(isinstance(group, dict) for group in groups)
        and all(needed <= progress[name].keys() for name, needed in NEEDED.items() if progress.get(name))
        and all(NAME.fullmatch(name) for name in names)
        and all(isinstance(number, int) and abs(number) <= LARGEST for number in whole)
        and all(isinstance(count, int) and count >= 0 for count in counts)
    )


def save(
    path: Path,
    *,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    record: Mapping[str, Any],
    vocabularies: list[Path],
    others: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint at `path`, which a reader sees complete or not at all.

    Args:
        path: its directory, which does not exist yet.
        model: the weights by name.
        training: the tensors of training.safetensors; empty for a checkpoint that cannot be resumed.
        record: task, config, progress, versions and data, as this module's documentation says.
        vocabularies: files to copy.
        others: texts to write beside these, by file name; they may be edited later.

    Raises:
        OSError: with `path`, if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True)
    with beside as name, naming(path):
        temporary = Path(name)
        tensors.write(temporary / WEIGHTS, model)
        if training:
            tensors.write(temporary / TRAINING, training)
        written = json.dumps({"format": FORMAT, **record}, indent=1, ensure_ascii=False)
        (temporary / RECORD).write_text(written, encoding="utf-8")
        for vocabulary in vocabularies:
            (temporary / vocabulary.name).write_bytes(vocabulary.read_bytes())
        files = sorted(temporary.iterdir())
        manifest = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for file in (*files, temporary / MANIFEST, temporary):
            _sync(file)
        for other, text in (others or {}).items():
            (temporary / other).write_text(text, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.rename(path)
        _sync(path.parent)


def run_name(path: Path) -> str:
    """The name of the run that a checkpoint belongs to; of one by itself, that of its folder."""
    place = path.absolute()
    return place.parents[1].name if place.parent.name == "checkpoints" else place.name


def step_name(step: int) -> str:
    """The name of the checkpoint of a step that was validated."""
    return f"step-{step:07d}"


def list_checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints by step, oldest first, without averages; of one step, that before its validation first."""
    names = [(STEP.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*")]
    return [path for *_, path in sorted((int(match[1]), match[2] is None, path) for match, path in names if match)]


def list_averages(run: Path) -> list[Path]:
    return [path for path in (run / "checkpoints").glob(f"{AVERAGE}*") if NAME.fullmatch(path.name)]


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
            stacked = torch.stack([file.get_tensor(name) for file in files])
            mean[name] = stacked.double().mean(0).to(stacked.dtype)
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
