"""The scores: what each is called, whether more is better, and what computes it. A new score is a line here."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqtool.errors import InputError
from seqtool.metrics.bootstrap import SEED
from seqtool.runtime.classes import imported

Statistics = NDArray[Any]  # a row a segment: all that the score of a corpus is made of


@dataclass(frozen=True)
class Score:
    """One score. name: in settings and in the files of a run; label: in reports, tables and curves; digits: after the
    point; scorer: what makes the `Scorer` that computes it, module and all, where one of ours does.
    """

    name: str
    label: str
    higher_is_better: bool
    digits: int = 2
    unit: str = ""
    scorer: str | None = None

    def text(self, value: float) -> str:
        """The score as people read it: `BLEU 37.10`, `loss 2.130 nats/token`."""
        return f"{self.label} {value:.{self.digits}f} {self.unit}".rstrip()


class Scorer(ABC):
    """Scores hypotheses against the references that it was made with: a list of them a segment, sentence or image.

    A score is one of statistics a segment, so that a corpus can be resampled, and its segments looked at one by one.
    """

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        """One row a segment; the hypotheses are in the order of the references."""

    @abstractmethod
    def scores(self, statistics: Statistics) -> dict[str, float]:
        """The scores by name of the corpus whose segments have these statistics."""

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        """The scores of each segment by itself."""
        return [self.scores(row[np.newaxis]) for row in statistics]

    def warnings(self) -> list[str]:
        """What a reader should know before trusting the scores."""
        return []

    @abstractmethod
    def signature(self, *, samples: int | None = None) -> str:
        """What the numbers must be quoted with, once statistics have been made; `samples`: of a paired bootstrap."""


class Metric(Scorer):
    """A score of one's own, one number, which settings call by its dotted name, `mine.Exact`.

    It is a mean, a ratio or the like of the statistics of segments, which `statistics` makes of hypotheses and
    `self.references`, and `score` puts together.
    """

    higher_is_better: bool = True

    def __init__(self, references: Sequence[Sequence[str]], *, name: str) -> None:
        self.references = references
        self.name = name

    @abstractmethod
    def score(self, statistics: Statistics) -> float:
        """That of the corpus whose segments have these statistics."""

    def scores(self, statistics: Statistics) -> dict[str, float]:
        return {self.name: float(self.score(statistics))}

    def signature(self, *, samples: int | None = None) -> str:
        parts = {"metric": self.name, **({} if samples is None else {"bs": samples, "seed": SEED})}
        return "|".join(f"{key}:{value}" for key, value in parts.items())


TRANSLATIONS = "seqtool.metrics.translation."
CAPTIONS = "seqtool.metrics.captions.CaptionScorer"

SCORES = {
    score.name: score
    for score in (
        Score("loss", "loss", higher_is_better=False, digits=3, unit="nats/token"),
        Score("bits", "bits/character", higher_is_better=False, digits=3),  # of a text
        # of translations; while training, `bleu` is that of captions too, and `cider` their CIDEr-D
        Score("bleu", "BLEU", higher_is_better=True, scorer=f"{TRANSLATIONS}Bleu"),
        Score("chrf", "chrF2", higher_is_better=True, scorer=f"{TRANSLATIONS}make_chrf"),
        Score("ter", "TER", higher_is_better=False, scorer=f"{TRANSLATIONS}make_ter"),
        Score("cider", "CIDEr-D", higher_is_better=True, digits=3),
        # of captions: the labels are the names that `eval` writes, where `cider` is without CIDEr-D's penalties
        Score("bleu1", "bleu1", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("bleu2", "bleu2", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("bleu3", "bleu3", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("bleu4", "bleu4", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("bleu4_no_bp", "bleu4_no_bp", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("rouge_l", "rouge_l", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("cider_d", "cider_d", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("plain_cider", "cider", higher_is_better=True, digits=4, scorer=CAPTIONS),
        Score("meteor", "meteor", higher_is_better=True, digits=4),  # by Java, see metrics.java
        Score("spice", "spice", higher_is_better=True, digits=4),
    )
}


def is_score(name: str) -> bool:
    """Whether it is the name of a score, one's own among them."""
    return name in SCORES or "." in name


def score(name: str) -> Score:
    """What is said of a score; of one's own, whose class need not be there, by its name alone."""
    return SCORES.get(name) or Score(name, name.rpartition(".")[2], higher_is_better=True, digits=4)


def higher_is_better(name: str) -> bool:
    return score(name).higher_is_better if name in SCORES else metric(name).higher_is_better


def metric(name: str, *, setting: str = "scores") -> type[Metric]:
    """The class that a dotted name means, the value of `setting`. InputError where that is none."""
    found = imported(name, Metric, setting=setting)
    if isinstance(found, str):
        raise InputError(f"Unknown score '{name}': {setting}= takes dotted names of your own, as mine.Exact.")
    return found


def scorers(names: Iterable[str], references: Sequence[Sequence[str]], **options: Any) -> list[Scorer]:
    """What computes these scores, each made once, with the references; the options are those of ours."""
    names = list(dict.fromkeys(names))
    ours = dict.fromkeys(str(SCORES[name].scorer) for name in names if name in SCORES)
    own = [metric(name)(references, name=name) for name in names if name not in SCORES]
    return [*(resolve_name(path)(references, **options) for path in ours), *own]
