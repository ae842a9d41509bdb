"""`seqtool score`: how likely given texts are to a model."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import DictConfig

import seqtool
from seqtool.data.text.vocabulary import unknown_sentence
from seqtool.errors import InputError
from seqtool.predict.reading import count_lines, windows
from seqtool.predict.writing import OutputSettings, ScoreWriter
from seqtool.runtime import distributed
from seqtool.runtime.devices import keep_memory, make_default
from seqtool.runtime.files import check_outputs
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules

AT_ONCE = 1000  # lines


@dataclass
class ScoreSettings(declarations.Score, OutputSettings):
    """The settings of configs/score.yaml for input and output."""

    def inputs(self) -> dict[str, str]:
        """The files that are read, by setting."""
        files = {"sources": self.sources, "references": self.references}
        return {name: path for name, path in files.items() if path is not None}

    def count(self) -> int:
        """The lines of each input. Raises InputError for files of different lengths, or if there are no lines."""
        (name, count), *others = ((f"{name}={path}", count_lines(path) or 0) for name, path in self.inputs().items())
        for other, lines in others:
            if lines != count:
                raise InputError(
                    f"{name} has {count:,} lines but {other} has {lines:,}: they must be parallel, line by line."
                )
        if not count:
            raise InputError(f"{name} is empty: it must have one text a line.")
        return count


def score(config: DictConfig) -> None:
    """Score lines; only their scores go to standard output."""
    of_the_model = {name: config[name] for name in declarations.declared(declarations.ReadingMachine)}
    settings = typed(ScoreSettings, {setting.name: config[setting.name] for setting in fields(ScoreSettings)})
    check_outputs(
        {"output": settings.output, "alignments": settings.alignments},
        ((f"{name}={path}", path) for name, path in settings.inputs().items()),
    )
    with distributed.group():
        total = distributed.from_first(settings.count)
        keep_memory()
        model: Any = seqtool.load(names(config.checkpoint), trust=modules(config.trust), **of_the_model)
        make_default(model.device)
        model.check_scoring(with_sources=settings.sources is not None)
        with ScoreWriter(settings, model, alignments=settings.alignments, words=settings.words).opened() as writer:
            _score_lines(settings, model, writer, total)


def _score_lines(settings: ScoreSettings, model: Any, writer: ScoreWriter, total: int) -> None:
    """Score the lines window by window; at the end print how likely all are and what the model does not know."""
    nats, tokens = 0.0, 0
    unknown = {"sources": Counter[str](), "references": Counter[str]()}
    with writer.progress("score", lambda: total) as bar:
        for sources, texts in _windows(settings):
            writer.warn_of_no_spaces(sources or [], texts)
            scored: Sequence[Any] = model.forced(sources, texts, likeliest=settings.likeliest)
            for source, prediction in zip(sources or [""] * len(texts), scored, strict=True):
                nats -= prediction.log_probability
                tokens += len(prediction.log_probabilities or ())
                inputs = prediction.inputs()
                unknown["sources"].update(inputs.get("source_unknown", ()))
                unknown["references"].update(inputs["unknown"])
                writer.write(source, [prediction])
            bar.update(len(texts))
    if not tokens:
        raise InputError(f"references={settings.references} has only empty lines: there is nothing to score.")
    loss = nats / tokens
    of_each = f"{loss:.4f} nats a token, perplexity {math.exp(min(loss, 700)):.2f}"
    print(f"{writer.count:,} lines, {tokens:,} tokens: {of_each}", file=sys.stderr)
    for side, counts in unknown.items():
        if counts:
            clause = f"The model does not know {counts.total():,} words or pieces of the {side}."
            print(f"{clause} {unknown_sentence(counts)}", file=sys.stderr)


def _windows(settings: ScoreSettings) -> Iterator[tuple[list[str] | None, list[str]]]:
    """The sources, if there are any, and the texts, at most `AT_ONCE` at once."""
    texts = windows(settings.references, AT_ONCE)
    if settings.sources is None:
        yield from ((None, window) for window in texts)
    else:
        yield from zip(windows(settings.sources, AT_ONCE), texts, strict=True)
