"""How the results for each source are written: as text or JSON lines, to a file or to standard output."""

import json
import sys
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TextIO, TypeVar

from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.errors import InputError
from seqtool.predict.predictor import Prediction, Predictor
from seqtool.runtime import distributed
from seqtool.runtime.outputs import NOT_ENDED, keeping
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations, typed

P = TypeVar("P", bound=Prediction)


@dataclass
class OutputSettings(declarations.Output):
    """A command's settings for its output."""

    need_attention: ClassVar[tuple[str, ...]] = ("plot", "weights")

    @classmethod
    def of(cls, config: DictConfig, predictor: type[Predictor]) -> Self:
        """A command's settings apart from those of decoding."""
        others = {"checkpoint", "trust", *predictor.decoding()}
        return typed(cls, {str(name): value for name, value in config.items() if name not in others})

    def __post_init__(self) -> None:
        declarations.check_values(self)
        if self.weights and self.format != "jsonl":
            raise InputError("weights=true goes with format=jsonl.")
        if self.likeliest and self.format != "jsonl":
            raise InputError("likeliest= goes with format=jsonl.")
        if self.end and self.plot is None:
            raise InputError("end=true goes with plot=DIRECTORY.")


class Writer(ABC, Generic[P]):
    """Writes the n best of one source after another, in order.

    Output files appear when they are complete; if the work is stopped, the finished part is kept in a file beside them.
    Of several processes only the first writes.
    """

    unit: ClassVar[str]  # what a source is called
    keys: ClassVar[tuple[str, str]]  # the JSON keys of a source and of its predictions
    best: ClassVar[str]  # format of a line of text, if each source has one
    ranked: ClassVar[str]  # the same if each source has n best
    separator: ClassVar[str]  # before the mark of a hypothesis that did not end

    def __init__(self, settings: OutputSettings, predictor: Predictor) -> None:
        asked = [name for name in settings.need_attention if getattr(settings, name) not in (None, False)]
        if asked and not predictor.attends:
            has = "reads nothing but the text" if predictor.reads == "nothing" else "has a fixed context"
            raise InputError(f"{asked[0]}=… needs a model with attention over a source; this one {has}.")
        self.output, self.format = settings.output, settings.format
        self.weights, self.likeliest, self.end = settings.weights, settings.likeliest, settings.end
        self.predictor = predictor
        self.command = predictor.command
        self.plot = Path(settings.plot) if settings.plot is not None and distributed.is_first() else None
        self.count = 0

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """The writer, with its files open."""
        with ExitStack() as stack:
            self.open(stack)
            yield self

    def open(self, stack: ExitStack) -> None:
        """Open the outputs; the stack closes them."""
        if self.plot is not None:
            if self.plot.is_file():
                raise InputError(f"plot={self.plot} is a file: name a directory for the pictures.")
            self.plot.mkdir(parents=True, exist_ok=True)
        self.out = sys.stdout if self.output is None else self.file(self.output, stack)

    def file(self, path: str, stack: ExitStack) -> TextIO:
        """An output file."""
        if not distributed.is_first():
            return sys.stdout
        return stack.enter_context(keeping(Path(path), lambda: f"{self.count:,} {self.unit}s"))

    def shows_progress(self) -> bool:
        """Whether to show a progress bar: not if results are written to the same terminal."""
        return distributed.is_first() and not (self.output is None and sys.stdout.isatty())

    def progress(self, total: int | None) -> tqdm:
        return progress_bar(total=total, unit=self.unit, description=self.command, shown=self.shows_progress())

    def single(self) -> bool:
        """Whether each source has one hypothesis."""
        return bool(self.predictor.settings.n_best == 1)

    def write(self, source: str, n_best: Sequence[P]) -> None:
        self.out.write(self.text(source, n_best))
        self.count += 1

    def record(self, one: P) -> dict[str, Any]:
        return {**one.record(), **one.likeliest(), **(one.weights() if self.weights else {})}

    def about(self, source: str, n_best: Sequence[P]) -> dict[str, Any]:
        """What is said of a source in JSON, besides the source itself."""
        return {}

    def text(self, source: str, n_best: Sequence[P]) -> str:
        """The lines that are written for one source."""
        if self.format == "jsonl":
            of_source, of_predictions = self.keys
            record = {of_source: source, **self.about(source, n_best), of_predictions: list(map(self.record, n_best))}
            return json.dumps(record, ensure_ascii=False) + "\n"
        if self.single():
            return self.best.format(source=source, text=n_best[0].text) + "\n"
        lines = []
        for one in n_best:
            line = self.ranked.format(number=self.count, source=source, text=one.text, score=one.score)
            lines.append(line + ("\n" if one.ended else f"{self.separator}{NOT_ENDED}\n"))
        return "".join(lines)
