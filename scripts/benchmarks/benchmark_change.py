#!/usr/bin/env python
"""Compare the speed of two checkouts, before and after a change, by short runs in turn.

    git worktree add ../before COMMIT
    python scripts/benchmarks/benchmark_change.py ../before --output results/change.json

It trains RNNsearch, Sutskever's model, a Transformer, Show, Attend and Tell and a language model, and decodes with all
of these except Sutskever's. Both checkouts have the same data and settings. Each has a process of its own, and only one
of the two works at a time. A run is a few updates, or the decoding of a few sentences, images or texts. A pair is one
run of each checkout, one right after the other; every second pair is in reverse order. The script prints the median of
the pairs' ratios of the rate after the change to the rate before, and its 90 % bootstrap interval.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import benchmarking

ROOT = Path(__file__).resolve().parents[2]
TRAINING_PAIRS, VOCABULARY = 10_000, 8000
SENTENCES, IMAGES, PROMPTS = 160, 200, 3  # the numbers of items decoded in a run
TEXT = (
    "data=parallel data.train=text/train.source,text/train.target data.valid=text/valid.source,text/valid.target "
    f"data.vocabulary.kind=word data.vocabulary.size={VOCABULARY} data.vocabulary.joint=false "
    "validation.sentences=10 validation.max_length=2"
)
RNNSEARCH = (
    "model=bahdanau model.embedding=256 model.encoder_hidden=256 model.decoder_hidden=512 model.alignment=512 "
    "model.maxout=256 model.dropout=0"
)
TRANSFORMER = (
    "model=transformer model.width=256 model.encoder_layers=4 model.decoder_layers=4 model.heads=4 "
    "model.feed_forward=1024 model.dropout=0 model.tie=none"
)
SUTSKEVER = "model=sutskever model.embedding=512 model.hidden=512 model.layers=2 model.dropout=0"
COMMON = ("train.minutes=null", "train.epochs=null", "train.best_by=loss", "device=cpu")
CAPTIONS = (
    "data=scenes data.train=1500 data.valid=20 data.test=20 model=show_attend_tell model.dropout=0 "
    "model.encoder.fine_tune_from=null model.encoder.augment=false validation.max_length=2"
)
LANGUAGE_MODEL = (
    "data=text data.train=text/train.source data.valid=text/valid.source model=language_model model.dropout=0"
)
TRAINING = {
    "training RNNsearch, fp32": f"{TEXT} {RNNSEARCH} precision=fp32",
    "training RNNsearch, bf16": f"{TEXT} {RNNSEARCH} precision=bf16",
    "training Sutskever, fp32": f"{TEXT} {SUTSKEVER} precision=fp32",
    "training a Transformer, fp32": f"{TEXT} {TRANSFORMER} precision=fp32",
    "training Show, Attend and Tell, fp32": f"{CAPTIONS} precision=fp32",
    "training Show, Attend and Tell, bf16": f"{CAPTIONS} precision=bf16",
    "training a language model, fp32": f"{LANGUAGE_MODEL} precision=fp32",
}
RUNS = {
    "translating": "RNNsearch",
    "translating by a Transformer": "a Transformer",
    "captioning": "Show, Attend and Tell",
    "generating": "a language model",
}  # the models, in fp32
DECODING: dict[str, dict[str, Any]] = {
    f"{task}, {search}, {precision}": {"beam": beam, "precision": precision, "min_length": 20, "max_length": 20}
    for task in ("translating", "translating by a Transformer", "captioning")
    for search, beam in (("greedy", 1), ("beam 5", 5))
    for precision in ("fp32", "bf16")
} | {f"generating, {n} texts": {"n": n, "max_length": 300} for n in (1, 16)}
# TRAIN and DECODE print only rates to standard output, a rate after each line that they read. Anything else that a
# training run prints goes to standard error.
TRAIN = """
import os, runpy, sys, time
from importlib import import_module

rates = os.fdopen(os.dup(1), "w")  # the real standard output
os.dup2(2, 1)  # what is written to standard output from here on goes to standard error
updates, start, updates_left = int(sys.argv.pop(1)), None, 0
Optimisation = import_module("seqtool.training.optimisation").Optimisation
prepare = Optimisation.prepare  # called once before each update

def timed_prepare(self, *arguments):
    global start, updates_left
    if updates_left == 0:
        if start is not None:
            print(updates / (time.perf_counter() - start), file=rates, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        start, updates_left = time.perf_counter(), updates
    updates_left -= 1
    prepare(self, *arguments)

Optimisation.prepare = timed_prepare
runpy.run_module("seqtool", run_name="__main__")
"""
DECODE = """
import json, sys, time
import seqtool
from seqtool.runtime.devices import keep_memory

keep_memory()  # as every command does
path, task, threads, settings = sys.argv[1:]
model = seqtool.load(path, threads=int(threads), device="cpu", **json.loads(settings))
methods = {"translating": "translate", "captioning": "caption", "generating": "generate"}
task = task.split()[0]
decode, items = getattr(model, methods[task]), open(task + ".txt").read().splitlines()
for _ in sys.stdin:
    start = time.perf_counter()
    decode(items)
    print(len(items) / (time.perf_counter() - start), flush=True)
"""
WARM_UP_RUNS = 2  # the number of runs of each process, after its first run, that are not counted
MODEL_UPDATES = 20  # the number of training updates of the models that decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the checkout before the change")
    parser.add_argument("after", type=Path, nargs="?", default=ROOT, help="the checkout after it; by default this one")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs")
    parser.add_argument("--updates", type=int, default=5, help="updates in a training run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="a regular expression: measure only the rows whose names match")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    commits = {side: commit(checkout) for side, checkout in checkouts.items()}
    record = {"machine": benchmarking.machine(arguments.threads), "commits": commits, "updates": arguments.updates}
    rates: dict[str, dict[str, list[float]]] = {}
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as directory:
        prepare(Path(directory), checkouts["before"], arguments)
        for name, side, value in measure(Path(directory), checkouts, arguments):
            rates.setdefault(name, {"before": [], "after": []})[side].append(value)
            if len(rates[name]["before"]) == len(rates[name]["after"]):
                rows[name] = row(rates[name]["before"], rates[name]["after"])
                benchmarking.write({**record, "rows": rows}, arguments.output)
    for name, result in rows.items():
        low, high = result["interval_90"]
        print(f"{name:<46}{result['ratio']:.3f}  [{low:.3f}, {high:.3f}]")


def prepare(directory: Path, checkout: Path, arguments: argparse.Namespace) -> None:
    """Make the text, the models that decode, and the list of items that each of them decodes."""
    (directory / "text").mkdir()
    for split, count in (("train", TRAINING_PAIRS), ("valid", 20), ("test", SENTENCES)):
        files = (directory / "text" / f"{split}.{side}" for side in ("source", "target"))
        benchmarking.generate(*files, count, vocabulary=VOCABULARY - 4)
    for run, model in RUNS.items():
        name = f"training {model}, fp32"
        searches = [title for title in DECODING if title.startswith(f"{run},")]
        if any(re.search(arguments.only, title) for title in searches):
            train(directory, checkout, run, TRAINING[name].split(), arguments)
    pictures = sorted((directory / "data" / "scenes").rglob("*.png"))[:IMAGES]
    sentences = (directory / "text" / "test.source").read_text().splitlines()
    items = {"translating": sentences, "captioning": map(str, pictures), "generating": sentences[:PROMPTS]}
    for task, lines in items.items():
        (directory / f"{task}.txt").write_text("".join(f"{line}\n" for line in lines))


def measure(
    directory: Path, checkouts: Mapping[str, Path], arguments: argparse.Namespace
) -> Iterator[tuple[str, str, float]]:
    """Yield (measurement, checkout, rate), pair by pair; rates are updates, sentences, images or texts per second."""
    turns = [[*checkouts][:: 1 if number % 2 == 0 else -1] for number in range(arguments.pairs)]
    for name in (name for name in (*TRAINING, *DECODING) if re.search(arguments.only, name)):
        print(name, file=sys.stderr, flush=True)
        command = training(directory, name, arguments) if name in TRAINING else decoding(directory, name, arguments)
        with ExitStack() as stack:
            workers = {}
            for side, checkout in checkouts.items():
                log = directory / f"{side}.log"
                workers[side] = stack.enter_context(worker(directory, checkout, command, log)), log
                rate(*workers[side])  # before the other worker starts, so that data are prepared once
            for side in [*checkouts] * WARM_UP_RUNS:
                rate(*workers[side])
            for side in chain(*turns):
                yield name, side, rate(*workers[side])


def training(directory: Path, name: str, arguments: argparse.Namespace) -> list[str]:
    """The command of a process that trains."""
    settings = [*TRAINING[name].split(), f"threads={arguments.threads}", *COMMON, "train.steps=100000"]
    return [sys.executable, "-c", TRAIN, str(arguments.updates), "train", *settings]


def decoding(directory: Path, name: str, arguments: argparse.Namespace) -> list[str]:
    """The command of a process that decodes."""
    task = name.partition(",")[0]
    options = [str(directory / "runs" / task), task, str(arguments.threads), json.dumps(DECODING[name])]
    return [sys.executable, "-c", DECODE, *options]


def worker(directory: Path, checkout: Path, command: Sequence[str], log: Path) -> "subprocess.Popen[str]":
    """Start a process that makes a run for each line it reads, and prints the rate; its errors go to the file `log`."""
    pipe = subprocess.PIPE
    with log.open("w") as errors:
        return subprocess.Popen(
            command, cwd=directory, env=environment(checkout), stdin=pipe, stdout=pipe, stderr=errors, text=True
        )


def rate(process: "subprocess.Popen[str]", log: Path) -> float:
    """Have a worker make a run, and return its rate."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):  # if it has failed
        process.stdin.write("\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        sys.exit(f"A run failed:\n{log.read_text()[-2000:]}")
    return float(line)


def train(directory: Path, checkout: Path, name: str, settings: Sequence[str], arguments: argparse.Namespace) -> None:
    """Train a model that decodes, with the run's name."""
    command = [sys.executable, "-m", "seqtool", "train", f"run={name}", *settings, f"threads={arguments.threads}"]
    run(directory, checkout, [*command, *COMMON, f"train.steps={MODEL_UPDATES}"])


def run(directory: Path, checkout: Path, command: Sequence[str]) -> str:
    """Run a command with a checkout's package and return its standard output. This script ends if the command fails."""
    done = subprocess.run(
        command, cwd=directory, env=environment(checkout), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {checkout}:\n{done.stderr[-2000:]}")
    return done.stdout


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout)}


def row(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """The record of a comparison: the ratio, and all rates."""
    rates = {side: [round(rate, 3) for rate in turns] for side, turns in (("before", before), ("after", after))}
    return {**ratio(before, after), **rates}


def ratio(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """The median of the pairs' ratios, and its 90 % bootstrap interval."""
    ratios = [new / old for old, new in zip(before, after, strict=True)]
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return {
        "ratio": round(statistics.median(ratios), 3),
        "interval_90": [round(medians[500], 3), round(medians[9500], 3)],
    }


def commit(checkout: Path) -> str:
    """The name of a checkout's commit, with "-dirty" if files were changed since."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
