"""How a trained model writes: the settings of configs/decoding.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqtool.decoding.beam_search import length_penalty
from seqtool.errors import InputError
from seqtool.runtime.defaults import defaults
from seqtool.settings import declarations

HYPOTHESES = 320  # decoded at once by default

FOR_SAMPLING = ("temperature", "top_k", "top_p")  # `seed` also draws for hard attention
COLDEST = 1e-4  # but for 0: dividing by less might overflow


@dataclass
class DecodeSettings(declarations.Decode):
    """configs/decoding.yaml says what each is and holds the defaults."""

    memory: ClassVar[str] = "batch_size, beam, n_best or max_length"  # the settings that take most of it

    def __post_init__(self) -> None:
        problems = out_of_range(type(self), vars(self))
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


def out_of_range(schema: type, settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values of decoding settings, which `schema` declares, each problem as a clause."""
    problems = declarations.out_of_range(schema, settings)
    if 0 < settings["temperature"] < COLDEST:
        problems.append(f"temperature must be 0 (greedy) or at least {COLDEST:g}, not {settings['temperature']:g}")
    return problems


def check_used(settings: DecodeSettings, *, attends: bool, task: str) -> None:
    """Raise InputError for settings without effect: sampling's without sampling, coverage without attention, or a
    length of sources for another task than translation.
    """
    changed = [name for name in FOR_SAMPLING if getattr(settings, name) != defaults("decoding")[name]]
    if changed and not settings.sample:
        named = ", ".join(f"{name}=" for name in changed)
        raise InputError(f"{named} can only be given with sample=true, which draws words instead of searching.")
    if settings.max_source_length is not None and task != "translation":
        raise InputError("max_source_length=… is for translations: a picture has no tokens.")
    if settings.coverage_penalty and not attends:
        raise InputError("coverage_penalty=… needs a model with attention; this one has a fixed context.")
