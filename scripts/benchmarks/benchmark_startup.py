#!/usr/bin/env python
"""Measure how long commands take to start: `--help` and the translation of one sentence, as whole processes.

    bash scripts/quickstart.sh
    python scripts/benchmarks/benchmark_startup.py runs/quickstart --output results/startup.json

The translation is compared with `python -c "import torch"`; all commands run in turn. Compiled modules are kept between
runs, as is Python's default.
"""

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import benchmarking

SENTENCE = "I have a big cat but a small house."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a run or checkpoint of a translation model")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    seqtool = [sys.executable, "-m", "seqtool"]
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "one translation": [*seqtool, "translate", f"checkpoint={arguments.checkpoint}"],
        "--help": [*seqtool, "--help"],
    }
    systems = {name: partial(seconds, command) for name, command in commands.items()}
    benchmarking.measure_in_turn(systems, 1)  # warm-up, which reads all files from the disk
    measurements = benchmarking.measure_in_turn(systems, arguments.repeats)
    medians = {name: round(median, 3) for name, median in benchmarking.medians(measurements).items()}
    record = {
        "machine": benchmarking.machine(1),
        "seconds, medians": medians,
        "one translation / import torch": round(medians["one translation"] / medians["import torch"], 3),
        "all turns": {name: [round(value, 3) for value in values] for name, values in measurements.items()},
    }
    for name in ("seconds, medians", "one translation / import torch"):
        print(f"{name}: {record[name]}")
    benchmarking.write(record, arguments.output)


def seconds(command: list[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, input=SENTENCE, text=True, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
