#!/usr/bin/env python
"""What a change costs or gains: short runs of two checkouts in turn, and the ratio of their rates, after to before.

    git worktree add ../before COMMIT
    python scripts/benchmarks/benchmark_change.py ../before --output results/change.json

Trains RNNsearch, Sutskever's model, Show, Attend and Tell and a language model, and decodes with all but the second,
with the same data and settings for both checkouts. Each checkout has a process of its own, in which a run is a few
updates, or the decoding of a few sentences, images or texts; only one of the two works at a time. A pair is one run of
each, one right after the other, in reverse order in every second pair. Prints the median of the pairs' ratios and its
90 % bootstrap interval.
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
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import benchmarking

PAIRS, VOCABULARY, SENTENCES, IMAGES, PROMPTS = 10_000, 8000, 160, 200, 3
TEXT = (
    "data=parallel data.train=text/train.source,text/train.target data.valid=text/valid.source,text/valid.target "
    f"data.vocabulary.kind=word data.vocabulary.size={VOCABULARY} data.vocabulary.joint=false "
    "validation.sentences=10 validation.max_length=2"
)
RNNSEARCH = (
    "model=bahdanau model.embedding=256 model.encoder_hidden=256 model.decoder_hidden=512 model.alignment=512 "
    "model.maxout=256 model.dropout=0"
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
    "training Show, Attend and Tell, fp32": f"{CAPTIONS} precision=fp32",
    "training Show, Attend and Tell, bf16": f"{CAPTIONS} precision=bf16",
    "training a language model, fp32": f"{LANGUAGE_MODEL} precision=fp32",
}
RUNS = {"translating": "RNNsearch", "captioning": "Show, Attend and Tell", "generating": "a language model"}  # in fp32
DECODING: dict[str, dict[str, Any]] = {
    f"{what}, {name}, {precision}": {"beam": beam, "precision": precision, "min_length": 20, "max_length": 20}
    for what in ("translating", "captioning")
    for name, beam in (("greedy", 1), ("beam 5", 5))
    for precision in ("fp32", "bf16")
} | {f"generating, {n} texts": {"n": n, "max_length": 300} for n in (1, 16)}
TRAIN = """
import os, runpy, sys, time
from importlib import import_module

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
updates, begin, left = int(sys.argv.pop(1)), None, 0
optimisation = import_module("seqtool.training.optimisation").Optimisation
prepare = optimisation.prepare  # called once before each update

def timed(self, *arguments):
    global begin, left
    if left == 0:
        if begin is not None:
            print(updates / (time.perf_counter() - begin), file=answers, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        begin, left = time.perf_counter(), updates
    left -= 1
    prepare(self, *arguments)

optimisation.prepare = timed
runpy.run_module("seqtool", run_name="__main__")
"""
DECODE = """
import json, sys, time
import seqtool
from seqtool.runtime.devices import keep_memory

keep_memory()  # as every command does
path, what, threads, settings = sys.argv[1:]
model = seqtool.load(path, threads=int(threads), device="cpu", **json.loads(settings))
how = {"translating": "translate", "captioning": "caption", "generating": "generate"}
decode, items = getattr(model, how[what]), open(what + ".txt").read().splitlines()
for _ in sys.stdin:
    begin = time.perf_counter()
    decode(items)
    print(len(items) / (time.perf_counter() - begin), flush=True)
"""
WARM = 2  # more runs of each process, which are not counted
MODELS = 20  # training updates of the models that decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, nargs="?", default=Path(__file__).resolve().parents[2])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--updates", type=int, default=5, help="updates in a training run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="measure only what matches this regular expression")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    commits = {which: commit(place) for which, place in checkouts.items()}
    record = {"machine": benchmarking.machine(arguments.threads), "commits": commits, "updates": arguments.updates}
    rates: dict[str, dict[str, list[float]]] = {}
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as place:
        prepare(Path(place), checkouts["before"], arguments)
        for name, which, value in measured(Path(place), checkouts, arguments):
            rates.setdefault(name, {"before": [], "after": []})[which].append(value)
            if len(rates[name]["before"]) == len(rates[name]["after"]):
                rows[name] = row(rates[name]["before"], rates[name]["after"])
                benchmarking.write({**record, "rows": rows}, arguments.output)
    for name, compared in rows.items():
        low, high = compared["interval_90"]
        print(f"{name:<40}{compared['ratio']:.3f}  [{low:.3f}, {high:.3f}]")


def prepare(place: Path, checkout: Path, arguments: argparse.Namespace) -> None:
    """Make the text, a list of pictures, and the models that decode."""
    (place / "text").mkdir()
    for split, count in (("train", PAIRS), ("valid", 20), ("test", SENTENCES)):
        files = (place / "text" / f"{split}.{side}" for side in ("source", "target"))
        benchmarking.generate(*files, count, vocabulary=VOCABULARY - 4)
    for run, model in RUNS.items():
        name = f"training {model}, fp32"
        if any(re.search(arguments.only, title) for title in (*DECODING, name)):
            train(place, checkout, run, TRAINING[name].split(), arguments)
    pictures = sorted((place / "data" / "scenes").rglob("*.png"))[:IMAGES]
    sentences = (place / "text" / "test.source").read_text().splitlines()
    items = {"translating": sentences, "captioning": map(str, pictures), "generating": sentences[:PROMPTS]}
    for what, lines in items.items():
        (place / f"{what}.txt").write_text("".join(f"{line}\n" for line in lines))


def measured(
    place: Path, checkouts: Mapping[str, Path], arguments: argparse.Namespace
) -> Iterator[tuple[str, str, float]]:
    """Yield (measurement, checkout, rate), pair by pair; rates are updates, sentences, images or texts per second."""
    turns = [[*checkouts][:: 1 if number % 2 == 0 else -1] for number in range(arguments.pairs)]
    for name in (name for name in (*TRAINING, *DECODING) if re.search(arguments.only, name)):
        print(name, file=sys.stderr, flush=True)
        command = training(place, name, arguments) if name in TRAINING else decoding(place, name, arguments)
        with ExitStack() as stack:
            workers = {}
            for which, checkout in checkouts.items():
                workers[which] = stack.enter_context(worker(place, checkout, command))
                rate(workers[which])  # before the next one starts: data are prepared once
            for which in [*checkouts] * WARM:
                rate(workers[which])
            for which in chain(*turns):
                yield name, which, rate(workers[which])


def training(place: Path, name: str, arguments: argparse.Namespace) -> list[str]:
    settings = [*TRAINING[name].split(), f"threads={arguments.threads}", *COMMON, "train.steps=100000"]
    return [sys.executable, "-c", TRAIN, str(arguments.updates), "train", *settings]


def decoding(place: Path, name: str, arguments: argparse.Namespace) -> list[str]:
    what = name.partition(",")[0]
    return [
        sys.executable,
        "-c",
        DECODE,
        str(place / "runs" / what),
        what,
        str(arguments.threads),
        json.dumps(DECODING[name]),
    ]


def worker(place: Path, checkout: Path, command: Sequence[str]) -> "subprocess.Popen[str]":
    """A process that does its work once for each line it reads, and prints the rate."""
    return subprocess.Popen(
        command,
        cwd=place,
        env=environment(checkout),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def rate(process: "subprocess.Popen[str]") -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        sys.exit(f"{process.args} failed.")
    return float(answer)


def train(place: Path, checkout: Path, name: str, settings: Sequence[str], arguments: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "seqtool", "train", f"run={name}", *settings, f"threads={arguments.threads}"]
    run(place, checkout, [*command, *COMMON, f"train.steps={MODELS}"])


def run(place: Path, checkout: Path, command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        cwd=place,
        env=environment(checkout),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {checkout}:\n{done.stderr[-2000:]}")
    return done.stdout


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout)}


def row(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    rates = {"before": before, "after": after}
    return {**ratio(before, after), **{which: [round(rate, 3) for rate in turns] for which, turns in rates.items()}}


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
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
