"""`eval`: a checkpoint on a test set, or files of hypotheses, as one report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig
from tqdm import tqdm

from seqtool import plots
from seqtool.data.alignment import Link, diagonal, parse_pharaoh, uniform, words
from seqtool.data.preparation import make_corpus
from seqtool.data.text_files import check_file, read_lines, replacing
from seqtool.errors import InputError
from seqtool.metrics.alignment import Gold, alignment_error_rate, crossings
from seqtool.metrics.bleu import bleu_statistics, length_bins, length_gaps, make_bleu
from seqtool.metrics.translation import Comparison, Evaluation, check_lengths, compare, table
from seqtool.metrics.translation import evaluate as evaluate_texts

if TYPE_CHECKING:
    from seqtool.translator import Translator

MOST_RESAMPLES = 1_000_000


@dataclass
class EvalSettings:
    """The settings of configs/eval.yaml, besides how a checkpoint decodes."""

    split: str
    testset: str | None
    langpair: str | None
    hypotheses: str | None
    references: list[str]
    sources: str | None
    baseline: str | None
    alignments: str | None
    gold: str | None
    tokenize: str
    lowercase: bool
    bootstrap: int
    length_bins: list[int]
    format: str
    plot: str | None
    output: str | None

    def check(self, *, checkpoint: bool) -> None:
        """Raise one InputError on what cannot be, before any work is done."""
        if checkpoint == (self.hypotheses is not None):
            raise InputError("eval needs either checkpoint=PATH or hypotheses=FILE references=FILE[,FILE…].")
        useless = ("alignments",) if checkpoint else ("testset", "langpair", "output")
        edges = [0, *self.length_bins]
        rules = {
            f"Unknown format '{self.format}'; choose from table, json.": self.format in ("table", "json"),
            f"bootstrap must be at least 2, not {self.bootstrap}.": self.bootstrap >= 2,
            f"bootstrap must be at most {MOST_RESAMPLES:,}, not {self.bootstrap:,}.": self.bootstrap <= MOST_RESAMPLES,
            f"length_bins must rise from 1, not {self.length_bins}.": edges == sorted(set(edges)),
            "langpair=… goes with testset=….": (self.langpair is None) or (self.testset is not None),
            "eval hypotheses=FILE needs references=FILE[,FILE…].": checkpoint or bool(self.references),
            "sources=FILE and references=FILE[,FILE…] go together.": not checkpoint
            or (self.sources is None) == (not self.references),
            "alignments=FILE and gold=FILE go together.": checkpoint
            or (self.alignments is None) == (self.gold is None),
            "plot=DIR needs sources=FILE.": checkpoint or self.plot is None or self.sources is not None,
            "gold=FILE needs sources=FILE.": self.gold is None or self.sources is not None,
            **{
                f"{name}= means nothing with {'checkpoint' if checkpoint else 'hypotheses'}=.": getattr(self, name)
                is None
                for name in useless
            },
        }
        if problems := [problem for problem, holds in rules.items() if not holds]:
            raise InputError(" ".join(problems))
        make_bleu(self.tokenize, lowercase=self.lowercase)
        for file in (self.hypotheses, *self.references, self.sources, self.baseline, self.alignments, self.gold):
            if file is not None:
                check_file(Path(file))


@dataclass(frozen=True)
class AlignmentScores:
    """Alignment error rate (0 is perfect) beside two baselines, and how many of the gold swaps are crossed.

    Agreeing swaps are those of a noun and an adjective that agrees with it (see `metrics.alignment.crossings`).
    """

    aer: float
    aer_uniform: float
    aer_diagonal: float
    crossed: int
    swaps: int
    crossed_agreeing: int
    swaps_agreeing: int

    def text(self) -> str:
        rows = [("this system", self.aer), ("diagonal", self.aer_diagonal), ("uniform", self.aer_uniform)]
        lines = table(("alignment error rate", ""), [(name, f"{value:.3f}") for name, value in rows])
        crossed = [(self.crossed, self.swaps), (self.crossed_agreeing, self.swaps_agreeing)]
        all_swaps, agreeing = (f"{n:,} of {of:,} ({n / max(of, 1):.1%})" for n, of in crossed)
        lines += [
            "",
            f"Swapped neighbours whose links cross: {all_swaps}",
            f"  of a noun and an adjective that agrees with it: {agreeing}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """Everything one call of `eval` found."""

    system: Evaluation | None
    comparison: Comparison | None
    gaps: dict[str, Any] | None
    alignment: AlignmentScores | None

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""
        parts = {"system": self.system, "comparison": self.comparison, "alignment": self.alignment}
        record = {name: asdict(part) for name, part in parts.items() if part is not None}
        return record | ({"gaps": self.gaps} if self.gaps else {})

    def text(self) -> str:
        """Tables for a person."""
        parts = [part.text() for part in (self.system, self.comparison) if part is not None]
        if self.gaps:
            parts.append("\n".join(f"{name}: {value}" for name, value in self.gaps["text"].items()))
        if self.alignment is not None:
            parts.append(self.alignment.text())
        return "\n\n".join(parts)


@dataclass(frozen=True)
class TestSet:
    """Raw source and reference lines, and gold alignments where there are any."""

    sources: list[str]
    references: list[list[str]]
    golds: list[Gold] | None


def evaluate_checkpoint(translator: "Translator", settings: EvalSettings, data: DictConfig | None) -> Report:
    """Translate a test set and score it; where it has gold alignments, align its references as well."""
    test = _test_set(translator, settings, data)
    hypotheses: list[str] = []
    size = 32 * translator.settings.at_once
    with tqdm(total=len(test.sources), unit="line", desc="translate", disable=None) as bar:
        for start in range(0, len(test.sources), size):
            hypotheses += translator.translate(test.sources[start : start + size])
            bar.update(len(hypotheses) - bar.n)
    if settings.output is not None:
        with replacing(Path(settings.output)) as stream:
            stream.writelines(line + "\n" for line in hypotheses)
    report = _report(hypotheses, test.references, test.sources, settings)
    alignment = None
    if test.golds is not None and translator.attends:
        forced = translator.forced(test.sources, test.references[0])
        links = [one.alignment or set() for one in forced]
        alignment = alignment_scores(links, test.golds, test.sources, test.references[0])
    return Report(report.system, report.comparison, report.gaps, alignment)


def evaluate_files(settings: EvalSettings) -> Report:
    """Score files: hypotheses against references, and alignments against gold ones."""
    name = str(settings.hypotheses)
    hypotheses = list(read_lines(Path(name)))
    reference_names = settings.references
    references = [list(read_lines(Path(name))) for name in reference_names]
    check_lengths(hypotheses, references, name=name, reference_names=reference_names)
    sources = None
    if settings.sources is not None:
        sources = list(read_lines(Path(settings.sources)))
        check_lengths(hypotheses, [sources], name=name, reference_names=[settings.sources])
    report = _report(hypotheses, references, sources, settings)
    alignment = None
    if settings.gold is not None and settings.alignments is not None:
        golds, links = _alignments(settings.gold), _alignments(settings.alignments)
        for file, lines in ((settings.alignments, links), (settings.gold, golds)):
            if len(lines) != len(hypotheses):
                raise InputError(
                    f"{file} has {len(lines):,} lines but {name} has {len(hypotheses):,}: "
                    "they must be of the same sentences."
                )
        assert sources is not None
        alignment = alignment_scores([sure for sure, _ in links], golds, sources, references[0])
    return Report(report.system, report.comparison, report.gaps, alignment)


def alignment_scores(
    links: Sequence[set[Link]], golds: Sequence[Gold], sources: Sequence[str], targets: Sequence[str]
) -> AlignmentScores:
    generator = np.random.default_rng(0)
    sizes = [(len(words(source)), len(words(target))) for source, target in zip(sources, targets, strict=True)]
    crossed, swaps = crossings(links, golds)
    crossed_agreeing, swaps_agreeing = crossings(links, golds, agreeing=True)
    return AlignmentScores(
        aer=alignment_error_rate(links, golds),
        aer_uniform=alignment_error_rate([uniform(s, t, generator) for s, t in sizes], golds),
        aer_diagonal=alignment_error_rate([diagonal(s, t) for s, t in sizes], golds),
        crossed=crossed,
        swaps=swaps,
        crossed_agreeing=crossed_agreeing,
        swaps_agreeing=swaps_agreeing,
    )


def _report(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    settings: EvalSettings,
) -> Report:
    options: Mapping[str, Any] = {"tokenize": settings.tokenize, "lowercase": settings.lowercase}
    edges = settings.length_bins
    system = evaluate_texts(hypotheses, references, sources=sources, edges=edges, **options)
    drawn = {Path(settings.hypotheses).name if settings.hypotheses else "checkpoint": system.by_length}
    comparison, gaps = None, None
    if settings.baseline is not None:
        baseline = list(read_lines(Path(settings.baseline)))
        check_lengths(
            baseline, references, name=settings.baseline, reference_names=["the references"] * len(references)
        )
        comparison = compare(baseline, hypotheses, references, samples=settings.bootstrap, **options)
        if sources is not None:
            drawn[Path(settings.baseline).name] = evaluate_texts(
                baseline, references, sources=sources, edges=edges, **options
            ).by_length
            gaps = _gaps(baseline, hypotheses, references, sources, edges, settings, options)
    if settings.plot is not None and sources is not None:
        Path(settings.plot).mkdir(parents=True, exist_ok=True)
        plots.bleu_by_length(drawn, Path(settings.plot) / "bleu_by_length.png")
    return Report(system, comparison, gaps, None)


def _gaps(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str],
    edges: Sequence[int],
    settings: EvalSettings,
    options: Mapping[str, Any],
) -> dict[str, Any] | None:
    """How far the system is ahead on the shortest and on the longest sources, and by how much that grows."""
    bins = length_bins(sources, edges=edges)
    (short, first), (long, last) = bins[0], bins[-1]
    if len(first) == 0 or len(last) == 0:
        return None
    statistics = [bleu_statistics(lines, references, **options) for lines in (baseline, system)]
    gaps = length_gaps(statistics[0], statistics[1], first, last, samples=settings.bootstrap)
    text = {
        f"BLEU ahead of the baseline, {short} source words": str(gaps.short),
        f"BLEU ahead of the baseline, {long} source words": str(gaps.long),
        "the difference of the two": str(gaps.growth),
    }
    return {**asdict(gaps), "text": text}


def _alignments(path: str) -> list[Gold]:
    return [parse_pharaoh(line, place=f"{path} line {n:,}") for n, line in enumerate(read_lines(Path(path)), 1)]


def _test_set(translator: "Translator", settings: EvalSettings, data: DictConfig | None) -> TestSet:
    if settings.testset is not None:
        return _sacrebleu_test_set(settings.testset, settings.langpair)
    if settings.sources is not None:
        return _test_files(settings)
    corpus = make_corpus(translator.config.get("data", {}) if data is None else data, trusted=data is not None)
    if settings.split not in corpus.splits():
        raise InputError(
            f"Unknown split '{settings.split}'; this corpus has {', '.join(corpus.splits())}. "
            "For files of your own say sources=FILE references=FILE."
        )
    if data is None:
        corpus.check()  # a checkpoint does not say what is written where
    else:
        corpus.fetch()
    pairs = list(corpus.pairs(settings.split))
    gold = corpus.alignments(settings.split)
    golds = None if gold is None else [parse_pharaoh(line) for line in gold]
    return TestSet([source for source, _ in pairs], [[target for _, target in pairs]], golds)


def _test_files(settings: EvalSettings) -> TestSet:
    """Anyone's files: sources=FILE references=FILE[,FILE…], and gold=FILE where there are gold alignments."""
    reference_names = settings.references
    name = str(settings.sources)
    sources = list(read_lines(Path(name)))
    references = [list(read_lines(Path(name))) for name in reference_names]
    check_lengths(sources, references, name=name, reference_names=reference_names)
    golds = None if settings.gold is None else _alignments(settings.gold)
    if golds is not None and len(golds) != len(sources):
        raise InputError(
            f"{settings.gold} has {len(golds):,} lines but {name} has {len(sources):,}: "
            "they must be of the same sentences."
        )
    return TestSet(sources, references, golds)


def _sacrebleu_test_set(name: str, langpair: str | None) -> TestSet:
    import sacrebleu

    known = sacrebleu.get_available_testsets()
    if name not in known:
        raise InputError(f"Unknown testset '{name}'; sacreBLEU has {', '.join(known[:8])}, …")
    pairs = sacrebleu.get_langpairs_for_testset(name)
    if langpair not in pairs:
        raise InputError(f"testset={name} needs langpair=…, one of {', '.join(pairs)}.")
    try:
        source = sacrebleu.get_source_file(name, langpair)
        references = sacrebleu.get_reference_files(name, langpair)
    except SystemExit as error:  # how sacreBLEU ends when it cannot download
        raise InputError(f"sacreBLEU could not download {name}: it needs the network once.") from error
    return TestSet(
        list(read_lines(Path(source))), [list(read_lines(Path(reference))) for reference in references], None
    )
