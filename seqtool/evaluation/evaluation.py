"""What the tasks share in `eval`: the form of the results, those of systems that write hypotheses, and the interface of
the evaluators, which do the work.
"""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.corpora.corpus import Corpus
from seqtool.data.preparation import make_corpus
from seqtool.errors import InputError
from seqtool.metrics.alignment import Gold
from seqtool.metrics.bootstrap import FEW, few
from seqtool.metrics.scores import Comparison, System, metric, score, scored_in, scorers
from seqtool.metrics.words import LONGEST, f1_by_count, is_repeated, unit_of, units
from seqtool.runtime.files import check_file, check_outputs, without_suffix
from seqtool.settings import declarations, names
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.predict.predictor import Predictor
    from seqtool.training.checkpoint import Checkpoint

C = TypeVar("C", bound=Corpus)

# What is conspicuous about a translation or caption: the flags by which a report's sentences can be chosen.
EMPTY, REPEATED, CUT, COPIED = "empty", "repeated", "cut", "copied"
UNKNOWN, UNATTENDED = "unknown words", "source words not attended to"
LEAST = 0.02  # the attention that a source word gets from all target words together: 0.1 marks every other sentence

EXPLAINED = {
    EMPTY: "no word was written",
    REPEATED: f"a sequence of 2 to {LONGEST} words stands twice in a row, or one word three times; without "
    f"spaces, 4 to {LONGEST} characters twice, or fewer four times",
    CUT: "cut off at the maximum length",
    COPIED: "the translation is its source",
    UNKNOWN: "the source has words or pieces that the model does not know",
    UNATTENDED: f"a source word got less than {LEAST:g} of attention from all target words together",
}

log = logging.getLogger(__name__)


@dataclass
class EvaluationSettings(declarations.EvalTranslations, declarations.EvalCaptions, declarations.EvalTexts):
    """The settings of `eval` besides those of decoding; an `Evaluator` says which it uses. configs/eval.yaml says what
    each is and holds the defaults.
    """

    def inputs(self) -> dict[str, list[str]]:
        """The files to read, by setting."""
        declared = declarations.declared(type(self)).items()
        files = [name for name, setting in declared if setting.reads and not setting.text]
        return {name: names(getattr(self, name)) for name in files}

    def outputs(self) -> dict[str, str | None]:
        """The files and directories to write, by setting."""
        declared = declarations.declared(type(self)).items()
        return {name: getattr(self, name) for name, setting in declared if setting.writes}

    def origin(self) -> dict[str, str]:
        """The files and the test set that are scored, by setting."""
        declared = declarations.declared(type(self)).items()
        read = {name: names(getattr(self, name)) for name, setting in declared if setting.reads}
        return {name: ", ".join(files) for name, files in read.items() if files}

    def write_nothing(self) -> None:
        """Clear the settings of output files, in a process that only shares the work; all share that of a report."""
        for name in self.outputs().keys() - {"report"}:
            setattr(self, name, None)

    def problems(self) -> Iterator[str]:
        """What is wrong with the settings that every task has, and with values that no task can have."""
        yield from (f"{problem}." for problem in declarations.out_of_range(type(self), vars(self)))
        if self.bootstrap < 2 and self.bootstrap != 0:
            yield f"bootstrap must be at least 2, not {self.bootstrap}. 0 leaves intervals out."


@dataclass(frozen=True)
class Segment:
    """A sentence or an image of a test set.

    name: the number of its line, from 1, or what the image is called
    references: one text or more
    source: what is translated; None if it is unknown, and for an image
    gold: how the words of source and first reference are aligned, if that is known
    """

    name: int | str
    references: Sequence[str]
    source: str | None = None
    gold: Gold | None = None


class Evaluation(ABC):
    """The results of one call of `eval`, in each form in which they are written."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""

    @abstractmethod
    def text(self) -> str:
        """Tables for people."""

    def by_segment(self) -> Iterator[dict[str, Any]]:
        """A record of each segment, for JSON lines."""
        yield self.record()

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        """The title, subtitle and sections of the report; only saved document frequencies have none."""
        raise NotImplementedError

    def details(self) -> Iterator[str]:
        """What the report shows of segments that are opened, in chunks."""
        yield from ()

    def report(self, origin: Mapping[str, str]) -> dict[str, Any]:
        """The report, one HTML page, as `view.report.write` takes it. origin: what was scored, by setting."""
        title, subtitle, sections = self.page()
        return report.page(title, subtitle, [report.facts("Origin", origin), *sections])


@dataclass
class Output:
    """What a system wrote.

    name: of its run, or its file
    hypotheses: by segment's name
    flags, details: of each hypothesis, for a report; empty, or None, if the hypotheses are read from a file
    """

    name: str
    hypotheses: dict[Any, str] = field(default_factory=dict)
    flags: list[list[str]] = field(default_factory=list)
    details: report.Details | None = None


@dataclass(kw_only=True)
class SystemsEvaluation(Evaluation):
    """Systems that wrote the same segments, scored.

    outputs: of the system that is evaluated, of its baseline if it has one, and of those `beside` it
    options: of the scorers, such as how they tokenise
    counts: how often each word occurs in the training data, for a report; None if that is unknown
    """

    settings: EvaluationSettings
    segments: Sequence[Segment]
    outputs: Sequence[Output]
    options: Mapping[str, Any]
    counts: Mapping[str, int] | None = None

    task: ClassVar[str]
    segment: ClassVar[str]  # what a segment is called in records

    @cached_property
    def sources(self) -> list[str] | None:
        """None if they are unknown, and for images."""
        sources = [segment.source for segment in self.segments if segment.source is not None]
        return sources if len(sources) == len(self.segments) else None

    @cached_property
    def systems(self) -> dict[str, System]:
        """Every system with its scores, by title; the one that is evaluated first."""
        settings = self.settings
        systems: dict[str, System] = {}
        metrics = [metric for metric in scored_in(self.task) if settings.ter or metric != "ter"]
        references = [segment.references for segment in self.segments]
        computed_by = scorers((*metrics, *settings.scores), references, **self.options)
        for title, output in zip(_titles(self.outputs, settings), self.outputs, strict=True):
            if len(systems) > (settings.baseline is not None) and settings.report is None:
                computed_by = computed_by[:1]  # a plot shows only the first score of those beside them
            hypotheses = [output.hypotheses[segment.name] for segment in self.segments]
            systems[title] = System(hypotheses, computed_by, samples=settings.bootstrap)
        return systems

    @property
    def title(self) -> str:
        """Of the system that is evaluated."""
        return next(iter(self.systems))

    @property
    def system(self) -> System:
        """The one that is evaluated."""
        return self.systems[self.title]

    @cached_property
    def comparison(self) -> Comparison | None:
        """With the baseline, if there is one."""
        return None if self.settings.baseline is None else Comparison([*self.systems.values()][1], self.system)

    def by_segment(self) -> Iterator[dict[str, Any]]:
        compared = [*self.systems.values()][: 1 if self.settings.baseline is None else 2]
        for segment, system, *baseline in zip(self.segments, *(system.each() for system in compared), strict=True):
            record = {self.segment: segment.name, "references": list(segment.references), **system}
            yield {**record, "baseline": baseline[0]} if baseline else record

    def details(self) -> Iterator[str]:
        details = self.outputs[0].details
        return iter(()) if details is None else details.chunks()

    def score_table(self) -> report.Section:
        """Every score of every system with its interval, and how far the first is ahead of the others."""
        system, (_, *others) = self.system, self.systems.items()
        comparisons = [Comparison(other, system) for _, other in others]
        columns = ["score", self.title, *(column for title, _ in others for column in (title, "difference", "p"))]
        rows = []
        for number, (name, estimate) in enumerate(system.estimates.items()):
            digits = score(name).digits
            row = [score(name).heading, estimate.text(digits)]
            for comparison in comparisons:
                difference = comparison.differences[number]
                row += [difference.baseline.text(digits), difference.text(digits), difference.p]
            rows.append([*row, system.signature(name)])
        notes = ["95 % intervals by bootstrap over segments." if system.samples else "Without intervals: bootstrap=0."]
        if 0 < len(self.segments) < FEW and system.samples:
            notes.append(few(len(self.segments), "segments"))
        if others and system.samples:
            notes.append(f"Each difference is “{self.title}” minus the system on its left,")
            notes.append("p by paired bootstrap on equal resamples.")
        return report.table("Scores", [*columns, "signature"], rows, " ".join(notes))

    def f1_of_words(self) -> report.Section | None:
        """F1 of words by their count in the training data; None if that is unknown."""
        if self.counts is None:
            return None
        references, series = [segment.references for segment in self.segments], {}
        for title, system in self.systems.items():
            scores = f1_by_count(system.hypotheses, references, self.counts, samples=system.samples)
            series[title] = [words.f1 for words in scores]
        bins = [f"{words.label} ({words.words:,})" for words in scores]
        unit = unit_of(references)
        title, x_label = f"F1 of {unit} by their count in training", f"times in training ({unit} of the references)"
        return report.intervals(title, x_label, "F1, %", bins, series)

    def segment_table(self, title: str) -> report.Section:
        """Every segment with the hypotheses of all systems, and their scores."""
        segments, output = self.segments, self.outputs[0]
        hypotheses = [list(system.hypotheses) for system in self.systems.values()]
        pairs = zip(hypotheses[0], segments, strict=True)
        flags = output.flags or [flags_of(text, source=segment.source) for text, segment in pairs]
        labels, values = self.scores_by_segment
        notes = []
        if any(flags):
            notes.append(f"Flags. {'; '.join(f'{flag}: {meaning}' for flag, meaning in EXPLAINED.items())}.")
        if len(self.systems) > 1:
            notes.append(
                f"Beside “{self.title}”: words that it lacks are marked, words that only it has are struck out."
            )
        return {
            "kind": "sentences",
            "title": title,
            "note": " ".join(notes) or None,
            "systems": list(self.systems),
            "scores": labels,
            "sources": self.sources,
            "names": [segment.name for segment in segments] if isinstance(segments[0].name, str) else None,
            "references": [list(segment.references) for segment in segments],
            "hypotheses": hypotheses,
            "values": values,
            "flags": flags,
            "details": None if output.details is None else output.details.described(),
        }

    @cached_property
    def scores_by_segment(self) -> tuple[list[dict[str, Any]], list[list[list[float | None]]]]:
        """What the scores of single segments are called, and for each system and score those of all segments."""
        infos = [score(name) for name in self.system.values]
        labels = [{"label": info.heading, "digits": min(info.digits, 3)} for info in infos]
        values = []
        for system in self.systems.values():
            of_segments = [segment["scores"] for segment in system.each()]
            values.append([[report.rounded(scores.get(info.label)) for scores in of_segments] for info in infos])
        return labels, values


def _titles(outputs: Sequence[Output], settings: EvaluationSettings) -> list[str]:
    """The name of the first one's run, and the names of files as far as it takes to tell them apart."""
    paths = [output.name for output in outputs]
    file_names = [Path(path).name for path in paths]
    for titles in ([*map(without_suffix, file_names)], file_names, [*paths]):
        if settings.hypotheses is None:
            titles[0] = paths[0]
        if len({*titles}) == len(titles):
            return titles
    return [f"{path} ({number})" for number, path in enumerate(paths, 1)]


def flags_of(
    text: str,
    *,
    source: str | None = None,
    ended: bool = True,
    unknown: bool = False,
    attention: tuple[NDArray[np.floating], Sequence[str]] | None = None,
) -> list[str]:
    """The flags of a text.

    source: None if there is none, or it is unknown
    ended: by itself, not cut off at its maximum length
    unknown: the source has pieces that the model does not know
    attention: target words × source words, and the source's words
    """
    words = text.split()
    counted, are_characters = units(text)
    unattended = False
    if attention is not None:  # punctuation need not be looked at
        columns = zip(attention[1], attention[0].sum(0), strict=False)
        unattended = any(re.search(r"\w", word) and weight < LEAST for word, weight in columns)
    holds = {
        EMPTY: not words,
        REPEATED: is_repeated(counted, are_characters),
        CUT: not ended,
        COPIED: source is not None and len(counted) > 1 and words == source.split(),
        UNKNOWN: unknown,
        UNATTENDED: unattended,
    }
    return [flag for flag, is_so in holds.items() if is_so]


class EvaluationData(NamedTuple):
    """The data of a model's test set.

    own: settings of the user's own data; None is the data that the predictor's `config` describes
    checkpoint: identifies the cache of these data, where the test set may be if its files are gone
    """

    own: DictConfig | None = None
    checkpoint: "Checkpoint | None" = None

    def corpus(self, kind: type[C], predictor: "Predictor") -> C:
        if self.own is None:
            return make_corpus(predictor.config.get("data", {}), kind, trusted=predictor.trust)
        return make_corpus(self.own, kind, trusted=True)

    def check_files(self, corpus: Corpus) -> None:
        """Check that the corpus's files exist; fetch only the user's own, never what a checkpoint names."""
        from seqtool.runtime.distributed import first_on_each_machine  # imports torch, which scoring files does without

        if self.own is None:
            corpus.check()
        else:
            first_on_each_machine(corpus.fetch)

    def word_counts(self, predictor: "Predictor") -> Mapping[str, int] | None:
        """How often each word occurs in the data that the model was trained with, if their cache is still there."""
        from seqtool.training import moved_data  # imports torch, which scoring files does without

        cache = None if self.checkpoint is None else moved_data.trained_on(self.checkpoint, predictor.config["data"])
        return None if cache is None else cache.word_counts()


@dataclass
class Evaluator(ABC):
    """Evaluates one task's models, or files.

    own, decoding: where its settings are declared, and those of decoding that it uses
    labels: the names in its records, which scores of the user's own cannot have
    """

    settings: EvaluationSettings

    own: ClassVar[type]
    decoding: ClassVar[type]
    labels: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        """What is wrong with the task's settings. checkpoint: whether one is evaluated, and not files."""

    def of_files(self) -> Evaluation:
        """The evaluation of files, if `problems` allows for it."""
        raise NotImplementedError

    @abstractmethod
    def of_checkpoint(self, predictor: Any, data: EvaluationData) -> Evaluation:
        """The evaluation of a model on a test set. predictor: the task's, with the model"""

    def tokeniser(self, choose: Callable[[], tuple[str, str]]) -> str:
        """The tokeniser of the settings, or else the one that `choose` returns with a sentence to say, maybe empty."""
        if self.settings.tokenize is not None:
            return self.settings.tokenize
        tokenize, reason = choose()
        if reason:
            log.info(reason)
        return tokenize

    def check(self, *, checkpoint: bool) -> None:
        """Raise InputError for impossible settings, all in one where that can be, before any work is done."""
        settings, labels = self.settings, {*self.labels}
        for name in dict.fromkeys(settings.scores):
            metric(name)
            label = score(name).label
            if label in labels:
                raise InputError(f"scores={name} would be '{label}' in the report, which has one: rename the class.")
            labels.add(label)
        if problems := [*settings.problems(), *self.problems(checkpoint=checkpoint)]:
            raise InputError(" ".join(problems))
        inputs = [(f"{setting}={file}", file) for setting, files in settings.inputs().items() for file in files]
        for _, file in inputs:
            check_file(Path(file))
        check_outputs(settings.outputs(), inputs)
        if settings.report is not None:
            report.check_name(settings.report)
