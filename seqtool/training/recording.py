"""Reports on a run: a progress bar, `metrics.jsonl` with one object per line, plots of it and TensorBoard, a line for
each validation, and at the end why it ended early, its best scores, and how to use it.
"""

import json
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from tqdm import tqdm

from seqtool.errors import naming, printable
from seqtool.runtime.files import write_whole
from seqtool.runtime.progress import progress_bar
from seqtool.settings import typed
from seqtool.training.progress import Progress
from seqtool.training.resuming import resume_command, trusting
from seqtool.training.train_settings import TrainSettings
from seqtool.training.validation import Sample, Scores, told
from seqtool.training.verdict import UNKNOWN_WORDS, verdict
from seqtool.view import run_plots
from seqtool.view.plots import or_left_out

LEARNING_CURVES, GRADIENT_FLOW = FIGURES = ("learning_curves.png", "gradient_flow.png")
RECORDS = METRICS, FLOW, SAMPLES = ("metrics.jsonl", "gradient_flow.jsonl", "samples.jsonl")
LIMITS = {"train.steps": "", "train.epochs": "", "schedule.epochs": ", where the learning rate is 0"}


class Recorder:
    """Appends to `metrics.jsonl` in the run's directory, from after `step` on."""

    def __init__(self, run: Path, *, step: int, tensorboard: bool) -> None:
        self.run = run
        self.path = run / METRICS
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

    def keep(self, step: int, samples: Sequence[Sample]) -> None:
        path = self.run / SAMPLES
        with naming(path), path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, "samples": samples}, ensure_ascii=False) + "\n")

    def draw(self) -> None:
        figure = self.run / LEARNING_CURVES
        with or_left_out(figure), suppress(run_plots.NothingToDrawError):
            run_plots.learning_curves({self.run.name: self.path}, figure)


class Meter:
    """Sums since the last record, without skipped steps; tensors are read only when a record is made."""

    def __init__(self) -> None:
        self.restart()

    def restart(self, *, nll: float = 0.0, tokens: int = 0) -> None:
        """Begin at zero, or with the sums of a stopped run: −log p in nats, tokens."""
        self.nll = torch.tensor(nll)
        self.tokens = self._before = tokens
        self.norm: Tensor | None = None
        self.since = time.monotonic()

    def state(self) -> dict[str, Any]:
        """The arguments for `restart`."""
        return {"nll": float(self.nll), "tokens": self.tokens}

    def add(self, nll: Tensor, tokens: int, norm: Tensor) -> None:
        self.nll = self.nll.to(nll.device) + nll
        self.tokens += tokens
        self.norm = norm

    def record(self, rate: float) -> dict[str, float]:
        """loss in nats per token, NaN if every step was skipped; target tokens per second."""
        loss = float(self.nll) / self.tokens if self.tokens else math.nan
        record = {
            "loss": loss,
            "perplexity": math.exp(min(loss, 100)),
            "tokens_per_second": round((self.tokens - self._before) / (time.monotonic() - self.since), 1),
            "learning_rate": rate,
            "gradient_norm": float(self.norm if self.norm is not None else math.nan),
        }
        self.restart()
        return record


@dataclass
class Reporter:
    """Keeps a run's meter and reports updates and validations; only the first process has a `recorder`. `sizes` of the
    model and of its training data are recorded with each validation, for the run's verdict.
    """

    run: Path
    recorder: Recorder | None
    settings: TrainSettings
    sizes: Mapping[str, float]
    meter: Meter = field(default_factory=Meter)

    def bar(self, step: int, total: int | None) -> Any:
        """A bar that begins at a step; `total` is None if only time or patience ends the run."""
        self._bar: Any = progress_bar(total=total, unit="step", description=self.run.name, start=step)
        return self._bar

    def updated(self, progress: Progress, rate: float) -> None:
        """Call this after each step, even a skipped one; `rate` is the learning rate."""
        self._bar.update()
        if progress.step % self.settings.log_every:
            return
        record = self.meter.record(rate)
        self._record(progress, {**record, "skipped_steps": progress.skipped})
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

    def validated(self, scores: Scores, progress: Progress, *, better: bool, outputs: Mapping[str, float]) -> None:
        """Print a line and write a record, with the shares of the outputs that are conspicuous."""
        shares = {f"outputs_{name}": share for name, share in outputs.items()}
        self._record(progress, {**{f"valid_{name}": value for name, value in scores.items()}, **shares, **self.sizes})
        tqdm.write(f"{progress}: {_line(scores)}{', the best so far' if better else ''}")

    def show(self, samples: Sequence[Sample], progress: Progress) -> None:
        """Print samples and keep them."""
        width = max((len(name) for one in samples for name in one), default=0)
        for one in samples:
            lines = (f"  {name:<{width}}  {printable(text)}" for name, text in one.items())
            tqdm.write("\n".join([*lines, ""]))
        if self.recorder is not None:
            self.recorder.keep(progress.step, samples)

    def averaged(self, count: int, scores: Scores, *, better: bool) -> None:
        tqdm.write(f"Average of the last {count} checkpoints: {_line(scores)}{', the best' if better else ''}")

    def go_on(self) -> None:
        """Update the plots, and restart the clock: speed does not include validation and saving."""
        if self.recorder is not None:
            self.recorder.draw()
        self.meter.since = time.monotonic()

    def _record(self, progress: Progress, values: Mapping[str, float]) -> None:
        if self.recorder is not None:
            place = {"step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
            self.recorder.write({**place, **values})


def closing(
    run: Path, config: DictConfig, progress: Progress, best: Mapping[str, Any], use: Callable[[str], str]
) -> Iterator[str]:
    """The lines at the end of a run. `best` is the best checkpoint's record, `use` gives the command line for one."""
    settings, trust = typed(TrainSettings, config.train), trusting(config, resuming=False)
    limits = {name: OmegaConf.select(config, name) for name in LIMITS}  # the limits that it has not reached
    missed = [f"{name}={value:g}{LIMITS[name]}" for name, value in limits.items() if value is not None]
    if reached := progress.limits(settings):
        ended = f"Ended by {' and '.join(f'train.{name}={most:g}' for name, most in reached.items())}"
        ended += f" at step {progress.step:,}"
        if missed and list(reached) == ["minutes"]:
            command = f"{resume_command(run)}{trusting(config, resuming=True)}"
            ended += f", in epoch {progress.epoch + 1}, before {' and '.join(missed)}. Go on with: {command}"
            ended += " train.minutes=null"
        yield ended
    if best and math.isfinite(best["loss"]):  # a resumed run may have lost its best checkpoint, and found no better one
        yield f"Best: {', '.join(told(best))} at step {best['step']:,}"
    elif not all(map(math.isfinite, progress.last.values())):
        advice = "a lower optim.lr, train.clip_norm or initialisation_gain"
        advice = "another train.best_by" if math.isfinite(progress.last["loss"]) else advice
        yield (
            f"No validation was finite (the last: {', '.join(told(progress.last))}), so no checkpoint is the best: "
            f"start again with {advice}."
        )
    for finding in verdict(run):
        if finding.name != UNKNOWN_WORDS:
            yield f"Verdict: {finding}"
    if figures := [str(run / name) for name in FIGURES if (run / name).exists()]:
        yield f"Figures: {', '.join(figures)}"
    path = shlex.quote(str(run))
    yield f"Run: {run} ({use(path)}{trust}; seqtool eval checkpoint={path}{trust})"


def _cut(path: Path, step: int) -> None:
    """Drop the records after `step`, where a run resumes, and a last line that was cut short."""
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


def _line(scores: Scores) -> str:
    *others, loss = told(scores)
    perplexity = math.inf if scores["loss"] >= 100 else math.exp(scores["loss"])
    return ", ".join([f"validation {loss} (perplexity {perplexity:.2f})", *others])
