#!/usr/bin/env python
"""Characters per second in generating one text, compared with nothing but the matrix–vector products of its steps.

    python scripts/benchmarks/benchmark_generation.py --threads 2 --output results/generation.json

The models have the sizes of experiment=shakespeare_lstm and shakespeare_transformer, and are hardly trained. The
products are those of the model's linear maps with a vector, each in the fastest of three ways: torch's own, oneDNN's,
and oneDNN's with its own layout of the matrix. Both run in turn; the ratio is the median of the pairs, with the
interval that contains 90 % of them.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import benchmarking
import numpy as np
import torch
from torch import Tensor, nn

import seqtool
from seqtool.cli import main as command
from seqtool.models.fast.packed import PackedLinear
from seqtool.predict.generator import Generator
from seqtool.runtime.files import config_directory
from seqtool.runtime.precision import onednn
from seqtool.training import checkpoint

MODELS = {"LSTM, 2×512": "shakespeare_lstm", "Transformer, 4 layers of 256": "shakespeare_transformer"}
CHARACTERS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for model, experiment in MODELS.items():
        with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as place:
            systems = trained(Path(place), experiment, arguments.threads)
        for system in systems.values():
            system()
        measurements = benchmarking.in_turn(systems, arguments.pairs)
        ratios = sorted(a / b for a, b in zip(*measurements.values(), strict=True))
        rows[model] = {
            **{f"{name}, characters/s": round(value) for name, value in benchmarking.medians(measurements).items()},
            "ratio": round(statistics.median(ratios), 3),
            "ratio_90_per_cent": [round(float(end), 3) for end in np.percentile(ratios, [5, 95])],
        }
        print(model, rows[model])
    benchmarking.write({"machine": benchmarking.machine(arguments.threads), "rows": rows}, arguments.output)


def trained(place: Path, experiment: str, threads: int) -> dict[str, Callable[[], float]]:
    """Train for one update, and return both functions to be measured, in characters per second."""
    run = place / "runs/one-update"
    settings = [f"experiment={experiment}", f"run={run.name}", "schedule.warmup=0", "train.steps=1"]
    settings += ["train.minutes=null"]
    with contextlib.chdir(place):
        if command.run(["train", *settings, f"threads={threads}", "device=cpu"], config_directory()):
            sys.exit("The training failed.")
    generator = seqtool.load(run, threads=threads, device="cpu", max_length=CHARACTERS)
    shapes = checkpoint.find(run).shapes()
    matrices = [torch.randn(shape) for name, shape in shapes.items() if len(shape) == 2 and "embedding" not in name]
    return {"seqtool": partial(generate, generator), "products": partial(multiply, quickest(matrices))}


def generate(generator: Generator) -> float:
    start = time.perf_counter()
    continuation = generator.samples(["I"])[0][0]
    assert len(continuation.pieces) == CHARACTERS
    return CHARACTERS / (time.perf_counter() - start)


def multiply(products: Sequence[Callable[[], Tensor]]) -> float:
    start = time.perf_counter()
    with torch.inference_mode(), onednn():
        for _ in range(CHARACTERS):
            for product in products:
                product()
    return CHARACTERS / (time.perf_counter() - start)


def quickest(matrices: Sequence[Tensor]) -> list[Callable[[], Tensor]]:
    """Each matrix times a vector, in the way that is fastest on this machine."""
    products = []
    for matrix in matrices:
        x = torch.randn(1, matrix.shape[1])
        linear = nn.Linear(*matrix.T.shape, bias=False)
        ways = [partial(torch.mv, matrix, x[0]), partial(linear, x), partial(PackedLinear(linear), x)]
        products.append(max(ways, key=lambda way: max(multiply([way]) for _ in range(3))))
    return products


if __name__ == "__main__":
    main()
