#!/usr/bin/env python
"""Train a character model on Python source code, and find its units that tell strings, comments and so on.

    python scripts/units_of_code.py --output results/units.json

The text is that of the top-level modules of Python's standard library that are plain ASCII, in the order of the SHA-256
of their names: the first 3.6 million characters are for training, the next 0.1 million for validation, 0.2 million more
were looked at when the properties were chosen, and the last 0.2 million are for the figures. They depend on the version
of Python, so their own SHA-256 is printed. The record has the figures of all properties (`seqtool.predict.units.Unit`),
whether or not a unit tells them well. A property decides the tokens at which its value falls: closing brackets and
quotation marks, and the ends of comments and of lines.
"""

import argparse
import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import seqtool
from seqtool.data.text.properties import HASHES, RULES, STRING, Rule
from seqtool.predict.generator import Generator

SIZES = {"train": 3_600_000, "valid": 100_000, "exploration": 200_000, "units": 200_000}  # characters
TRAINING = {
    "model.embedding": 64,
    "model.layers": 1,
    "model.dropout": 0.0,
    "optim.lr": 0.003,
    "schedule": "cosine",
    "schedule.warmup": 200,
    "train.batch_size": 16,
    "train.bptt": 100,
    "train.minutes": "null",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="units", help="the name of the run, which is trained unless it exists")
    parser.add_argument("--hidden", type=int, default=256, help="the size of the LSTM")
    parser.add_argument("--epochs", type=int, default=7, help="epochs of training")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--random-units", type=int, default=100, help="random units that are held beside each unit")
    parser.add_argument("--properties", nargs="+", choices=PROPERTIES, default=[*PROPERTIES], help="those to measure")
    parser.add_argument("--output", type=Path, help="a JSON file, whose figures of other properties are kept")
    arguments = parser.parse_args()
    texts, modules = divide(standard_library())
    sha256 = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in texts.items()}
    for split, text in texts.items():
        print(f"{split}: {len(text):,} characters, SHA-256 {sha256[split]}")
    run = Path("runs") / arguments.run
    if not run.exists():
        train(run, texts, hidden=arguments.hidden, epochs=arguments.epochs, threads=arguments.threads)
    generator = seqtool.load(run, device="cpu", threads=arguments.threads)
    assert isinstance(generator, Generator)
    progress = generator.checkpoints[0].progress
    print(f"validation: {progress['best']['bits']:.3f} bits a character after {progress['seconds'] / 60:.1f} minutes")
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "modules": modules,
        "characters": SIZES,
        "sha256": sha256,
        "training": TRAINING | {"model.hidden": arguments.hidden, "train.epochs": arguments.epochs},
        "seconds": progress["seconds"],
        "bits_per_character": progress["best"]["bits"],
        "units": {},
    }
    if arguments.output and arguments.output.exists():
        record["units"] = json.loads(arguments.output.read_text(encoding="utf-8"))["units"]
    for name in arguments.properties:
        start = time.perf_counter()
        rule = PROPERTIES[name]
        unit = generator.find_unit(
            texts["units"], rule, decides=partial(falls, rule), random_units=arguments.random_units
        )
        unit = replace(unit, property=name)
        print(f"\n{unit}\n({time.perf_counter() - start:.0f} seconds)", flush=True)
        record["units"][name] = asdict(unit)
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def standard_library() -> dict[str, str]:
    """The text of each top-level module that is plain ASCII, by its name, in the order of the SHA-256 of the names."""
    files = Path(sysconfig.get_path("stdlib")).glob("*.py")
    by_name = {file.name: file.read_bytes() for file in files}
    order = sorted(by_name, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: by_name[name].decode("ascii") for name in order if by_name[name].isascii()}


def divide(modules: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Divide the joined modules into the splits of `SIZES`; return these and the names of all modules that are used."""
    texts, names, text, start = {}, [], "", 0
    for name, module in modules.items():
        if len(text) < sum(SIZES.values()):
            names.append(name)
            text += module
    for split, size in SIZES.items():
        texts[split] = text[start : start + size]
        start += size
    return texts, names


def train(run: Path, texts: dict[str, str], *, hidden: int, epochs: int, threads: int) -> None:
    """Train a model into a new run."""
    directory = Path("data") / run.name
    directory.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (directory / f"{split}.txt").write_text(text, encoding="utf-8")
    settings = TRAINING | {"data.train": directory / "train.txt", "data.valid": directory / "valid.txt"}
    settings |= {"model.hidden": hidden, "train.epochs": epochs, "threads": threads, "device": "cpu", "run": run.name}
    command = [sys.executable, "-m", "seqtool", "train", "data=text", "model=language_model"]
    subprocess.run([*command, *(f"{key}={value}" for key, value in settings.items())], check=True)


def quoted(pieces: Sequence[str]) -> NDArray[Any]:
    """Whether each character is inside a string in single quotation marks, '…' or "…"."""
    result = np.zeros(len(pieces), np.bool_)
    for match in re.finditer(STRING + HASHES, "".join(pieces), re.DOTALL):
        if match["string"] and not match[0].startswith(('"""', "'''")):
            result[match.start() : match.end() - 1] = True
    return result


def late(pieces: Sequence[str]) -> NDArray[Any]:
    """Whether each character is beyond the 60th of its line, where most lines have ended."""
    return np.asarray(RULES["column"](pieces)) > 60


def falls(rule: Rule, pieces: Sequence[str]) -> list[bool]:
    """Whether the value of a property is smaller after each piece than before it."""
    values = list(rule(pieces))
    return [value < before for before, value in pairwise([values[0], *values])]


PROPERTIES: dict[str, Rule] = {"quoted": quoted, "depth": RULES["depth"], "late": late}
PROPERTIES |= {name: RULES[name] for name in ("comment", "string")}

if __name__ == "__main__":
    main()
