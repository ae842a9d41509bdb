"""Diagnoses problems of a run from its records, with advice, for the end of `train` and for reports.

Each of the `RULES` computes a figure from only the run's settings and metrics.jsonl, or None if they do not suffice.
The presets that learn well stay below every threshold.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from seqtool.training.optimisation import fitting_warmup
from seqtool.view.plots import read_metrics

MAX_LEARNT_LOSS = 20.0  # nats/token; a uniform guess from any vocabulary has a lower loss
FINAL_SHARE = 0.2  # the last share of a run's steps, in which the loss should no longer fall
UNKNOWN_WORDS = "unknown words"


class Finding(NamedTuple):
    """A problem of a run: a figure above its threshold, and advice on what it means and what to do."""

    name: str
    figure: str
    threshold: str
    advice: str

    def __str__(self) -> str:
        return f"{self.advice} ({self.figure}; the limit is {self.threshold})"


@dataclass(frozen=True)
class Records:
    """A run's settings, and for each name in its metrics.jsonl the steps and the values."""

    settings: Any
    series: Mapping[str, tuple[list[int], list[float]]]

    def last(self, name: str) -> float:
        """The last value of this name; NaN if there is none."""
        return self.series[name][1][-1] if name in self.series else float("nan")

    @cached_property
    def last_step(self) -> int:
        """The last step with a record."""
        return max((steps[-1] for steps, _ in self.series.values()), default=0)

    @cached_property
    def warmup(self) -> int:
        """The number of warm-up steps; 0 without a warm-up."""
        return int(OmegaConf.select(self.settings, "schedule.warmup") or 0)

    @cached_property
    def losses(self) -> list[tuple[float, int]]:
        """The validation losses, each with its step."""
        steps, losses = self.series.get("valid_loss", ([], []))
        return list(zip(losses, steps, strict=True))

    @cached_property
    def best_epoch(self) -> int:
        """The number of whole epochs before the lowest validation loss."""
        epochs = dict(zip(*self.series["epoch"], strict=True))
        return int(epochs[min(self.losses)[1]]) if self.losses else 0


def final_decrease(run: Records) -> float | None:
    """The decrease of the validation loss in the last `FINAL_SHARE` of the steps; None if the last loss is not the
    lowest, or if the model has learnt nothing.
    """
    earlier = [loss for loss, step in run.losses if step <= (1 - FINAL_SHARE) * run.last_step]
    if not earlier or run.losses[-1] != min(run.losses) or run.losses[-1][0] > MAX_LEARNT_LOSS:
        return None
    return earlier[-1] - run.losses[-1][0]


class Rule(NamedTuple):
    """A rule that yields a finding if the figure is above the threshold.

    form: a format string for the figure; its first word is also the format of the threshold.
    advice: a format string with {run}, a `Records`, and {fitting}, a suitable number of warm-up steps.
    """

    name: str
    figure: Callable[[Records], float | None]
    threshold: float
    form: str
    advice: str


RULES = (
    Rule(
        "the learning rate never rose to its value",
        figure=lambda run: run.warmup / run.last_step if run.last_step else None,
        threshold=1.0,
        form="{:.3g} steps of warm-up for each step of the run",
        advice="The learning rate never rose to optim.lr: the warm-up has {run.warmup:,} steps and the run had "
        "{run.last_step:,}. Set schedule.warmup={fitting:,}, or train longer.",
    ),
    Rule(
        "the validation loss still falls",
        figure=final_decrease,
        threshold=0.05,
        form="{:.3f} nats/token in the last fifth of the steps",
        advice="The validation loss was still falling at the end: train longer (train.epochs, train.steps, "
        "train.minutes).",
    ),
    Rule(
        "the validation loss rises",
        figure=lambda run: run.losses[-1][0] - min(run.losses)[0] if run.losses else None,
        threshold=0.2,
        form="{:.3f} nats/token above the lowest",
        advice="The validation loss has risen since epoch {run.best_epoch}: the model is overfitting. Add "
        "data, raise model.dropout, lower the model's sizes, or end the run earlier with train.patience.",
    ),
    Rule(
        UNKNOWN_WORDS,
        figure=lambda run: run.last("train_unknown") / max(run.last("train_tokens"), 1),
        threshold=0.05,
        form="{:.1%} of the training tokens",
        advice="Many words are not in the vocabulary: lower data.vocabulary.minimum_count, raise data.vocabulary.size, "
        "or use subwords (data.vocabulary.kind=bpe).",
    ),
    Rule(
        "outputs that do not end, repeat themselves or are all alike",
        figure=lambda run: max((run.last(name) for name in run.series if name.startswith("outputs_")), default=None),
        threshold=0.25,
        form="{:.0%} of the last validation's outputs",
        advice="Many outputs do not end, repeat themselves or are all alike, so the model hardly uses its input yet: "
        "train longer, on more data, or with another optim.lr.",
    ),
    Rule(
        "too little data for the model",
        figure=lambda run: run.last("parameters") / max(run.last("train_tokens"), 1),
        threshold=100.0,
        form="{:,.0f} trained parameters for each training token",
        advice="There is little data for a model of this size: add data, or lower its sizes (model.*).",
    ),
)


def verdict(run: Path) -> Iterator[Finding]:
    """Yield the findings on the run in this directory. Raises InputError if its metrics are damaged."""
    settings, metrics = run / "config.yaml", run / "metrics.jsonl"
    if not (settings.is_file() and metrics.is_file()):
        return
    records = Records(OmegaConf.load(settings), read_metrics(metrics))
    for rule in RULES:
        figure = rule.figure(records)
        if figure is not None and figure > rule.threshold:
            advice = rule.advice.format(run=records, fitting=fitting_warmup(records.last_step))
            threshold = rule.form.split()[0].format(rule.threshold)
            yield Finding(rule.name, rule.form.format(figure), threshold, advice)
