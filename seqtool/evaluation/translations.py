"""`eval` of translations: BLEU, chrF and TER, BLEU by source length, and alignments against gold alignments."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import sacrebleu

from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.text.alignment import Link, parse_pharaoh
from seqtool.data.text.words import SPLITS
from seqtool.errors import InputError, counted
from seqtool.evaluation import EvaluationData, Evaluator, Output, Segment, SystemsEvaluation, find_flags
from seqtool.metrics import translation
from seqtool.metrics.alignment import AlignmentScores, Gold
from seqtool.metrics.bootstrap import MIN_SEGMENTS, record_of, too_few
from seqtool.metrics.scores import TRANSLATION, System, labels_of, score
from seqtool.runtime.files import check_directory, keeping, parse_json, read_lines, warn_of_table
from seqtool.runtime.log import log
from seqtool.runtime.network import LibraryDownload
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.tables import table
from seqtool.settings import declarations, names
from seqtool.view import plots, report

if TYPE_CHECKING:
    from seqtool.predict.translator import Translator

T = TypeVar("T")
Splitter = Callable[[str], list[str]]  # splits a text into words

LIKELIEST_TOKENS = 5  # tokens that a report shows at each position of a translation


@dataclass(kw_only=True)
class TranslationEvaluation(SystemsEvaluation):
    """The scores of translations. The first score is BLEU."""

    alignment: AlignmentScores | None = None  # against gold alignments; None if there are none

    task = TRANSLATION
    segment_key = "line"

    @cached_property
    def unit(self) -> str | None:
        """The unit of source lengths, words or characters; None if the sources are unknown."""
        return None if self.sources is None else translation.lengths(self.sources)[1]

    @cached_property
    def by_length(self) -> Sequence[translation.LengthScore]:
        """BLEU of the evaluated system by source length; empty if the sources are unknown."""
        return self.score_by_length(self.system)

    def score_by_length(self, system: System) -> Sequence[translation.LengthScore]:
        """BLEU of a system by source length; empty if the sources are unknown."""
        if self.sources is None:
            return ()
        statistics, edges = system.statistics[0], self.settings.length_bins
        return translation.bleu_by_length(statistics, self.sources, edges=edges, samples=system.samples)

    @cached_property
    def gaps(self) -> dict[str, Any] | None:
        """The lead over the baseline in BLEU for the shortest and the longest sources, and the difference between them.

        None without sources or baseline, or if there are no sources in the first or in the last bin of lengths.
        """
        if self.sources is None or not self.settings.baseline:
            return None
        bins = translation.length_bins(self.sources, edges=self.settings.length_bins)
        (short_label, short), (long_label, long) = bins[0], bins[-1]
        if len(short) == 0 or len(long) == 0:
            return None
        system, baseline, *_ = (system.statistics[0] for system in self.systems.values())
        gaps = translation.length_gaps(baseline, system, short, long, samples=self.system.samples)
        text = {
            f"BLEU ahead of the baseline, {short_label} source {self.unit}": gaps["short"].text(),
            f"BLEU ahead of the baseline, {long_label} source {self.unit}": gaps["long"].text(),
            "the difference of the two": gaps["growth"].text(),
        }
        return {**{name: record_of(gap) for name, gap in gaps.items()}, "text": text}

    def record(self) -> dict[str, Any]:
        """The results as plain containers, with the parts of BLEU:

        - precisions: the n-gram precisions in per cent for n = 1..4, smoothed if no n-gram matches
        - brevity_penalty: 1 means no penalty
        - length_ratio: the length of the hypotheses divided by the length of the references
        """
        system, parts = self.system, translation.bleu_parts(self.system.statistics[0])
        record: dict[str, Any] = {
            "sentences": len(self.segments),
            "scores": [
                {"name": score(name).label, **record_of(estimate), "signature": system.signature(name)}
                for name, estimate in system.estimates.items()
            ],
            "bleu": record_of(system.estimates["bleu"]),
            "precisions": list(parts.precisions),
            "brevity_penalty": parts.bp,
            "length_ratio": parts.sys_len / max(parts.ref_len, 1),
            "by_length": [record_of(length) for length in self.by_length],
        }
        if self.unit not in (None, "words"):
            record["length_unit"] = self.unit
        optional = {
            "comparison": None if self.comparison is None else self.comparison.record(),
            "alignment": None if self.alignment is None else asdict(self.alignment),
            "gaps": self.gaps,
        }
        return {"system": record, **{name: value for name, value in optional.items() if value is not None}}

    def text(self) -> str:
        record, estimates = self.record()["system"], self.system.estimates
        rows = [(score(name).label, estimate.text(score(name).digits)) for name, estimate in estimates.items()]
        lines = table(("score", counted(len(self.segments), "sentence")), rows)
        if self.unit is not None:
            cells = [
                (length.label, f"{length.sentences:,}", "-" if length.bleu is None else length.bleu.text())
                for length in self.by_length
            ]
            lines += ["", *table((f"source {self.unit}", "sentences", "BLEU"), cells)]
        precisions = " / ".join(f"{precision:.1f}" for precision in record["precisions"])
        lengths = f"brevity penalty {record['brevity_penalty']:.3f}, length ratio {record['length_ratio']:.3f}"
        lines += ["", f"n-gram precisions {precisions}, {lengths}", ""]
        lines += [f"{score_record['name']}: {score_record['signature']}" for score_record in record["scores"]]
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
            scores = {title: self.score_by_length(system) for title, system in self.systems.items()}
            series = {title: [length.bleu for length in length_scores] for title, length_scores in scores.items()}
            bins = [f"{length.label} ({length.sentences:,})" for length in self.by_length]
            x_label = f"source {self.unit} (sentences)"
            sections[1] = report.intervals("BLEU by source length", x_label, "BLEU", bins, series)
        if self.alignment is not None:
            sections.append(report.table("Alignments", ("alignment", "error rate"), self.alignment.rows()))
            if notes := self.alignment.notes():
                sections.append(report.text("Swapped neighbours", notes))
        sections.append(self.segment_table("Sentences"))
        return f"Translations of {self.title}", counted(len(self.segments), "sentence"), sections


class TranslationEvaluator(Evaluator):
    """Evaluates files of translations, or has a translator translate a test set and evaluates its translations."""

    schema, decoding_schema = declarations.EvalTranslations, declarations.Decode
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
            yield f"length_bins must be one or more lengths from 1, in rising order, not {settings.length_bins}."
        if settings.langpair is not None and settings.testset is None:
            yield "langpair=… needs testset=…."
        if not (checkpoint or settings.testset is not None or settings.references):
            yield "eval hypotheses=FILE needs references=FILE[,FILE…], or testset=NAME langpair=…."
        if settings.testset is not None and (settings.sources or settings.references):
            yield "testset=NAME has its own texts: leave sources= and references= out."
        if checkpoint and (settings.sources is None) != (not settings.references):
            yield "sources=FILE and references=FILE[,FILE…] must be given together."
        if not checkpoint and (settings.alignments is None) != (settings.gold is None):
            yield "alignments=FILE and gold=FILE must be given together."
        if settings.plot is not None and not (checkpoint or settings.sources or settings.testset):
            yield "plot=DIR needs sources=FILE."
        if settings.samples and not (checkpoint and settings.plot):
            yield "samples= needs checkpoint=PATH and plot=DIR."
        if settings.beside and settings.plot is None and settings.report is None:
            yield "beside=FILE needs plot=DIR or report=FILE.html."
        if settings.gold is not None and settings.sources is None and settings.testset is None:
            yield "gold=FILE needs sources=FILE or testset=NAME."
        if checkpoint and settings.alignments is not None:
            yield "alignments= is for hypotheses=FILE: leave it out with checkpoint=PATH, whose model aligns the words."
        if not checkpoint and settings.output is not None:
            yield "output= is for the translations of checkpoint=PATH: leave it out with hypotheses=FILE."
        if settings.plot is not None:
            check_directory(Path(settings.plot), "plot")

    def evaluate_files(self) -> TranslationEvaluation:
        """Evaluate hypotheses against references, and alignments against gold alignments."""
        settings, name, alignment = self.settings, str(self.settings.hypotheses), None
        hypotheses = read_translations(name)
        segments, splitter = self.read_test_set(hypotheses)
        outputs = [Output(name, dict(enumerate(hypotheses, 1))), *self._read_other_outputs(segments)]
        if settings.alignments is not None:  # `problems` ensures that there are gold alignments too
            sources, references = _sources_and_references(segments)
            links = read_alignments(settings.alignments, [sources, hypotheses, references], splitter, name=name)
            alignment = _score_alignments(segments, [sure for sure, _ in links], splitter)
        return self._evaluate(segments, outputs, alignment=alignment)

    def evaluate_checkpoint(self, predictor: "Translator", data: EvaluationData) -> TranslationEvaluation:
        """Translate a test set and evaluate the translations; with gold alignments, also the model's alignments."""
        settings = self.settings
        for setting, value in (("gold", settings.gold), ("samples", settings.samples)):
            if value and not predictor.attends:
                raise InputError(f"{setting}=… needs a model with attention; this one has a fixed context.")
        segments, predictor.split = self.test_set(predictor, data)
        other_outputs = self._read_other_outputs(segments)
        alignment = None
        if predictor.attends and all(segment.gold is not None for segment in segments):
            fitting = [item for item in segments if predictor.can_force(str(item.source), item.references[0])]
            if len(fitting) < len(segments):
                print(
                    f"Alignments are scored without {len(segments) - len(fitting):,} of {len(segments):,} lines, which "
                    f"are longer than the model's {predictor.max_positions:,} learnt positions.",
                    file=sys.stderr,
                )
            if fitting:
                links = [forced.alignment or set() for forced in predictor.forced(*_sources_and_references(fitting))]
                alignment = _score_alignments(fitting, links, predictor.split)
        training_counts = None if settings.report is None else data.word_counts(predictor)
        outputs = [self._translate(predictor, [str(segment.source) for segment in segments]), *other_outputs]
        return self._evaluate(segments, outputs, alignment=alignment, training_counts=training_counts)

    def read_test_set(self, hypotheses: Sequence[str] | None = None) -> tuple[list[Segment], Splitter]:
        """Read the test set that the settings name: testset=NAME, or references=FILE[,FILE…] and optionally
        sources=FILE and gold=FILE. Returns its segments and how alignments split a text into words. hypotheses: the
        lines to which the texts must be parallel; None means the sources
        """
        settings = self.settings
        if settings.testset is not None:
            sources, *references = _sacrebleu_texts(settings.testset, settings.langpair)
            reference_names = [f"testset={settings.testset}"] * len(references)
        else:
            sources = [] if settings.sources is None else _read_side(settings.sources)
            references = [read_translations(file) for file in settings.references]
            reference_names = settings.references
        lines = sources if hypotheses is None else hypotheses
        name = str(settings.hypotheses or settings.sources or f"testset={settings.testset}")
        translation.check_lengths(lines, references, name=name, reference_names=reference_names)
        if settings.sources is not None:
            translation.check_lengths(lines, [sources], name=name, reference_names=[settings.sources])
        golds, splitter = None, SPLITS[settings.words or "spaces"]
        if settings.gold is not None:
            texts = [sources, references[0], *([] if hypotheses is None else [hypotheses])]
            golds = read_alignments(settings.gold, texts, splitter, name=name)
        return _segments(sources, references, golds), splitter

    def test_set(self, translator: "Translator", data: EvaluationData) -> tuple[list[Segment], Splitter]:
        """A model's test set, from `read_test_set` or a split of `data`, and how alignments split a text into words. If
        the split's files are gone, it is read from the cache of the data that the model was trained with.
        """
        # imported here because they import torch, which is not needed to score files
        from seqtool.runtime.distributed import first_on_each_machine
        from seqtool.training import moved_data

        split, words = self.settings.split, self.settings.words
        if self.settings.testset is not None or self.settings.sources is not None:
            return first_on_each_machine(self.read_test_set)
        corpus = data.corpus(TextCorpus, translator)
        if split not in corpus.splits():
            raise InputError(
                f"Unknown split '{split}'; this corpus has {', '.join(corpus.splits())}. "
                "For files of your own give sources=FILE references=FILE."
            )
        try:
            data.check_files(corpus)
            pairs, alignments = list(corpus.pairs(split)), corpus.alignments(split)
        except InputError as error:
            if data.checkpoint is None or moved_data.split_exists(corpus, split):
                raise
            data_config = translator.config["data"]
            cached_split = moved_data.texts(data.checkpoint, data_config, split)
            if cached_split is None:
                advice = moved_data.missing_data_advice(data.checkpoint, data_config, [split])
                raise InputError(f"{error} {advice}") from error
            pairs = list(zip(cached_split.texts("source"), cached_split.texts("target"), strict=True))
            alignments = cached_split.alignments()
        if not pairs:
            raise InputError(f"The split '{split}' has no sentences: there is nothing to score.")
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        split_words = corpus.words if words is None else SPLITS[words]
        golds = None if alignments is None else [parse_pharaoh(line) for line in alignments]
        if golds is not None:
            _check_links(golds, [sources, targets], split_words, name=f"The gold alignments of {split}")
        return _segments(sources, [targets], golds), split_words

    def _read_other_outputs(self, segments: Sequence[Segment]) -> list[Output]:
        """Read the outputs of the baseline and of the systems `beside`: files with a line for each segment."""
        outputs, (_, references) = [], _sources_and_references(segments)
        for file in (*names(self.settings.baseline), *self.settings.beside):
            lines = read_translations(file)
            translation.check_lengths(lines, [references], name=file, reference_names=["the reference"])
            outputs.append(Output(file, dict(enumerate(lines, 1))))
        return outputs

    def _translate(self, translator: "Translator", sources: Sequence[str]) -> Output:
        """Translate the sources, write the translations to `output`, and draw the alignments of `samples`. If this is
        interrupted, the finished part of `output` is kept.
        """
        settings = self.settings
        details = None if settings.report is None else report.Details()
        output = Output(translator.name, details=details)

        def finished_lines() -> str:
            return counted(len(output.hypotheses), "line")

        out = nullcontext() if settings.output is None else keeping(Path(settings.output), finished_lines)
        samples = self._samples(sources, translator.settings.seed)
        likeliest = 0 if settings.report is None else LIKELIEST_TOKENS
        # sources of similar length share a batch, which needs windows of many batches to choose from
        size = 32 * translator.settings.sources_per_batch
        with out as file, progress_bar(total=len(sources), unit="line", description="translate") as bar:
            for start in range(0, len(sources), size):
                window = sources[start : start + size]
                attention = details is not None or any(start < line <= start + size for line in samples)
                n_best = translator.hypotheses(window, attention=attention, likeliest=likeliest, first_line=start + 1)
                for line, (best, *_) in enumerate(n_best, start + 1):
                    if details is not None:
                        weights, words, target = best.plot_data(end=True) or (None, (), ())
                        details.add(source=words, target=target, weights=weights, predicted=best.predicted)
                        flags = find_flags(
                            best.text,
                            source=best.source.text,
                            ended=best.ended,
                            unknown=bool(best.source.unknown),
                            attention=None if weights is None else (weights, best.source_words),
                        )
                        output.flags.append(flags)
                    if line in samples and settings.plot is not None:
                        figure = Path(settings.plot) / f"alignment-{line:04d}.{settings.figures}"
                        with plots.optional_figure(figure):
                            best.plot(figure, greyscale=settings.greyscale)
                    if file is not None:
                        file.write(f"{best.text}\n")
                    output.hypotheses[line] = best.text
                bar.update(len(n_best))
        return output

    def _samples(self, sources: Sequence[str], seed: int) -> list[int]:
        """The random lines of 10 to 20 words whose alignments are drawn, as in Bahdanau et al. 2015, Figure 3."""
        samples = self.settings.samples
        if not samples:
            return []
        lengths, unit = translation.lengths(sources)
        candidate_lines = [line for line, length in enumerate(lengths, 1) if 10 <= length <= 20]
        if not candidate_lines and self.settings.plot is not None:
            print(f"samples={samples}: no source has 10 to 20 {unit}, so none is drawn.", file=sys.stderr)
        order = np.random.default_rng(seed).permutation(len(candidate_lines))
        return sorted(candidate_lines[index] for index in order[:samples])

    def _evaluate(self, segments: Sequence[Segment], outputs: Sequence[Output], **fields: Any) -> TranslationEvaluation:
        """Evaluate the systems. fields: further fields of the evaluation"""
        settings = self.settings
        references = chain.from_iterable(segment.references for segment in segments)
        language = None if settings.langpair is None else settings.langpair.partition("-")[2]
        tokenize = self.tokeniser(lambda: translation.fitting_tokeniser(references, language=language))
        if settings.ter and tokenize in translation.CHARACTER_TOKENISERS:
            log.info("TER compares words between spaces, and this text has few spaces: leave it out with ter=false.")
        system_names = [settings.hypotheses or "The output of the model", *names(settings.baseline)]
        for name, output in zip(system_names, outputs, strict=False):
            count = sum(line.endswith(" .") for line in output.hypotheses.values())
            if count >= translation.TOKENISED_LINES and tokenize != "none":  # BLEU would tokenise it a second time
                log.warning(
                    f"{name} looks tokenised ({count:,} lines end in ' .'), but tokenize={tokenize} expects "
                    "untokenised text: detokenise it, or set tokenize=none if all texts are tokenised alike."
                )
        if settings.bootstrap and settings.baseline and len(segments) < MIN_SEGMENTS:
            log.warning(too_few(len(segments), "sentences"))
        fields["options"] = {"tokenize": tokenize, "lowercase": settings.lowercase}
        evaluation = TranslationEvaluation(settings=settings, segments=segments, outputs=outputs, **fields)
        if settings.plot is not None:
            figure = Path(settings.plot) / f"bleu_by_length.{settings.figures}"
            lengths = {title: evaluation.score_by_length(system) for title, system in evaluation.systems.items()}
            with plots.optional_figure(figure):
                plots.bleu_by_length(lengths, figure, unit=str(evaluation.unit))
        return evaluation


def _score_alignments(segments: Sequence[Segment], links: Sequence[set[Link]], splitter: Splitter) -> AlignmentScores:
    """Score links between the words of each segment's source and first reference by its gold alignment."""
    golds = [segment.gold or (set(), set()) for segment in segments]
    sizes = [
        (len(splitter(source)), len(splitter(target)))
        for source, target in zip(*_sources_and_references(segments), strict=True)
    ]
    return AlignmentScores.of(links, golds, sizes)


def _sources_and_references(segments: Sequence[Segment]) -> tuple[list[str], list[str]]:
    """The sources and the first references of the segments."""
    return [str(segment.source) for segment in segments], [segment.references[0] for segment in segments]


def _segments(
    sources: Sequence[str], references: Sequence[Sequence[str]], golds: Sequence[Gold] | None
) -> list[Segment]:
    """Make segments from the lines of parallel texts. sources: empty if they are unknown"""
    rows = zip(zip(*references, strict=True), sources or repeat(None), golds or repeat(None), strict=False)
    return [Segment(number, *row) for number, row in enumerate(rows, 1)]


def read_translations(path: str) -> list[str]:
    """Read the lines of a text file, or the best translations in a file that `translate format=jsonl` wrote."""
    lines = _read_side(path)
    if not lines[0].startswith('{"source": '):
        return lines
    return read_records(path, lines, lambda record: str(record["translations"][0]["text"]))


def _read_side(path: str) -> list[str]:
    """Read the lines of a text file. Warn of a table."""
    lines = list(read_lines(Path(path)))
    warn_of_table(path, lines)
    return lines


def read_records(path: str, lines: Iterable[str], read: Callable[[Any], T]) -> list[T]:
    """What `read` takes from the record on each line of a file that `translate format=jsonl` wrote."""
    results = []
    for number, line in enumerate(lines, 1):
        try:
            results.append(read(parse_json(line)))
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(f"{path} line {number:,} is not a record as written by translate format=jsonl.") from error
    return results


def read_alignments(path: str, texts: Sequence[Sequence[str]], splitter: Splitter, *, name: str) -> list[Gold]:
    """Read a file of alignments in Pharaoh format.

    texts: the sources and one or more translations; a link must be between words of a source and a translation
    name: the file with the aligned lines, for messages
    """
    golds = [parse_pharaoh(line, location=f"{path} line {n:,}") for n, line in enumerate(read_lines(Path(path)), 1)]
    if len(golds) != len(texts[0]):
        counts = f"{path} has {len(golds):,} lines but {name} has {len(texts[0]):,}"
        raise InputError(f"{counts}: they must be parallel.")
    _check_links(golds, texts, splitter, name=path)
    return golds


def _check_links(golds: Sequence[Gold], texts: Sequence[Sequence[str]], splitter: Splitter, *, name: str) -> None:
    """Raise InputError for a link to a word that does not exist. The arguments are those of `read_alignments`."""
    for number, ((sure, possible), *lines) in enumerate(zip(golds, *texts, strict=True), 1):
        source_length, *target_lengths = (len(splitter(line)) for line in lines)
        target_length = max(target_lengths)
        for i, j in sorted(sure | possible):
            if i >= source_length or j >= target_length:
                raise InputError(
                    f"{name} line {number:,} has the link {i}-{j}, but its sentences have {source_length} and "
                    f"{target_length} words, counted from 0. White space separates words, unless words=marks or "
                    "words=characters is set. Give the text that was aligned, tokenised in the same way."
                )


def _sacrebleu_texts(name: str, langpair: str | None) -> list[list[str]]:
    """The lines of the source and of each reference of a test set, which sacreBLEU downloads if they do not exist."""
    available = sacrebleu.get_available_testsets()
    if name not in available:
        raise InputError(f"Unknown testset '{name}'; sacreBLEU has {', '.join(available[:8])}, …")
    pairs = sacrebleu.get_langpairs_for_testset(name)
    if langpair not in pairs:
        raise InputError(f"testset={name} needs langpair=…, one of {', '.join(pairs)}.")
    stem = Path(sacrebleu.utils.SACREBLEU_DIR, name, f"{name.replace('/', '_')}.{langpair}")
    local_files = [Path(f"{stem}.src"), Path(f"{stem}.ref")]  # files that sacreBLEU or the user puts there
    texts = [list(read_lines(file)) for file in local_files if file.is_file()]
    if len(texts) == 2 and len(texts[0]) == len(texts[1]):
        return texts
    download = LibraryDownload(
        subject=f"testset={name}",
        advice=f"put its text, one sentence per line, into {local_files[0]} and {local_files[1]}",
        addresses=sacrebleu.DATASETS[name].data or [],
    )
    files = download.run(
        lambda: [sacrebleu.get_source_file(name, langpair), *sacrebleu.get_reference_files(name, langpair)]
    )
    return [list(read_lines(Path(file))) for file in files]
