"""`seqtool generate`: write text with a language model."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from seqtool.data.text.vocabulary import report_unknown
from seqtool.errors import InputError, counted, printable
from seqtool.predict.generator import Generator
from seqtool.runtime import distributed
from seqtool.runtime.files import check_outputs, finite_json, keeping, read_lines
from seqtool.runtime.tables import table
from seqtool.settings import escape, typed
from seqtool.settings.declarations import GenerateFiles, check_values

SEPARATOR = "-" * 20  # the line between two texts


def generate(config: DictConfig) -> None:
    """Continue prompts. Only the texts are written to standard output."""
    with open_dict(config):
        if isinstance(config.stop, str):
            config.stop = [escape(config.stop)]
    settings = typed(GenerateFiles, {setting.name: config[setting.name] for setting in fields(GenerateFiles)})
    check_values(settings)
    for name, text in (("prompt", settings.prompt or ""), ("stop", "".join(settings.stop or []))):
        if text.encode(errors="replace").decode() != text:
            raise InputError(f"{name}= is not valid UTF-8.")
    if settings.prompt is not None and settings.input is not None:
        raise InputError("prompt= and input= both give prompts: leave one of them out.")
    inputs = [] if settings.input is None else [(f"input={settings.input}", settings.input)]
    check_outputs({"output": settings.output}, inputs)
    with distributed.group():
        if distributed.is_first():
            _continue_prompts(settings, Generator.from_config(config))


def _continue_prompts(settings: GenerateFiles, generator: Generator) -> None:
    """Write the continuations of each prompt. Text is printed while it is generated; a file gets only whole texts."""
    count, output = 0, settings.output
    with nullcontext(sys.stdout) if output is None else keeping(Path(output), lambda: counted(count, "text")) as out:
        write = partial(print, end="", file=out, flush=True)
        prompts: Iterable[str] = [settings.prompt or ""]
        if settings.input is not None:
            prompts = read_lines(Path(settings.input), may_be_empty=True)
        for line in prompts:
            prompt = generator.encode_prompt(line)
            report_unknown(Counter(prompt.unknown), "of the prompt")
            if settings.likeliest:
                count += 1
                write(_next_tokens(line, generator.predict_next(line, settings.likeliest), settings.format))
                continue
            if settings.format == "jsonl":
                samples = generator.continuations(prompt, generator.uniform_noise())
                out.write(finite_json(generator.line(line, samples)) + "\n")
                count += len(samples)
                continue
            for uniforms in generator.uniform_noise():
                parts: list[str] = []
                on_text = write if output is None else parts.append
                on_text((f"{SEPARATOR}\n" if count else "") + line)
                (continuation,) = generator.continuations(prompt, uniforms[None], on_text)
                on_text("" if continuation.text.endswith("\n") else "\n")
                if parts:
                    write("".join(parts))
                count += 1


def _next_tokens(prompt: str, prediction: Mapping[str, Any], form: str) -> str:
    """Describe what `predict_next` returned after a prompt, as a line of JSON or as a table."""
    if form == "jsonl":
        record = {"prompt": prompt, "entropy": prediction["entropy"], "likeliest": prediction["likeliest"]}
        return finite_json(record) + "\n"
    rows = [[printable(token), f"{probability:.4f}"] for token, probability in prediction["likeliest"]]
    return f"{prompt}\n" + "\n".join(table(["next token", "probability"], rows)) + "\n"
