#!/usr/bin/env python
"""How long torch's threads should spin: one training alone, and two side by side, for several spin counts of libgomp.

    python scripts/benchmarks/benchmark_busy.py --output results/busy.json

Every figure is target tokens per second of `experiment=quickstart`, read from the run's own metrics.jsonl. The first
and the last fifth of each training are left out, since the other of two trainings may be starting or may have ended;
a training that has too few updates for that is repeated for twice as long.

A round consists of one training with libgomp's default count of 300,000 and then, for each count, one training alone
and two side by side. Every other round runs backwards, so that a drift of the machine favours none of them, and each
training is compared with the default of its own round. A count is acceptable if one training alone is at most 3 %
slower than with the default, and each of two side by side reaches at least 0.8 of half the rate of one alone; the
medians of the rounds decide. SPIN_COUNT in seqtool/runtime/spinning.py is the best of the acceptable counts, or if
none is, the lowest with which one training alone is fast enough. Run nothing else meanwhile: it takes about forty
minutes.
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

COUNTS = (1_000, 3_000, 5_000, 10_000, 30_000, 100_000)
OWN = "default"  # libgomp's own count
ROWS = "alone / default", "each of two / half of one alone"
LEAST = 0.97, 0.8  # of these ratios
# with torch imported first, seqtool sets no spin count of its own
COMMAND = "import torch; from seqtool.cli.main import main; main()"
SETTINGS = (
    "experiment=quickstart schedule=inverse_square_root device=cpu train.epochs=null train.log_every=1 "
    "train.validate_every=1000000 train.best_by=loss validation.sentences=2 validation.max_length=2"
)
LEAST_UPDATES = 5
OPENMP = ("OMP_", "GOMP_", "KMP_")
PACKAGE = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="rounds")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a training, without starting")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="spin counts, separated by commas")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.counts.split(",")]
    record: dict[str, Any] = {
        "machine": benchmarking.machine(arguments.threads),
        "commit": commit(Path(__file__).parent),
        "seconds": arguments.seconds,
        "rows": {},
    }
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as place:
        measure = partial(slowest, Path(place), arguments.threads)
        subprocess.run([sys.executable, "-m", "seqtool", "prepare", "data=toy"], cwd=place, env=PACKAGE, check=True)
        turns: list[tuple[str, int | None, int]] = [("own", None, 1)]  # what is measured, the count, how many trainings
        for count in (None, *counts):
            turns += [(f"alone {count or OWN}", count, 1), (f"beside {count or OWN}", count, 2)]
        rates: dict[str, list[float]] = {}  # tokens/s by what was measured, round by round
        for number in range(arguments.pairs):
            for name, count, trainings in reversed(turns) if number % 2 else turns:
                rates.setdefault(name, []).append(measure(count, trainings, arguments.seconds))
            record["rows"] = {str(count or OWN): compare_with_default(rates, count or OWN) for count in (None, *counts)}
            benchmarking.write(record, arguments.output)
    print(table(record["rows"]))


def slowest(place: Path, threads: int, count: int | None, trainings: int, seconds: float) -> float:
    """Tokens per second of the slowest of `trainings` simultaneous trainings."""
    environment = {name: value for name, value in PACKAGE.items() if not name.startswith(OPENMP)}
    environment |= {} if count is None else {"GOMP_SPINCOUNT": str(count)}
    runs = [f"run-{number}" for number in range(trainings)]
    limits = [f"train.minutes={seconds / 60}", f"threads={threads}"]
    command = [sys.executable, "-c", COMMAND, "train", *SETTINGS.split(), *limits]
    started = [
        subprocess.Popen(
            [*command, f"run={run}"], cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for run in runs
    ]
    for process in started:
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(f"{process.args} failed:\n{errors.decode()[-2000:]}")
    updates = [rates_of_updates(place / "runs" / run / "metrics.jsonl") for run in runs]
    shutil.rmtree(place / "runs")
    if min(map(len, updates)) < LEAST_UPDATES:
        return slowest(place, threads, count, trainings, 2 * seconds)
    return min(statistics.harmonic_mean(rates[len(rates) // 5 : -(len(rates) // 5)]) for rates in updates)


def rates_of_updates(metrics: Path) -> list[float]:
    """Tokens per second of every update."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [record["tokens_per_second"] for record in records if "tokens_per_second" in record]


def compare_with_default(rates: dict[str, list[float]], count: int | str) -> dict[str, Any]:
    own, alone, beside = rates["own"], rates[f"alone {count}"], rates[f"beside {count}"]
    compared = {ROWS[0]: ratio(own, alone), ROWS[1]: ratio([rate / 2 for rate in alone], beside)}
    will_do = all(compared[name]["ratio"] >= least for name, least in zip(ROWS, LEAST, strict=True))
    return {**compared, "will do": will_do, "default, alone, each of two": [own, alone, beside]}


def table(rows: dict[str, Any]) -> str:
    lines = [f"| spin count | {' | '.join(ROWS)} | will do |", "|---|---|---|---|"]
    for count, row in rows.items():
        cells = []
        for name in ROWS:
            low, high = row[name]["interval_90"]
            cells.append(f"{row[name]['ratio']:.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {count} | {' | '.join(cells)} | {'yes' if row['will do'] else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
