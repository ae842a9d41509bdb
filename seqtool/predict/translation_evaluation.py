"""`eval` of translations: BLEU, chrF and TER, BLEU by source length, and alignments against gold ones."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig

from seqtool.errors import InputError
from seqtool.metrics import tokenisers, translation
from seqtool.metrics.alignment import AlignmentScores
from seqtool.metrics.bootstrap import FEW, few
from seqtool.metrics.scores import score, scorers
from seqtool.metrics.systems import System
from seqtool.metrics.translation import NAMES
from seqtool.predict.evaluation import HypothesesEvaluation, titles
from seqtool.predict.test_sets import TestSet, read_alignments, read_translations, test_of_files, test_set
from seqtool.predict.translation_report import TranslationReport
from seqtool.runtime.outputs import keeping
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations, names
from seqtool.view import plots

if TYPE_CHECKING:
    from seqtool.predict.sentence_details import SentenceDetails
    from seqtool.predict.translator import Translator
    from seqtool.training.checkpoint import Checkpoint

LIKELIEST = 5  # tokens at each place, in a report

log = logging.getLogger(__name__)


@dataclass
class TranslationEvaluation(declarations.EvalTranslations, HypothesesEvaluation):
    """An evaluation of translations."""

    labels = tuple(score(name).label for name in NAMES)

    def check(self, *, checkpoint: bool) -> None:
        if checkpoint == (self.hypotheses is not None):
            raise InputError("eval needs either checkpoint=PATH or hypotheses=FILE references=FILE[,FILE…].")
        super().check(checkpoint=checkpoint)
        if self.tokenize is not None:
            translation.make_bleu(self.tokenize, lowercase=self.lowercase)

    def rules(self, *, checkpoint: bool) -> Mapping[str, bool]:
        edges = [0, *self.length_bins]
        rising = len(edges) > 1 and edges == sorted(set(edges))
        useless = ("alignments",) if checkpoint else ("output",)
        has_sources = checkpoint or (self.sources or self.testset) is not None
        kind = "checkpoint" if checkpoint else "hypotheses"
        return {
            f"length_bins must be one or more lengths that rise from 1, not {self.length_bins}.": rising,
            "langpair=… goes with testset=….": (self.langpair is None) or (self.testset is not None),
            "eval hypotheses=FILE needs references=FILE[,FILE…], or testset=NAME langpair=….": checkpoint
            or self.testset is not None
            or bool(self.references),
            "testset=NAME has its own texts: leave sources= and references= out.": self.testset is None
            or not (self.sources or self.references),
            "sources=FILE and references=FILE[,FILE…] go together.": not checkpoint
            or (self.sources is None) == (not self.references),
            "alignments=FILE and gold=FILE go together.": checkpoint
            or (self.alignments is None) == (self.gold is None),
            "plot=DIR needs sources=FILE.": self.plot is None or has_sources,
            "samples= goes with checkpoint=PATH and plot=DIR.": not self.samples or (checkpoint and bool(self.plot)),
            "beside=FILE goes with plot=DIR or report=FILE.html.": not self.beside
            or (self.plot or self.report) is not None,
            "gold=FILE needs sources=FILE.": self.gold is None or self.sources is not None,
            **{f"{name}= means nothing with {kind}=.": getattr(self, name) is None for name in useless},
        }

    def of_files(self) -> TranslationReport:
        """Hypotheses against references, and alignments against gold ones."""
        name = str(self.hypotheses)
        hypotheses = read_translations(name)
        test = test_of_files(self, hypotheses, name=name)
        aligned = None
        if self.alignments is not None and test.golds is not None:
            targets = [hypotheses, test.references[0]]
            read = read_alignments(self.alignments, test.sources, targets, test.words, name=name)
            aligned = AlignmentScores.of([sure for sure, _ in read], test.golds, *test.split(test.sources, targets[1]))
        return self._report(hypotheses, self._baseline(test), self._beside(test), aligned, test, name=name)

    def of_checkpoint(
        self, predictor: "Translator", data: DictConfig | None, found: "Checkpoint | None" = None
    ) -> TranslationReport:
        """Translations of a test set; if it has gold alignments, its references are aligned as well."""
        if self.gold is not None and not predictor.attends:
            raise InputError("gold=… needs a model with attention; this one has a fixed context.")
        if self.samples and not predictor.attends:
            raise InputError("samples=… needs a model with attention; this one has a fixed context.")
        test = test_set(self, predictor, data, found)
        predictor.split = test.words
        baseline, beside = self._baseline(test), self._beside(test)
        if self.plot is not None:  # a name that cannot be one is found before anything is decoded
            Path(self.plot).mkdir(parents=True, exist_ok=True)
        aligned = None if test.golds is None or not predictor.attends else self._aligned(predictor, test)
        shown, counts = None, None
        if self.report is not None:
            from seqtool.predict.sentence_details import SentenceDetails, word_counts  # imports torch

            shown, counts = SentenceDetails(predictor), word_counts(predictor, found)
        hypotheses = self._translated(predictor, test.sources, shown)
        made: dict[str, Any] = {"name": predictor.name, "shown": shown, "counts": counts}
        return self._report(hypotheses, baseline, beside, aligned, test, **made)

    def _aligned(self, predictor: "Translator", test: TestSet) -> AlignmentScores | None:
        """The alignments of the references that the model can read, against the gold ones."""
        pairs = list(zip(test.sources, test.references[0], test.golds or (), strict=True))
        fitting = [(source, target, gold) for source, target, gold in pairs if predictor.can_force(source, target)]
        if len(fitting) < len(pairs):
            print(
                f"Alignments are scored without {len(pairs) - len(fitting):,} of {len(pairs):,} lines, which are "
                f"longer than the model's {predictor.longest:,} learnt positions.",
                file=sys.stderr,
            )
        if not fitting:
            return None
        sources, targets, golds = (list(column) for column in zip(*fitting, strict=True))
        links = [one.alignment or set() for one in predictor.forced(sources, targets)]
        return AlignmentScores.of(links, golds, *test.split(sources, targets))

    def _translated(
        self, predictor: "Translator", sources: Sequence[str], shown: "SentenceDetails | None"
    ) -> list[str]:
        """The translations, which are also written to `output`; if this is stopped, the finished part is kept. Those
        of `samples` are drawn, and `shown` is given what a report shows of each.
        """
        found: list[str] = []
        samples = self._samples(sources, predictor.settings.seed)
        size = 32 * predictor.settings.at_once
        output = nullcontext() if self.output is None else keeping(Path(self.output), lambda: f"{len(found):,} lines")
        with output as out, progress_bar(total=len(sources), unit="line", description="translate") as bar:
            for start in range(0, len(sources), size):
                window = sources[start : start + size]
                predictor.warn_of_long(window, first=start + 1)
                here = [i for i in samples if start <= i < start + len(window)]
                if not here and shown is None:
                    lines = predictor.translate(window)
                else:
                    likeliest = 0 if shown is None else LIKELIEST
                    n_best = predictor.hypotheses(window, attention=True, likeliest=likeliest)
                    best = [hypotheses[0] for hypotheses in n_best]
                    lines = [one.text for one in best]
                    if shown is not None:
                        shown.add(window, best)
                for i in here:
                    if self.plot is not None and (drawn := best[i - start].shown(end=False)) is not None:
                        figure = Path(self.plot) / f"alignment-{i + 1:04d}.png"
                        with plots.or_left_out(figure):
                            plots.alignment(*drawn, figure)
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
        return [self._lines(file, test) for file in self.beside]

    def _report(
        self,
        hypotheses: Sequence[str],
        baseline: Sequence[str] | None,
        beside: Sequence[Sequence[str]],
        alignment: AlignmentScores | None,
        test: TestSet,
        *,
        name: str,
        shown: "SentenceDetails | None" = None,
        counts: Mapping[str, int] | None = None,
    ) -> TranslationReport:
        """`name`: the system's, in plots and reports; `shown`, `counts`: for a report."""
        references = list(zip(*test.references, strict=True))
        wanted = [one for one in NAMES if self.ter or one != "ter"]
        tokenize = self.tokenize or self._chosen(test)
        if self.ter and tokenize in tokenisers.OF_CHARACTERS:
            log.info("TER knows only words between spaces: leave it out with ter=false.")
        found = scorers((*wanted, *self.scores), references, tokenize=tokenize, lowercase=self.lowercase)
        writer = self.hypotheses or "What the model wrote"
        translation.warn_of_tokenised(hypotheses, name=writer, tokenize=tokenize)
        translation.warn_of_tokenised(baseline or (), name=str(self.baseline), tokenize=tokenize)
        if self.bootstrap and baseline is not None and len(hypotheses) < FEW:
            log.warning(few(len(hypotheses), "sentences"))
        others = found if self.report is not None else found[:1]  # plots show BLEU alone
        report = TranslationReport(
            system=System(hypotheses, found, samples=self.bootstrap),
            baseline=None if baseline is None else System(baseline, found, samples=self.bootstrap),
            names=range(1, len(hypotheses) + 1),
            references=references,
            sources=test.sources or None,
            edges=self.length_bins,
            alignment=alignment,
            titles=titles(name, [*names(self.baseline), *self.beside], of_run=self.hypotheses is None),
            beside=[System(lines, others, samples=self.bootstrap) for lines in beside],
            shown=shown,
            counts=counts,
        )
        if self.plot is not None:
            self._draw(report, Path(self.plot))
        return report

    def _chosen(self, test: TestSet) -> str:
        """The tokeniser for the references, or the language of one of sacreBLEU's test sets."""
        language = None if self.langpair is None else self.langpair.partition("-")[2]
        tokenize, said = tokenisers.for_translations(chain.from_iterable(test.references), language=language)
        if said:
            log.info(said)
        return tokenize

    def _samples(self, sources: Sequence[str], seed: int) -> list[int]:
        """Which sentences of 10 to 20 words have their alignments drawn, if any."""
        if not self.samples:
            return []
        lengths, unit = translation.lengths(sources)
        fitting = [i for i, length in enumerate(lengths) if 10 <= length <= 20]
        if not fitting and self.plot is not None:
            print(f"samples={self.samples}: no source has 10 to 20 {unit}, so none is drawn.", file=sys.stderr)
        order = np.random.default_rng(seed).permutation(len(fitting))
        return sorted(fitting[place] for place in order[: self.samples])

    def _draw(self, report: TranslationReport, directory: Path) -> None:
        """BLEU by source length."""
        directory.mkdir(parents=True, exist_ok=True)
        lengths = {title: report.lengths_of(system) for title, system in report.systems.items()}
        figure = directory / "bleu_by_length.png"
        with plots.or_left_out(figure):
            plots.bleu_by_length(lengths, figure, unit=str(report.unit))
