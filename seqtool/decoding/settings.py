"""How a trained model writes: the settings of configs/decoding.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqtool.decoding.ranking import length_penalty
from seqtool.errors import InputError
from seqtool.runtime.defaults import defaults

HYPOTHESES = 320  # decoded at once by default

FOR_SAMPLING = ("temperature", "top_k", "top_p")
COLDEST = 1e-4  # but for 0: dividing by less might overflow
LEAST = {
    **{"beam": 1, "n_best": 1, "n": 1, "max_length": 1, "min_length": 1, "batch_size": 1},
    **{"max_source_length": 2, "temperature": 0, "top_k": 0, "length_alpha": 0, "coverage_penalty": 0, "seed": 0},
}
MOST = {  # far beyond any useful value
    **{"beam": 1000, "n_best": 1000, "n": 1000, "max_length": 10_000, "batch_size": 1_000_000},
    **{"max_source_length": 10_000},
    **{"temperature": 1e4, "top_k": 10**9, "length_alpha": 100, "coverage_penalty": 1e6},
}


@dataclass
class DecodeSettings:
    """configs/decoding.yaml says what each is and holds the defaults."""

    beam: int
    n_best: int
    length_penalty: str
    length_alpha: float
    coverage_penalty: float
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_length: int
    max_source_length: int | None
    min_length: int
    batch_size: int | None
    precision: str

    memory: ClassVar[str] = "batch_size, beam, n_best or max_length"  # the settings that take most of it

    def __post_init__(self) -> None:
        problems = out_of_range(vars(self))
        if not self.sample and self.n_best > self.beam:
            problems.append(f"n_best ({self.n_best}) cannot be more than beam ({self.beam})")
        if self.min_length > self.max_length:
            problems.append(f"min_length ({self.min_length}) cannot be more than max_length ({self.max_length})")
        length_penalty(self.length_penalty, self.length_alpha)  # refuses an unknown one
        if problems:
            raise InputError("; ".join(problems) + ".")

    @property
    def at_once(self) -> int:
        """The number of sources in a batch."""
        return self.batch_size or max(1, HYPOTHESES // (self.n_best if self.sample else self.beam))

    def uniforms(self, number: int) -> NDArray[np.float64]:
        """The random numbers in [0, 1) for the samples of one source, n_best × max_length.

        They depend only on the seed and on the source's own `number`, never on the other sources of its batch.
        """
        return np.random.default_rng([self.seed, number]).random((self.n_best, self.max_length))


def out_of_range(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values of decoding settings, each problem as a clause."""
    given = {name: value for name, value in settings.items() if value is not None}
    problems = [
        f"{name} must be at least {least}, not {given[name]}"
        for name, least in LEAST.items()
        if name in given and not given[name] >= least  # nor NaN
    ]
    problems += [
        f"{name} must be at most {most:,}, not {given[name]:,}"
        for name, most in MOST.items()
        if name in given and given[name] > most
    ]
    if 0 < given["temperature"] < COLDEST:
        problems.append(f"temperature must be 0 (greedy) or at least {COLDEST:g}, not {given['temperature']:g}")
    if not 0 < given["top_p"] <= 1:
        problems.append(f"top_p must be above 0 and at most 1, not {given['top_p']}")
    return problems


def check_used(settings: DecodeSettings, *, attends: bool, task: str) -> None:
    """Raise InputError for settings without effect: sampling's without sampling, coverage without attention, or a
    length of sources for another task than translation.
    """
    given = [name for name in FOR_SAMPLING if getattr(settings, name) != defaults("decoding")[name]]
    if given and not settings.sample:
        named = ", ".join(f"{name}=" for name in given)
        raise InputError(f"{named} can only be given with sample=true, which draws words instead of searching.")
    if settings.max_source_length is not None and task != "translation":
        raise InputError("max_source_length=… is for translations: a picture has no tokens.")
    if settings.coverage_penalty and not attends:
        raise InputError("coverage_penalty=… needs a model with attention; this one has a fixed context.")
