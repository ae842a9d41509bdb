"""Bootstrap over segments, sentences or images: 95 % intervals, and whether two systems differ (Koehn 2004).

Resamples are seeded: the same input gives the same interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Draws = NDArray[np.float64]

SAMPLES = 1000  # resamples, as sacreBLEU's
SEED = 12345  # sacreBLEU's


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
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
    return np.array(
        [
            statistic(*(indices[generator.integers(len(indices), size=len(indices))] for indices in strata))
            for _ in range(samples)
        ]
    )


def estimate(value: float, draws: Draws) -> Estimate:
    """A value with its interval, the 2.5th and 97.5th percentiles of its resamples."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def p_value(difference: float, drawn: Draws) -> float:
    """How often two equal systems would seem to differ at least as much: sacreBLEU's paired bootstrap, from the
    differences in each resample, centred on zero. 1 if no resample has any difference.
    """
    if not drawn.any():
        return 1.0
    drawn = np.abs(drawn)
    return float((np.count_nonzero(drawn - drawn.mean() > abs(difference)) + 1) / (len(drawn) + 1))
