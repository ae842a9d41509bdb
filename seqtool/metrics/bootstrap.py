"""Bootstrap over segments, sentences or images: 95 % intervals, and whether two systems differ (Koehn 2004).

Resamples are seeded: the same input gives the same interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Draws = NDArray[np.float64]

SAMPLES = 1000  # resamples, as sacreBLEU's
SEED = 12345  # sacreBLEU's
FEW = 48  # segments: with fewer, intervals and p-values say little
NOISE = 1e-9  # of the larger of two numbers: a smaller difference is one of rounding


def few(count: int, segments: str) -> str:
    """What to say about fewer than `FEW` segments."""
    return f"Intervals and p-values say little: the number of {segments} is {count}, and at least {FEW} are needed."


def record_of(result: Any) -> dict[str, Any]:
    """The fields of a dataclass, for JSON, without the intervals and p-values that there are not."""

    def present(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in items if value is not None or name not in ("low", "high", "p_value")}

    return asdict(result, dict_factory=present)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, which is None without resamples."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, digits: int = 2) -> str:
        if self.low is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def bootstrap(
    statistic: Callable[..., float], strata: Sequence[Indices], samples: int = SAMPLES, seed: int = SEED
) -> Estimate:
    """A statistic of sets of segments, with the interval that resampling each set gives."""
    return estimate(statistic(*strata), resampled(statistic, strata, samples, seed))


def resampled(
    statistic: Callable[..., Any], strata: Sequence[Indices], samples: int = SAMPLES, seed: int = SEED
) -> Draws:
    """A statistic of sets of segments, one number or several, for each time the sets are resampled with replacement.

    The draws depend only on the sizes of the sets and on the seed, so two systems get the same resamples.
    """
    generator = np.random.default_rng(seed)

    def of_resample() -> Any:
        return statistic(*(indices[generator.integers(len(indices), size=len(indices))] for indices in strata))

    return np.array([of_resample() for _ in range(samples)])


def estimate(value: float, draws: Draws) -> Estimate:
    """A value with its interval, the 2.5th and 97.5th percentiles of its resamples, if there are any."""
    if not len(draws):
        return Estimate(value)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def p_value(difference: float, drawn: Draws, *, scale: float = 1.0) -> float:
    """How often two equal systems would seem to differ at least as much: sacreBLEU's paired bootstrap.

    difference: of the two scores
    drawn: the difference in each resample, which is centred on zero here
    scale: the size of the scores; the result is 1 if no resample has a difference that matters at this size
    """
    drawn = np.abs(drawn)
    if drawn.max() <= NOISE * scale:
        return 1.0
    return float((np.count_nonzero(drawn - drawn.mean() > abs(difference)) + 1) / (len(drawn) + 1))
