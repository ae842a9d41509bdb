"""Diagnoses problems of a run from its records, with advice, for the end of `train` and for reports.

Each of the `FIGURES` is computed from only the run's settings and metrics.jsonl, and is None if they do not suffice.
verdict.yaml has their thresholds, and the advice. The presets that learn well stay below every threshold.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from seqtool.training.optimisation import fitting_warmup
from seqtool.view.plots import read_metrics

MAX_LEARNT_LOSS = 20.0  # nats/token; a uniform guess from any vocabulary has a lower loss
FINAL_SHARE = 0.2  # the last share of a run's steps, in which the loss should no longer fall


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


def rise(run: Records) -> float | None:
    """How far the validation loss has risen above its minimum; None if sequences were rewarded, which raises it."""
    is_rewarded = OmegaConf.select(run.settings, "train.objective") == "sequence"
    return run.losses[-1][0] - min(run.losses)[0] if run.losses and not is_rewarded else None


FIGURES: dict[str, Callable[[Records], float | None]] = {
    "warmup": lambda run: run.warmup / run.last_step if run.last_step else None,
    "final_decrease": final_decrease,
    "rise": rise,
    "unknown_words": lambda run: run.last("train_unknown") / max(run.last("train_tokens"), 1),
    "outputs": lambda run: max((run.last(name) for name in run.series if name.startswith("outputs_")), default=None),
    "little_data": lambda run: run.last("parameters") / max(run.last("train_tokens"), 1),
}
RULES: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
UNKNOWN_WORDS: str = RULES["unknown_words"]["name"]


def verdict(run: Path) -> Iterator[Finding]:
    """Yield the findings on the run in this directory. Raises InputError if its metrics are damaged."""
    settings, metrics = run / "config.yaml", run / "metrics.jsonl"
    if not (settings.is_file() and metrics.is_file()):
        return
    records = Records(OmegaConf.load(settings), read_metrics(metrics))
    for key, rule in RULES.items():
        figure = FIGURES[key](records)
        if figure is not None and figure > rule["threshold"]:
            advice = rule["advice"].format(run=records, fitting=fitting_warmup(records.last_step))
            threshold = rule["form"].split()[0].format(rule["threshold"])
            yield Finding(rule["name"], rule["form"].format(figure), threshold, advice)
