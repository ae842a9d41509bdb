"""`translate`: where lines come from and where translations go."""

import json
import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO

from tqdm import tqdm

from seqtool import distributed, plots
from seqtool.data.alignment import format_pharaoh
from seqtool.data.text_files import LONGEST, read_lines, replacing
from seqtool.errors import InputError
from seqtool.translator import Translation, Translator


def windows(path: str | None, size: int) -> Iterator[list[str]]:
    """The lines of a file, or of standard input, in lists of at most `size`.

    A pipe or terminal gives what has come in so far, so that a line in is a line out; a file gives full windows.
    """
    if path is not None:
        yield from _full_windows(read_lines(Path(path)), size)
        return
    stdin = sys.stdin.buffer
    lines = _decoded(stdin)
    if stat.S_ISREG(os.fstat(stdin.fileno()).st_mode):
        yield from _full_windows(lines, size)
    else:
        yield from _arriving(lines, size)


def _full_windows(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    window: list[str] = []
    for line in lines:
        window.append(line)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def _arriving(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """A thread reads ahead; each window is the next line and all that have arrived by then."""
    waiting: queue.Queue[str | Exception | None] = queue.Queue(maxsize=size)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except (InputError, OSError) as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        window: list[str] = []
        item: str | Exception | None = waiting.get()
        while True:
            if isinstance(item, Exception):
                if window:
                    yield window
                raise item
            if item is None:
                ended = True
                break
            window.append(item)
            if len(window) == size:
                break
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                break
        if window:
            yield window


def _decoded(stream: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(iter(partial(stream.readline, LONGEST), b""), 1):
        if len(line) == LONGEST:
            raise InputError(
                f"Standard input has {LONGEST >> 20} MB or more in line {number:,}: break it into sentences."
            )
        try:
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"Standard input is not valid UTF-8 in line {number:,}: convert it to UTF-8.") from error
        yield text.removeprefix("\ufeff") if number == 1 else text


@dataclass
class WriterSettings:
    """The settings of configs/translate.yaml about what is written, and where."""

    format: str
    output: str | None
    alignments: str | None
    plot: str | None
    replace_unknown: bool

    def check(self) -> None:
        """Raise InputError on an unknown format."""
        if self.format not in ("text", "jsonl"):
            raise InputError(f"Unknown format '{self.format}'; choose from text, jsonl.")


class Writer:
    """Translates windows of lines and writes them, in order, with alignments and pictures where asked for.

    Output files appear complete or not at all.
    """

    def __init__(self, settings: WriterSettings, translator: Translator) -> None:
        needs = {"alignments": settings.alignments, "plot": settings.plot, "replace_unknown": settings.replace_unknown}
        asked = [name for name, value in needs.items() if value not in (None, False)]
        if asked and not translator.attends:
            raise InputError(f"{asked[0]}=… needs a model with attention; this one has a fixed context.")
        if settings.output is not None and settings.output == settings.alignments:
            raise InputError(f"output and alignments are both {settings.output}: name two files.")
        self.settings = settings
        self.translator = translator
        self.plot = None if settings.plot is None else Path(settings.plot)
        self.count = 0

    def __enter__(self) -> "Writer":
        self.stack = ExitStack()
        if not distributed.is_first():  # which does not write
            return self
        if self.plot is not None:
            self.plot.mkdir(parents=True, exist_ok=True)
        output, alignments = self.settings.output, self.settings.alignments
        self.out: TextIO = self.stack.enter_context(replacing(Path(output))) if output is not None else sys.stdout
        self.links = self.stack.enter_context(replacing(Path(alignments))) if alignments is not None else None
        self.bar = self.stack.enter_context(tqdm(unit="line", disable=None, desc="translate"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, error, trace)

    def write(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, self.count + 1):
            tokens = self.translator.too_long(line)
            if tokens is not None:
                limit = self.translator.settings.max_length
                print(
                    f"Line {number} has {tokens:,} tokens: only the first {limit - 1:,} are translated "
                    f"(max_length={limit}).",
                    file=sys.stderr,
                )
        settings = self.settings
        need = settings.format == "jsonl" or settings.alignments is not None or settings.plot is not None
        results = self.translator.hypotheses(lines, attention=need, replace_unknown=settings.replace_unknown)
        if not distributed.is_first():
            return
        for line, n_best in zip(lines, results, strict=True):
            self.count += 1
            self._write_one(line, n_best)
            if self.links is not None:
                self.links.write(format_pharaoh(self._links(n_best[0])) + "\n")
            if self.plot is not None and n_best[0].attention is not None and n_best[0].words:
                matrix = n_best[0].word_attention
                assert matrix is not None
                file = self.plot / f"alignment-{self.count:04d}.png"
                plots.alignment(matrix, n_best[0].source_words, n_best[0].words, file)
        self.out.flush()
        self.bar.update(len(lines))

    def _write_one(self, line: str, n_best: list[Translation]) -> None:
        if self.settings.format == "jsonl":
            record = {"source": line, "translations": [_record(one) for one in n_best]}
            self.out.write(json.dumps(record, ensure_ascii=False) + "\n")
        elif self.translator.settings.n_best == 1:
            self.out.write(n_best[0].text + "\n")
        else:  # Moses' n-best lists: sentence from 0, text, score
            for one in n_best:
                self.out.write(f"{self.count - 1} ||| {one.text} ||| {one.score:.6f}\n")

    def _links(self, translation: Translation) -> set[tuple[int, int]]:
        return translation.alignment or set()


def _record(translation: Translation) -> dict[str, Any]:
    links = translation.alignment
    return {
        "text": translation.text,
        "score": translation.score,
        "log_probability": translation.log_probability,
        "tokens": translation.pieces,
        "alignment": None if links is None else format_pharaoh(links),
    }
