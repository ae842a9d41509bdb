"""The metrics: their names, whether higher is better, and what computes them; a new one is a line in `SCORES`. Systems
are scored by them, with intervals and segment by segment, and compared with each other.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqtool.errors import InputError
from seqtool.metrics.bootstrap import SAMPLES, SEED, Draws, Estimate, estimate, p_value, record_of, resampled
from seqtool.runtime.tables import table
from seqtool.settings.classes import imported

Statistics = NDArray[Any]  # a row per segment: everything from which the score of a corpus is computed


@dataclass(frozen=True)
class MetricInfo:
    """What there is to know of a metric without computing it.

    name: in settings and in the files of a run
    label: in tables, curves and JSON
    digits: after the point
    task: whose `eval` has it; empty if none computes it
    scorer: `module:name` of what makes the `Scorer` that computes it, if a `Scorer` does
    title: where there is room for it; empty if that is the label
    """

    name: str
    label: str
    higher_is_better: bool = True
    digits: int = 2
    unit: str = ""
    task: str = ""
    scorer: str | None = None
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or self.label

    def text(self, value: float) -> str:
        """The score as people read it: `BLEU 37.10`, `loss 2.130 nats/token`."""
        return f"{self.label} {value:.{self.digits}f} {self.unit}".rstrip()


class Scorer(ABC):
    """Scores hypotheses against the references that it was made with: a list per segment, a sentence or image.

    A score is a function of statistics per segment, so a corpus can be resampled and its segments scored one by one.
    """

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        """One row per segment; the hypotheses are in the order of the references."""

    @abstractmethod
    def scores(self, statistics: Statistics) -> dict[str, float]:
        """The scores by name of the corpus whose segments have these statistics."""

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        """The scores of each segment by itself."""
        return [self.scores(row[np.newaxis]) for row in statistics]

    def warnings(self) -> list[str]:
        """Sentences that a reader should know before trusting the scores."""
        return []

    @abstractmethod
    def signature(self, *, samples: int | None = None) -> str:
        """The signature to quote with the scores, once statistics exist; `samples`: of a paired bootstrap."""


class Metric(Scorer):
    """A user-defined score, one number, which settings name by its dotted name, `mine.Exact`.

    It is a mean, a ratio or the like of the segments' statistics: `statistics` computes these from hypotheses and
    `self.references`, and `score` combines them.
    """

    higher_is_better: bool = True

    def __init__(self, references: Sequence[Sequence[str]], *, name: str) -> None:
        self.references = references
        self.name = name

    @abstractmethod
    def score(self, statistics: Statistics) -> float:
        """The score of the corpus whose segments have these statistics."""

    def scores(self, statistics: Statistics) -> dict[str, float]:
        return {self.name: float(self.score(statistics))}

    def signature(self, *, samples: int | None = None) -> str:
        parts = {"metric": self.name, **({} if samples is None else {"bs": samples, "seed": SEED})}
        return "|".join(f"{key}:{value}" for key, value in parts.items())


TRANSLATION, CAPTIONING = "translation", "captioning"
SACREBLEU, CAPTIONS = "seqtool.metrics.translation:", "seqtool.metrics.captions:CaptionScorer"

SCORES = {
    info.name: info
    for info in (
        MetricInfo("loss", "loss", higher_is_better=False, digits=3, unit="nats/token"),
        MetricInfo("bits", "bits/character", higher_is_better=False, digits=3),  # for text
        # in training `bleu` is also captions' BLEU-4, and `cider` their CIDEr-D
        MetricInfo("bleu", "BLEU", task=TRANSLATION, scorer=f"{SACREBLEU}Bleu"),
        MetricInfo("chrf", "chrF2", task=TRANSLATION, scorer=f"{SACREBLEU}make_chrf"),
        MetricInfo("ter", "TER", higher_is_better=False, task=TRANSLATION, scorer=f"{SACREBLEU}make_ter"),
        MetricInfo("cider", "CIDEr-D", digits=3),
        # for captions: the labels are the names that `eval` writes; there `cider` is without CIDEr-D's penalties
        *(
            MetricInfo(f"bleu{n}", f"bleu{n}", digits=4, task=CAPTIONING, scorer=CAPTIONS, title=f"BLEU-{n}")
            for n in (1, 2, 3, 4)
        ),
        MetricInfo("bleu4_no_bp", "bleu4_no_bp", digits=4, task=CAPTIONING, scorer=CAPTIONS, title="BLEU-4 (no BP)"),
        MetricInfo("rouge_l", "rouge_l", digits=4, task=CAPTIONING, scorer=CAPTIONS, title="ROUGE-L"),
        MetricInfo("cider_d", "cider_d", digits=4, task=CAPTIONING, scorer=CAPTIONS, title="CIDEr-D"),
        MetricInfo("plain_cider", "cider", digits=4, task=CAPTIONING, scorer=CAPTIONS, title="CIDEr"),
        MetricInfo("meteor", "meteor", digits=4, task=CAPTIONING, title="METEOR"),  # by Java, see metrics.java
        MetricInfo("spice", "spice", digits=4, task=CAPTIONING, title="SPICE"),
    )
}


def scored_in(task: str) -> list[str]:
    """The names of the scores that a task's `eval` has from scorers, in the order of its tables."""
    return [info.name for info in SCORES.values() if info.task == task and info.scorer is not None]


def labels_of(task: str) -> frozenset[str]:
    """What the scores are called in the records of a task's `eval`."""
    return frozenset(info.label for info in SCORES.values() if info.task == task)


def is_score(name: str) -> bool:
    """Whether it is the name of a score, possibly a user-defined one."""
    return name in SCORES or "." in name


def score(name: str) -> MetricInfo:
    """The description of a score; for a user-defined one, whose class need not be importable, just its name."""
    return SCORES.get(name) or MetricInfo(name, name.rpartition(".")[2], digits=4)


def higher_is_better(name: str) -> bool:
    return score(name).higher_is_better if name in SCORES else metric(name).higher_is_better


def metric(name: str, *, setting: str = "scores") -> type[Metric]:
    """The class that a dotted name, the value of `setting`, means. InputError if there is none."""
    named = imported(name, Metric, setting=setting)
    if isinstance(named, str):
        raise InputError(f"Unknown score '{name}': {setting}= takes dotted names of your own, as mine.Exact.")
    return named


def scorers(names: Iterable[str], references: Sequence[Sequence[str]], **options: Any) -> list[Scorer]:
    """The scorers that compute these scores, each made once.

    references: a list of texts for each segment
    options: for our own scorers, such as how they tokenise
    """
    names = list(dict.fromkeys(names))
    ours = dict.fromkeys(str(SCORES[name].scorer) for name in names if name in SCORES)
    own = [metric(name)(references, name=name) for name in names if name not in SCORES]
    return [*(resolve_name(path)(references, **options) for path in ours), *own]


class System:
    """A system's hypotheses, one for each segment, with all their scores by name; resampled only on request."""

    def __init__(self, hypotheses: Sequence[str], scorers: Sequence[Scorer], *, samples: int = SAMPLES) -> None:
        self.hypotheses = hypotheses
        self.scorers = scorers
        self.samples = samples
        self.statistics = [scorer.statistics(hypotheses) for scorer in scorers]
        self.values: dict[str, float] = {}
        self._scorers: dict[str, Scorer] = {}
        for scorer, statistics in zip(scorers, self.statistics, strict=True):
            values = scorer.scores(statistics)
            self.values |= values
            self._scorers |= dict.fromkeys(values, scorer)

    def signature(self, name: str, *, samples: int | None = None) -> str:
        """The signature of a score; `samples`: of a paired bootstrap."""
        return self._scorers[name].signature(samples=samples)

    @cached_property
    def draws(self) -> dict[str, Draws]:
        """Each score of every resample of the segments."""
        if not self.samples:
            return dict.fromkeys(self.values, np.empty(0))
        segments = np.arange(len(self.hypotheses))
        columns: list[Draws] = []
        for scorer, statistics in zip(self.scorers, self.statistics, strict=True):
            drawn = resampled(lambda i, of=scorer, s=statistics: [*of.scores(s[i]).values()], [segments], self.samples)
            columns += list(drawn.T)
        return dict(zip(self.values, columns, strict=True))

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Each score with its interval."""
        return {name: estimate(value, self.draws[name]) for name, value in self.values.items()}

    def each(self) -> list[dict[str, Any]]:
        """Each hypothesis, and its own scores by label."""
        segments: list[dict[str, Any]] = [{"hypothesis": hypothesis, "scores": {}} for hypothesis in self.hypotheses]
        for scorer, statistics in zip(self.scorers, self.statistics, strict=True):
            for segment, scores in zip(segments, scorer.each(statistics), strict=True):
                segment["scores"] |= {score(name).label: value for name, value in scores.items()}
        return segments


@dataclass(frozen=True)
class Difference:
    """One score of a system and its baseline. p_value: paired bootstrap, None without resamples."""

    name: str
    baseline: Estimate
    system: Estimate
    p_value: float | None
    signature: str

    @property
    def p(self) -> str:
        return "-" if self.p_value is None else f"{self.p_value:.4f}"

    def text(self, digits: int) -> str:
        """How far the system is ahead."""
        return f"{self.system.value - self.baseline.value:+.{digits}f}"


class Comparison:
    """A system beside its baseline on the same segments, from the same resamples."""

    def __init__(self, baseline: System, system: System) -> None:
        self.digits = max(score(name).digits for name in system.values)
        self.differences: list[Difference] = []
        for name in system.values:
            first, second, p = baseline.estimates[name], system.estimates[name], None
            if system.samples:
                scale = max(abs(first.value), abs(second.value))
                drawn = system.draws[name] - baseline.draws[name]
                p = p_value(second.value - first.value, drawn, scale=scale)
                if name in SCORES and round(scale, score(name).digits) == 0:
                    p = 1.0  # both are 0 as printed: what then differs is how a score avoids dividing by zero
            signature = system.signature(name, samples=system.samples or None)
            self.differences.append(Difference(score(name).label, first, second, p, signature))

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""
        return {"differences": [record_of(difference) for difference in self.differences]}

    def text(self) -> str:
        """A readable table, and the signatures, just one if all are equal."""
        rows = [
            (d.name, d.baseline.text(self.digits), d.system.text(self.digits), d.text(self.digits), d.p)
            for d in self.differences
        ]
        signatures = {d.signature for d in self.differences}
        quoted = signatures if len(signatures) == 1 else [f"{d.name}: {d.signature}" for d in self.differences]
        return "\n".join([*table(("score", "baseline", "system", "difference", "p"), rows), "", *quoted])
