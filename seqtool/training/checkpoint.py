"""Checkpoints: directories without pickle files, each either complete or absent.

A checkpoint contains:

    runs/NAME/checkpoints/step-0001234/
        manifest.json          size and SHA-256 of every file below
        checkpoint.json        the record
        model.safetensors      the model's parameters and buffers by name; a tied matrix only under its first name
        training.safetensors   what only resuming needs (not in averages, nor in exported models)
        source.vocabulary …    the cache's vocabularies
        card.md                in exported models, a description; it may be edited and is not in the manifest

The record:

    format      the number of this format
    task        the task's name
    config      all settings of the run
    progress    the fields of `saving.Progress`; `optimiser`, its state except tensors; `scaler`, the loss scale's state
    versions    the versions of the software
    data        digests of the files from which the cache was made

The tensors in training.safetensors:

    optimiser.INDEX.NAME       the optimiser's state of the parameter with this index
    loss.baseline              hard attention's moving average of the reward; NaN before the first reward
    carried.NUMBER             the tensors of the state that the next batch of streams starts from, a row per stream
    random.DEVICE              the states of torch's generators, of cpu and of cuda or mps; for further processes, the
                               name ends in .1, .2, …

A checkpoint is written to a temporary directory, synced and renamed. At a step that was not validated, its name is
step-0001234-stopped if a signal stopped the run, or step-0001234-saved if train.save_minutes had passed; the next
checkpoint replaces it. average-N is the mean of the last N checkpoints. The newest checkpoint's progress names the best
checkpoint.

A command opens a checkpoint once, with `find`, and passes the `Checkpoint` on. A checkpoint from elsewhere runs no code
except that of modules which the user trusts. Everything in it is checked before use: the files that are used must match
the manifest, the record must have the right types of values, and a model is built on the meta device and compared with
the tensors' shapes before any tensor is read.
"""

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqtool.errors import InputError, naming, place
from seqtool.models.contract import EncoderDecoder
from seqtool.runtime.files import expanded, read_record
from seqtool.runtime.log import log
from seqtool.runtime.task_table import TASKS
from seqtool.settings.classes import locate_target
from seqtool.training import runs

M = TypeVar("M", bound=nn.Module)
Purpose = Literal["record", "model", "training"]
"""What a checkpoint is opened for: to read only its record, to use the model, or to resume training."""

FORMAT = 1
WEIGHTS, TRAINING = "model.safetensors", "training.safetensors"
RECORD, MANIFEST = "checkpoint.json", "manifest.json"
VOCABULARY = ".vocabulary"
MODEL_FILES = RECORD, WEIGHTS, VOCABULARY
# The ends of the names of the files that each purpose needs.
USED: dict[Purpose, tuple[str, ...]] = {"record": (RECORD,), "model": MODEL_FILES, "training": (*MODEL_FILES, TRAINING)}
OPTIMISER, BASELINE, CARRIED = "optimiser.", "loss.baseline", "carried."
BUFFERS = {"mean", "std", "running_mean", "running_var", "num_batches_tracked"}  # image and batch normalisation
AVERAGE = "average-"
NAME = re.compile(rf"step-[0-9]+(-stopped|-saved)?|{AVERAGE}[0-9]+")  # never a path to another directory
STEP = re.compile(r"step-(\d+)(-stopped|-saved)?")
UNFINISHED = re.compile(rf"\.({NAME.pattern})-(\w+)")  # directories during `save` and `remove`


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that `find` opened: its record has been read and checked, and the files that its purpose needs match
    the manifest. Tensors are read only when they are needed.
    """

    path: Path  # the checkpoint's directory
    task: str  # the name of the task that the model was trained for
    config: dict[str, Any]  # the run's settings
    progress: dict[str, Any]  # the run's progress, as in `saving.Progress`
    versions: dict[str, str]  # the versions of the software that wrote the checkpoint
    data: dict[str, Any]  # the digests of the data's files
    trust: Sequence[str] = ()  # the modules, besides this package, whose classes the checkpoint may name

    @property
    def model_task(self) -> str:
        """The task of the model's class, which is `task` unless someone edited the record. Raises InputError unless it
        is the class of a model, from this package or a trusted module.
        """
        model: type[EncoderDecoder[Any]] = locate_target(self.config["model"], trusted=self.trust, base=EncoderDecoder)
        task = getattr(model, "task", None)
        if task not in TASKS and "." not in str(task):
            raise InputError(f"{self.path} has a model, {model.__name__}, which does not define its task.")
        return str(task)

    def load_weights(self, model: nn.Module) -> None:
        """Load the model's weights. Raises InputError for missing or unexpected weights, or other shapes or types."""
        fill(model, self._weights_of(model))

    def load_model(self, make: Callable[[], M]) -> M:
        """Build a model with `make` and load these weights. Raises InputError as `load_weights` does.

        The model is built on torch's meta device, so it takes no memory until its tensors are known to fit.
        """
        with torch.device("meta"), _SkipInitialisation():
            model = make()
        stored = self._weights_of(model)
        # copied, since tensors read from a file are memory-mapped
        tensors = {id(old): stored[name].to(old.dtype, copy=True) for name, old in weights(model).items()}
        for parameter in model.parameters():
            tensors[id(parameter)] = nn.Parameter(tensors[id(parameter)], parameter.requires_grad)
        for module in model.modules():
            registries: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for registry in registries:  # tied parameters stay tied
                registry.update({key: tensors[id(old)] for key, old in registry.items() if old is not None})
        return model

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by name. No weight is read. A run in progress may remove the files afterwards."""
        with _open_tensors(self.path / WEIGHTS) as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    @property
    def parameters(self) -> int:
        """The number of parameters, without buffers."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if name.rpartition(".")[2] not in BUFFERS)

    def weights(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name."""
        with _open_tensors(self.path / WEIGHTS) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def training_tensors(self) -> dict[str, Tensor]:
        """The tensors of training.safetensors, by name. The checkpoint must have been opened for `training`."""
        with _open_tensors(self.path / TRAINING) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def _weights_of(self, model: nn.Module) -> dict[str, Tensor]:
        parameters, shapes = weights(model), self.shapes
        for name in sorted(parameters.keys() ^ shapes.keys()):
            mismatch = "the checkpoint lacks" if name in parameters else "the model has no"
            raise self._misfit_error(f"{mismatch} '{name}'")
        for name, parameter in parameters.items():
            if shapes[name] != (shape := tuple(parameter.shape)):
                raise self._misfit_error(f"'{name}' is {shapes[name]} in the checkpoint and {shape} in the model")
        stored = self.weights()
        for name, parameter in parameters.items():
            stored_type, model_type = (str(tensor.dtype).removeprefix("torch.") for tensor in (stored[name], parameter))
            if stored[name].dtype.is_floating_point != parameter.dtype.is_floating_point:
                raise self._misfit_error(f"'{name}' is {stored_type} in the checkpoint and {model_type} in the model")
        return stored

    def _misfit_error(self, reason: str) -> InputError:
        return InputError(f"{self.path} does not fit the model: {reason}.")


def find(checkpoint: str | Path | Checkpoint, *, trust: Sequence[str] = (), purpose: Purpose = "model") -> Checkpoint:
    """Open the checkpoint that a path names: a checkpoint itself, `RUN` or `RUN/best` (the run's best), `RUN/last`,
    or a built-in model, `builtin/NAME`.

    Only the record and the files that the purpose needs are read and compared with the manifest. If a run's checkpoint
    is damaged, another of the run is opened instead, with a warning. A `Checkpoint`, which is open already, is returned
    unchanged. `trust` is as in `Checkpoint`. Raises InputError if there is no checkpoint, or no intact one.
    """
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return replace(_find(Path(expanded(os.fspath(checkpoint))), purpose), trust=trust)


def _find(path: Path, purpose: Purpose) -> Checkpoint:
    run, choice = (path.parent, path.name) if path.name in ("best", "last") and not path.exists() else (path, "best")
    if any((runs.located(run) / file).exists() for file in (RECORD, MANIFEST)):
        return read(runs.located(run), purpose)
    runs.check_exists(run, "run or checkpoint", runs.BUILT_IN)
    if choice == "last":
        return newest(run, purpose)
    newest_checkpoint = newest(run, "record")
    best_name = newest_checkpoint.progress.get("best", {}).get("checkpoint", newest_checkpoint.path.name)
    best = run / "checkpoints" / str(best_name)
    checkpoints = list_checkpoints(run)
    older = reversed(checkpoints[: checkpoints.index(newest_checkpoint.path) + 1])
    # an average is made when the run ends, and kept only if it scores better than `best`
    paths = dict.fromkeys([*list_averages(run), best, *older])
    return _first_intact(paths, purpose, averaged_at=newest_checkpoint.progress["step"])


def newest(run: Path, purpose: Purpose = "training") -> Checkpoint:
    """Open the newest intact checkpoint of a run, with a warning for each newer one that is damaged."""
    paths = list_checkpoints(run)
    if not paths:
        raise InputError(
            f"{place(run)} holds no checkpoint: give a run directory (runs/NAME) or a checkpoint inside one."
            f"{runs.nearby(run / 'checkpoints')}"
        )
    return _first_intact(reversed(paths), purpose)


def _first_intact(paths: Iterable[Path], purpose: Purpose, *, averaged_at: int | None = None) -> Checkpoint:
    """Open the first intact checkpoint, with a warning for each damaged one before it. Averages that were not made at
    the step `averaged_at` are passed over.
    """
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
            log.warning("%s Using %s instead.", error, path)
        return checkpoint
    raise errors[0]


def read(path: Path, purpose: Purpose = "model") -> Checkpoint:
    """Open the checkpoint in a directory. Raises InputError if it is damaged, incomplete or of another format."""
    try:
        manifest = read_record(path / MANIFEST)
        for name, expected in manifest.items():
            file = path / Path(name).name
            same_size = file.stat().st_size == expected["bytes"] and file.is_file()
            if not same_size or (name.endswith(USED[purpose]) and sha256(file) != expected["sha256"]):
                raise _damage_error(path, f"{name} does not match {MANIFEST}")
        record = read_record(path / RECORD)
        if record["format"] != FORMAT and isinstance(record["format"], int):
            raise InputError(
                f"Checkpoint {path} has format {record['format']}, but this version of seqtool reads format {FORMAT}."
            )
        files = [file.name for pattern in (f"[!.]*{VOCABULARY}", TRAINING) for file in path.glob(pattern)]
        if unlisted := sorted({RECORD, WEIGHTS, *files} - manifest.keys()):
            raise _damage_error(path, f"{MANIFEST} does not list {unlisted[0]}")
        if not _is_record(record):
            raise _damage_error(path, "its record cannot be read")
        return Checkpoint(path, **{name: record[name] for name in ("task", "config", "progress", "versions", "data")})
    except InputError:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise InputError(f"Checkpoint {path} is incomplete: it has no {missing}; use another one.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damage_error(path, "its record cannot be read") from error


def _damage_error(path: Path, reason: str) -> InputError:
    return InputError(f"Checkpoint {path} is damaged: {reason}; use another one.")


COUNTS = ("epoch", "position", "stale", "since_halving", "plateaus", "skipped", "skipped_in_a_row")
REQUIRED_KEYS = {"best": {"checkpoint", "step", "loss"}, "yardstick": {"loss"}}  # either may be empty
MAX_INTEGER = 2**53  # larger integers are not exact as floats


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether every value in the record has the right type. May raise TypeError, KeyError or AttributeError if not."""
    config, progress = record["config"], record["progress"]
    scores = [progress.get(name, {}) for name in ("best", "last", "yardstick")]
    groups = [config["model"], record["versions"], record["data"], progress.get("meter", {}), *scores]
    groups += [config.get(name, {}) for name in ("data", "optim", "schedule")]
    names = [score["checkpoint"] for score in scores if "checkpoint" in score] + progress.get("scheduled", [])
    if progress.get("good") is not None:
        names.append(progress["good"])
    numbers = [value for score in scores for name, value in score.items() if name != "checkpoint"]
    numbers += [progress.get("seconds", 0), *progress.get("meter", {}).values()]
    counts = [progress["step"], *(progress.get(name, 0) for name in COUNTS)]
    integers = [number for number in (*numbers, *counts) if not isinstance(number, float)]  # floats may be infinite
    return (
        record["format"] == FORMAT
        and isinstance(record["task"], str)
        and all(isinstance(group, dict) for group in groups)
        and all(keys <= progress[name].keys() for name, keys in REQUIRED_KEYS.items() if progress.get(name))
        and all(NAME.fullmatch(name) for name in names)
        and all(isinstance(number, int) and abs(number) <= MAX_INTEGER for number in integers)
        and all(isinstance(count, int) and count >= 0 for count in counts)
    )


def save(
    path: Path,
    *,
    model: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    record: Mapping[str, Any],
    vocabularies: list[Path],
    unlisted: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint at `path`; a reader sees it complete or not at all.

    path: the checkpoint's directory, which must not exist yet
    model: the weights by name
    training: the tensors of training.safetensors; empty for a checkpoint that cannot be resumed
    record: task, config, progress, versions and data, as in this module's docstring
    vocabularies: vocabulary files to copy
    unlisted: texts of further files by name; the manifest does not list these, so they may be edited later

    Raises OSError, which names `path`, if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True)
    with directory as name, naming(path):
        temporary = Path(name)
        _write(temporary / WEIGHTS, model)
        if training:
            _write(temporary / TRAINING, training)
        record_json = json.dumps({"format": FORMAT, **record}, indent=1, ensure_ascii=False)
        (temporary / RECORD).write_text(record_json, encoding="utf-8")
        for vocabulary in vocabularies:
            (temporary / vocabulary.name).write_bytes(vocabulary.read_bytes())
        files = sorted(temporary.iterdir())
        for file in files:  # safetensors makes files that only their owner can read
            file.chmod(stat.S_IMODE((temporary / RECORD).stat().st_mode))
        manifest = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for file_name, text in (unlisted or {}).items():
            (temporary / file_name).write_text(text, encoding="utf-8")
        for file in (*temporary.iterdir(), temporary):
            _sync(file)
        temporary.chmod(0o755)  # temporary directories are private to their owner
        temporary.rename(path)
        _sync(path.parent)


def run_directory(path: Path) -> Path:
    """The directory of a checkpoint's run; for a checkpoint outside a run, its own."""
    path = path.absolute()
    return path.parents[1] if path.parent.name == "checkpoints" and NAME.fullmatch(path.name) else path


def step_name(step: int) -> str:
    """The name of the checkpoint of a validated step."""
    return f"step-{step:07d}"


def list_checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints without averages, oldest first; if a step has two, the unvalidated one first."""
    names = [(STEP.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*")]
    return [path for *_, path in sorted((int(match[1]), match[2] is None, path) for match, path in names if match)]


def list_averages(run: Path) -> list[Path]:
    """A run's averages of checkpoints, in any order."""
    return [path for path in (run / "checkpoints").glob(f"{AVERAGE}*") if NAME.fullmatch(path.name)]


def remove_unfinished(run: Path) -> None:
    """Remove partial checkpoints left by a killed process. Other files, such as .DS_Store and .nfs…, stay."""
    for path in (run / "checkpoints").glob(".*"):
        if UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a checkpoint. It is first given a name that no reader looks for, so that no reader sees part of it."""
    renamed = path.with_name(f".{path.name}-{secrets.token_hex(4)}")  # a new name each time: NFS may keep old files
    path.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)  # NFS keeps the files that another process has open


def average(checkpoints: list[Checkpoint]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights."""
    mean = {}
    with ExitStack() as stack:
        files = [stack.enter_context(_open_tensors(checkpoint.path / WEIGHTS)) for checkpoint in checkpoints]
        for name in files[0].keys():  # noqa: SIM118
            stacked = torch.stack([file.get_tensor(name) for file in files])
            mean[name] = stacked.double().mean(0).to(stacked.dtype)
    return mean


def sha256(file: Path) -> str:
    """The hexadecimal SHA-256 digest of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name; a tied matrix appears only under its first name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model's parameters and buffers of the same names."""
    with torch.no_grad():
        for name, tensor in weights(model).items():
            tensor.copy_(tensors[name])


class _SkipInitialisation(TorchFunctionMode):
    """Skips initialisation: on the meta device torch's first random draw imports its compiler, which takes a second."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function in (nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_):
            return arguments[0] if arguments else keywords["tensor"]
        return function(*arguments, **(keywords or {}))


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors. Raises OSError if the disk is full."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # it names the operating system's error only in its text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


@contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    """Open a file of tensors, from which each is read when it is requested."""
    if not path.exists():
        raise InputError(f"Checkpoint {path.parent} has no {path.name}.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise _damage_error(path.parent, f"{path.name} cannot be read") from error
