"""A run's numbers: `metrics.jsonl`, one object a line, the learning curves drawn from it, and TensorBoard."""

import json
from pathlib import Path
from typing import Any

from seqtool import plots
from seqtool.errors import InputError


class Recorder:
    """Appends to `metrics.jsonl` in the run's directory."""

    def __init__(self, run: Path, *, tensorboard: bool) -> None:
        self.run = run
        self.path = run / "metrics.jsonl"
        self.writer: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard.writer import SummaryWriter
            except ImportError as error:
                raise InputError(
                    "train.tensorboard=true needs TensorBoard: pip install 'seqtool[tensorboard]'."
                ) from error
            self.writer = SummaryWriter(str(run / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        if self.writer is not None:
            for name, value in record.items():
                if name != "step":
                    self.writer.add_scalar(name, value, record["step"])

    def rewind(self, step: int) -> None:
        """Drop what was recorded after `step`: the run goes on from there."""
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)

    def draw(self) -> None:
        plots.learning_curves(self.path, self.run / "learning_curves.png")
