"""A run's progress, and what follows from it: the best checkpoint, patience, plateaus, limits."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from seqtool.errors import InputError
from seqtool.training.checkpoint import Checkpoint, step_name
from seqtool.training.train_settings import TrainSettings
from seqtool.training.validation import Scores, is_better

STATE = {"optimiser", "scaler"}  # what `TrainingState` adds to the progress in a checkpoint


@dataclass
class Progress:
    """A run's progress: everything besides tensors that a resumed run needs.

    `position` counts the batches of this epoch that were used; `seconds` the time trained; `best` names the best
    checkpoint and its scores. Patience and schedule use only scheduled validations, so that an unscheduled one, at a
    limit, changes nothing: `scheduled` are their checkpoints, `yardstick` their best scores, `stale` how many in a row
    were not better, `since_halving` the same since the rate was last halved, `plateaus` how often it was halved.
    Steps whose loss or gradient is not finite are `skipped`, the latest `skipped_in_a_row` without a break; `good` is
    the last checkpoint with a finite validation loss and no skipped step right before it. `meter` holds the sums with
    which the next record of the training loss begins.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    stale: int = 0
    since_halving: int = 0
    plateaus: int = 0
    yardstick: dict[str, Any] = field(default_factory=dict)
    scheduled: list[str] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    skipped: int = 0
    skipped_in_a_row: int = 0
    good: str | None = None
    meter: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Progress":
        """A checkpoint's progress; InputError if another version of seqtool recorded it differently."""
        saved, names = checkpoint.progress, {field.name for field in fields(cls)}
        if not {"step", "epoch", "position", *STATE} <= saved.keys() <= names | STATE:
            raise InputError(f"{checkpoint.path} was made by another version of seqtool ({checkpoint.versions}).")
        return cls(**{name: value for name, value in saved.items() if name in names})

    def limits(self, settings: TrainSettings) -> dict[str, float]:
        """The limits that are reached, by name: if there are any, nothing is left to train."""
        done = {"steps": self.step, "epochs": self.epoch, "minutes": self.seconds / 60, "patience": self.stale}
        limits = {name: getattr(settings, name) for name in done}
        return {name: most for name, most in limits.items() if most is not None and done[name] >= most}

    @property
    def is_validated(self) -> bool:
        """Whether the current parameters have been validated."""
        return bool(self.last.get("step") == self.step)

    def validation_is_due(self, every: int | None) -> bool:
        """Once at the end of an epoch or every so many steps; still due after a stop that came in between."""
        due = self.position == 0 if every is None else self.step % every == 0
        return due and self.step > 0 and not self.is_validated

    def count(self, *, skipped: bool) -> int:
        """Count a step, `skipped` if its loss or gradient was not finite; returns how many in a row were skipped."""
        self.skipped += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        return self.skipped_in_a_row

    def take(self, scores: Scores, *, by: str) -> bool:
        """Record the scores of this step; returns whether they are the best so far."""
        name = step_name(self.step)
        better = is_better(scores, self.best, by=by)
        if better:
            self.best = {"checkpoint": name, "step": self.step, **scores}
        if math.isfinite(scores["loss"]) and not self.skipped_in_a_row:
            self.good = name
        self.last = {"step": self.step, **scores}
        return better

    def take_scheduled(self, scores: Scores, *, by: str, plateau: int | None, kept: int) -> None:
        """The same for patience, for a schedule by plateaus of `plateau` validations, and for the checkpoints kept."""
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
