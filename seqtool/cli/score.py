"""`seqtool score`: give the log-probability of translations or texts under a model."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any

from omegaconf import DictConfig

import seqtool
from seqtool.data.text.vocabulary import report_unknown
from seqtool.errors import InputError, counted
from seqtool.predict.reading import count_lines, windows
from seqtool.predict.writing import OutputSettings, ScoreWriter
from seqtool.runtime import distributed
from seqtool.runtime.devices import keep_memory, make_default
from seqtool.runtime.files import check_outputs
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules

LINES_PER_WINDOW = 1000


@dataclass
class ScoreSettings(declarations.Score, OutputSettings):
    """The settings of configs/score.yaml for input and output."""

    def inputs(self) -> dict[str, str]:
        """The input files, by the names of their settings."""
        files = {"sources": self.sources, "references": self.references}
        return {name: path for name, path in files.items() if path is not None}

    def count(self) -> int:
        """The number of lines in each input. Raises InputError if the inputs differ in length or are empty."""
        (name, count), *counts = ((f"{name}={path}", count_lines(path) or 0) for name, path in self.inputs().items())
        for other_name, lines in counts:
            if lines != count:
                raise InputError(
                    f"{name} has {count:,} lines but {other_name} has {lines:,}: they must be parallel, line by line."
                )
        if not count:
            raise InputError(f"{name} is empty: it must have one text on each line.")
        return count


def score(config: DictConfig) -> None:
    """Score lines. Only their scores are written to standard output."""
    model_settings = {name: config[name] for name in declarations.declared(declarations.InferenceMachine)}
    settings = typed(ScoreSettings, {setting.name: config[setting.name] for setting in fields(ScoreSettings)})
    check_outputs(
        {"output": settings.output, "alignments": settings.alignments},
        ((f"{name}={path}", path) for name, path in settings.inputs().items()),
    )
    with distributed.group():
        total = distributed.from_first(settings.count)
        keep_memory()
        model: Any = seqtool.load(names(config.checkpoint), trust=modules(config.trust), **model_settings)
        make_default(model.device)
        model.check_scoring(with_sources=settings.sources is not None)
        with ScoreWriter(
            settings, model, alignments=settings.alignments, words=settings.words, greyscale=settings.greyscale
        ).opened() as writer:
            _score_lines(settings, model, writer, total)


def _score_lines(settings: ScoreSettings, model: Any, writer: ScoreWriter, total: int) -> None:
    """Score the lines window by window, and print a summary and the words that the model does not know."""
    nats, tokens = 0.0, 0
    unknown_words = {"sources": Counter[str](), "references": Counter[str]()}
    with writer.progress("score", lambda: total) as bar:
        for sources, texts in _windows(settings):
            writer.warn_of_no_spaces(sources or [], texts)
            predictions: Sequence[Any] = model.forced(sources, texts, likeliest=settings.likeliest)
            for source, prediction in zip(sources or [""] * len(texts), predictions, strict=True):
                nats -= prediction.log_probability
                tokens += len(prediction.log_probabilities or ())
                inputs = prediction.inputs()
                unknown_words["sources"].update(inputs.get("source_unknown", ()))
                unknown_words["references"].update(inputs["unknown"])
                writer.write(source, [prediction])
            bar.update(len(texts))
    if not tokens:
        raise InputError(f"references={settings.references} has only empty lines: there is nothing to score.")
    loss = nats / tokens
    perplexity = math.exp(min(loss, 700))  # the exponential of more than 709 overflows
    size = f"{counted(writer.count, 'line')}, {counted(tokens, 'token')}"
    print(f"{size}: {loss:.4f} nats a token, perplexity {perplexity:.2f}", file=sys.stderr)
    for side, counts in unknown_words.items():
        report_unknown(counts, f"of the {side}")


def _windows(settings: ScoreSettings) -> Iterator[tuple[list[str] | None, list[str]]]:
    """Yield windows of LINES_PER_WINDOW lines or fewer of the sources (None without sources) and of the references."""
    references = windows(settings.references, LINES_PER_WINDOW)
    sources = repeat(None) if settings.sources is None else windows(settings.sources, LINES_PER_WINDOW)
    yield from zip(sources, references, strict=settings.sources is not None)
