"""`seqtool generate`: text that a language model writes."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig, open_dict

from seqtool.data.text.unknown import sentence, unknown_pieces
from seqtool.errors import InputError
from seqtool.predict.generator import Generator
from seqtool.runtime import distributed
from seqtool.runtime.files import read_lines
from seqtool.runtime.outputs import check_outputs, keeping
from seqtool.settings import declarations, escape, typed

BETWEEN = "-" * 20  # on a line of its own between two texts


@dataclass
class GenerateOutput(declarations.GenerateFiles):
    """The settings of configs/generate.yaml for input and output."""

    def check(self) -> None:
        """Raise InputError for settings that are impossible."""
        declarations.check_values(self)
        for name, text in (("prompt", self.prompt or ""), ("stop", "".join(self.stop or []))):
            if text.encode(errors="replace").decode() != text:
                raise InputError(f"{name}= is not valid UTF-8.")
        if self.prompt is not None and self.input is not None:
            raise InputError("prompt= and input= both say what the texts begin with: give one of them.")
        check_outputs({"output": self.output}, [] if self.input is None else [(f"input={self.input}", self.input)])

    def prompts(self) -> Iterator[str]:
        if self.input is None:
            yield self.prompt or ""
        else:
            yield from read_lines(Path(self.input), may_be_empty=True)


def generate(config: DictConfig) -> None:
    """Continue prompts; only texts go to standard output."""
    with open_dict(config):
        if isinstance(config.stop, str):
            config.stop = [escape(config.stop)]
    settings = typed(GenerateOutput, {one.name: config[one.name] for one in fields(GenerateOutput)})
    settings.check()
    with distributed.group():
        if distributed.is_first():
            TextWriter(settings, Generator.configured(config)).write_all()


class TextWriter:
    """Writes the texts of one prompt after another, each as it comes."""

    def __init__(self, settings: GenerateOutput, generator: Generator) -> None:
        self.settings = settings
        self.generator = generator
        self.count = 0

    def write_all(self) -> None:
        with ExitStack() as stack:
            out = sys.stdout
            if self.settings.output is not None:
                path = Path(self.settings.output)
                out = stack.enter_context(keeping(path, lambda: f"{self.count:,} texts"))
            for prompt in self.settings.prompts():
                (unknown,) = unknown_pieces([prompt], self.generator.target_vocabulary)
                if unknown:
                    said = f"The prompt has {len(unknown):,} symbols that the model does not know."
                    print(f"{said} {sentence(Counter(unknown))}", file=sys.stderr)
                self._write(prompt, out)

    def _write(self, prompt: str, out: TextIO) -> None:
        if self.settings.format == "jsonl":
            (samples,) = self.generator.samples([prompt])
            out.write(json.dumps(self.generator.line(prompt, samples), ensure_ascii=False) + "\n")
            self.count += len(samples)
            return

        def told(text: str) -> None:
            out.write(text)
            out.flush()

        for uniforms in self.generator.uniforms():
            whole: list[str] = []  # a file has whole texts, even if this is stopped
            say = told if self.settings.output is None else whole.append
            say((f"{BETWEEN}\n" if self.count else "") + prompt)
            found = self.generator.stream(prompt, uniforms, say)
            say("" if found.text.endswith("\n") else "\n")
            if whole:
                told("".join(whole))
            self.count += 1
