"""How good translations are: sacreBLEU's BLEU, chrF and TER, and whether two systems differ.

Scores are on the 0–100 scale, and every one carries the signature that makes it comparable.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from seqtool.errors import InputError
from seqtool.metrics.bleu import (
    LENGTH_EDGES,
    SAMPLES,
    Estimate,
    LengthScore,
    bleu_by_length,
    bleu_interval,
    bleu_statistics,
    make_bleu,
)


@dataclass(frozen=True)
class Score:
    """A corpus score with the signature it must be quoted with."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Evaluation:
    """What a system's translations of one test set scored."""

    sentences: int
    scores: tuple[Score, ...]
    bleu: Estimate  # the first score, which is BLEU, with its interval
    by_length: tuple[LengthScore, ...]  # empty where the source is not known

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""
        return asdict(self)

    def text(self) -> str:
        """A table for people."""
        rows = [(score.name, f"{score.value:.2f}") for score in self.scores]
        rows[0] = (rows[0][0], str(self.bleu))
        lines = [*table(("score", f"{self.sentences:,} sentences"), rows)]
        if self.by_length:
            bins = [(b.label, f"{b.sentences:,}", "-" if b.bleu is None else str(b.bleu)) for b in self.by_length]
            lines += ["", *table(("source words", "sentences", "BLEU"), bins)]
        return "\n".join([*lines, "", *(f"{score.name}: {score.signature}" for score in self.scores)])


@dataclass(frozen=True)
class Difference:
    """One score of a system and its baseline. p_value: sacreBLEU's paired bootstrap."""

    name: str
    baseline: Estimate
    system: Estimate
    p_value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """A system beside its baseline on the same test set."""

    differences: tuple[Difference, ...]

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""
        return asdict(self)

    def text(self) -> str:
        """A table for people."""
        rows = []
        for d in self.differences:
            change = f"{d.system.value - d.baseline.value:+.2f}"
            rows.append((d.name, str(d.baseline), str(d.system), change, f"{d.p_value:.4f}"))
        signatures = [f"{d.name}: {d.signature}" for d in self.differences]
        return "\n".join([*table(("score", "baseline", "system", "difference", "p"), rows), "", *signatures])


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    sources: Sequence[str] | None = None,
    tokenize: str = "13a",
    lowercase: bool = False,
    edges: Sequence[int] = LENGTH_EDGES,
) -> Evaluation:
    """BLEU, chrF and TER of a corpus, and BLEU by source length where the sources are given.

    `references` holds one or several whole reference texts. TER is lower-cased always, as sacreBLEU's default
    is. Call `check_lengths` first: texts of different lengths are a defect here.
    """
    metrics: list[Metric] = [make_bleu(tokenize, lowercase=lowercase), CHRF(lowercase=lowercase), TER()]
    scores = []
    for metric in metrics:
        score = metric.corpus_score(hypotheses, references)
        scores.append(Score(score.name, score.score, str(metric.get_signature())))
    statistics = bleu_statistics(hypotheses, references, tokenize=tokenize, lowercase=lowercase)
    by_length = () if sources is None else bleu_by_length(statistics, sources, edges=edges)
    return Evaluation(len(hypotheses), tuple(scores), bleu_interval(statistics), by_length)


def compare(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    samples: int = SAMPLES,
) -> Comparison:
    """Paired bootstrap of BLEU, chrF and TER between two systems (Koehn 2004; sacreBLEU's PairedTest)."""
    metrics: dict[str, Metric] = {
        "BLEU": make_bleu(tokenize, lowercase=lowercase, force=True),
        "chrF": CHRF(lowercase=lowercase),
        "TER": TER(),
    }
    named: list[tuple[str, Sequence[str]]] = [("baseline", baseline), ("system", system)]
    signatures, results = PairedTest(named, metrics, references, test_type="bs", n_samples=samples)()
    same = list(baseline) == list(system)  # sacreBLEU would call no difference at all significant
    differences = []
    for name, signature in signatures.items():
        first, second = (result for result in results[name] if isinstance(result, Result))
        p_value = 1.0 if same or second.p_value is None else float(second.p_value)
        differences.append(Difference(name, _estimate(first), _estimate(second), p_value, str(signature)))
    return Comparison(tuple(differences))


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> float:
    """BLEU alone, for validation while training."""
    bleu = make_bleu(tokenize, lowercase=lowercase, force=True)
    return float(bleu.corpus_score(hypotheses, references).score)


def check_lengths(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    name: str = "the hypotheses",
    reference_names: Sequence[str],
) -> None:
    """Refuse texts that are not parallel, or empty, naming the files and how many lines each has."""
    if not hypotheses:
        raise InputError(f"{name} has no lines: there is nothing to score.")
    for reference, reference_name in zip(references, reference_names, strict=True):
        if len(reference) != len(hypotheses):
            raise InputError(
                f"{name} has {len(hypotheses):,} lines but {reference_name} has {len(reference):,}: "
                "they must be parallel, line by line."
            )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown's form, its columns padded so that it reads well as it is."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    rule = ["-" * width for width in widths]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, rule, *rows]
    ]


def _estimate(result: Result) -> Estimate:
    """sacreBLEU's interval, which is centred on the mean of the resamples."""
    if result.mean is None or result.ci is None:
        raise ValueError("sacreBLEU gave no confidence interval")
    mean, half = float(result.mean), float(result.ci)
    return Estimate(float(result.score), mean - half, mean + half)
