"""`eval`: the hypotheses of a system scored and compared with a baseline's, as one report for every task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from omegaconf import DictConfig

from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.corpus import Corpus
from seqtool.errors import InputError
from seqtool.metrics.scores import metric
from seqtool.metrics.systems import Comparison, System
from seqtool.runtime.files import check_file
from seqtool.settings import names

if TYPE_CHECKING:
    from seqtool.training.checkpoint import Checkpoint

C = TypeVar("C", bound=Corpus)

FORMATS = ("table", "json", "jsonl")
MOST_RESAMPLES = 1_000_000


@dataclass
class Evaluation(ABC):
    """An evaluation as configs/eval.yaml describes it, besides how a checkpoint decodes. Here: what every task has."""

    split: str
    bootstrap: int
    format: str

    reads: ClassVar[tuple[str, ...]]  # the settings that name files to read
    writes: ClassVar[tuple[str, ...]] = ()  # and those that name what is written

    @abstractmethod
    def rules(self, *, checkpoint: bool) -> Mapping[str, bool]:
        """What the task asks for, each under the sentence for where it does not hold."""

    def of_files(self) -> "Report":
        """The report on files of hypotheses and of references, where the rules allow it."""
        raise NotImplementedError

    def write_nothing(self) -> None:
        """For a process that only shares the work."""
        for setting in self.writes:
            setattr(self, setting, None)

    @abstractmethod
    def of_checkpoint(self, predictor: Any, data: DictConfig | None, found: "Checkpoint | None") -> "Report":
        """The report on what a predictor writes about a test set.

        Without the user's own `data` it is the checkpoint's, which may be found in a cache by what `found` records.
        """

    def corpus(self, kind: type[C], predictor: Any, data: DictConfig | None) -> C:
        """What the user's own `data` describe, or else those that the predictor's checkpoint names."""
        if data is None:
            return make_corpus(predictor.config.get("data", {}), kind, trusted=predictor.trust)
        return make_corpus(data, kind, trusted=True)

    def check(self, *, checkpoint: bool) -> None:
        """Raise one InputError on what cannot be, before any work is done."""
        known, most = ", ".join(FORMATS), MOST_RESAMPLES
        rules = {
            f"Unknown format '{self.format}'; choose from {known}.": self.format in FORMATS,
            f"bootstrap must be at least 2, not {self.bootstrap}.": self.bootstrap >= 2,
            f"bootstrap must be at most {most:,}, not {self.bootstrap:,}.": self.bootstrap <= most,
            **self.rules(checkpoint=checkpoint),
        }
        if problems := [problem for problem, holds in rules.items() if not holds]:
            raise InputError(" ".join(problems))
        for file in (file for setting in self.reads for file in names(getattr(self, setting))):
            check_file(Path(file))


def have_files(corpus: Corpus, data: DictConfig | None) -> None:
    """The corpus's, which are fetched for the user's own `data`: a checkpoint does not say what is written where."""
    from seqtool.runtime.distributed import first_here  # imports torch, which scoring files does without

    if data is None:
        corpus.check()
    else:
        first_here(corpus.fetch)


@dataclass
class HypothesesEvaluation(Evaluation):
    """One of hypotheses against references."""

    hypotheses: str | None
    references: list[str]
    baseline: str | None
    tokenize: str
    output: str | None
    scores: list[str] = field(default_factory=list, kw_only=True)  # one's own, besides the task's

    tokenizer: ClassVar[str]  # where tokenize=null
    writes: ClassVar[tuple[str, ...]] = ("output",)

    def check(self, *, checkpoint: bool) -> None:
        for name in self.scores:
            metric(name)
        super().check(checkpoint=checkpoint)


class Report(ABC):
    """What one call of `eval` found."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""

    @abstractmethod
    def text(self) -> str:
        """Tables for people."""

    def segments(self) -> Iterator[dict[str, Any]]:
        """What was found of each line or image, for JSON lines."""
        yield self.record()


@dataclass(frozen=True)
class SystemReport(Report):
    """Of a system. names: of the segments, which are lines or images; references: of each."""

    system: System
    baseline: System | None
    names: Sequence[int | str]
    references: Sequence[Sequence[str]]

    segment: ClassVar[str]

    @cached_property
    def comparison(self) -> Comparison | None:
        return None if self.baseline is None else Comparison.of(self.baseline, self.system)

    def compared(self) -> dict[str, Any]:
        return {} if self.comparison is None else {"comparison": self.comparison.record()}

    def segments(self) -> Iterator[dict[str, Any]]:
        ours, theirs = self.system.each(), None if self.baseline is None else self.baseline.each()
        for i, name in enumerate(self.names):
            found = {self.segment: name, "references": list(self.references[i]), **ours[i]}
            yield found if theirs is None else {**found, "baseline": theirs[i]}
