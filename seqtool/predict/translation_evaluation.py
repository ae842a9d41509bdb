"""`eval` of translations: BLEU, chrF and TER, BLEU by source length, and alignments against gold ones."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from omegaconf import DictConfig

from seqtool.data.text.alignment import Link
from seqtool.errors import InputError
from seqtool.metrics import translation
from seqtool.metrics.alignment import AlignmentScores
from seqtool.metrics.scores import score, scorers
from seqtool.metrics.systems import System
from seqtool.metrics.tables import table
from seqtool.metrics.translation import NAMES, LengthScore
from seqtool.predict.evaluation import HypothesesEvaluation, SystemReport
from seqtool.predict.test_sets import TestSet, read_alignments, read_test_files, read_translations, test_set
from seqtool.runtime.outputs import keeping
from seqtool.runtime.progress import progress_bar
from seqtool.settings import names
from seqtool.view import plots

if TYPE_CHECKING:
    from seqtool.predict.translator import Translator
    from seqtool.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class TranslationReport(SystemReport):
    """The report on translations. The first score is BLEU; sources: None if they are unknown."""

    sources: Sequence[str] | None
    edges: Sequence[int]
    alignment: AlignmentScores | None

    segment: ClassVar[str] = "line"

    def record(self) -> dict[str, Any]:
        aligned = {} if self.alignment is None else {"alignment": asdict(self.alignment)}
        gaps = {} if self.gaps is None else {"gaps": self.gaps}
        return {"system": self._system(), **self.compared(), **aligned, **gaps}

    def _system(self) -> dict[str, Any]:
        """Includes BLEU's parts: the n-gram precisions in per cent, n = 1..4 (smoothed if none matches), the
        brevity penalty (1 is none), and the ratio of the hypotheses' length to the references'.
        """
        values = self.system.values.items()
        quoted = [{"name": score(n).label, "value": v, "signature": self.system.signature(n)} for n, v in values]
        parts = translation.bleu_parts(self.system.statistics[0])
        return {
            "sentences": len(self.names),
            "scores": quoted,
            "bleu": asdict(self.system.estimates["bleu"]),
            "precisions": list(parts.precisions),
            "brevity_penalty": parts.bp,
            "length_ratio": parts.sys_len / max(parts.ref_len, 1),
            "by_length": [asdict(one) for one in self.by_length],
        }

    def text(self) -> str:
        parts = [self._system_text()]
        if self.comparison is not None:
            parts.append(self.comparison.text())
        if self.gaps is not None:
            parts.append("\n".join(f"{name}: {value}" for name, value in self.gaps["text"].items()))
        if self.alignment is not None:
            parts.append(self.alignment.text())
        return "\n\n".join(parts)

    def _system_text(self) -> str:
        found = self._system()
        rows = [(score(name).label, f"{value:.{score(name).digits}f}") for name, value in self.system.values.items()]
        rows[0] = (rows[0][0], self.system.estimates["bleu"].text())
        lines = table(("score", f"{len(self.names):,} sentences"), rows)
        if self.sources is not None:
            cells = [(b.label, f"{b.sentences:,}", "-" if b.bleu is None else b.bleu.text()) for b in self.by_length]
            lines += ["", *table(("source words", "sentences", "BLEU"), cells)]
        precisions = " / ".join(f"{precision:.1f}" for precision in found["precisions"])
        lengths = f"brevity penalty {found['brevity_penalty']:.3f}, length ratio {found['length_ratio']:.3f}"
        lines += ["", f"n-gram precisions {precisions}, {lengths}", ""]
        return "\n".join([*lines, *(f"{one['name']}: {one['signature']}" for one in found["scores"])])

    @cached_property
    def by_length(self) -> tuple[LengthScore, ...]:
        """BLEU of the system by source length."""
        return self.lengths_of(self.system)

    def lengths_of(self, system: System) -> tuple[LengthScore, ...]:
        """BLEU by source length; empty if the sources are unknown."""
        if self.sources is None:
            return ()
        return translation.bleu_by_length(system.statistics[0], self.sources, edges=self.edges, samples=system.samples)

    @cached_property
    def gaps(self) -> dict[str, Any] | None:
        """The system's lead on the shortest and on the longest sources, and the difference between the two."""
        if self.sources is None or self.baseline is None:
            return None
        (short, first), *_, (long, last) = translation.length_bins(self.sources, edges=self.edges)
        if len(first) == 0 or len(last) == 0:
            return None
        statistics = self.baseline.statistics[0], self.system.statistics[0]
        gaps = translation.length_gaps(*statistics, first, last, samples=self.system.samples)
        ahead = "BLEU ahead of the baseline, {} source words".format
        estimates = {ahead(short): gaps.short, ahead(long): gaps.long, "the difference of the two": gaps.growth}
        return {**asdict(gaps), "text": {name: estimate.text() for name, estimate in estimates.items()}}


@dataclass
class TranslationEvaluation(HypothesesEvaluation):
    """An evaluation of translations."""

    testset: str | None
    langpair: str | None
    sources: str | None
    alignments: str | None
    gold: str | None
    lowercase: bool
    length_bins: list[int]
    plot: str | None
    plot_beside: list[str] = field(default_factory=list)
    samples: int = 0
    ter: bool = True

    tokenizer: ClassVar[str] = "13a"
    labels = tuple(score(name).label for name in NAMES)
    reads = ("hypotheses", "references", "sources", "baseline", "plot_beside", "alignments", "gold")
    writes = ("output", "plot")

    def check(self, *, checkpoint: bool) -> None:
        if checkpoint == (self.hypotheses is not None):
            raise InputError("eval needs either checkpoint=PATH or hypotheses=FILE references=FILE[,FILE…].")
        super().check(checkpoint=checkpoint)
        translation.make_bleu(self.tokenize, lowercase=self.lowercase)

    def rules(self, *, checkpoint: bool) -> Mapping[str, bool]:
        edges = [0, *self.length_bins]
        rising = len(edges) > 1 and edges == sorted(set(edges))
        useless = ("alignments",) if checkpoint else ("testset", "langpair", "output")
        kind = "checkpoint" if checkpoint else "hypotheses"
        return {
            f"length_bins must be one or more lengths that rise from 1, not {self.length_bins}.": rising,
            "langpair=… goes with testset=….": (self.langpair is None) or (self.testset is not None),
            "eval hypotheses=FILE needs references=FILE[,FILE…].": checkpoint or bool(self.references),
            "testset=NAME has its own texts: leave sources= and references= out.": not checkpoint
            or self.testset is None
            or not (self.sources or self.references),
            "sources=FILE and references=FILE[,FILE…] go together.": not checkpoint
            or (self.sources is None) == (not self.references),
            "alignments=FILE and gold=FILE go together.": checkpoint
            or (self.alignments is None) == (self.gold is None),
            "plot=DIR needs sources=FILE.": checkpoint or self.plot is None or self.sources is not None,
            f"samples must be at least 0, not {self.samples}.": self.samples >= 0,
            "samples= goes with checkpoint=PATH and plot=DIR.": not self.samples or (checkpoint and bool(self.plot)),
            "plot_beside=FILE goes with plot=DIR.": self.plot is not None or not self.plot_beside,
            "gold=FILE needs sources=FILE.": self.gold is None or self.sources is not None,
            **{f"{name}= means nothing with {kind}=.": getattr(self, name) is None for name in useless},
        }

    def of_files(self) -> TranslationReport:
        """Hypotheses against references, and alignments against gold ones."""
        name = str(self.hypotheses)
        hypotheses = read_translations(name)
        test = read_test_files(self, hypotheses, name=name)
        aligned = None
        if self.alignments is not None:
            aligned = read_alignments(self.alignments, test.sources, [hypotheses, test.references[0]], name=name)
        links = None if aligned is None else [sure for sure, _ in aligned]
        return self._report(hypotheses, self._baseline(test), self._beside(test), links, test)

    def of_checkpoint(
        self, predictor: "Translator", data: DictConfig | None, found: "Checkpoint | None" = None
    ) -> TranslationReport:
        """Translations of a test set; if it has gold alignments, its references are aligned as well."""
        if self.gold is not None and not predictor.attends:
            raise InputError("gold=… needs a model with attention; this one has a fixed context.")
        if self.samples and not predictor.attends:
            raise InputError("samples=… needs a model with attention; this one has a fixed context.")
        test = test_set(self, predictor, data, found)
        baseline, beside = self._baseline(test), self._beside(test)
        if self.plot is not None:  # a name that cannot be one is found before anything is decoded
            Path(self.plot).mkdir(parents=True, exist_ok=True)
        hypotheses = self._translated(predictor, test.sources)
        links = None
        if test.golds is not None and predictor.attends:
            links = [one.alignment or set() for one in predictor.forced(test.sources, test.references[0])]
        if self.samples:
            self._draw_samples(predictor, test, hypotheses)
        return self._report(hypotheses, baseline, beside, links, test)

    def _translated(self, predictor: "Translator", sources: Sequence[str]) -> list[str]:
        """The translations, which are also written to `output`; if this is stopped, the finished part is kept."""
        found: list[str] = []
        size = 32 * predictor.settings.at_once
        output = nullcontext() if self.output is None else keeping(Path(self.output), lambda: f"{len(found):,} lines")
        with output as out, progress_bar(total=len(sources), unit="line", description="translate") as bar:
            for start in range(0, len(sources), size):
                window = sources[start : start + size]
                predictor.warn_of_long(window, first=start + 1)
                lines = predictor.translate(window)
                if out is not None:
                    out.writelines(line + "\n" for line in lines)
                found += lines
                bar.update(len(lines))
        return found

    def _baseline(self, test: TestSet) -> list[str] | None:
        """The lines of another system, as many as there are references."""
        return None if self.baseline is None else self._lines(self.baseline, test)

    def _lines(self, file: str, test: TestSet) -> list[str]:
        lines = read_translations(file)
        translation.check_lengths(lines, test.references[:1], name=file, reference_names=["the reference"])
        return lines

    def _beside(self, test: TestSet) -> list[list[str]]:
        """The lines of further systems."""
        return [self._lines(file, test) for file in self.plot_beside]

    def _report(
        self,
        hypotheses: Sequence[str],
        baseline: Sequence[str] | None,
        beside: Sequence[Sequence[str]],
        links: Sequence[set[Link]] | None,
        test: TestSet,
    ) -> TranslationReport:
        references = list(zip(*test.references, strict=True))
        names = [name for name in NAMES if self.ter or name != "ter"]
        found = scorers((*names, *self.scores), references, tokenize=self.tokenize, lowercase=self.lowercase)
        writer = self.hypotheses or "What the model wrote"
        translation.warn_of_tokenised(hypotheses, name=writer, tokenize=self.tokenize)
        translation.warn_of_tokenised(baseline or (), name=str(self.baseline), tokenize=self.tokenize)
        alignment = None
        if links is not None and test.golds is not None:
            alignment = AlignmentScores.of(links, test.golds, test.sources, test.references[0])
        report = TranslationReport(
            system=System(hypotheses, found, samples=self.bootstrap),
            baseline=None if baseline is None else System(baseline, found, samples=self.bootstrap),
            names=range(1, len(hypotheses) + 1),
            references=references,
            sources=test.sources or None,
            edges=self.length_bins,
            alignment=alignment,
        )
        if self.plot is not None:
            others = [System(lines, found[:1], samples=self.bootstrap) for lines in beside]
            self._draw(report, others, Path(self.plot))
        return report

    def _draw_samples(self, predictor: "Translator", test: TestSet, hypotheses: Sequence[str]) -> None:
        """The alignments of a few translations, each named by its line of the test set."""
        fitting = [i for i, source in enumerate(test.sources) if 10 <= len(source.split()) <= 20 and hypotheses[i]]
        if not fitting and self.plot is not None:
            print(
                f"samples={self.samples}: no translated source has 10 to 20 words, so none is drawn.", file=sys.stderr
            )
        order = np.random.default_rng(predictor.settings.seed).permutation(len(fitting))
        chosen = sorted(fitting[place] for place in order[: self.samples])
        forced = predictor.forced([test.sources[i] for i in chosen], [hypotheses[i] for i in chosen])
        for i, one in zip(chosen, forced, strict=True):
            if self.plot is not None and (shown := one.shown(end=False)) is not None:  # else another process draws
                plots.alignment(*shown, Path(self.plot) / f"alignment-{i + 1:04d}.png")

    def _draw(self, report: TranslationReport, beside: Sequence[System], directory: Path) -> None:
        """BLEU by source length, labelled with the names of the files, or with their paths if the names are equal."""
        paths = [self.hypotheses or "checkpoint", *names(self.baseline), *self.plot_beside]
        labels = [Path(path).name for path in paths]
        if len(set(labels)) < len(labels):
            labels = paths
        systems = [*([] if report.baseline is None else [report.baseline]), *beside]
        lengths = [report.by_length, *map(report.lengths_of, systems)]
        drawn = dict(zip(labels, lengths, strict=True))
        directory.mkdir(parents=True, exist_ok=True)
        plots.bleu_by_length(drawn, directory / "bleu_by_length.png")
