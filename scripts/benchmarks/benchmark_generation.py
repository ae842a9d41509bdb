#!/usr/bin/env python
"""Compare the speed of generating a text with that of the matrix–vector products alone.

    python scripts/benchmarks/benchmark_generation.py --threads 2 --output results/generation.json

The models have the sizes of experiment=shakespeare_lstm and shakespeare_transformer, and are trained for one update. A
product multiplies one of the model's matrices by a vector, with the fastest of three: torch's product, oneDNN's, and
oneDNN's with a matrix in its own layout. Both systems run in turn. Rates are characters per second. The ratio is the
median of the pairs, with the interval that contains 90 % of them.
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
        with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as directory:
            systems = train(Path(directory), experiment, arguments.threads)
        for system in systems.values():
            system()
        measurements = benchmarking.measure_in_turn(systems, arguments.pairs)
        ratios = sorted(a / b for a, b in zip(*measurements.values(), strict=True))
        rows[model] = {
            **{f"{name}, characters/s": round(value) for name, value in benchmarking.medians(measurements).items()},
            "ratio": round(statistics.median(ratios), 3),
            "ratio_90_per_cent": [round(float(end), 3) for end in np.percentile(ratios, [5, 95])],
        }
        print(model, rows[model])
    benchmarking.write({"machine": benchmarking.machine(arguments.threads), "rows": rows}, arguments.output)


def train(directory: Path, experiment: str, threads: int) -> dict[str, Callable[[], float]]:
    """Train a model for one update, and return functions that measure the rates of generating and of its products."""
    run = directory / "runs/one-update"
    settings = [f"experiment={experiment}", f"run={run.name}", "schedule.warmup=0", "train.steps=1"]
    settings += ["train.minutes=null"]
    with contextlib.chdir(directory):
        if command.run(["train", *settings, f"threads={threads}", "device=cpu"], config_directory()):
            sys.exit("The training run failed.")
    generator = seqtool.load(run, threads=threads, device="cpu", max_length=CHARACTERS)
    shapes = checkpoint.find(run).shapes
    matrices = [torch.randn(shape) for name, shape in shapes.items() if len(shape) == 2 and "embedding" not in name]
    return {"seqtool": partial(generate, generator), "products": partial(multiply, fastest_products(matrices))}


def generate(generator: Generator) -> float:
    """The characters per second of a text."""
    start = time.perf_counter()
    continuation = generator.samples(["I"])[0][0]
    assert len(continuation.pieces) == CHARACTERS
    return CHARACTERS / (time.perf_counter() - start)


def multiply(products: Sequence[Callable[[], Tensor]]) -> float:
    """The characters per second if a character took these products and nothing else."""
    start = time.perf_counter()
    with torch.inference_mode(), onednn():
        for _ in range(CHARACTERS):
            for product in products:
                product()
    return CHARACTERS / (time.perf_counter() - start)


def fastest_products(matrices: Sequence[Tensor]) -> list[Callable[[], Tensor]]:
    """Return functions that multiply each matrix by a vector, each the fastest of three on this machine."""
    products = []
    for matrix in matrices:
        x = torch.randn(1, matrix.shape[1])
        linear = nn.Linear(*matrix.T.shape, bias=False)
        candidates = [partial(torch.mv, matrix, x[0]), partial(linear, x), partial(PackedLinear(linear), x)]
        products.append(max(candidates, key=lambda product: max(multiply([product]) for _ in range(3))))
    return products


if __name__ == "__main__":
    main()
