"""A run's numbers: `metrics.jsonl`, one object a line, the learning curves drawn from it, and TensorBoard."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

from seqtool import plots
from seqtool.data.text_files import write_whole
from seqtool.errors import InputError


class Recorder:
    """Appends to `metrics.jsonl` in the run's directory."""

    def __init__(self, run: Path, *, tensorboard: bool) -> None:
        self.run = run
        self.path = run / "metrics.jsonl"
        self.writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(str(run / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        record = {name: value if math.isfinite(value) else None for name, value in record.items()}  # JSON has no NaN
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        if self.writer is not None:
            for name, value in record.items():
                if name != "step":
                    self.writer.add_scalar(name, value, record["step"])

    def draw(self) -> None:
        plots.learning_curves(self.path, self.run / "learning_curves.png")


def check_tensorboard() -> None:
    """Raise InputError where the extra is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("train.tensorboard=true needs TensorBoard: pip install 'seqtool[tensorboard]'.")


def rewind(path: Path, step: int) -> None:
    """Drop the records after `step`, from where a run goes on; also a last line that was cut short."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        write_whole(path, "".join(line + "\n" for line in kept).encode())
