"""`eval`: scores a system's hypotheses, and compares them with a baseline's; one form of report for every task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from omegaconf import DictConfig

from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.corpus import Corpus
from seqtool.errors import InputError
from seqtool.metrics.scores import metric, score
from seqtool.metrics.systems import Comparison, System
from seqtool.runtime.files import check_file, without_suffix
from seqtool.runtime.outputs import check_outputs
from seqtool.settings import declarations, names
from seqtool.view import html

if TYPE_CHECKING:
    from seqtool.training.checkpoint import Checkpoint

C = TypeVar("C", bound=Corpus)


@dataclass
class Evaluation(declarations.Eval, ABC):
    """An evaluation as configs/eval.yaml describes it, without decoding settings; this part is common to all tasks."""

    @abstractmethod
    def rules(self, *, checkpoint: bool) -> Mapping[str, bool]:
        """The task's conditions, each under the error message for when it does not hold."""

    def of_files(self) -> "Report":
        """The report on files of hypotheses and references, if the rules allow it."""
        raise NotImplementedError

    def files(self, use: str) -> list[tuple[str, str]]:
        """The files to read, or with `use="writes"` to write: each with the setting that names it."""
        settings = declarations.declared(type(self)).items()
        paths = [name for name, setting in settings if setting.is_path and getattr(setting, use)]
        return [(name, file) for name in paths for file in names(getattr(self, name))]

    def write_nothing(self) -> None:
        """Clear the settings of output files, in a process that only shares the work."""
        for setting, _ in self.files("writes"):
            if setting != "report":
                setattr(self, setting, None)

    @abstractmethod
    def of_checkpoint(self, predictor: Any, data: DictConfig | None, found: "Checkpoint | None") -> "Report":
        """The report on a predictor's output for a test set.

        Without the user's own `data` it is the checkpoint's test set, which may be in a cache that `found` identifies.
        """

    def corpus(self, kind: type[C], predictor: Any, data: DictConfig | None) -> C:
        """The corpus that the user's own `data` describe, or else that of the predictor's checkpoint."""
        if data is None:
            return make_corpus(predictor.config.get("data", {}), kind, trusted=predictor.trust)
        return make_corpus(data, kind, trusted=True)

    def check(self, *, checkpoint: bool) -> None:
        """Raise one InputError that names all impossible settings, before any work is done."""
        rules = {
            f"bootstrap must be at least 2, not {self.bootstrap}. 0 leaves intervals out.": self.bootstrap == 0
            or self.bootstrap >= 2,
            **self.rules(checkpoint=checkpoint),
        }
        problems = [f"{problem}." for problem in declarations.out_of_range(type(self), vars(self))]
        problems += [problem for problem, holds in rules.items() if not holds]
        if problems:
            raise InputError(" ".join(problems))
        read = [(f"{setting}={file}", file) for setting, file in self.files("reads")]
        for _, file in read:
            check_file(Path(file))
        check_outputs(dict(self.files("writes")), read)
        if self.report is not None:
            html.check_name(self.report)


def have_files(corpus: Corpus, data: DictConfig | None) -> None:
    """Check that the corpus's files exist; fetch them only for the user's own `data`, never as a checkpoint says."""
    from seqtool.runtime.distributed import first_here  # imports torch, which scoring files does without

    if data is None:
        corpus.check()
    else:
        first_here(corpus.fetch)


def titles(system: str, others: Sequence[str], *, of_run: bool) -> list[str]:
    """Of systems: the name of the first one's run, and the names of files as far as it takes to tell them apart."""
    paths = [system, *others]
    without_suffixes = [without_suffix(Path(path).name) for path in paths]
    for found in (without_suffixes, [Path(path).name for path in paths], paths):
        found[0] = system if of_run else found[0]
        if len({*found}) == len(found):
            return found
    return [f"{path} ({number})" for number, path in enumerate(paths, 1)]


@dataclass
class HypothesesEvaluation(declarations.EvalHypotheses, Evaluation):
    """An evaluation of hypotheses against references."""

    labels: ClassVar[tuple[str, ...]]  # the names in the report that scores of the user's own cannot have

    def check(self, *, checkpoint: bool) -> None:
        taken = set(self.labels)
        for name in dict.fromkeys(self.scores):
            metric(name)
            label = score(name).label
            if label in taken:
                raise InputError(f"scores={name} would be '{label}' in the report, which has one: rename the class.")
            taken.add(label)
        super().check(checkpoint=checkpoint)


class Report(ABC):
    """The results of one call of `eval`."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""

    @abstractmethod
    def text(self) -> str:
        """Tables for people."""

    @abstractmethod
    def page(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """The report that `view.html` writes; `made`: the origin of what is scored, empty for files."""

    def details(self) -> Iterator[str]:
        """What the page shows only when asked for, in chunks."""
        yield from ()

    def segments(self) -> Iterator[dict[str, Any]]:
        """The results for each line or image, for JSON lines."""
        yield self.record()


@dataclass(frozen=True)
class SystemReport(Report):
    """The report on a system. names: of the segments, which are lines or images; references: those of each segment."""

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
