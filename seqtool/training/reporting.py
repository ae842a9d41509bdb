"""What people and files are told of a run while it trains: a bar, records of the losses, a line for each validation."""

import math
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from seqtool.training.progress import Progress
from seqtool.training.recording import Meter, Recorder
from seqtool.training.train_settings import TrainSettings
from seqtool.training.validation import Scores, told

QUIETLY = 30.0  # seconds between the lines of a bar in a log file


class Reporter:
    """Keeps a run's meter, and tells of its updates and validations; only the first process has a `recorder`."""

    def __init__(self, run: Path, recorder: Recorder | None, settings: TrainSettings) -> None:
        self.run = run
        self.recorder = recorder
        self.settings = settings
        self.meter = Meter()

    def bar(self, step: int, total: int | None) -> Any:
        """A bar that begins at a step; `total` None where nothing but time or patience ends the run."""
        interval = 0.5 if sys.stderr.isatty() else QUIETLY
        self._bar = tqdm(
            total=total, initial=step, unit="step", desc=self.run.name, dynamic_ncols=True, mininterval=interval
        )
        return self._bar

    def updated(self, progress: Progress, rate: float) -> None:
        """After each step, a skipped one too; `rate` is the learning rate."""
        self._bar.update()
        if progress.step % self.settings.log_every:
            return
        record = self.meter.record(progress.step, progress.epoch, progress.seconds, rate)
        record["skipped_steps"] = progress.skipped
        if self.recorder is not None:
            self.recorder.write(record)
        text = (
            f"loss {record['loss']:.3f} nats/token, ppl {record['perplexity']:.2f}, "
            f"{record['tokens_per_second']:,.0f} tok/s, lr {record['learning_rate']:.2g}, "
            f"‖g‖ {record['gradient_norm']:.2f}"
        )
        if progress.skipped:
            text += f", {progress.skipped:,} skipped"
        if self.settings.minutes is not None:
            text += f", limit in {max(0.0, self.settings.minutes - progress.seconds / 60):.1f} min"
        self._bar.set_postfix_str(text, refresh=False)

    def validated(self, scores: Scores, progress: Progress, *, better: bool) -> None:
        """A line for people, and a record."""
        if self.recorder is not None:
            place = {"step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
            self.recorder.write({**place, **{f"valid_{name}": value for name, value in scores.items()}})
        tqdm.write(f"{progress}: {_line(scores)}{', the best so far' if better else ''}")

    def averaged(self, count: int, scores: Scores, *, better: bool) -> None:
        tqdm.write(f"Average of the last {count} checkpoints: {_line(scores)}{', the best' if better else ''}")

    def go_on(self) -> None:
        """Draw what there is, and measure speed from here: the time of a validation and its checkpoint is left out."""
        if self.recorder is not None:
            self.recorder.draw()
        self.meter.since = time.monotonic()


def _line(scores: Scores) -> str:
    *others, loss = told(scores)
    perplexity = math.exp(min(scores["loss"], 100))
    return ", ".join([f"validation {loss} (perplexity {perplexity:.2f})", *others])
