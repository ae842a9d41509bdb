#!/usr/bin/env python
"""How fast a checkpoint translates a file, and what share of the machine's matrix rate that is.

    python scripts/benchmark_decoding.py --checkpoint runs/multi30k-bahdanau --input test.en --threads 2

The operations are counted by torch (matrix products only, a multiplication and an addition each); the matrix rate is
the best of square products of 1024, 2048 and 4096 in the same run.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import benchmarking
import torch
from torch.utils.flop_counter import FlopCounterMode

import seqtool
from seqtool.data.text_files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--input", required=True, type=Path, help="sentences, a line each; may be .gz")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()

    translator = seqtool.load(
        arguments.checkpoint, beam=arguments.beam, batch_size=arguments.batch_size, threads=arguments.threads
    )
    sentences = list(read_lines(arguments.input))
    rate = benchmarking.matrix_rate(device=translator.device)
    counter = FlopCounterMode(display=False)
    with counter:
        translations = translator.translate(sentences)
    seconds = []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        assert translator.translate(sentences) == translations
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    reached = counter.get_total_flops() / median / 1e9
    record: dict[str, Any] = {
        "checkpoint": arguments.checkpoint,
        "sentences": len(sentences),
        "beam": arguments.beam,
        "batch_size": arguments.batch_size,
        "threads": torch.get_num_threads(),
        "device": str(translator.device),
        "seconds": [round(one, 2) for one in seconds],
        "sentences_per_second": round(len(sentences) / median, 1),
        "gflop_per_sentence": round(counter.get_total_flops() / len(sentences) / 1e9, 3),
        "gflop_per_second": round(reached, 1),
        "matrix_rate_gflop_per_second": round(rate, 1),
        "share_of_matrix_rate": round(reached / rate, 3),
        "versions": {"seqtool": seqtool.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    for name, value in record.items():
        print(f"{name:<30}{value}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
