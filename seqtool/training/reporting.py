"""What people and files are told of a run: a bar, records of the losses, a line for each validation, and at its end
what ended it early, how good it is, and how to use it.
"""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from seqtool.runtime.progress import progress_bar
from seqtool.settings import typed
from seqtool.training.place import resume_command
from seqtool.training.progress import Progress
from seqtool.training.recording import FIGURES, Meter, Recorder
from seqtool.training.resuming import trusting
from seqtool.training.train_settings import TrainSettings
from seqtool.training.validation import Scores, told

LIMITS = {"train.steps": "", "train.epochs": "", "schedule.epochs": ", where the learning rate is 0"}


@dataclass
class Reporter:
    """Keeps a run's meter, and tells of its updates and validations; only the first process has a `recorder`."""

    run: Path
    recorder: Recorder | None
    settings: TrainSettings
    meter: Meter = field(default_factory=Meter)

    def bar(self, step: int, total: int | None) -> Any:
        """A bar that begins at a step; `total` None where nothing but time or patience ends the run."""
        self._bar: Any = progress_bar(total=total, unit="step", description=self.run.name, start=step)
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


def closing(
    run: Path, config: DictConfig, progress: Progress, best: Mapping[str, Any], use: Callable[[str], str]
) -> Iterator[str]:
    """The lines at the end of a run. `best` is the best checkpoint's record, `use` gives the command line for one."""
    settings, trust = typed(TrainSettings, config.train), trusting(config)
    limits = {name: OmegaConf.select(config, name) for name in LIMITS}  # what it was on its way to
    missed = [f"{name}={value:g}{LIMITS[name]}" for name, value in limits.items() if value is not None]
    if missed and progress.ended_by_time(settings):
        yield (
            f"Ended by train.minutes={settings.minutes:g} at step {progress.step:,}, in epoch {progress.epoch + 1}, "
            f"before {' and '.join(missed)}. Go on with: {resume_command(run)}{trust} train.minutes=null"
        )
    if best:  # a resumed run may have lost its best checkpoint, and found no better one
        yield f"Best: {', '.join(told(best))} at step {best['step']:,}"
    if figures := [str(run / name) for name in FIGURES if (run / name).exists()]:
        yield f"Figures: {', '.join(figures)}"
    path = shlex.quote(str(run))
    yield f"Run: {run} ({use(path)}{trust}; seqtool eval checkpoint={path}{trust})"


def _line(scores: Scores) -> str:
    *others, loss = told(scores)
    perplexity = math.exp(min(scores["loss"], 100))
    return ", ".join([f"validation {loss} (perplexity {perplexity:.2f})", *others])
