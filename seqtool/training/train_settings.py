"""The `train` settings."""

import importlib.util
from dataclasses import dataclass

from seqtool.errors import InputError
from seqtool.settings import declarations


@dataclass
class TrainSettings(declarations.Train):
    """The `train` settings; configs/train.yaml says what each is and holds the defaults."""

    def __post_init__(self) -> None:
        self.resume = str(self.resume).lower()

    def check(self) -> None:
        """Raise one InputError that names every setting that cannot be used; the task checks `best_by`."""
        declarations.check_values(self, "train.")

    def check_packages(self) -> None:
        """Raise InputError if TensorBoard is asked for and not installed; a finished run does without it."""
        if self.tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise InputError("train.tensorboard=true needs TensorBoard: pip install 'seqtool[tensorboard]'.")
