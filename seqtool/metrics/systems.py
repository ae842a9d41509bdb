"""A system's hypotheses scored, with intervals and segment by segment, and compared with those of a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seqtool.metrics.bootstrap import SAMPLES, Draws, Estimate, estimate, p_value, record_of, resampled
from seqtool.metrics.scores import SCORES, Scorer, score
from seqtool.runtime.tables import table


class System:
    """Hypotheses, one for each segment, with all their scores by name; resampled only on request."""

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


@dataclass(frozen=True)
class Comparison:
    """A system beside its baseline on the same segments, from the same resamples."""

    differences: tuple[Difference, ...]
    digits: int

    @classmethod
    def of(cls, baseline: System, system: System) -> "Comparison":
        differences = []
        for name in system.values:
            first, second, p = baseline.estimates[name], system.estimates[name], None
            if system.samples:
                scale = max(abs(first.value), abs(second.value))
                drawn = system.draws[name] - baseline.draws[name]
                p = p_value(second.value - first.value, drawn, scale=scale)
                if name in SCORES and round(scale, score(name).digits) == 0:
                    p = 1.0  # both are 0 as printed: what then differs is how a score avoids dividing by zero
            signature = system.signature(name, samples=system.samples or None)
            differences.append(Difference(score(name).label, first, second, p, signature))
        return cls(tuple(differences), max(score(name).digits for name in system.values))

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
