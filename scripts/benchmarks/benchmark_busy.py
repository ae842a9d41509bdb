#!/usr/bin/env python
"""Measure how long torch's threads should spin: a single training run and two side by side, with several spin counts.

    python scripts/benchmarks/benchmark_busy.py --output results/busy.json

Every figure is target tokens per second of `experiment=quickstart`, read from the run's metrics.jsonl. The first and
the last fifth of each training run are left out, since the other run of a pair may be starting or may have ended. A run
with fewer than five updates is repeated for twice as long.

A round consists of one training run with libgomp's default count of 300,000 and then, for each count, a single run and
two side by side. Every other round goes backwards, so that a drift of the machine's speed favours no count. Each run is
compared with the default of its round.

A count is acceptable if a single run is at most 3 % slower than with the default, and each of two side by side reaches
at least 0.8 of half the rate of a single run. The medians of the rounds decide. SPIN_COUNT in
seqtool/runtime/spinning.py is the best acceptable count or, if there is none, the lowest count with which a single run
is fast enough. Nothing else should run on the machine meanwhile. The measurement takes about forty minutes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import benchmarking
import torch
from benchmark_change import commit, ratio

SPIN_COUNTS = (1_000, 3_000, 5_000, 10_000, 30_000, 100_000)
DEFAULT = "default"  # libgomp's count
RATIOS = "alone / default", "each of two / half of one alone"
MIN_RATIOS = 0.97, 0.8  # the lowest acceptable values of these ratios
# seqtool sets no spin count if torch is imported first.
COMMAND = "import torch; from seqtool.cli.main import main; main()"
SETTINGS = (
    "experiment=quickstart schedule=inverse_square_root device=cpu train.epochs=null train.log_every=1 "
    "train.validate_every=1000000 train.best_by=loss validation.sentences=2 validation.max_length=2"
)
MIN_UPDATES = 5  # the number of updates in a run, so that a fifth of them is at least one
OPENMP_PREFIXES = ("OMP_", "GOMP_", "KMP_")  # the prefixes of OpenMP's environment variables
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="the number of rounds")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of a training run, without its start")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--counts", default=",".join(map(str, SPIN_COUNTS)), help="spin counts, separated by commas")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    spin_counts = [None, *map(int, arguments.counts.split(","))]  # None: the default
    record: dict[str, Any] = {
        "machine": benchmarking.machine(arguments.threads),
        "commit": commit(Path(__file__).parent),
        "seconds": arguments.seconds,
        "rows": {},
    }
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as directory:
        measure = partial(slowest_rate, Path(directory), arguments.threads)
        subprocess.run(
            [sys.executable, "-m", "seqtool", "prepare", "data=toy"], cwd=directory, env=ENVIRONMENT, check=True
        )
        turns: list[tuple[str, int | None, int]] = [("reference", None, 1)]  # name, spin count, number of runs
        for spin_count in spin_counts:
            label = spin_count or DEFAULT
            turns += [(f"alone {label}", spin_count, 1), (f"beside {label}", spin_count, 2)]
        rates: dict[str, list[float]] = {}  # tokens per second in each round, by the name of the turn
        for round_number in range(arguments.pairs):
            for name, spin_count, run_count in reversed(turns) if round_number % 2 else turns:
                rates.setdefault(name, []).append(measure(spin_count, run_count, arguments.seconds))
            labels = [str(spin_count or DEFAULT) for spin_count in spin_counts]
            record["rows"] = {label: compare_with_default(rates, label) for label in labels}
            benchmarking.write(record, arguments.output)
    print(table(record["rows"]))


def slowest_rate(directory: Path, threads: int, spin_count: int | None, run_count: int, seconds: float) -> float:
    """The tokens per second of the slowest of simultaneous runs, without the first and the last fifth of the updates.

    If a run makes fewer updates than MIN_UPDATES, all are repeated for twice as long. If one fails, the script ends.
    """
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(OPENMP_PREFIXES)}
    environment |= {} if spin_count is None else {"GOMP_SPINCOUNT": str(spin_count)}
    runs = [f"run-{number}" for number in range(run_count)]
    limits = [f"train.minutes={seconds / 60}", f"threads={threads}"]
    command = [sys.executable, "-c", COMMAND, "train", *SETTINGS.split(), *limits]
    start = partial(subprocess.Popen, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    processes = [start([*command, f"run={run}"]) for run in runs]
    for process in processes:
        _, errors = process.communicate()
        if process.returncode:
            for other in processes:
                other.kill()
            sys.exit(f"{process.args} failed:\n{errors.decode()[-2000:]}")
    updates = [update_rates(directory / "runs" / run / "metrics.jsonl") for run in runs]
    shutil.rmtree(directory / "runs")
    if min(map(len, updates)) < MIN_UPDATES:
        return slowest_rate(directory, threads, spin_count, run_count, 2 * seconds)
    return min(statistics.harmonic_mean(rates[len(rates) // 5 : -(len(rates) // 5)]) for rates in updates)


def update_rates(metrics: Path) -> list[float]:
    """The tokens per second of every update."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [record["tokens_per_second"] for record in records if "tokens_per_second" in record]


def compare_with_default(rates: dict[str, list[float]], label: str) -> dict[str, Any]:
    """The record of a spin count, which `label` names: its ratios, whether it is acceptable, and all rates."""
    reference, alone, beside = rates["reference"], rates[f"alone {label}"], rates[f"beside {label}"]
    ratios = {RATIOS[0]: ratio(reference, alone), RATIOS[1]: ratio([rate / 2 for rate in alone], beside)}
    acceptable = all(ratios[name]["ratio"] >= low for name, low in zip(RATIOS, MIN_RATIOS, strict=True))
    return {**ratios, "acceptable": acceptable, "default, alone, each of two": [reference, alone, beside]}


def table(rows: dict[str, Any]) -> str:
    """A Markdown table of the records."""
    lines = [f"| spin count | {' | '.join(RATIOS)} | acceptable |", "|---|---|---|---|"]
    for label, row in rows.items():
        cells = []
        for name in RATIOS:
            low, high = row[name]["interval_90"]
            cells.append(f"{row[name]['ratio']:.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {label} | {' | '.join(cells)} | {'yes' if row['acceptable'] else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
