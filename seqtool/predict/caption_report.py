"""The report of `eval` on captions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from seqtool.metrics.captions import NAMES
from seqtool.metrics.ngrams import DocumentFrequencies
from seqtool.metrics.scores import score
from seqtool.metrics.systems import System
from seqtool.predict import evaluation_pages
from seqtool.predict.evaluation import Report, SystemReport

if TYPE_CHECKING:
    from seqtool.predict.caption_details import CaptionDetails
    from seqtool.predict.likelihood import Likelihood

WIDTH = max(len(score(name).label) for name in NAMES)


@dataclass(frozen=True)
class CaptionReport(SystemReport):
    """The report on captions. lengths: BLEU's brevity penalty and length ratio; java: meteor and spice (0–1) if they
    were asked for and available; likelihood: of the references, if asked for.
    """

    lengths: Mapping[str, float]
    java: Mapping[str, float]
    warnings: Sequence[str]
    likelihood: "Likelihood | None" = None
    titles: Sequence[str] = ()
    shown: "Sequence[CaptionDetails]" = ()  # of the system and its baseline, for its page
    baseline_java: Mapping[str, float] = field(default_factory=dict)  # as `java`, of the baseline
    counts: Mapping[str, int] | None = None  # how often each word stands in the training data, for its page

    segment: ClassVar[str] = "image"

    @property
    def systems(self) -> dict[str, System]:
        """The system and its baseline, by title."""
        found = [self.system, *([] if self.baseline is None else [self.baseline])]
        return dict(zip(self.titles, found, strict=True))

    def page(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return evaluation_pages.of_captions(self, made)

    def details(self) -> Iterator[str]:
        packed = self.shown[0].packed if self.shown else None
        return iter(()) if packed is None else packed.chunks()

    def record(self) -> dict[str, Any]:
        scores = {score(name).label: value for name, value in self.system.values.items()}
        estimates = self.system.estimates.items() if self.system.samples else ()
        intervals = {score(name).label: asdict(one) for name, one in estimates}
        found = {**scores, **self.java, **self.lengths, "signature": self.system.signature(NAMES[0])}
        if own := self.own_signatures():
            found["signatures"] = own
        if self.likelihood is not None:
            found["likelihood"] = self.likelihood.record()
        return {**found, **({"intervals": intervals} if intervals else {}), **self.compared()}

    def compared(self) -> dict[str, Any]:
        """Java's scores, which are not resampled, without intervals and p-values."""
        found = super().compared()
        if java := self._both_java():
            pairs = {name: {"baseline": theirs, "system": ours} for name, theirs, ours in java}
            found["comparison"] |= {"java": pairs}
        return found

    def _both_java(self) -> list[tuple[str, float, float]]:
        """Java's scores of the baseline and of the system, by name."""
        return [(name, self.baseline_java[name], one) for name, one in self.java.items() if name in self.baseline_java]

    def segments(self) -> Iterator[dict[str, Any]]:
        for number, found in enumerate(super().segments()):
            likely = {} if self.likelihood is None else {"likelihood": self.likelihood.of_image(number)}
            yield {**found, **likely}

    def own_signatures(self) -> dict[str, str]:
        """Those of the user's own scores."""
        return {score(name).label: self.system.signature(name) for name in self.system.values if name not in NAMES}

    def text(self) -> str:
        rows = {score(name).label: one.text(score(name).digits) for name, one in self.system.estimates.items()}
        rows |= {name: f"{value:.4f}" for name, value in self.java.items()}
        lines = [f"{'score':<{WIDTH}}  {len(self.names):,} images"]
        lines += [f"{name:<{WIDTH}}  {value}" for name, value in rows.items()]
        lines += ["", "brevity penalty {brevity_penalty:.3f}, length ratio {length_ratio:.3f}".format(**self.lengths)]
        lines += ["", self.system.signature(NAMES[0])]
        lines += [f"{name}: {signature}" for name, signature in self.own_signatures().items()]
        lines += [] if self.likelihood is None else ["", *self.likelihood.lines()]
        lines += [f"Warning: {warning}" for warning in self.warnings]
        lines += [] if self.comparison is None else ["", self.comparison.text()]
        for name, theirs, ours in self._both_java():
            lines.append(
                f"{name}: baseline {theirs:.4f}, system {ours:.4f}, difference {ours - theirs:+.4f}, without p"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class SavedFrequencies(Report):
    """What `save_document_frequencies=` wrote."""

    frequencies: DocumentFrequencies
    file: str

    def record(self) -> dict[str, Any]:
        found = {"images": self.frequencies.images, "ngrams": len(self.frequencies.counts)}
        return {"document_frequencies": self.file, **found, "tokenize": self.frequencies.tokenize}

    def page(self, made: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError  # `rules` refuse it

    def text(self) -> str:
        ngrams, images = len(self.frequencies.counts), self.frequencies.images
        return f"{self.file}: {ngrams:,} n-grams in the references of {images:,} images"
