"""`seqtool score`: how likely given texts are to a model."""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import DictConfig

import seqtool
from seqtool.cli.translate import AlignedSettings, AlignedWriter
from seqtool.data.text.unknown import sentence
from seqtool.errors import InputError
from seqtool.predict.predictor import Predictor
from seqtool.predict.reading import count_lines, windows
from seqtool.predict.translator import Translation
from seqtool.runtime import distributed
from seqtool.runtime.classes import modules
from seqtool.runtime.devices import MachineSettings, keep_memory, make_default
from seqtool.runtime.outputs import check_outputs
from seqtool.settings import declarations, names, typed

AT_ONCE = 1000  # lines


@dataclass
class ScoreSettings(declarations.Score, AlignedSettings):
    """The settings of configs/score.yaml for input and output."""

    def inputs(self) -> dict[str, str]:
        """The files that are read, by setting."""
        given = {"sources": self.sources, "references": self.references}
        return {name: path for name, path in given.items() if path is not None}

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
    of_the_model = {"precision": config.precision} | {one.name: config[one.name] for one in fields(MachineSettings)}
    settings = typed(ScoreSettings, {one.name: config[one.name] for one in fields(ScoreSettings)})
    check_outputs(
        {"output": settings.output, "alignments": settings.alignments},
        ((f"{name}={path}", path) for name, path in settings.inputs().items()),
    )
    with distributed.group():
        total = distributed.from_first(settings.count)
        keep_memory()
        model: Any = seqtool.load(names(config.checkpoint), trust=modules(config.trust), **of_the_model)
        make_default(model.device)
        model.check_given(settings.sources is not None)
        with ScoreWriter(settings, model).opened() as writer:
            writer.write_all(total)


class ScoreWriter(AlignedWriter):
    """Scores pairs, or texts, and writes the log-probability of each."""

    def __init__(self, settings: ScoreSettings, predictor: Predictor) -> None:
        super().__init__(settings, predictor)
        self.settings, self.command = settings, "score"
        self.nats, self.tokens = 0.0, 0
        self.unknown = {side: Counter[str]() for side in ("sources", "references")}  # what the model does not know

    def write_all(self, total: int) -> None:
        with self.progress(total) as bar:
            for sources, texts in self._windows():
                self.warn_of_sentences(sources or [], texts)
                found: Sequence[Any] = self.predictor.given(sources, texts, likeliest=self.likeliest)
                for source, one in zip(sources or [""] * len(texts), found, strict=True):
                    self.unknown["references"].update(one.unknown)
                    if isinstance(one, Translation):
                        self.unknown["sources"].update(one.source.unknown)
                    self.write(source, [one])
                bar.update(len(texts))
        if not self.tokens:
            raise InputError(f"references={self.settings.references} has only empty lines: there is nothing to score.")
        if not distributed.is_first():
            return
        loss = -self.nats / self.tokens
        said = f"{self.count:,} lines, {self.tokens:,} tokens: {loss:.4f} nats a token"
        print(f"{said}, perplexity {math.exp(min(loss, 700)):.2f}", file=sys.stderr)
        for side, counts in self.unknown.items():
            if counts:
                said = f"The model does not know {counts.total():,} words or pieces of the {side}."
                print(f"{said} {sentence(counts)}", file=sys.stderr)

    def text(self, source: str, n_best: Sequence[Any]) -> str:
        (found,) = n_best
        self.nats, self.tokens = self.nats + found.log_probability, self.tokens + len(found.log_probabilities or ())
        if self.format == "text":
            return f"{found.log_probability:.4f}\n"
        record = found.pair()
        record |= {name: value for name, value in self.record(found).items() if name not in ("score", "ended")}
        record |= found.given()
        return json.dumps(record, ensure_ascii=False) + "\n"

    def _windows(self) -> Iterator[tuple[list[str] | None, list[str]]]:
        texts = windows(self.settings.references, AT_ONCE)
        if self.settings.sources is None:
            yield from ((None, window) for window in texts)
        else:
            yield from zip(windows(self.settings.sources, AT_ONCE), texts, strict=True)
