"""Records and shows a run.

While it trains: a progress bar, a line for each validation, `metrics.jsonl` with one object per line, plots of it, and
TensorBoard. At its end: why it ended, its best scores, and how to use it.
"""

import json
import math
import resource
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from tqdm import tqdm

from seqtool.errors import naming, printable
from seqtool.runtime import distributed
from seqtool.runtime.files import finite_json, read_json_lines, write_whole
from seqtool.runtime.progress import progress_bar
from seqtool.settings import typed
from seqtool.training.resuming import resume_command, trust_option
from seqtool.training.saving import AVERAGED, Progress, TrainSettings
from seqtool.training.validation import Sample, Scores, format_scores
from seqtool.training.verdict import UNKNOWN_WORDS, verdict
from seqtool.view import plots

LEARNING_CURVES, GRADIENT_FLOW = FIGURES = ("learning_curves.png", "gradient_flow.png")
RECORDS = METRICS, FLOW, SAMPLES = ("metrics.jsonl", "gradient_flow.jsonl", "samples.jsonl")
DRAW_SECONDS = 10  # between drawings of the learning curves, each of which takes up to a second
PARTIAL_FILES = (".config.yaml.*", ".*.jsonl.*", ".*.png.*", f".{AVERAGED}.*")  # left by a killed process
# Settings that limit a run, each with the clause that follows its value in the summary.
LIMITS = {"train.steps": "", "train.epochs": "", "schedule.epochs": ", where the learning rate is 0"}


class MetricsLog:
    """Shows a run's updates and validations, and records them in its directory; only the first process writes.

    `nll` and `tokens` are sums since the last record, without skipped steps; `norm` is the last step's gradient norm.
    Tensors are read only when a record is made, since that waits for a GPU.
    """

    def __init__(self, run: Path, settings: TrainSettings, sizes: Mapping[str, float], *, step: int) -> None:
        """Open the records and drop those after `step`, where the run resumes. `sizes` of the model and training data
        are recorded with each validation, for the verdict.
        """
        self.run, self.settings, self.sizes = run, settings, sizes
        self.restart()
        self._drawn = time.monotonic()
        self._tensorboard: Any = None
        self._bar: Any = None
        if not distributed.is_first():
            return
        if settings.tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._tensorboard = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        for name in RECORDS:
            _truncate(run / name, step)
        for path in (path for pattern in PARTIAL_FILES for path in run.glob(pattern)):
            path.unlink()

    def bar(self, step: int, total: int | None) -> Any:
        """Make a progress bar that begins at `step`; `total` is None if only time or patience ends the run."""
        self._bar = progress_bar(total=total, unit="step", description=self.run.name, start=step)
        return self._bar

    def restart(self, *, nll: float = 0.0, tokens: int = 0, reward: float = 0.0, rewarded: int = 0) -> None:
        """Reset the sums of −log p, in nats, of tokens, and of the rewards of updates and their number to zero, or to
        the saved sums of a run that resumes.
        """
        self.nll, self.reward, self.rewarded = torch.tensor(nll), torch.tensor(reward), rewarded
        self.tokens = self._recorded_tokens = tokens
        self.norm: Tensor | None = None
        self.since = time.monotonic()

    def add(self, nll: Tensor, tokens: int, norm: Tensor, reward: Tensor | None) -> None:
        """Add an update: its summed −log p in nats, target tokens, the norm of its gradient, and its mean reward."""
        self.nll = self.nll.to(nll.device) + nll
        self.tokens += tokens
        self.norm = norm
        if reward is not None:
            self.reward, self.rewarded = self.reward.to(reward.device) + reward, self.rewarded + 1

    def updated(self, progress: Progress, rate: float) -> None:
        """Advance the bar after a step, even a skipped one. Every `train.log_every` steps, record and show the loss in
        nats per token (NaN if every step was skipped), target tokens per second, and `rate`, the learning rate.
        """
        self._bar.update()
        if progress.step % self.settings.log_every:
            return
        loss = float(self.nll) / self.tokens if self.tokens else math.nan
        record = {
            "loss": loss,
            "perplexity": math.exp(min(loss, 100)),  # limited, since exp overflows at 710
            "tokens_per_second": round((self.tokens - self._recorded_tokens) / (time.monotonic() - self.since), 1),
            "learning_rate": rate,
            "gradient_norm": float(self.norm if self.norm is not None else math.nan),
        }
        if self.rewarded:
            record["reward"] = float(self.reward) / self.rewarded
        self.restart()
        self._write(progress, {**record, "skipped_steps": progress.skipped})
        text = (
            f"loss {record['loss']:.3f} nats/token, ppl {record['perplexity']:.2f}, "
            f"{record['tokens_per_second']:,.0f} tok/s, lr {record['learning_rate']:.2g}, "
            f"‖g‖ {record['gradient_norm']:.2f}"
        )
        if "reward" in record:
            text = f"reward {record['reward']:.4f}, {text}"
        if progress.skipped:
            text += f", {progress.skipped:,} skipped"
        if self.settings.minutes is not None:
            text += f", limit in {max(0.0, self.settings.minutes - progress.seconds / 60):.1f} min"
        self._bar.set_postfix_str(text, refresh=False)

    def validated(self, scores: Scores, progress: Progress, *, better: bool, facts: Mapping[str, float]) -> None:
        """Print the scores, and record them with `Validator.facts` and the most memory that was used so far, in MB: by
        tensors on the GPU or, without one, by this process.
        """
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        memory = {"peak_memory": (torch.cuda.max_memory_allocated() or resident) // 10**6}
        named_scores = {f"valid_{name}": value for name, value in scores.items()}
        self._write(progress, {**named_scores, **facts, **self.sizes, **memory})
        tqdm.write(f"{progress}: {_score_line(scores)}{', the best so far' if better else ''}")

    def show(self, samples: Sequence[Sample], progress: Progress) -> None:
        """Print samples and append them to samples.jsonl."""
        for sample in samples:
            lines = (f"  {name:<10}  {printable(text)}" for name, text in sample.items() if name != "attention")
            tqdm.write("\n".join([*lines, ""]))
        append_record(self.run / SAMPLES, {"step": progress.step, "samples": samples})

    def averaged(self, count: int, scores: Scores, *, better: bool) -> None:
        """Print the scores of an average of `count` checkpoints."""
        tqdm.write(f"Average of the last {count} checkpoints: {_score_line(scores)}{', the best' if better else ''}")

    def draw(self, *, last: bool = False) -> None:
        """Draw the learning curves, unless they were drawn within the last `DRAW_SECONDS` and will be drawn again, or a
        run is stopped before it records anything.
        """
        is_due = last or time.monotonic() >= self._drawn + DRAW_SECONDS
        if not (is_due and distributed.is_first() and (self.run / METRICS).exists()):
            return
        figure = self.run / LEARNING_CURVES
        with plots.optional_figure(figure):
            plots.learning_curves({self.run.name: self.run / METRICS}, figure)
        self._drawn = time.monotonic()

    def _write(self, progress: Progress, values: Mapping[str, float]) -> None:
        if not distributed.is_first():
            return
        numbers = {"epoch": progress.epoch, "seconds": round(progress.seconds, 1), **values}
        append_record(self.run / METRICS, {"step": progress.step, **numbers})
        if self._tensorboard is not None:
            for name, value in numbers.items():
                if math.isfinite(value):
                    self._tensorboard.add_scalar(name, value, progress.step)


def summary(run: Path, config: DictConfig, progress: Progress, best: Mapping[str, Any], usage: str) -> Iterator[str]:
    """Yield the lines that are printed at the end of a run. `best` is the best checkpoint, as in `Progress`; `usage` is
    the command that uses the trained model, a format string with {checkpoint}.
    """
    settings, trust = typed(TrainSettings, config.train), trust_option(config, resuming=False)
    limits = {name: OmegaConf.select(config, name) for name in LIMITS}  # reported if time ran out before
    missed_limits = [f"{name}={value:.15g}{LIMITS[name]}" for name, value in limits.items() if value is not None]
    if reached_limits := progress.limits(settings):
        message = f"Ended by {' and '.join(f'train.{name}={limit:.15g}' for name, limit in reached_limits.items())}"
        message += f" at step {progress.step:,}"
        if missed_limits and list(reached_limits) == ["minutes"]:
            command = f"{resume_command(run, trust_option(config, resuming=True))} train.minutes=null"
            message += f", in epoch {progress.epoch + 1}, before {' and '.join(missed_limits)}. Resume with: {command}"
        yield message
    if best and math.isfinite(best["loss"]):  # a resumed run may have lost its best checkpoint
        yield f"Best: {', '.join(format_scores(best))} at step {best['step']:,}"
    elif not all(map(math.isfinite, progress.last.values())):
        lower = "a lower optim.lr, train.clip_norm or initialisation_gain"
        advice = "another train.best_by" if math.isfinite(progress.last["loss"]) else lower
        last = ", ".join(format_scores(progress.last))
        yield f"No validation was finite (the last: {last}), so no checkpoint is the best: start again with {advice}."
    for finding in verdict(run):
        if finding.name != UNKNOWN_WORDS:
            yield f"Verdict: {finding}"
    if figures := [str(run / name) for name in FIGURES if (run / name).exists()]:
        yield f"Figures: {', '.join(figures)}"
    path = shlex.quote(str(run))
    yield f"Run: {run} ({usage.format(checkpoint=path)}{trust}; seqtool eval checkpoint={path}{trust})"


def read_samples(run: Path) -> list[dict[str, Any]]:
    """The samples of a run, one record for each validation whose samples were kept; empty if it kept none."""
    return read_json_lines(run / SAMPLES, _are_samples, "holds no samples") if (run / SAMPLES).is_file() else []


def _are_samples(record: Mapping[str, Any]) -> bool:
    """Whether a record of samples.jsonl has the expected form."""
    texts = [text for sample in record["samples"] for name, text in sample.items() if name != "attention"]
    looks = [sample["attention"] for sample in record["samples"] if "attention" in sample]
    shapes = [(len(seen["target"]), len(seen.get("source", ())) or math.prod(seen["grid"])) for seen in looks]
    is_valid = isinstance(record["step"], int) and shapes == [np.shape(seen["weights"]) for seen in looks]
    return is_valid and all(isinstance(text, str) for text in texts)


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a line of JSON to a file."""
    with naming(path), path.open("a", encoding="utf-8") as stream:
        stream.write(finite_json(record) + "\n")


def _truncate(path: Path, step: int) -> None:
    """Drop the records after `step`, where a run resumes, and an incomplete last line."""
    if not path.exists():
        return
    lines = []
    for line in path.read_bytes().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                lines.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            break
    write_whole(path, b"".join(lines))


def _score_line(scores: Scores) -> str:
    *other_scores, loss = format_scores(scores)
    # from a loss of 100 on, the perplexity has 44 digits or more, and exp overflows at 710
    perplexity = math.inf if scores["loss"] >= 100 else math.exp(scores["loss"])
    return ", ".join([f"validation {loss} (perplexity {perplexity:.2f})", *other_scores])
