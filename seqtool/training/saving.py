"""The state of a run and the checkpoints in which it is saved.

`TrainSettings` are its settings, `Progress` its counters and scores, and `TrainingState` the tensors on which the next
update depends. `Checkpoints` saves them and removes checkpoints that are no longer needed.
"""

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqtool.errors import InputError
from seqtool.models import tree
from seqtool.runtime import distributed
from seqtool.runtime.configs import defaults
from seqtool.settings import declarations
from seqtool.training import checkpoint
from seqtool.training.checkpoint import BASELINE, CARRIED, OPTIMISER, Checkpoint, step_name
from seqtool.training.losses import TrainingLoss
from seqtool.training.scheduled_sampling import Teacher
from seqtool.training.validation import Scores, is_better

AVERAGED = "averaged.txt"  # in the run's directory: the step at which its checkpoints were averaged
# Settings that only some values of another setting use: that setting, these values, and the settings.
USED_WITH = (
    ("objective", ["sequence"], ("reward", "reward_end", "samples", "baseline", "cross_entropy")),
    ("baseline", ["risk"], ("risk_alpha", "risk_reference")),
    ("teacher", declarations.TEACHERS, ("teacher_k",)),
    ("teacher", ["linear"], ("teacher_slope", "teacher_least")),
)
STATE = {"optimiser", "scaler"}  # the keys that `TrainingState` adds to a checkpoint's progress


@dataclass
class TrainSettings(declarations.Train):
    """The `train` settings; configs/train.yaml says what each is and holds the defaults."""

    def __post_init__(self) -> None:
        self.resume = str(self.resume).lower()

    def teacher_of(self, seed: int) -> Teacher | None:
        """The schedule by which the decoder reads its own words; None if it never does."""
        settings = self.teacher_k, self.teacher_slope, self.teacher_least
        return None if self.teacher == "always" else Teacher(self.teacher, *settings, seed)

    def check(self) -> None:
        """Raise InputError for settings of another objective or schedule, for a single sample without others, for a
        schedule that means nothing, and if TensorBoard is wanted but not installed, which a finished run does not need.
        """
        values, usual, k = vars(self), defaults("train")["train"], self.teacher_k
        for setting, choices, names in USED_WITH:
            changed = [f"train.{name}" for name in names if values[name] != usual[name]]
            if changed and values[setting] not in choices:
                choice = f"train.{setting}={'|'.join(choices)}"
                raise InputError(f"{', '.join(changed)} means nothing without {choice}: set it, or leave this out.")
        if self.objective == "sequence" and self.baseline != "greedy" and self.samples + self.risk_reference < 2:
            raise InputError(f"train.baseline={self.baseline} needs train.samples of at least 2, not {self.samples}.")
        if self.objective == "sequence" and self.teacher != "always" and not self.cross_entropy:
            raise InputError(f"train.teacher={self.teacher} needs a share of cross-entropy: train.cross_entropy=0.2.")
        for setting in ("teacher_k", "teacher_slope", "teacher_least"):
            if not math.isfinite(values[setting]):
                raise InputError(f"train.{setting}={values[setting]} must be a finite number.")
        if self.teacher == "linear" and self.teacher_least >= 1:
            least = f"train.teacher_least={self.teacher_least:g}"
            raise InputError(f"train.teacher=linear with {least} never falls below 1: lower train.teacher_least.")
        if self.teacher == "inverse_sigmoid" and k <= 1:
            raise InputError(
                f"train.teacher=inverse_sigmoid with train.teacher_k={k:g} hardly reads the reference's words after "
                "ten updates: set train.teacher_k to about a sixth of the run's updates, such as 1500."
            )
        if k >= 1 and {"linear": self.teacher_slope == 0, "exponential": True}.get(self.teacher):
            advice = "lower train.teacher_k" + " or raise train.teacher_slope" * (self.teacher == "linear")
            raise InputError(f"train.teacher={self.teacher} with train.teacher_k={k:g} never falls below 1: {advice}.")
        if self.tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise InputError("train.tensorboard=true needs TensorBoard: pip install 'seqtool[tensorboard]'.")


@dataclass
class Progress:
    """A run's progress: everything except tensors that a resumed run needs.

    Patience and schedule use only scheduled validations, so that an unscheduled one, at a limit, changes nothing.
    """

    step: int = 0  # the number of steps taken
    epoch: int = 0  # the number of whole epochs
    position: int = 0  # the number of batches used in the current epoch
    seconds: float = 0.0  # the time trained
    best: dict[str, Any] = field(default_factory=dict)  # the best checkpoint's name and scores
    stale: int = 0  # the number of scheduled validations in a row that were not better than the `yardstick`
    since_halving: int = 0  # the number of such validations since the learning rate was last halved
    plateaus: int = 0  # how often the learning rate was halved
    yardstick: dict[str, Any] = field(default_factory=dict)  # the best scores of a scheduled validation
    scheduled: list[str] = field(default_factory=list)  # the checkpoints of the latest scheduled validations
    last: dict[str, Any] = field(default_factory=dict)  # the scores of the last validation
    skipped: int = 0  # the number of steps whose loss or gradient was not finite
    skipped_in_a_row: int = 0  # the number of steps skipped since the last step that was not skipped
    good: str | None = None  # the last checkpoint with a finite validation loss and no skipped step right before it
    meter: dict[str, Any] = field(default_factory=dict)  # the sums with which the next record of the loss begins

    @classmethod
    def of(cls, saved: Checkpoint) -> "Progress":
        """Read a checkpoint's progress. Raises InputError if another version of seqtool recorded other fields."""
        names = {field.name for field in fields(cls)}
        if not {"step", "epoch", "position", *STATE} <= saved.progress.keys() <= names | STATE:
            raise InputError(f"{saved.path} was made by another version of seqtool ({saved.versions}).")
        return cls(**{name: value for name, value in saved.progress.items() if name in names})

    def limits(self, settings: TrainSettings) -> dict[str, float]:
        """The limits that have been reached, by name; training ends at the first."""
        reached = {"steps": self.step, "epochs": self.epoch, "minutes": self.seconds / 60, "patience": self.stale}
        limits = {name: getattr(settings, name) for name in reached}
        return {name: limit for name, limit in limits.items() if limit is not None and reached[name] >= limit}

    @property
    def is_validated(self) -> bool:
        """Whether the current parameters have been validated."""
        return bool(self.last.get("step") == self.step)

    def validation_is_due(self, every: int | None) -> bool:
        """Whether a validation is due, of which a step has at most one: every `every` steps; None: after each epoch."""
        due = self.position == 0 if every is None else self.step % every == 0
        return due and self.step > 0 and not self.is_validated

    def add_scores(self, scores: Scores, *, by: str) -> bool:
        """Record the scores of this step, and return whether they are the best so far."""
        name = step_name(self.step)
        better = is_better(scores, self.best, by=by)
        if better:
            self.best = {"checkpoint": name, "step": self.step, **scores}
        if math.isfinite(scores["loss"]) and not self.skipped_in_a_row:
            self.good = name
        self.last = {"step": self.step, **scores}
        return better

    def add_scheduled(self, scores: Scores, *, by: str, plateau: int | None, kept: int) -> None:
        """Count a scheduled validation for patience and plateaus. The checkpoints of the last `kept` are kept.

        plateau: the learning rate is halved after this number of validations without improvement; None: never
        """
        better = is_better(scores, self.yardstick, by=by)
        if better:
            self.yardstick = scores
        self.stale = 0 if better else self.stale + 1
        self.since_halving = 0 if better else self.since_halving + 1
        if plateau is not None and self.since_halving >= plateau:
            self.plateaus, self.since_halving = self.plateaus + 1, 0
        self.scheduled = [*self.scheduled, step_name(self.step)][-kept:]

    def __str__(self) -> str:
        return f"epoch {self.epoch + (self.position > 0)}, step {self.step:,}, {self.seconds / 60:.1f} min"


@dataclass
class TrainingState:
    """The optimiser's moments, the loss scale, hard attention's baseline (in `loss`), the state that streams carry
    over, and torch's random generators. `training.checkpoint` lists their names in a checkpoint.
    """

    loss: TrainingLoss
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    rows: int | None  # parallel streams of all processes (`Examples.stream_count`); None for independent examples
    device: torch.device
    carried: Any = None  # this process's part of the state from which the streams' next batch starts, if any

    def state_dicts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and other values. All processes take part."""
        tensors: dict[str, Tensor] = {BASELINE: self.loss.baseline}
        scalars: dict[str, Any] = {}
        for i, shard in enumerate(tree.leaves(self.carried)):
            shards = distributed.gather(shard.cpu())
            all_rows = shard.new_empty(len(shards) * max(map(len, shards)), *shard.shape[1:], device="cpu")
            for process, process_shard in enumerate(shards):
                all_rows[process :: len(shards)][: len(process_shard)] = process_shard
            tensors[f"{CARRIED}{i:03d}"] = all_rows[: self.rows].clone()  # drops rows of processes without streams
        for index, moments in self.optimiser.state_dict()["state"].items():
            for key, value in moments.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"{OPTIMISER}{index}.{key}"] = value
        random = {name: module.get_rng_state() for name, module in self._generators().items()}
        for process, states in enumerate(distributed.gather(random)):
            tensors |= {f"{name}.{process}".removesuffix(".0"): state for name, state in states.items()}
        return tensors, {"optimiser": scalars, "scaler": self.scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        """Restore what `state_dicts` returned. Raises various errors if it does not fit the model."""
        state: dict[str, Any] = {"state": {}, "param_groups": self.optimiser.state_dict()["param_groups"]}
        for name, value in [*tensors.items(), *scalars["optimiser"].items()]:
            if name.startswith(OPTIMISER):
                _, index, key = name.split(".", 2)
                state["state"].setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict(state)
        for parameter, moments in self.optimiser.state.items():
            for value in moments.values():
                if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                    raise ValueError("a moment's shape is not its parameter's")
        if scalars["scaler"]:
            self.scaler.load_state_dict(dict(scalars["scaler"]))
        self.loss.baseline.copy_(tensors[BASELINE])
        process = distributed.rank()  # a process that the run did not have before keeps its seed
        if carried := [tensors[name] for name in sorted(tensors) if name.startswith(CARRIED)]:
            # the rows that `Prefetcher.take` gives this process
            rows = slice(process, None, distributed.size()) if process < len(carried[0]) else slice(1)
            shards = (tensor[rows].to(self.device) for tensor in carried)
            self.carried = tree.map_tensors(lambda _: next(shards), self.loss.model.encode(None)[1])
        for name, module in self._generators().items():
            if (random := tensors.get(f"{name}.{process}".removesuffix(".0"))) is not None:
                module.set_rng_state(random)

    def _generators(self) -> dict[str, Any]:
        """The modules of torch that have the random states of the CPU and of the device, which is torch's default."""
        return {f"random.{self.device.type}": getattr(torch, self.device.type), "random.cpu": torch}


@dataclass
class Checkpoints:
    """The checkpoints of one run, in its directory."""

    run: Path
    origin: Mapping[str, Any]  # what each checkpoint records about the run besides its progress
    vocabularies: list[Path]  # the vocabulary files to copy into each
    _saved_seconds: float = 0.0  # the time trained, in seconds, at the last checkpoint

    def is_due(self, progress: Progress, minutes: float | None) -> bool:
        """Whether `minutes` of training have passed since the last checkpoint, and the last step was not skipped."""
        due = minutes is not None and progress.seconds - self._saved_seconds >= 60 * minutes
        return due and not progress.skipped_in_a_row

    def save(self, state: TrainingState, progress: Progress, reason: str) -> None:
        """Save a checkpoint. Its name ends in the reason if this step was not validated."""
        self._saved_seconds = progress.seconds
        name = step_name(progress.step)
        path = self.path(name if progress.is_validated else f"{name}-{reason}")
        if distributed.from_first(path.exists):  # it was saved right before the run was stopped
            return
        tensors, scalars = state.state_dicts()
        self.write(path, checkpoint.weights(state.loss.model), tensors, {**asdict(progress), **scalars})
        self._prune(progress, path.name)

    def resume(self, resumed: Checkpoint, progress: Progress) -> None:
        """Remove checkpoints that the resumed run does not need, and drop missing ones from its progress."""
        self._saved_seconds = progress.seconds
        self.remove_after(resumed.path)
        existing = distributed.from_first(lambda: {path.name for path in checkpoint.list_checkpoints(self.run)})
        if progress.best.get("checkpoint") not in existing:
            progress.best = {}  # it was replaced by a better checkpoint, which is damaged
        if progress.good not in existing:
            progress.good = None
        progress.scheduled = [name for name in progress.scheduled if name in existing]
        self._prune(progress, resumed.path.name)

    def path(self, name: str) -> Path:
        """The directory of the run's checkpoint with this name."""
        return self.run / "checkpoints" / name

    def write(
        self, path: Path, model: Mapping[str, Tensor], training: Mapping[str, Tensor], progress: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint of this run in the first process; the others wait for it."""
        save = partial(checkpoint.save, path, model=model, training=training, vocabularies=self.vocabularies)
        distributed.from_first(partial(save, record={**self.origin, "progress": progress}))

    def _prune(self, progress: Progress, newest: str) -> None:
        names = {newest, progress.best.get("checkpoint"), progress.good, *progress.scheduled}
        for path in checkpoint.list_checkpoints(self.run) if distributed.is_first() else ():
            if path.name not in names:
                checkpoint.remove(path)

    def remove_after(self, last_kept: Path) -> None:
        """Remove checkpoints newer than `last_kept`, and all averages, which are out of date."""
        if distributed.is_first():
            paths = checkpoint.list_checkpoints(self.run)
            for path in (*paths[paths.index(last_kept) + 1 :], *checkpoint.list_averages(self.run)):
                checkpoint.remove(path)
