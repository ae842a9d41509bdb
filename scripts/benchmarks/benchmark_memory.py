#!/usr/bin/env python
"""Measure the memory that a training step of RNNsearch adds as the source grows, with and without the faster parts.

    python scripts/benchmarks/benchmark_memory.py --output results/memory.json

Each figure is the peak resident memory of a fresh process that takes three steps, with the sizes of
benchmark_training.py, batches of 64 and T target tokens. Textbook additive attention keeps B·T·S·A numbers, which are
the tanh of every step. The memory added by doubling the source length S is reported as a share of these.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import benchmarking
import numpy as np
import torch
from benchmark_training import MODELS, VOCABULARY
from hydra import compose, initialize_config_dir

from seqtool.cli.main import config_directory
from seqtool.data.batches import Batch, make_source, make_target
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, build_model
from seqtool.training.losses import TrainingLoss

BATCH, ALIGNMENT = 64, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=int, default=100, help="source tokens; twice as many are measured too")
    parser.add_argument("--target", type=int, default=100, help="target tokens")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--variant", choices=["seqtool", "plain"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(peak(arguments.source, arguments.target, arguments.variant))
        return
    S, T = arguments.source, arguments.target  # noqa: N806
    textbook_bytes = BATCH * T * S * ALIGNMENT * 4
    rows: dict[str, Any] = {}
    for variant in ("seqtool", "plain"):  # with the faster parts and without them
        short, long = (measure(size, T, variant) for size in (S, 2 * S))
        rows[variant] = {
            f"peak at {S} (MB)": round(short / 1e6),
            f"peak at {2 * S} (MB)": round(long / 1e6),
            "added, of B·T·S·A·4 bytes": round((long - short) / textbook_bytes, 3),
        }
        print(f"{variant:<8} {rows[variant]}")
    record = {
        "machine": benchmarking.machine(1),
        "S": S,
        "T": T,
        "B·T·S·A·4 (MB)": round(textbook_bytes / 1e6),
        "rows": rows,
    }
    benchmarking.write(record, arguments.output)


def measure(source: int, target: int, variant: str) -> int:
    """The peak memory of a fresh process in bytes."""
    command = [sys.executable, __file__, "--source", str(source), "--target", str(target), "--variant", variant]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def peak(source: int, target: int, variant: str) -> int:
    """Take three steps, and return this process's peak memory in bytes."""
    torch.set_num_threads(1)
    with initialize_config_dir(str(config_directory()), version_base=None):
        config = compose("train", MODELS["RNNsearch, readout 512"].split())
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
    parts = PLAIN if variant == "plain" else parts_for(torch.device("cpu"))
    model = build_model(config.model, base=EncoderDecoder, parts=parts, **sizes)
    loss = TrainingLoss(model, 0.0)
    sentences, targets = [[4] * (source - 1)] * BATCH, [[4] * (target - 1)] * BATCH
    batch = Batch(make_source(sentences), make_target(targets), np.arange(BATCH), BATCH * target)
    for _ in range(3):
        model.zero_grad()
        loss(batch).total.backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
