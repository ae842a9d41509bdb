"""A run's numbers: `metrics.jsonl`, one object a line, the learning curves drawn from it, and TensorBoard."""

import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


class Meter:
    """What happened since the last record; tensors are read only when a record is made."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.nll: list[Tensor] = []
        self.tokens = 0
        self.norm: Tensor | None = None
        self.since = time.monotonic()

    def add(self, nll: Tensor, tokens: int, norm: Tensor) -> None:
        self.nll.append(nll)
        self.tokens += tokens
        self.norm = norm

    def record(self, step: int, epoch: int, seconds: float, rate: float) -> dict[str, Any]:
        """loss in nats per token, target tokens per second."""
        loss = float(torch.stack(self.nll).sum()) / self.tokens
        record = {
            "step": step,
            "epoch": epoch,
            "seconds": round(seconds, 1),
            "loss": loss,
            "perplexity": math.exp(min(loss, 100)),
            "tokens_per_second": round(self.tokens / (time.monotonic() - self.since), 1),
            "learning_rate": rate,
            "gradient_norm": float(self.norm if self.norm is not None else math.nan),
        }
        self.restart()
        return record


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
