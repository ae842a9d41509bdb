"""The `train` settings."""

import importlib.util
from dataclasses import dataclass

from seqtool.data.batches import UNITS
from seqtool.errors import InputError

CHOICES = {"batch_by": UNITS, "normalise": ("tokens", "sentences"), "resume": ("true", "false", "auto")}
MOST_SHOWN = 1000  # samples
MAY_BE_ZERO = ("label_smoothing", "epochs", "steps", "minutes", "average_last", "show")  # the other numbers are above 0


@dataclass
class TrainSettings:
    """The `train` settings; configs/train.yaml says what each is and holds the defaults."""

    batch_size: int
    batch_by: str
    pool: int
    bptt: int
    accumulate: int
    normalise: str
    clip_norm: float | None
    label_smoothing: float
    epochs: int | None
    steps: int | None
    minutes: float | None
    validate_every: int | None
    save_minutes: float | None
    patience: int | None
    best_by: str | None
    keep_last: int
    average_last: int
    log_every: int
    resume: bool | str
    gradient_flow: bool
    tensorboard: bool
    show: int = 0  # runs of earlier versions have neither this nor the next
    fewer_streams: bool = False

    def check(self) -> None:
        """Raise one InputError that names every setting that cannot be used; the task checks `best_by`."""
        problems = [
            f"Unknown train.{name} '{getattr(self, name)}'; choose from {', '.join(choices)}."
            for name, choices in CHOICES.items()
            if str(getattr(self, name)).lower() not in choices
        ]
        problems += [
            f"train.{name} must be {'at least 0' if name in MAY_BE_ZERO else 'above 0'}, not {value}."
            for name, value in vars(self).items()
            if not isinstance(value, bool | str | None) and (value < 0 or (value == 0 and name not in MAY_BE_ZERO))
        ]
        if self.show > MOST_SHOWN:
            problems.append(f"train.show must be at most {MOST_SHOWN:,}, not {self.show:,}.")
        if self.label_smoothing >= 1:
            problems.append(f"train.label_smoothing must be below 1, not {self.label_smoothing}.")
        if problems:
            raise InputError(" ".join(problems))

    def check_packages(self) -> None:
        """Raise InputError if TensorBoard is asked for and not installed; a finished run does without it."""
        if self.tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise InputError("train.tensorboard=true needs TensorBoard: pip install 'seqtool[tensorboard]'.")
