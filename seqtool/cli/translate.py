"""`seqtool translate`: translate lines of text. `seqtool embed`: give a vector for each line."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from seqtool.data.text.vocabulary import report_unknown
from seqtool.errors import InputError
from seqtool.predict.reading import count_lines, is_file, is_typed, windows
from seqtool.predict.translator import Translator
from seqtool.predict.writing import OutputSettings, TranslationWriter
from seqtool.runtime import distributed
from seqtool.runtime.files import check_outputs, check_writable, finite_json, read_lines, write_whole
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.view import plots


@dataclass
class TranslateSettings(declarations.Translate, OutputSettings):
    """The settings of configs/translate.yaml for input and output."""

    def inputs(self) -> Iterator[tuple[str, str | int]]:
        """Yield the name of each input file in messages, and its path or descriptor."""
        yield ("standard input", sys.stdin.fileno()) if self.input is None else (f"input={self.input}", self.input)
        if self.prefix is not None:
            yield f"prefix={self.prefix}", self.prefix

    def check(self) -> None:
        """Raise InputError if the input is a file that does not have as many lines as the file of prefixes."""
        prefixes = None if self.prefix is None else count_lines(self.prefix)
        if prefixes is not None and is_file(self.input) and prefixes != (lines := count_lines(self.input)):
            raise InputError(
                f"prefix={self.prefix} has {prefixes:,} lines but the input has {lines:,}: it must have as many."
            )

    def lines(self, size: int) -> Iterator[tuple[list[str], list[str] | None]]:
        """Yield windows of at most `size` lines to translate, each with the prefixes of their translations or None.

        Raises InputError if there are fewer prefixes than lines. If the input is a pipe or a terminal, there may be
        more prefixes than lines.
        """
        prefixes = None if self.prefix is None else read_lines(Path(self.prefix), may_be_empty=True)
        count = 0
        for lines in windows(self.input, size):
            line_prefixes = None if prefixes is None else list(islice(prefixes, len(lines)))
            if line_prefixes is not None and len(line_prefixes) < len(lines):
                expected = f"the input has {count + len(lines):,} or more"
                raise InputError(f"prefix={self.prefix} has only {count + len(line_prefixes):,} lines: {expected}.")
            count += len(lines)
            yield lines, line_prefixes


def translate(config: DictConfig) -> None:
    """Translate lines. Only translations are written to standard output."""
    settings = TranslateSettings.of(config, Translator)
    check_outputs({"output": settings.output, "alignments": settings.alignments}, settings.inputs())
    with distributed.group():
        distributed.from_first(settings.check)  # before the model is loaded
        translator = Translator.from_config(config)
        with TranslationWriter(settings, translator).opened() as writer:
            _translate_lines(settings, translator, writer)


def _translate_lines(settings: TranslateSettings, translator: Translator, writer: TranslationWriter) -> None:
    """Translate the input window by window, and finally print which of its words the model does not know."""
    unknown, unknown_in_prefixes, lines_with_unknown = Counter[str](), Counter[str](), 0
    file, processes = settings.input, distributed.size()
    # There is no progress bar if lines are typed, or if they come from a pipe and standard error is a log: the pipe may
    # stay open for days.
    shows_progress = is_file(file) or (sys.stderr.isatty() and not is_typed())
    with writer.progress("translate", partial(count_lines, file), wanted=shows_progress) as bar:
        # sources of similar length share a batch, which needs windows of many batches to choose from
        for lines, prefixes in distributed.each_from_first(settings.lines(32 * translator.settings.sources_per_batch)):
            last_line = writer.count + len(lines)

            def progress(done: int, last_line: int = last_line) -> None:
                bar.update(min(processes * done, last_line - bar.n))

            translations = translator.hypotheses(
                lines,
                prefixes=prefixes,
                attention=settings.format != "text" or settings.alignments is not None or settings.plot is not None,
                replace_unknown=settings.replace_unknown,
                likeliest=settings.likeliest,
                first_line=writer.count + 1,
                progress=progress,
            )
            writer.warn_of_no_spaces(lines, [n_best[0].text for n_best in translations])
            for line, n_best in zip(lines, translations, strict=True):
                unknown.update(n_best[0].source.unknown)
                if n_best[0].source.unknown:
                    lines_with_unknown += 1
                unknown_in_prefixes.update(n_best[0].prefix_unknown)
                writer.write(line, n_best)
            writer.flush()
            bar.update(last_line - bar.n)
    report_unknown(unknown, f"of the input, in {lines_with_unknown:,} of {writer.count:,} lines")
    report_unknown(unknown_in_prefixes, "of the prefixes; they are kept unchanged")


def embed(config: DictConfig) -> None:
    """Write the vectors of lines. Standard output has the neighbours if they are requested, otherwise the vectors if
    neither output= nor plot= is.
    """
    settings = typed(declarations.Embed, config)
    declarations.check_values(settings)
    read = "the input", settings.input or sys.stdin.fileno()
    check_outputs({"output": settings.output, "plot": settings.plot}, [read])
    if settings.output is not None and not settings.output.endswith(".npy"):
        raise InputError(f"output={settings.output} must be the name of an .npy file.")
    if settings.output is not None:
        check_writable(Path(settings.output))
    machine = {name: config[name] for name in declarations.declared(declarations.InferenceMachine)}
    with distributed.group():
        translator = Translator.load(names(settings.checkpoint), trust=modules(settings.trust), **machine)
        texts = distributed.from_first(lambda: [line for lines in windows(settings.input, 1000) for line in lines])
        vectors = translator.embed(texts, settings.vector)  # all processes share the work
        if not distributed.is_first():
            return
    if settings.output is not None:
        np.save(content := BytesIO(), vectors)
        write_whole(Path(settings.output), content.getvalue())
        print(f"Vectors: {settings.output}", file=sys.stderr)
    if settings.plot is not None:
        plots.principal_components(vectors, texts, Path(settings.plot))
        print(f"Figure: {settings.plot}", file=sys.stderr)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    for row, text in enumerate(texts):
        if settings.neighbours:
            cosines = unit @ unit[row]
            order = [index for index in np.argsort(-cosines, kind="stable") if index != row]
            lines = (f" {cosines[index]:6.3f}  {texts[index]}" for index in order[: settings.neighbours])
            print(text, *lines, sep="\n")
        elif settings.output is None and settings.plot is None:
            print(finite_json({"text": text, "vector": [float(str(number)) for number in vectors[row]]}))
