"""`eval` of translations: BLEU, chrF and TER, BLEU by source length, and alignments against gold ones."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqtool.data.text.alignment import Link
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import EvaluationData, Evaluator, Output, Segment, SystemsEvaluation
from seqtool.evaluation.flags import flags_of
from seqtool.evaluation.test_sets import Split, read_alignments, read_test_set, read_translations, test_set_of
from seqtool.metrics import tokenisers, translation
from seqtool.metrics.alignment import AlignmentScores
from seqtool.metrics.bootstrap import FEW, few, record_of
from seqtool.metrics.scores import TRANSLATION, labels_of, score
from seqtool.metrics.systems import System
from seqtool.metrics.translation import LengthScore, bleu_by_length, check_lengths, length_bins, warn_of_tokenised
from seqtool.models.tokens import UNK
from seqtool.runtime.files import keeping
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.tables import table
from seqtool.settings import declarations, names
from seqtool.view import plots, report

if TYPE_CHECKING:
    from seqtool.predict.translator import Translation, Translator

LIKELIEST = 5  # tokens at each place, in a report

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TranslationEvaluation(SystemsEvaluation):
    """Translations, scored. The first score is BLEU. alignment: of words, against gold ones; None if there are none."""

    alignment: AlignmentScores | None = None

    task = TRANSLATION
    segment = "line"

    @cached_property
    def sources(self) -> list[str] | None:
        """None if they are unknown."""
        sources = [segment.source for segment in self.segments if segment.source is not None]
        return sources if len(sources) == len(self.segments) else None

    @cached_property
    def unit(self) -> str | None:
        """Of the sources' lengths: words or characters; None if the sources are unknown."""
        return None if self.sources is None else translation.lengths(self.sources)[1]

    @cached_property
    def by_length(self) -> Sequence[LengthScore]:
        return self.by_length_of(self.system)

    def by_length_of(self, system: System) -> Sequence[LengthScore]:
        """BLEU by source length; empty if the sources are unknown."""
        if self.sources is None:
            return ()
        return bleu_by_length(
            system.statistics[0], self.sources, edges=self.settings.length_bins, samples=system.samples
        )

    @cached_property
    def gaps(self) -> dict[str, Any] | None:
        """The lead on the baseline on the shortest and on the longest sources, and the difference between the two; None
        without sources or baseline, or if there are no such sources.
        """
        if self.sources is None or not self.has_baseline:
            return None
        (short, first), *_, (long, last) = length_bins(self.sources, edges=self.settings.length_bins)
        if len(first) == 0 or len(last) == 0:
            return None
        system, baseline, *_ = self.systems.values()
        gaps = translation.length_gaps(
            baseline.statistics[0], system.statistics[0], first, last, samples=system.samples
        )
        text = {
            f"BLEU ahead of the baseline, {short} source {self.unit}": gaps.short.text(),
            f"BLEU ahead of the baseline, {long} source {self.unit}": gaps.long.text(),
            "the difference of the two": gaps.growth.text(),
        }
        return {**record_of(gaps), "text": text}

    def record(self) -> dict[str, Any]:
        """Includes BLEU's parts: the n-gram precisions in per cent, n = 1..4 (smoothed if none matches), the brevity
        penalty (1 is none), and the ratio of the hypotheses' length to the references'.
        """
        system, parts = self.system, translation.bleu_parts(self.system.statistics[0])
        record: dict[str, Any] = {
            "sentences": len(self.segments),
            "scores": [
                {"name": score(name).label, "value": value, "signature": system.signature(name)}
                for name, value in system.values.items()
            ],
            "bleu": record_of(system.estimates["bleu"]),
            "precisions": list(parts.precisions),
            "brevity_penalty": parts.bp,
            "length_ratio": parts.sys_len / max(parts.ref_len, 1),
            "by_length": [record_of(length) for length in self.by_length],
        }
        if self.unit not in (None, "words"):
            record["length_unit"] = self.unit
        others = {
            "comparison": None if self.comparison is None else self.comparison.record(),
            "alignment": None if self.alignment is None else asdict(self.alignment),
            "gaps": self.gaps,
        }
        return {"system": record, **{name: value for name, value in others.items() if value is not None}}

    def text(self) -> str:
        record, values = self.record()["system"], self.system.values
        rows = [(score(name).label, f"{value:.{score(name).digits}f}") for name, value in values.items()]
        rows[0] = (rows[0][0], self.system.estimates["bleu"].text())
        lines = table(("score", f"{len(self.segments):,} sentences"), rows)
        if self.unit is not None:
            cells = [(b.label, f"{b.sentences:,}", "-" if b.bleu is None else b.bleu.text()) for b in self.by_length]
            lines += ["", *table((f"source {self.unit}", "sentences", "BLEU"), cells)]
        precisions = " / ".join(f"{precision:.1f}" for precision in record["precisions"])
        lengths = f"brevity penalty {record['brevity_penalty']:.3f}, length ratio {record['length_ratio']:.3f}"
        lines += ["", f"n-gram precisions {precisions}, {lengths}", ""]
        lines += [f"{quoted['name']}: {quoted['signature']}" for quoted in record["scores"]]
        if self.comparison is not None:
            lines += ["", self.comparison.text()]
        if self.gaps is not None:
            lines += ["", *(f"{name}: {value}" for name, value in self.gaps["text"].items())]
        if self.alignment is not None:
            lines += ["", self.alignment.text()]
        return "\n".join(lines)

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        sections = [self.score_table(), None, self.f1_of_words()]
        if self.sources is not None:
            series = {title: [b.bleu for b in self.by_length_of(system)] for title, system in self.systems.items()}
            bins = [f"{b.label} ({b.sentences:,})" for b in self.by_length]
            x_label = f"source {self.unit} (sentences)"
            sections[1] = report.intervals("BLEU by source length", x_label, "BLEU", bins, series)
        if self.alignment is not None:
            sections.append(report.table("Alignments", ("alignment", "error rate"), self.alignment.rows()))
            if notes := self.alignment.notes():
                sections.append(report.text("Swapped neighbours", notes))
        sections.append(self.segment_table("Sentences"))
        return f"Translations of {self.title}", f"{len(self.segments):,} sentences", sections

    def draw(self, directory: Path) -> None:
        """BLEU by source length."""
        directory.mkdir(parents=True, exist_ok=True)
        lengths = {title: self.by_length_of(system) for title, system in self.systems.items()}
        figure = directory / "bleu_by_length.png"
        with plots.or_left_out(figure):
            plots.bleu_by_length(lengths, figure, unit=str(self.unit))


class TranslationEvaluator(Evaluator):
    """Evaluates files of translations, or translates a test set and evaluates that."""

    own, decoding = declarations.EvalTranslations, declarations.Decode
    labels = labels_of(TRANSLATION)

    def check(self, *, checkpoint: bool) -> None:
        super().check(checkpoint=checkpoint)
        if self.settings.tokenize is not None:
            translation.make_bleu(self.settings.tokenize, lowercase=self.settings.lowercase)

    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        settings = self.settings
        if checkpoint == (settings.hypotheses is not None):
            yield "eval needs either checkpoint=PATH or hypotheses=FILE references=FILE[,FILE…]."
            return
        edges = [0, *settings.length_bins]
        if len(edges) == 1 or edges != sorted(set(edges)):
            yield f"length_bins must be one or more lengths that rise from 1, not {settings.length_bins}."
        if settings.langpair is not None and settings.testset is None:
            yield "langpair=… goes with testset=…."
        if not (checkpoint or settings.testset is not None or settings.references):
            yield "eval hypotheses=FILE needs references=FILE[,FILE…], or testset=NAME langpair=…."
        if settings.testset is not None and (settings.sources or settings.references):
            yield "testset=NAME has its own texts: leave sources= and references= out."
        if checkpoint and (settings.sources is None) != (not settings.references):
            yield "sources=FILE and references=FILE[,FILE…] go together."
        if not checkpoint and (settings.alignments is None) != (settings.gold is None):
            yield "alignments=FILE and gold=FILE go together."
        if settings.plot is not None and not (checkpoint or settings.sources or settings.testset):
            yield "plot=DIR needs sources=FILE."
        if settings.samples and not (checkpoint and settings.plot):
            yield "samples= goes with checkpoint=PATH and plot=DIR."
        if settings.beside and settings.plot is None and settings.report is None:
            yield "beside=FILE goes with plot=DIR or report=FILE.html."
        if settings.gold is not None and settings.sources is None:
            yield "gold=FILE needs sources=FILE."
        if checkpoint and settings.alignments is not None:
            yield "alignments= means nothing with checkpoint=."
        if not checkpoint and settings.output is not None:
            yield "output= means nothing with hypotheses=."

    def of_files(self) -> TranslationEvaluation:
        """Hypotheses against references, and alignments against gold ones."""
        settings, name, alignment = self.settings, str(self.settings.hypotheses), None
        hypotheses = read_translations(name)
        segments, split = read_test_set(settings, hypotheses)
        outputs = [Output(name, dict(enumerate(hypotheses, 1))), *self._read_others(segments)]
        if settings.alignments is not None and settings.gold is not None:
            sources, references = _columns(segments)
            texts = [sources, hypotheses, references]
            links = read_alignments(settings.alignments, texts, split, name=name)
            alignment = _score_alignments(segments, [sure for sure, _ in links], split)
        return self._evaluate(segments, outputs, alignment=alignment)

    def of_checkpoint(self, predictor: "Translator", data: EvaluationData) -> TranslationEvaluation:
        """Translations of a test set; if it has gold alignments, its references are aligned as well."""
        settings = self.settings
        for setting, value in (("gold", settings.gold), ("samples", settings.samples)):
            if value and not predictor.attends:
                raise InputError(f"{setting}=… needs a model with attention; this one has a fixed context.")
        segments, predictor.split = test_set_of(settings, predictor, data)
        others = self._read_others(segments)
        if settings.plot is not None:  # a name that cannot be one is found before anything is decoded
            Path(settings.plot).mkdir(parents=True, exist_ok=True)
        alignment = _align_references(predictor, segments)
        counts = None if settings.report is None else data.word_counts(predictor)
        outputs = [self._translate(predictor, [str(segment.source) for segment in segments]), *others]
        return self._evaluate(segments, outputs, alignment=alignment, counts=counts)

    def _read_others(self, segments: Sequence[Segment]) -> list[Output]:
        """The lines of the baseline and of further systems, as many as there are references."""
        others = []
        for file in (*names(self.settings.baseline), *self.settings.beside):
            lines = read_translations(file)
            check_lengths(lines, _columns(segments)[1:], name=file, reference_names=["the reference"])
            others.append(Output(file, dict(enumerate(lines, 1))))
        return others

    def _translate(self, translator: "Translator", sources: Sequence[str]) -> Output:
        """The translations, which are also written to `output`; if this is stopped, the finished part is kept. The
        alignments of `samples` are drawn.
        """
        settings, place = self.settings, self.settings.output
        written = Output(translator.name, details=None if settings.report is None else report.Details())
        out = nullcontext() if place is None else keeping(Path(place), lambda: f"{len(written.hypotheses):,} lines")
        samples = self._samples(sources, translator.settings.seed)
        likeliest = 0 if settings.report is None else LIKELIEST
        size = 32 * translator.settings.at_once
        with out as file, progress_bar(total=len(sources), unit="line", description="translate") as bar:
            for start in range(0, len(sources), size):
                window = sources[start : start + size]
                drawn = [i for i in samples if start <= i < start + len(window)]
                attention = bool(drawn) or settings.report is not None
                n_best = translator.hypotheses(window, attention=attention, likeliest=likeliest, first_line=start + 1)
                best = [hypotheses[0] for hypotheses in n_best]
                _add_details(written, translator, window, best)
                for i in drawn:
                    figure = Path(str(settings.plot)) / f"alignment-{i + 1:04d}.png"
                    if (alignment := best[i - start].shown(end=False)) is not None:
                        with plots.or_left_out(figure):
                            plots.alignment(*alignment, figure)
                if file is not None:
                    file.writelines(f"{hypothesis.text}\n" for hypothesis in best)
                written.hypotheses |= {start + i: hypothesis.text for i, hypothesis in enumerate(best, 1)}
                bar.update(len(best))
        return written

    def _samples(self, sources: Sequence[str], seed: int) -> list[int]:
        """Which sentences of 10 to 20 words have their alignments drawn, if any."""
        samples = self.settings.samples
        if not samples:
            return []
        lengths, unit = translation.lengths(sources)
        fitting = [i for i, length in enumerate(lengths) if 10 <= length <= 20]
        if not fitting and self.settings.plot is not None:
            print(f"samples={samples}: no source has 10 to 20 {unit}, so none is drawn.", file=sys.stderr)
        order = np.random.default_rng(seed).permutation(len(fitting))
        return sorted(fitting[place] for place in order[:samples])

    def _evaluate(self, segments: Sequence[Segment], outputs: Sequence[Output], **others: Any) -> TranslationEvaluation:
        """others: further fields of the evaluation"""
        settings, language = self.settings, None
        references = chain.from_iterable(segment.references for segment in segments)
        if settings.langpair is not None:
            language = settings.langpair.partition("-")[2]
        tokenize = self.tokeniser(lambda: tokenisers.for_translations(references, language=language))
        if settings.ter and tokenize in tokenisers.OF_CHARACTERS:
            log.info("TER knows only words between spaces: leave it out with ter=false.")
        writers = [settings.hypotheses or "What the model wrote", *names(settings.baseline)]
        for writer, output in zip(writers, outputs, strict=False):
            warn_of_tokenised([*output.hypotheses.values()], name=writer, tokenize=tokenize)
        if settings.bootstrap and settings.baseline is not None and len(segments) < FEW:
            log.warning(few(len(segments), "sentences"))
        options = {"tokenize": tokenize, "lowercase": settings.lowercase}
        evaluation = TranslationEvaluation(
            settings=settings, segments=segments, outputs=outputs, options=options, **others
        )
        if settings.plot is not None:
            evaluation.draw(Path(settings.plot))
        return evaluation


def _align_references(translator: "Translator", segments: Sequence[Segment]) -> AlignmentScores | None:
    """The alignments of the references that the model can read, against the gold ones; None if there are none."""
    if not translator.attends or any(segment.gold is None for segment in segments):
        return None
    fitting = [segment for segment in segments if translator.can_force(str(segment.source), segment.references[0])]
    if len(fitting) < len(segments):
        print(
            f"Alignments are scored without {len(segments) - len(fitting):,} of {len(segments):,} lines, which are "
            f"longer than the model's {translator.longest:,} learnt positions.",
            file=sys.stderr,
        )
    if not fitting:
        return None
    links = [forced.alignment or set() for forced in translator.forced(*_columns(fitting))]
    return _score_alignments(fitting, links, translator.split)


def _score_alignments(segments: Sequence[Segment], links: Sequence[set[Link]], split: Split) -> AlignmentScores:
    """Links between the words of sources and first references, a set for each segment, against the gold ones."""
    sources, references = ([split(text) for text in texts] for texts in _columns(segments))
    return AlignmentScores.of(links, [segment.gold or (set(), set()) for segment in segments], sources, references)


def _columns(segments: Sequence[Segment]) -> tuple[list[str], list[str]]:
    """The sources and the first references."""
    return [str(segment.source) for segment in segments], [segment.references[0] for segment in segments]


def _add_details(
    output: Output, translator: "Translator", sources: Sequence[str], best: "Sequence[Translation]"
) -> None:
    """Add what a report shows of translations, if there will be one: their flags, and as details their words with
    attention, and what was expected at each token.
    """
    if output.details is None:
        return
    encoded = translator.source_vocabulary.encode_batch(sources)
    for source, hypothesis, ids in zip(sources, best, encoded, strict=True):
        weights, words, target = hypothesis.shown(end=True) or (None, (), ())
        output.details.add(source=words, target=target, weights=weights, predicted=hypothesis.predicted)
        attention = None if weights is None else (weights, hypothesis.source_words)
        flags = flags_of(
            hypothesis.text, source=source, ended=hypothesis.ended, unknown=UNK in ids, attention=attention
        )
        output.flags.append(flags)
