"""The metrics: their names, whether higher is better, and what computes them. A new one is a line in `SCORES`."""

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
