"""The settings of `eval` besides those of decoding: for which tasks each is, and which of them name files."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from seqtool.settings import names

TRANSLATION, CAPTIONING, LANGUAGE_MODELLING = "translation", "captioning", "language_modelling"
TITLES = {TRANSLATION: "translations", CAPTIONING: "captions", LANGUAGE_MODELLING: "language models"}
HYPOTHESES = TRANSLATION, CAPTIONING  # the tasks in which hypotheses are scored against references
FORMATS = ("table", "json", "jsonl")
MOST_RESAMPLES = 1_000_000


def about(*tasks: str, reads: bool = False, writes: bool = False, test_set: bool = False) -> dict[str, Any]:
    """What there is to know of a setting of these tasks, or without any of all.

    reads, writes: it names files, one or several
    test_set: it names one of sacreBLEU's test sets
    """
    return {"tasks": tasks, "reads": reads, "writes": writes, "origin": reads or test_set}


@dataclass
class EvaluationSettings:
    """configs/eval.yaml says what each is and holds the defaults."""

    split: str = field(metadata=about())
    bootstrap: int = field(metadata=about())
    format: str = field(metadata=about())

    hypotheses: str | None = field(metadata=about(*HYPOTHESES, reads=True))
    references: list[str] = field(metadata=about(*HYPOTHESES, reads=True))
    testset: str | None = field(metadata=about(TRANSLATION, test_set=True))
    langpair: str | None = field(metadata=about(TRANSLATION, test_set=True))
    sources: str | None = field(metadata=about(TRANSLATION, reads=True))
    text: str | None = field(metadata=about(LANGUAGE_MODELLING, reads=True))
    baseline: str | None = field(metadata=about(*HYPOTHESES, reads=True))
    beside: list[str] = field(metadata=about(TRANSLATION, reads=True))
    alignments: str | None = field(metadata=about(TRANSLATION, reads=True))
    gold: str | None = field(metadata=about(TRANSLATION, reads=True))
    document_frequencies: str | None = field(metadata=about(CAPTIONING, reads=True))

    output: str | None = field(metadata=about(*HYPOTHESES, writes=True))
    plot: str | None = field(metadata=about(TRANSLATION, writes=True))
    save_document_frequencies: str | None = field(metadata=about(CAPTIONING, writes=True))
    report: str | None = field(metadata=about(writes=True))

    tokenize: str | None = field(metadata=about(*HYPOTHESES))
    scores: list[str] = field(metadata=about(*HYPOTHESES))
    words: str | None = field(metadata=about(TRANSLATION))
    lowercase: bool = field(metadata=about(TRANSLATION))
    ter: bool = field(metadata=about(TRANSLATION))
    length_bins: list[int] = field(metadata=about(TRANSLATION))
    samples: int = field(metadata=about(TRANSLATION))
    bound: int | None = field(metadata=about(CAPTIONING))
    java: bool = field(metadata=about(CAPTIONING))
    likeliest: int = field(metadata=about(LANGUAGE_MODELLING))

    def inputs(self) -> dict[str, list[str]]:
        """The files to read, by setting."""
        return {name: names(getattr(self, name)) for name in _those_with("reads")}

    def outputs(self) -> dict[str, str | None]:
        """The files and directories to write, by setting."""
        return {name: getattr(self, name) for name in _those_with("writes")}

    def origin(self) -> dict[str, str]:
        """The files and the test set that are scored, by setting."""
        return {name: ", ".join(names(getattr(self, name))) for name in _those_with("origin") if getattr(self, name)}

    def write_nothing(self) -> None:
        """Clear the settings of output files, in a process that only shares the work; all share that of a report."""
        for name in self.outputs().keys() - {"report"}:
            setattr(self, name, None)

    def problems(self) -> Iterator[str]:
        """What is wrong with the settings that every task has."""
        if self.format not in FORMATS:
            yield f"Unknown format '{self.format}'; choose from {', '.join(FORMATS)}."
        if self.bootstrap < 2 and self.bootstrap != 0:
            yield f"bootstrap must be at least 2, not {self.bootstrap}. 0 leaves intervals out."
        if self.bootstrap > MOST_RESAMPLES:
            yield f"bootstrap must be at most {MOST_RESAMPLES:,}, not {self.bootstrap:,}."


def _those_with(fact: str) -> list[str]:
    """The names of the settings of which this is true."""
    return [setting.name for setting in fields(EvaluationSettings) if setting.metadata[fact]]
