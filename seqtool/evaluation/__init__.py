"""`eval`: scores hypotheses against references, and texts by how well a language model predicts them.

Each task has an evaluator, in `translations`, `captions` or `texts`. It reads segments from files or a corpus, lets a
model write a hypothesis for each of them or reads the hypotheses from a file, and scores them (`metrics.scores`). The
result is an `Evaluation`, which every task can write as JSON, as text and as an HTML report.
This module has the code that all tasks share.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.corpora.corpus import Corpus
from seqtool.data.preparation import make_corpus
from seqtool.errors import InputError
from seqtool.metrics.alignment import Gold
from seqtool.metrics.bootstrap import MIN_SEEDS, MIN_SEGMENTS, Draws, over_seeds, record_of, too_few
from seqtool.metrics.scores import Comparison, System, metric, score, score_names, scorers
from seqtool.metrics.words import MAX_REPEAT_LENGTH, f1_by_count, is_repeated, unit_of, units
from seqtool.runtime.files import check_file, check_outputs, without_suffix
from seqtool.runtime.log import log
from seqtool.runtime.tables import table
from seqtool.settings import declarations, names
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.predict.predictor import Predictor
    from seqtool.training.checkpoint import Checkpoint

C = TypeVar("C", bound=Corpus)
Attention = tuple[NDArray[np.floating], Sequence[str]] | None

# Flags mark suspicious translations and captions. The sentences in a report can be filtered by them.
EMPTY, REPEATED, CUT, COPIED = "empty", "repeated", "cut", "copied"
UNKNOWN, UNATTENDED = "unknown words", "source words not attended to"
# The least attention that a source word receives in total from all target words; 0.1 would flag half of all sentences.
MIN_ATTENTION = 0.02

FLAG_MEANINGS = {
    EMPTY: "the hypothesis has no words",
    REPEATED: f"2 to {MAX_REPEAT_LENGTH} words occur twice in a row, or one word three times; in text without spaces, "
    f"4 to {MAX_REPEAT_LENGTH} characters twice, or 1 to 3 four times",
    CUT: "cut off at the maximum length",
    COPIED: "the translation equals its source",
    UNKNOWN: "words or subwords of the source are not in the model's vocabulary",
    UNATTENDED: f"a source word received less than {MIN_ATTENTION:g} of attention in total from all target words",
}

SEEDS_NOTE = f"95 % intervals by bootstrap over segments; with other seeds, if there are {MIN_SEEDS}, by Student’s t."
PAIRS_NOTE = "A difference of equally many runs is that of pairs, in the order given."


@dataclass
class EvaluationSettings(declarations.EvalTranslations, declarations.EvalCaptions, declarations.EvalTexts):
    """The settings of `eval`, except those of decoding. An `Evaluator` declares which of them its task uses;
    configs/eval.yaml explains each and has the defaults.
    """

    def inputs(self) -> dict[str, list[str]]:
        """The names of the files to read, by setting."""
        return {name: names(getattr(self, name)) for name, setting in DECLARED if setting.reads and not setting.text}

    def outputs(self) -> dict[str, str | None]:
        """The names of the files and directories to write, by setting."""
        return {name: getattr(self, name) for name, setting in DECLARED if setting.writes}

    def origin(self) -> dict[str, str]:
        """The names of the files or the test set that are scored, by setting."""
        files_by_setting = {name: names(getattr(self, name)) for name, setting in DECLARED if setting.reads}
        return {name: ", ".join(files) for name, files in files_by_setting.items() if files}

    def problems(self) -> Iterator[str]:
        """Yield error messages for values out of their declared ranges, and for invalid settings of all tasks."""
        yield from (f"{problem}." for problem in declarations.out_of_range(type(self), vars(self)))
        if self.bootstrap < 2 and self.bootstrap != 0:
            yield f"bootstrap must be at least 2, or 0 for no intervals, not {self.bootstrap}."
        if len(names(self.baseline)) > 1:
            yield f"baseline={','.join(self.baseline)} names several files or runs, which needs seeds=RUN,RUN,…."
        settings = {"hypotheses": "evaluated by checkpoint=RUN", "baseline": "compared by seeds=RUN baseline=RUN"}
        for name, advice in settings.items():
            for path in names(getattr(self, name)):
                if Path(path).is_dir():
                    yield f"{name}={path} is a directory, not a file: runs are {advice}."


DECLARED = declarations.declared(EvaluationSettings).items()


@dataclass(frozen=True)
class Segment:
    """A sentence or an image of a test set."""

    name: int | str  # the line number, from 1, or the name of the image
    references: Sequence[str]  # the reference texts, at least one
    source: str | None = None  # the sentence that is translated; None if it is unknown or the segment is an image
    gold: Gold | None = None  # links between the words of the source and of the first reference, if there are any


class Evaluation(ABC):
    """The results of one call of `eval`, in each format in which they can be written."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the results as plain containers, for JSON."""

    @abstractmethod
    def text(self) -> str:
        """Return the results as tables in plain text."""

    def by_segment(self) -> Iterator[dict[str, Any]]:
        """Yield a record of each segment, for JSON lines. Without segments, yield the record of the results."""
        yield self.record()

    def drawn(self) -> tuple[Sequence[Any], dict[tuple[str, str], Draws]]:
        """Return the segments, which are equal only to those of evaluations with the same resamples, and for each
        score, by name and signature, its value and then its values on the resamples. `SavedFrequencies` has none.
        """
        raise NotImplementedError

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        """Return the title, subtitle and sections of the report. `SavedFrequencies` has no report."""
        raise NotImplementedError

    def details(self) -> Iterator[str]:
        """Yield, in chunks, the details that the report shows when a segment is opened."""
        yield from ()


@dataclass
class Output:
    """The output of a system."""

    name: str  # the name of the system's run, or of the file that holds its hypotheses
    hypotheses: dict[Any, str] = field(default_factory=dict)  # the hypotheses by the names of the segments
    flags: list[list[str]] = field(default_factory=list)  # of each hypothesis, for a report; empty for those of a file
    details: report.Details | None = None  # for a report; None without one, or if hypotheses were read from a file


@dataclass(kw_only=True)
class SystemsEvaluation(Evaluation):
    """The scores of systems that wrote hypotheses for the same segments."""

    settings: EvaluationSettings  # the settings of `eval`
    segments: Sequence[Segment]  # the segments of the test set, at least one
    outputs: Sequence[Output]  # of the evaluated system, of its baseline if there is one, and of those `beside` it
    options: Mapping[str, Any]  # keyword arguments of the scorers, such as `tokenize`
    training_counts: Mapping[str, int] | None = None  # of each word in the training data, for a report; None if unknown

    task: ClassVar[str]
    segment_key: ClassVar[str]  # the key of a segment's name in records

    @cached_property
    def sources(self) -> list[str] | None:
        """The source sentences; None if they are unknown or the segments are images."""
        sources = [segment.source for segment in self.segments if segment.source is not None]
        return sources if len(sources) == len(self.segments) else None

    @cached_property
    def systems(self) -> dict[str, System]:
        """Every system with its scores, by title; the evaluated system comes first."""
        settings = self.settings
        systems: dict[str, System] = {}
        metrics = [name for name in score_names(self.task) if settings.ter or name != "ter"]
        references = [segment.references for segment in self.segments]
        used_scorers = scorers((*metrics, *settings.scores), references, **self.options)
        compared_count = 2 if settings.baseline else 1  # the evaluated system and its baseline
        for title, output in zip(self._titles(), self.outputs, strict=True):
            if len(systems) >= compared_count and settings.report is None:
                used_scorers = used_scorers[:1]  # a plot shows only the first score of the systems `beside`
            hypotheses = [output.hypotheses[segment.name] for segment in self.segments]
            systems[title] = System(hypotheses, used_scorers, samples=settings.bootstrap)
        return systems

    def _titles(self) -> list[str]:
        """A distinct title for each output.

        The title of a checkpoint is the name of its run. Files are called by their names without suffixes, their names,
        their paths or numbered paths: by the first of these that are all distinct.
        """
        paths = [output.name for output in self.outputs]
        file_names = [Path(path).name for path in paths]
        for titles in ([*map(without_suffix, file_names)], file_names, [*paths]):
            if self.settings.hypotheses is None:
                titles[0] = paths[0]
            if len({*titles}) == len(titles):
                return titles
        return [f"{path} ({number})" for number, path in enumerate(paths, 1)]

    @property
    def title(self) -> str:
        """The title of the evaluated system."""
        return next(iter(self.systems))

    @property
    def system(self) -> System:
        """The evaluated system."""
        return self.systems[self.title]

    @cached_property
    def comparison(self) -> Comparison | None:
        """The comparison of the evaluated system with its baseline; None without a baseline."""
        return Comparison(list(self.systems.values())[1], self.system) if self.settings.baseline else None

    def by_segment(self) -> Iterator[dict[str, Any]]:
        systems = list(self.systems.values())[: 2 if self.settings.baseline else 1]
        for segment, scores, *baseline in zip(self.segments, *(system.each() for system in systems), strict=True):
            record = {self.segment_key: segment.name, "references": list(segment.references), **scores}
            yield {**record, "baseline": baseline[0]} if baseline else record

    def drawn(self) -> tuple[Sequence[Any], dict[tuple[str, str], Draws]]:
        system, draws = self.system, self.system.draws
        segments = [(segment.name, *segment.references) for segment in self.segments]
        return segments, {
            (name, system.signature(name)): np.array([system.values[name], *draws[name]]) for name in draws
        }

    def details(self) -> Iterator[str]:
        details = self.outputs[0].details
        return iter(()) if details is None else details.chunks()

    def score_table(self) -> report.Section:
        """A table of all systems' scores with intervals, and the evaluated system's lead over each other system."""
        system, (_, *other_systems) = self.system, self.systems.items()
        comparisons = [Comparison(other, system) for _, other in other_systems]
        columns = ["score", self.title]
        for title, _ in other_systems:
            columns += [title, "difference", "p"]
        rows = []
        for index, (name, estimate) in enumerate(system.estimates.items()):
            digits = score(name).digits
            row = [score(name).directed_heading, estimate.text(digits)]
            for comparison in comparisons:
                difference = comparison.differences[index]
                row += [difference.baseline.text(digits), difference.text(digits), difference.p]
            rows.append([*row, system.signature(name)])
        notes = ["95 % intervals by bootstrap over segments." if system.samples else "No intervals, since bootstrap=0."]
        if len(self.segments) < MIN_SEGMENTS and system.samples:
            notes.append(too_few(len(self.segments), "segments"))
        if other_systems and system.samples:
            notes.append(f"Each difference is “{self.title}” minus the system on its left.")
            notes.append("The p-values are by paired bootstrap, on the same resamples for both.")
        return report.table("Scores", [*columns, "signature"], rows, " ".join(notes))

    def f1_of_words(self) -> report.Section | None:
        """F1 of words by their count in the training data; None if these counts are unknown."""
        if self.training_counts is None:
            return None
        references = [segment.references for segment in self.segments]
        scores = {
            title: f1_by_count(system.hypotheses, references, self.training_counts, samples=system.samples)
            for title, system in self.systems.items()
        }
        series = {title: [range_score.f1 for range_score in range_scores] for title, range_scores in scores.items()}
        bins = [f"{range_score.label} ({range_score.words:,})" for range_score in scores[self.title]]
        unit = unit_of(references)
        x_label = f"occurrences in training ({unit} in the references)"
        return report.intervals(f"F1 of {unit} by their count in training", x_label, "F1, %", bins, series)

    def segment_table(self, title: str) -> report.Section:
        """A table of all segments with the hypotheses of all systems and their scores."""
        segments, output = self.segments, self.outputs[0]
        hypotheses = [list(system.hypotheses) for system in self.systems.values()]
        pairs = zip(segments, hypotheses[0], strict=True)
        flags = output.flags or [find_flags(hypothesis, source=segment.source) for segment, hypothesis in pairs]
        labels, values = self.scores_by_segment
        notes = []
        if any(flags):
            notes.append(f"Flags. {'; '.join(f'{flag}: {meaning}' for flag, meaning in FLAG_MEANINGS.items())}.")
        if len(self.systems) > 1:
            notes.append(f"In the other systems' texts, words that “{self.title}” lacks are marked,")
            notes.append(f"and words that only “{self.title}” has are struck out.")
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
            "details": None if output.details is None else {"size": report.SIZE},
        }

    @cached_property
    def scores_by_segment(self) -> tuple[list[dict[str, Any]], list[list[list[float | None]]]]:
        """The labels of the scores of segments, and their values: a list over segments for each system and score."""
        infos = [score(name) for name in self.system.values]
        labels = [
            {"label": info.heading, "digits": min(info.digits, 3), "lower": not info.higher_is_better} for info in infos
        ]
        values = []
        for system in self.systems.values():
            segment_scores = [segment["scores"] for segment in system.each()]
            values.append([[report.rounded(scores.get(info.label)) for scores in segment_scores] for info in infos])
        return labels, values


@dataclass
class SeedsEvaluation(Evaluation):
    """The scores of a system, and perhaps of its baseline, each in several runs that differ in the seed of training.

    systems: the evaluation of each run or file by its path, for `system`, and before it for `baseline` if there is one;
        if both have the same number of runs, these are compared in pairs, in this order

    Raises InputError if the runs are scored on different segments.
    """

    systems: Mapping[str, Mapping[str, Evaluation]]

    def __post_init__(self) -> None:
        drawn = {path: run.drawn() for runs in self.systems.values() for path, run in runs.items()}
        first, (self.segments, keys) = next(iter(drawn.items()))
        if others := [path for path, (segments, _) in drawn.items() if segments != self.segments]:
            raise InputError(f"{others[0]} and {first} are scored on different segments: score both on one test set.")
        # a score and its signature, a system, the results of `over_seeds`, and the score of each run
        self.rows: list[tuple[Any, ...]] = []
        for key in keys:
            runs = {title: np.array([drawn[path][1][key] for path in paths]) for title, paths in self.systems.items()}
            self.rows += [(*key, of, *over_seeds(scores), scores[:, 0].tolist()) for of, scores in runs.items()]
            if "baseline" in runs and len(runs["baseline"]) == len(runs["system"]):
                pairs = runs["system"] - runs["baseline"]
                self.rows.append((*key, "difference", *over_seeds(pairs), pairs[:, 0].tolist()))
            elif "baseline" in runs:
                self.rows.append((*key, "difference", *over_seeds(runs["system"], runs["baseline"]), []))

    def record(self) -> dict[str, Any]:
        scores = []
        for name, signature, of, mean, with_seeds, values in self.rows:
            estimates = {"mean": record_of(mean), "with_seeds": record_of(with_seeds)}
            spread = {"sd": stdev(values) if len(values) > 1 else None, "values": values}
            scores.append({"name": score(name).label, "of": of, **estimates, **spread, "signature": signature})
        runs = {title: list(paths) for title, paths in self.systems.items()}
        return {"runs": runs, "segments": len(self.segments), "scores": scores}

    def text(self) -> str:
        rows = []
        for name, _, of, mean, with_seeds, values in self.rows:
            digits = score(name).digits
            sd = f"{stdev(values):.{digits}f}" if len(values) > 1 else "-"
            each = ", ".join(f"{value:z.{digits}f}" for value in values)
            rows.append((score(name).label, of, mean.text(digits), with_seeds.text(digits), sd, each))
        lines = [f"{title}: {', '.join(runs)}" for title, runs in self.systems.items()]
        has_intervals = any(mean.low is not None for _, _, _, mean, *_ in self.rows)
        note = SEEDS_NOTE if has_intervals else "No intervals, since bootstrap=0."
        note += f" {PAIRS_NOTE}" * (len(self.systems) > 1)
        lines += ["", *table(("score", "of", "mean", "with other seeds", "sd", "runs"), rows), "", note, ""]
        lines += dict.fromkeys(f"{score(name).label}: {signature}" for name, signature, *_ in self.rows if signature)
        if has_intervals and len(self.segments) < MIN_SEGMENTS:
            lines.append(too_few(len(self.segments), "segments"))
        return "\n".join(lines)


def find_flags(
    text: str, *, source: str | None = None, ended: bool = True, unknown: bool = False, attention: Attention = None
) -> list[str]:
    """Find the flags of a hypothesis, whose meanings are in `FLAG_MEANINGS`.

    source: the source sentence; None if it is unknown or the source is an image
    attention: the weights, target words × source words, and the source words; None if they are unknown
    """
    words = text.split()
    words_or_characters, are_characters = units(text)
    unattended = False
    if attention is not None:
        weights, source_words = attention
        totals = zip(source_words, weights.sum(0), strict=False)
        unattended = any(total < MIN_ATTENTION and re.search(r"\w", word) for word, total in totals)  # not punctuation
    is_set_by_flag = {
        EMPTY: not words,
        REPEATED: is_repeated(words_or_characters, are_characters),
        CUT: not ended,
        COPIED: source is not None and len(words_or_characters) > 1 and words == source.split(),
        UNKNOWN: unknown,
        UNATTENDED: unattended,
    }
    return [flag for flag, is_set in is_set_by_flag.items() if is_set]


class EvaluationData(NamedTuple):
    """The data that hold a model's test set."""

    config: DictConfig | None = None  # of a corpus that the user chose; None: the data in the predictor's `config`
    checkpoint: "Checkpoint | None" = None  # identifies the cache of the training data, which may outlast their files

    def corpus(self, kind: type[C], predictor: "Predictor") -> C:
        """Make the corpus. Raises InputError if it is not of class `kind`."""
        if self.config is None:
            return make_corpus(predictor.config.get("data", {}), kind, trusted=predictor.trust)
        return make_corpus(self.config, kind, trusted=True)

    def check_files(self, corpus: Corpus) -> None:
        """Raise InputError if files of the corpus are missing. They are only downloaded for a corpus that the user
        chose, never for one that a checkpoint describes.
        """
        # imports torch, which is not needed to score files
        from seqtool.runtime.distributed import first_on_each_machine

        if self.config is None:
            corpus.check()
        else:
            first_on_each_machine(corpus.fetch)

    def word_counts(self, predictor: "Predictor") -> Mapping[str, int] | None:
        """How often each word occurs in the data that the model was trained with; None if their cache is gone."""
        from seqtool.training import moved_data  # imports torch, which is not needed to score files

        cache = None if self.checkpoint is None else moved_data.find_cache(self.checkpoint, predictor.config["data"])
        return None if cache is None else cache.word_counts()


@dataclass
class Evaluator(ABC):
    """Evaluates the models of one task, or files."""

    settings: EvaluationSettings

    schema: ClassVar[type]  # the class that declares the task's settings of `eval`
    decoding_schema: ClassVar[type]  # the class that declares the task's settings of decoding
    labels: ClassVar[frozenset[str]] = frozenset()  # keys of the task's records, which cannot label users' scores

    @abstractmethod
    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        """Yield an error message for each invalid setting. checkpoint: whether a checkpoint, not files, is evaluated"""

    def evaluate_files(self) -> Evaluation:
        """Evaluate files. This is called only if `problems` accepts that there is no checkpoint."""
        raise NotImplementedError

    @abstractmethod
    def evaluate_checkpoint(self, predictor: Any, data: EvaluationData) -> Evaluation:
        """Evaluate a model on a test set. predictor: an instance of the task's predictor, with the model"""

    def tokeniser(self, choose: Callable[[], tuple[str, str]]) -> str:
        """The tokeniser in the settings, or else the one that `choose` returns, together with a reason to log."""
        if self.settings.tokenize is not None:
            return self.settings.tokenize
        tokenize, reason = choose()
        if reason:
            log.info(reason)
        return tokenize

    def check(self, *, checkpoint: bool) -> None:
        """Raise InputError for invalid settings, if possible for all of them at once, before anything is evaluated."""
        settings, labels = self.settings, {*self.labels}
        for name in dict.fromkeys(settings.scores):
            metric(name)
            label = score(name).label
            if label in labels:
                raise InputError(f"scores={name}: the report already has a score '{label}'. Rename the class.")
            labels.add(label)
        if problems := [*settings.problems(), *self.problems(checkpoint=checkpoint)]:
            raise InputError(" ".join(problems))
        inputs = [(f"{setting}={file}", file) for setting, files in settings.inputs().items() for file in files]
        for _, file in inputs:
            check_file(Path(file))
        check_outputs(settings.outputs(), inputs)
        if settings.report is not None:
            report.check_name(settings.report)
