"""Checkpoints: directories without pickle that are complete or are not there.

    runs/NAME/checkpoints/step-0001234/
        model.safetensors      the weights
        training.safetensors   tensors of the optimiser and of the random generators (not in exported models)
        checkpoint.json        config, progress, versions, what the data were
        source.vocabulary …    as the cache has them
        manifest.json          size and SHA-256 of every file above

A checkpoint is written beside its place, synced and renamed into it; one that a signal asked for, before its step was
validated, is called step-0001234-stopped. The progress of the newest one says which is the best.

One that comes from elsewhere runs no code, and is believed in nothing: the files must be what the manifest says, the
record must have the right kinds of values, and a model is built without memory and compared with the tensors' shapes
before any of them is read.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqtool.config import describes_images
from seqtool.data.text_files import read_record
from seqtool.errors import InputError, naming

M = TypeVar("M", bound=nn.Module)

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
# In a checkpoint's record: the names of checkpoints, which lead to no other directory, and what the progress counts.
CHECKPOINT = re.compile(rf"step-[0-9]+(-stopped)?|{AVERAGE}[0-9]+")
COUNTS = ("epoch", "position", "stale", "since_halving", "plateaus", "skipped", "skipped_in_a_row")
LARGEST = 2**53  # of a number


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
        """Fill the model's parameters; InputError names one that is missing, left over, or of another shape or kind."""
        fill(model, self._weights_of(model))

    def load_model(self, make: Callable[[], M]) -> M:
        """The model that `make` builds, with these weights; InputError as for `load_weights`.

        It is built on torch's meta device: what the settings ask for takes no memory before it is known to be there.
        """
        with torch.device("meta"), _Unfilled():
            model = make()
        _replace(model, self._weights_of(model))
        return model

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights by name; none of them is read."""
        with _opened(self.path / WEIGHTS) as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    def training_tensors(self) -> dict[str, Tensor]:
        with _opened(self.path / TRAINING) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def _weights_of(self, model: nn.Module) -> dict[str, Tensor]:
        parameters, shapes = weights(model), self.shapes()
        for name in sorted(parameters.keys() ^ shapes.keys()):
            where = "the checkpoint lacks" if name in parameters else "the model has no"
            raise InputError(f"{self.path} does not fit the model: {where} '{name}'.")
        for name, parameter in parameters.items():
            if parameter.shape != shapes[name]:
                raise InputError(
                    f"{self.path} does not fit the model: '{name}' is {shapes[name]} there and "
                    f"{tuple(parameter.shape)} here."
                )
        with _opened(self.path / WEIGHTS) as file:
            tensors = {name: file.get_tensor(name) for name in parameters}
        for name, parameter in parameters.items():
            kinds = [str(one.dtype).removeprefix("torch.") for one in (tensors[name], parameter)]
            if tensors[name].dtype.is_floating_point != parameter.dtype.is_floating_point:
                raise InputError(
                    f"{self.path} does not fit the model: '{name}' is {kinds[0]} there and {kinds[1]} here."
                )
        return tensors


class _Unfilled(TorchFunctionMode):
    """Draws no first values: on the meta device torch's first draw imports its compiler, which takes a second."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function in (nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_):
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **(named or {}))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name; a matrix that is tied stands under its first name alone."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model's parameters and buffers of the same names."""
    with torch.no_grad():
        for name, tensor in weights(model).items():
            tensor.copy_(tensors[name])


def _replace(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors in place of the model's parameters and buffers of the same names; what was tied stays tied."""
    new = {
        id(old): tensors[name].to(old.dtype, copy=True)  # what is read is a map of the file
        for name, old in weights(model).items()
    }
    for parameter in model.parameters():
        new[id(parameter)] = nn.Parameter(new[id(parameter)], parameter.requires_grad)
    for module in model.modules():
        for named in (module._parameters, module._buffers):
            own: dict[str, Any] = named
            for key, old in own.items():
                if old is not None:
                    own[key] = new[id(old)]


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
        for name, expected in read_record(path / MANIFEST).items():
            file = path / Path(name).name
            size = file.stat().st_size
            if not file.is_file() or size != expected["bytes"] or _sha256(file) != expected["sha256"]:
                raise InputError(f"Checkpoint {path} is damaged: {name} is not what was written; use another one.")
        record = read_record(path / RECORD)
        if record["format"] != FORMAT and isinstance(record["format"], int):
            raise InputError(f"Checkpoint {path} has format {record['format']}, this version reads {FORMAT}.")
        _check(record)
        return Checkpoint(path, record["config"], record["progress"], record["versions"], record.get("data", {}))
    except InputError:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise InputError(f"Checkpoint {path} is incomplete: it has no {missing}; use another one.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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
    with ExitStack() as stack:
        files = [stack.enter_context(_opened(checkpoint.path / WEIGHTS)) for checkpoint in checkpoints]
        return {name: _mean([file.get_tensor(name) for file in files]) for name in files[0].keys()}  # noqa: SIM118


def _mean(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)


def _check(record: Mapping[str, Any]) -> None:
    """Raise TypeError, ValueError or KeyError unless everything in the record is of its kind."""
    config, progress = record["config"], record["progress"]
    scores = [progress.get(name, {}) for name in ("best", "last", "yardstick")]
    groups = [
        config["model"],
        record["versions"],
        record.get("data", {}),
        progress.get("meter", {}),
        *(config.get(name, {}) for name in ("data", "optim", "schedule")),
    ]
    if record["format"] != FORMAT or not all(isinstance(group, dict) for group in (*groups, *scores)):
        raise TypeError
    names = [one["checkpoint"] for one in scores if "checkpoint" in one] + progress.get("scheduled", [])
    names += [progress["good"]] if progress.get("good") is not None else []
    if not all(CHECKPOINT.fullmatch(name) for name in names):
        raise ValueError
    numbers = [value for one in scores for name, value in one.items() if name != "checkpoint"]
    numbers += [progress.get("seconds", 0), *progress.get("meter", {}).values()]
    counts = [progress["step"], *(progress.get(name, 0) for name in COUNTS)]
    whole = [number for number in (*numbers, *counts) if not isinstance(number, float)]  # a float may be infinite
    if not all(isinstance(number, int) and abs(number) <= LARGEST for number in whole):
        raise TypeError
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise TypeError


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of tensors that are read as they are asked for."""
    if not path.exists():
        raise InputError(f"Checkpoint {path.parent} has no {path.name}.")
    try:
        if not path.is_file():
            raise SafetensorError("not a file")
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise InputError(
            f"Checkpoint {path.parent} is damaged: {path.name} cannot be read; use another one."
        ) from error


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
