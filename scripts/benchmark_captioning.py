#!/usr/bin/env python
"""How many images a second a checkpoint describes, from image files and from cached annotation vectors.

    python scripts/benchmark_captioning.py --checkpoint runs/flickr --images 1000 --threads 2

Describes the first images of a split of the data that the checkpoint was trained on (its cache is made where it is not
there), in turn from files and from the cache.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import seqtool
from seqtool.captioner import Captioner
from seqtool.data.caption_preparation import prepare_captions
from seqtool.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()

    captioner = seqtool.load(
        arguments.checkpoint, beam=arguments.beam, batch_size=arguments.batch_size, threads=arguments.threads
    )
    if not isinstance(captioner, Captioner):
        raise InputError(f"{arguments.checkpoint} holds a translation model: name one that describes images.")
    cache = prepare_captions(captioner.config["data"], captioner.encoder, device=captioner.device, trusted=False)
    split = cache.split(arguments.split)
    files = split.files[: arguments.images]
    ways: dict[str, Callable[[], Any]] = {
        "image files": lambda: captioner.describe(files),
        "cached annotation vectors": lambda: captioner.describe_pictures(split, range(len(files))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    record: dict[str, Any] = {
        "checkpoint": arguments.checkpoint,
        "images": len(files),
        "beam": arguments.beam,
        "batch_size": arguments.batch_size,
        "threads": torch.get_num_threads(),
        "device": str(captioner.device),
        "cores": os.cpu_count(),
        "images_per_second": {name: round(len(files) / statistics.median(taken), 1) for name, taken in seconds.items()},
        "seconds": {name: [round(one, 2) for one in taken] for name, taken in seconds.items()},
        "versions": {"seqtool": seqtool.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    print(json.dumps(record, indent=1))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
