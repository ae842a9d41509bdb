#!/usr/bin/env python
"""Measure memory and time at scale: prepare 10 million pairs, train on them, and translate 200,000 lines from a pipe.

    python scripts/benchmarks/benchmark_scale.py --output results/scale.json

Memory is the peak resident memory of the process tree, sampled every 50 ms. Pages that processes share count several
times, and pages of the cache's files count once they are read. The model is small, since the effect of the corpus is
measured. For the pipe, the time until the first translation is reported, and the memory over the first and last lines.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import benchmarking
from benchmark_prepare import generate, peak_memory, resident

SEQTOOL = [sys.executable, "-m", "seqtool"]
SMALL = [
    *("model.embedding=32", "model.encoder_hidden=32", "model.decoder_hidden=32", "model.alignment=32"),
    "model.maxout=32",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=200, help="training updates")
    parser.add_argument("--threads", type=int, default=2, help="threads, and processes that prepare")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as scratch:
        directory = Path(scratch)
        for seed, side in enumerate(("source", "target")):
            generate(directory / f"train.{side}", arguments.pairs, seed)
            generate(directory / f"valid.{side}", 100, seed + 2)
        record = {
            "machine": benchmarking.machine(arguments.threads),
            "pairs": arguments.pairs,
            "text (MB)": sum(file.stat().st_size for file in directory.glob("train.*")) / 1e6,
            **prepare_and_train(directory, arguments),
            **stream(directory, arguments),
        }
    for name, value in record.items():
        print(f"{name}: {f'{value:,.1f}' if isinstance(value, float) else value}")
    benchmarking.write(record, arguments.output)


def prepare_and_train(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The memory and time of preparing the corpus, and the memory of training on it."""
    data = [
        *("data=parallel", "data.train=train.source,train.target", "data.valid=valid.source,valid.target"),
        *("data.vocabulary.size=8000", f"data.processes={arguments.threads}"),
    ]
    limits = [f"train.steps={arguments.steps}", "train.minutes=null", "validation.max_length=5", "device=cpu"]
    start = time.perf_counter()
    record: dict[str, Any] = {"memory to prepare (MB)": memory(directory, "prepare", *data)}
    record["time to prepare (s)"] = time.perf_counter() - start
    cache = next(directory.glob("cache/parallel-*"))
    record["cache (MB)"] = sum(file.stat().st_size for file in cache.iterdir()) / 1e6
    record["memory to train (MB)"] = memory(
        directory, "train", *data, *limits, *SMALL, f"threads={arguments.threads}", "run=small"
    )
    return record


def memory(directory: Path, *command: str) -> float:
    """The peak memory of a command in MB."""
    return peak_memory(subprocess.Popen([*SEQTOOL, *command], cwd=directory)) / 1e6


def stream(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the first two translations one by one, then write all other lines at once and read their translations."""
    settings = ["checkpoint=runs/small", "beam=1", "max_length=20", "device=cpu", f"threads={arguments.threads}"]
    with (directory / "train.source").open("rb") as text:
        lines = [line for line, _ in zip(text, range(arguments.lines), strict=False)]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*SEQTOOL, "translate", *settings],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # warnings about lines that are cut
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(lines[0])
    process.stdin.flush()
    process.stdout.readline()
    first = time.perf_counter() - start
    start = time.perf_counter()
    process.stdin.write(lines[1])
    process.stdin.flush()
    process.stdout.readline()
    second = time.perf_counter() - start
    feeder = threading.Thread(target=feed, args=(process.stdin, lines[2:]))
    feeder.start()
    count, sizes = 2, []
    for _ in process.stdout:
        count += 1
        if count % max(1, arguments.lines // 100) == 0:
            sizes.append(resident(process.pid) / 1e6)
    feeder.join()
    if process.wait() or count != len(lines):
        sys.exit(f"translate ended with {process.returncode} after {count:,} of {len(lines):,} lines.")
    tenth = max(1, len(sizes) // 10)
    return {
        "lines from a pipe": count,
        "first line out, from the start of the process (s)": first,
        "a line out, of a process that runs (s)": second,
        "lines/s": count / (time.perf_counter() - start),
        "memory over the first tenth of the lines (MB)": max(sizes[:tenth]),
        "memory over the last tenth (MB)": max(sizes[-tenth:]),
    }


def feed(stream: Any, lines: list[bytes]) -> None:
    """Write all lines, and close the stream."""
    stream.writelines(lines)
    stream.close()


if __name__ == "__main__":
    main()
