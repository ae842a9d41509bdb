"""The report of `eval` on translations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from seqtool.metrics import translation
from seqtool.metrics.alignment import AlignmentScores
from seqtool.metrics.bootstrap import known
from seqtool.metrics.scores import score
from seqtool.metrics.systems import System
from seqtool.metrics.translation import LengthScore
from seqtool.predict import evaluation_pages
from seqtool.predict.evaluation import SystemReport
from seqtool.runtime.tables import table

if TYPE_CHECKING:
    from seqtool.predict.sentence_details import SentenceDetails


@dataclass(frozen=True)
class TranslationReport(SystemReport):
    """The report on translations. The first score is BLEU; sources: None if they are unknown.

    For its page: titles of the system, its baseline and the systems `beside` them; flags of each sentence and its
    packed details, if there are any; counts: how often each word stands in the training data, None if unknown.
    """

    sources: Sequence[str] | None
    edges: Sequence[int]
    alignment: AlignmentScores | None
    titles: Sequence[str] = ()
    beside: Sequence[System] = ()
    shown: "SentenceDetails | None" = None
    counts: Mapping[str, int] | None = None

    segment: ClassVar[str] = "line"

    @property
    def systems(self) -> dict[str, System]:
        """The system, its baseline and those beside it, by title."""
        found = [self.system, *([] if self.baseline is None else [self.baseline]), *self.beside]
        return dict(zip(self.titles, found, strict=True))

    def page(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return evaluation_pages.of_translations(self, made)

    def details(self) -> Iterator[str]:
        return iter(()) if self.shown is None else self.shown.packed.chunks()

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
            "bleu": asdict(self.system.estimates["bleu"], dict_factory=known),
            "precisions": list(parts.precisions),
            "brevity_penalty": parts.bp,
            "length_ratio": parts.sys_len / max(parts.ref_len, 1),
            "by_length": [asdict(one, dict_factory=known) for one in self.by_length],
            **({} if self.unit in (None, "words") else {"length_unit": self.unit}),
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
        if self.unit is not None:
            cells = [(b.label, f"{b.sentences:,}", "-" if b.bleu is None else b.bleu.text()) for b in self.by_length]
            lines += ["", *table((f"source {self.unit}", "sentences", "BLEU"), cells)]
        precisions = " / ".join(f"{precision:.1f}" for precision in found["precisions"])
        lengths = f"brevity penalty {found['brevity_penalty']:.3f}, length ratio {found['length_ratio']:.3f}"
        lines += ["", f"n-gram precisions {precisions}, {lengths}", ""]
        return "\n".join([*lines, *(f"{one['name']}: {one['signature']}" for one in found["scores"])])

    @cached_property
    def unit(self) -> str | None:
        """Of the sources' lengths; None if the sources are unknown."""
        return None if self.sources is None else translation.lengths(self.sources)[1]

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
        ahead = "BLEU ahead of the baseline, {} source {}".format
        leads = {ahead(short, self.unit): gaps.short, ahead(long, self.unit): gaps.long}
        estimates = {**leads, "the difference of the two": gaps.growth}
        text = {name: estimate.text() for name, estimate in estimates.items()}
        return {**asdict(gaps, dict_factory=known), "text": text}
