"""A run's numbers: `metrics.jsonl`, one object a line, the learning curves drawn from it, and TensorBoard."""

import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqtool.errors import InputError, naming
from seqtool.runtime.files import write_whole
from seqtool.view import plots

LEARNING_CURVES, GRADIENT_FLOW = FIGURES = ("learning_curves.png", "gradient_flow.png")
RECORDS = ("metrics.jsonl", "gradient_flow.jsonl")


class Recorder:
    """Appends to `metrics.jsonl` in the run's directory what comes after `step`."""

    def __init__(self, run: Path, *, step: int, tensorboard: bool) -> None:
        self.run = run
        self.path = run / "metrics.jsonl"
        self.writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        for name in RECORDS:
            _cut(run / name, step)
        for pattern in (".config.yaml.*", ".*.jsonl.*", ".*.png.tmp"):  # what a killed process left half-written
            for left in run.glob(pattern):
                left.unlink()

    def write(self, record: dict[str, Any]) -> None:
        record = {name: value if math.isfinite(value) else None for name, value in record.items()}  # JSON has no NaN
        with naming(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        if self.writer is not None:
            for name, value in record.items():
                if name != "step" and value is not None:
                    self.writer.add_scalar(name, value, record["step"])

    def draw(self) -> None:
        plots.learning_curves(self.path, self.run / LEARNING_CURVES)


class Meter:
    """What happened since the last record, skipped steps left out; tensors are read only when a record is made."""

    def __init__(self) -> None:
        self.restart()

    def restart(self, *, nll: float = 0.0, tokens: int = 0) -> None:
        """Begin at zero, or with what a stopped run had: −log p summed in nats, tokens."""
        self.nll = torch.tensor(nll)
        self.tokens = self._before = tokens
        self.norm: Tensor | None = None
        self.since = time.monotonic()

    def state(self) -> dict[str, Any]:
        """What `restart` goes on from."""
        return {"nll": float(self.nll), "tokens": self.tokens}

    def add(self, nll: Tensor, tokens: int, norm: Tensor) -> None:
        self.nll = self.nll.to(nll.device) + nll
        self.tokens += tokens
        self.norm = norm

    def record(self, step: int, epoch: int, seconds: float, rate: float) -> dict[str, Any]:
        """loss in nats per token, NaN where every step was skipped; target tokens per second."""
        loss = float(self.nll) / self.tokens if self.tokens else math.nan
        record = {
            "step": step,
            "epoch": epoch,
            "seconds": round(seconds, 1),
            "loss": loss,
            "perplexity": math.exp(min(loss, 100)),
            "tokens_per_second": round((self.tokens - self._before) / (time.monotonic() - self.since), 1),
            "learning_rate": rate,
            "gradient_norm": float(self.norm if self.norm is not None else math.nan),
        }
        self.restart()
        return record


def check_tensorboard() -> None:
    """Raise InputError where the extra is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("train.tensorboard=true needs TensorBoard: pip install 'seqtool[tensorboard]'.")


def _cut(path: Path, step: int) -> None:
    """Drop the records after `step`, from where a run goes on; also a last line that was cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            break
    write_whole(path, b"".join(kept))
