"""`seqtool translate`: lines in, lines out."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, TextIO

from omegaconf import DictConfig

from seqtool.data.text.alignment import SPLITS, format_pharaoh
from seqtool.data.text.scripts import writing
from seqtool.data.text.unknown import sentence, unknown_pieces
from seqtool.errors import InputError
from seqtool.predict.predictor import Predictor
from seqtool.predict.reading import count_lines, is_file, is_typed, windows
from seqtool.predict.translator import Translation, Translator
from seqtool.predict.writing import OutputSettings, Writer
from seqtool.runtime import distributed
from seqtool.runtime.files import read_lines
from seqtool.runtime.outputs import check_outputs
from seqtool.settings import declarations
from seqtool.view import plots


@dataclass
class AlignedSettings(declarations.AlignedOutput, OutputSettings):
    """Those of commands that write alignments."""

    need_attention: ClassVar[tuple[str, ...]] = ("alignments", "plot", "weights")


@dataclass
class TranslateSettings(declarations.Translate, AlignedSettings):
    """The settings of configs/translate.yaml for input and output."""

    need_attention = ("alignments", "plot", "weights", "replace_unknown")

    def read(self) -> Iterator[tuple[str, str | int]]:
        """The name, for messages, of the file that lines come from, and its path or descriptor."""
        yield ("standard input", sys.stdin.fileno()) if self.input is None else (f"input={self.input}", self.input)
        if self.prefix is not None:
            yield f"prefix={self.prefix}", self.prefix

    def check(self) -> int | None:
        """The number of prefixes. Raises InputError if the input is a file with another number of lines."""
        prefixes = None if self.prefix is None else count_lines(self.prefix)
        if prefixes is not None and is_file(self.input) and prefixes != (count := count_lines(self.input)):
            raise InputError(
                f"prefix={self.prefix} has {prefixes:,} lines but the input has {count:,}: give one for each line."
            )
        return prefixes

    def lines(self, size: int) -> Iterator[tuple[list[str], list[str] | None]]:
        """The lines to translate, at most `size` at once, and how their translations begin.

        Raises InputError if there are not as many prefixes as lines; those left over where the input is a pipe or a
        terminal are not used.
        """
        if self.prefix is None:
            yield from ((lines, None) for lines in windows(self.input, size))
            return
        prefixes, before = self.check(), 0
        beginnings = read_lines(Path(self.prefix), may_be_empty=True)
        for lines in windows(self.input, size):
            before += len(lines)
            given = list(islice(beginnings, len(lines)))
            if len(given) < len(lines):
                raise InputError(f"prefix={self.prefix} has only {prefixes:,} lines: the input has {before:,} or more.")
            yield lines, given


def translate(config: DictConfig) -> None:
    """Translate lines; only translations go to standard output."""
    settings = TranslateSettings.of(config, Translator)
    check_outputs({"output": settings.output, "alignments": settings.alignments}, settings.read())
    with distributed.group():
        distributed.from_first(settings.check)  # before the model is loaded
        with TranslationWriter(settings, Translator.configured(config)).opened() as writer:
            writer.write_all()


class AlignedWriter(Writer[Translation]):
    """Writes translations, with alignments and plots on request."""

    unit = "line"
    keys = "source", "translations"
    best = "{text}"
    ranked = "{number} ||| {text} ||| {score:.6f}"  # Moses' n-best lists, with sentences numbered from 0
    separator = " ||| "

    def __init__(self, settings: AlignedSettings, predictor: Predictor) -> None:
        super().__init__(settings, predictor)
        self.alignments = settings.alignments
        if isinstance(predictor, Translator):
            predictor.split = SPLITS[settings.words]
        self.words = settings.words
        self.links: TextIO | None = None

    def open(self, stack: ExitStack) -> None:
        super().open(stack)
        if self.alignments is not None:
            self.links = self.file(self.alignments, stack)

    def warn_of_sentences(self, *columns: Iterable[str]) -> None:
        """Say once if links and pictures show whole sentences as words, since the texts have no spaces."""
        if self.words == "spaces" and (self.links or self.plot) and any(writing(one).has_no_spaces for one in columns):
            self.words = ""
            print("A sentence without spaces is one word of links and pictures: see words=characters.", file=sys.stderr)

    def write(self, source: str, n_best: Sequence[Translation]) -> None:
        super().write(source, n_best)
        best = n_best[0]
        if self.links is not None:
            self.links.write(format_pharaoh(best.alignment or set()) + "\n")
        if self.plot is not None and (shown := best.shown(end=self.end)) is not None:
            file = self.plot / f"alignment-{self.count:04d}.png"
            with plots.or_left_out(file):
                plots.alignment(*shown, file)


class TranslationWriter(AlignedWriter):
    """Translates lines and writes them."""

    def __init__(self, settings: TranslateSettings, translator: Translator) -> None:
        super().__init__(settings, translator)
        self.settings = settings
        self.translator = translator
        self.unknown: Counter[str] = Counter()  # pieces of the input that the model does not know
        self.lines_with_unknown = 0
        self.unknown_in_prefixes: Counter[str] = Counter()

    def about(self, source: str, n_best: Sequence[Translation]) -> dict[str, Any]:
        return n_best[0].reading()

    def shows_progress(self) -> bool:
        """Nor if lines are typed, nor in a log if they come from a pipe, which may be open for days."""
        typed = self.settings.input is None and is_typed()
        return super().shows_progress() and not typed and (is_file(self.settings.input) or sys.stderr.isatty())

    def write_all(self) -> None:
        file, size = self.settings.input, 32 * self.translator.settings.at_once
        with self.progress(count_lines(file) if self.shows_progress() else None) as bar:
            for lines, prefixes in distributed.each_from_first(self.settings.lines(size)):
                self.write_window(lines, prefixes, bar)
        if self.unknown and distributed.is_first():
            print(
                f"The model does not know {self.unknown.total():,} words or pieces of the input, "
                f"in {self.lines_with_unknown:,} of {self.count:,} lines. {sentence(self.unknown)}",
                file=sys.stderr,
            )
        if self.unknown_in_prefixes and distributed.is_first():
            print(
                f"The model does not know {self.unknown_in_prefixes.total():,} words or pieces of the prefixes, which "
                f"stay as they are. {sentence(self.unknown_in_prefixes)}",
                file=sys.stderr,
            )

    def write_window(self, lines: Sequence[str], prefixes: Sequence[str] | None, bar: Any) -> None:
        self.translator.warn_of_long(lines, first=self.count + 1)
        begun = unknown_pieces(prefixes or [], self.translator.target_vocabulary)
        self.unknown_in_prefixes.update(chain.from_iterable(begun))
        settings, size, last = self.settings, distributed.size(), self.count + len(lines)
        results = self.translator.hypotheses(
            lines,
            prefixes=prefixes,
            attention=settings.format == "jsonl" or settings.alignments is not None or settings.plot is not None,
            replace_unknown=settings.replace_unknown,
            likeliest=settings.likeliest,
            whole=settings.format == "jsonl",
            progress=lambda done: bar.update(min(size * done, last - bar.n)),
        )
        self.warn_of_sentences(lines, [n_best[0].text for n_best in results])
        for line, n_best in zip(lines, results, strict=True):
            unknown = n_best[0].source.unknown
            self.unknown.update(unknown)
            self.lines_with_unknown += bool(unknown)
            self.write(line, n_best)
        for stream in filter(None, (self.out, self.links)):
            stream.flush()
        bar.update(last - bar.n)
