"""Metrics, and the scores of systems.

`SCORES` has the built-in metrics, which scores.yaml lists; a new metric is a line there and a `Scorer`. `Metric` is the
base class of user-defined metrics.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from seqtool.errors import InputError
from seqtool.metrics.bootstrap import SAMPLES, SEED, Draws, Estimate, Indices, estimate, p_value, record_of, resampled
from seqtool.runtime.tables import table
from seqtool.settings.classes import import_class

Statistics = NDArray[Any]  # a row for each segment; the scores of a corpus are computed from its rows


@dataclass(frozen=True)
class MetricInfo:
    """The description of a metric."""

    name: str  # the name in settings and in the files of a run
    label: str  # the name in tables, curves and JSON
    higher_is_better: bool = True
    digits: int = 2  # the number of decimal places
    unit: str = ""  # the unit that follows a value; may be empty
    task: str = ""  # the task whose `eval` computes it; empty if none does
    scorer: str | None = None  # `module:name` of what makes its `Scorer`; None if something else computes it
    title: str = ""  # a longer name for reports; empty if it is the label

    @property
    def heading(self) -> str:
        """The name in reports: the title, or else the label."""
        return self.title or self.label

    @property
    def directed_heading(self) -> str:
        """The heading, and that lower is better if it is."""
        return self.heading if self.higher_is_better else f"{self.heading} (lower is better)"

    def text(self, value: float) -> str:
        """The score with label and unit: `BLEU 37.10`, `loss 2.130 nats/token`."""
        return f"{self.label} {value:z.{self.digits}f} {self.unit}".rstrip()


class Scorer(ABC):
    """Scores hypotheses against references. Its constructor takes a list of references for each segment (sentence or
    image). A score is a function of segments' statistics, so a corpus can be resampled, and a segment scored alone.
    """

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        """Return a row for each segment; the hypotheses are in the order of the references."""

    @abstractmethod
    def scores(self, statistics: Statistics) -> dict[str, float]:
        """Return the scores, by name, of the corpus whose segments have these statistics."""

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        """Return the scores of each segment alone."""
        return [self.scores(row[np.newaxis]) for row in statistics]

    def warnings(self) -> list[str]:
        """Return reasons why the scores may mislead, for users."""
        return []

    @abstractmethod
    def signature(self, *, samples: int | None = None) -> str:
        """Return the signature to quote with the scores; `statistics` must have been called before. samples: the number
        of resamples of a paired bootstrap, if there was one
        """


class Metric(Scorer):
    """The base class of user-defined metrics, which settings refer to by dotted names such as `mine.Exact`.

    `statistics` compares hypotheses with `self.references`, and `score` computes a single number from the statistics,
    such as a mean or a ratio.
    """

    higher_is_better: bool = True

    def __init__(self, references: Sequence[Sequence[str]], *, name: str) -> None:
        self.references = references
        self.name = name

    @abstractmethod
    def score(self, statistics: Statistics) -> float:
        """Return the score of the corpus whose segments have these statistics."""

    def scores(self, statistics: Statistics) -> dict[str, float]:
        return {self.name: float(self.score(statistics))}

    def signature(self, *, samples: int | None = None) -> str:
        parts = {"metric": self.name, **({} if samples is None else {"bs": samples, "seed": SEED})}
        return "|".join(f"{key}:{value}" for key, value in parts.items())


TRANSLATION, CAPTIONING = "translation", "captioning"
TABLE: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
SCORES = {name: MetricInfo(**{"name": name, "label": name, **fields}) for name, fields in TABLE.items()}


def score_names(task: str) -> list[str]:
    """The names of a task's scores that have a scorer, in the order of the tables of `eval`."""
    return [info.name for info in SCORES.values() if info.task == task and info.scorer is not None]


def labels_of(task: str) -> frozenset[str]:
    """The labels of all scores of a task's `eval`, which are keys in its records."""
    return frozenset(info.label for info in SCORES.values() if info.task == task)


def is_score(name: str) -> bool:
    """Whether this is the name of a built-in score, or a dotted name, which may be a user-defined score."""
    return name in SCORES or "." in name


def score(name: str) -> MetricInfo:
    """The description of a score; for a user-defined score it is made from the name, without importing the class."""
    return SCORES.get(name) or MetricInfo(name, name.rpartition(".")[2], digits=4)


def higher_is_better(name: str) -> bool:
    """Whether a higher score is better. The class of a user-defined score is imported."""
    return score(name).higher_is_better if name in SCORES else metric(name).higher_is_better


def metric(name: str, *, setting: str = "scores") -> type[Metric]:
    """Import the class of a user-defined metric by its dotted name, which `setting` holds."""
    metric_class = import_class(name, Metric, setting=setting)
    if isinstance(metric_class, str):
        raise InputError(
            f"Unknown score '{name}': {setting}= takes the dotted names of your own metrics, such as mine.Exact."
        )
    return metric_class


def scorers(names: Iterable[str], references: Sequence[Sequence[str]], **options: Any) -> list[Scorer]:
    """The scorers that compute these scores, built-in ones first; a scorer of several scores is made once. options:
    keyword arguments of the built-in scorers, such as `tokenize`
    """
    names = list(dict.fromkeys(names))
    built_in = dict.fromkeys(str(SCORES[name].scorer) for name in names if name in SCORES)
    user_defined = [metric(name)(references, name=name) for name in names if name not in SCORES]
    return [*(resolve_name(scorer)(references, **options) for scorer in built_in), *user_defined]


def names_in_sum(text: str) -> list[str]:
    """The names of the scores in a weighted sum such as cider_d+0.5*bleu4."""
    return [part.rpartition("*")[2].strip() for part in text.split("+")]


def parse_sum(text: str, task: str, *, setting: str, others: Sequence[str] = ()) -> dict[str, float]:
    """The weights of the scores in a weighted sum such as cider_d+0.5*bleu4, by name; `others` may be in it too. Raises
    InputError, in which `setting` has this value, for what is no score of the task.
    """
    weights: dict[str, float] = {}
    for name, part in zip(names_in_sum(text), text.split("+"), strict=True):
        weight = part.rpartition("*")[0].strip()
        if not name:
            raise InputError(f"{setting}={text} has a part without a score: write a sum such as bleu+0.5*chrf.")
        if "." in name and not name[0].isdigit():
            metric(name, setting=setting)
        elif name not in (names := [*score_names(task), *others]):
            choices = f"{', '.join(names)}, or one of your own, after its weight: 0.5*{names[0]}"
            raise InputError(f"{setting}={name} is no score of {task}; choose from {choices}.")
        try:
            weights[name] = weights.get(name, 0.0) + (number := float(weight or 1))
            if not math.isfinite(weights[name]) or number == 0:
                raise ValueError
        except ValueError as error:
            raise InputError(
                f"{setting}: the weight of {name} must be a number other than 0, not {weight}. Parts are joined by "
                "+; scores of which lower is better are subtracted anyway."
            ) from error
    if zero := [name for name, weight in weights.items() if not weight]:
        raise InputError(f"{setting}={text}: the weights of {zero[0]} add up to 0: leave it out.")
    return weights


def weighted_sums(
    weights: Mapping[str, float], scorers: Iterable[Scorer], hypotheses: Sequence[str], *, noun: str
) -> NDArray[np.float64]:
    """The weighted sum of the scores that `eval` gives each hypothesis alone.

    Scores of translations count from 0 to 1, those of captions and the user's own as they are, and scores of which
    lower is better are subtracted. Raises InputError, which calls the sum `noun`, for a score that is not finite.
    """
    sums, factors = np.zeros(len(hypotheses)), {}
    for name, weight in weights.items():
        scale = 0.01 if name in SCORES and SCORES[name].task == TRANSLATION else 1.0
        factors[name] = weight * scale * (1 if higher_is_better(name) else -1)
    for scorer in scorers:
        for i, values in enumerate(scorer.each(scorer.statistics(hypotheses))):
            found = {name: values[name] for name in factors if name in values}
            if not all(map(math.isfinite, found.values())):
                named = ", ".join(f"{name} {value}" for name, value in found.items())
                raise InputError(
                    f"A {noun} must be a finite number, but “{hypotheses[i]}” has {named}: "
                    "the score must give a number for it."
                )
            sums[i] += sum(value * factors[name] for name, value in found.items())
    return sums


class System:
    """A system's hypotheses, one for each segment, and their scores; resampled only when intervals are needed."""

    def __init__(self, hypotheses: Sequence[str], scorers: Sequence[Scorer], *, samples: int = SAMPLES) -> None:
        self.hypotheses, self.scorers, self.samples = hypotheses, scorers, samples
        self.statistics = [scorer.statistics(hypotheses) for scorer in scorers]
        self.values: dict[str, float] = {}  # by the name of the score
        self._scorer_by_score: dict[str, Scorer] = {}  # by the name of the score
        for scorer, statistics in zip(scorers, self.statistics, strict=True):
            values = scorer.scores(statistics)
            self.values |= values
            self._scorer_by_score |= dict.fromkeys(values, scorer)

    def signature(self, name: str, *, samples: int | None = None) -> str:
        """The signature of a score. `samples` is the number of resamples of a paired bootstrap, if there was one."""
        return self._scorer_by_score[name].signature(samples=samples)

    @cached_property
    def draws(self) -> dict[str, Draws]:
        """The scores of all resamples, by name; empty arrays if `samples` is 0."""
        if not self.samples:
            return dict.fromkeys(self.values, np.empty(0))

        def scores(rows: Indices) -> list[float]:
            pairs = zip(self.scorers, self.statistics, strict=True)
            return [value for scorer, statistics in pairs for value in scorer.scores(statistics[rows]).values()]

        draws = resampled(scores, [np.arange(len(self.hypotheses))], self.samples)
        return dict(zip(self.values, draws.T, strict=True))

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Each score with its interval, by name."""
        return {name: estimate(value, self.draws[name]) for name, value in self.values.items()}

    def each(self) -> list[dict[str, Any]]:
        """A record of each segment, for JSON: the hypothesis and its scores by label."""
        segments: list[dict[str, Any]] = [{"hypothesis": hypothesis, "scores": {}} for hypothesis in self.hypotheses]
        for scorer, statistics in zip(self.scorers, self.statistics, strict=True):
            for segment, scores in zip(segments, scorer.each(statistics), strict=True):
                segment["scores"] |= {score(name).label: value for name, value in scores.items()}
        return segments


@dataclass(frozen=True)
class Difference:
    """One score of a system and of its baseline."""

    name: str  # the label of the score
    baseline: Estimate
    system: Estimate
    p_value: float | None  # from a paired bootstrap; None without resamples
    signature: str  # the signature of the score

    @property
    def p(self) -> str:
        """The p-value as text: “-” if there is none."""
        return "-" if self.p_value is None else f"{self.p_value:.4f}"

    def text(self, digits: int) -> str:
        """The system's score minus the baseline's, with its sign."""
        return f"{self.system.value - self.baseline.value:+z.{digits}f}"


class Comparison:
    """The differences between a system and its baseline on the same segments, from the same resamples."""

    def __init__(self, baseline: System, system: System) -> None:
        self.digits = max(score(name).digits for name in system.values)
        self.differences: list[Difference] = []
        for name in system.values:
            baseline_estimate, system_estimate, p = baseline.estimates[name], system.estimates[name], None
            if system.samples:
                scale = max(abs(baseline_estimate.value), abs(system_estimate.value))
                differences = system.draws[name] - baseline.draws[name]
                p = p_value(system_estimate.value - baseline_estimate.value, differences, scale=scale)
                if name in SCORES and round(scale, score(name).digits) == 0:
                    p = 1.0  # both are printed as 0; they differ only by the constants that avoid dividing by zero
            signature = system.signature(name, samples=system.samples or None)
            self.differences.append(Difference(score(name).label, baseline_estimate, system_estimate, p, signature))

    def record(self) -> dict[str, Any]:
        """The differences as plain containers, for JSON."""
        return {"differences": [record_of(difference) for difference in self.differences]}

    def text(self) -> str:
        """A table, followed by the signature of each score, or a single one if all are equal."""
        rows = [
            (d.name, d.baseline.text(self.digits), d.system.text(self.digits), d.text(self.digits), d.p)
            for d in self.differences
        ]
        signatures = {d.signature for d in self.differences}
        signature_lines = signatures if len(signatures) == 1 else [f"{d.name}: {d.signature}" for d in self.differences]
        return "\n".join([*table(("score", "baseline", "system", "difference", "p"), rows), "", *signature_lines])
