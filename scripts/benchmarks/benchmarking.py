"""Functions that benchmarks share: they generate text, measure the matrix rate, measure in turn, and write records."""

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from seqtool.runtime.precision import onednn

MATRIX_SIZES = (1024, 2048, 4096)


def generate(source: Path, target: Path, pairs: int, *, vocabulary: int, length: int | None = None) -> None:
    """Write parallel text. A target is its source word for word, with some neighbours swapped.

    source, target: the files to write
    pairs: the number of sentence pairs
    vocabulary: the number of words of each side, whose frequencies fall with their rank
    length: the number of words of each sentence; None draws it from a log-normal distribution, about 20
    """
    random.seed(1)
    weights = [1 / (rank + 10) for rank in range(vocabulary)]
    with source.open("w", encoding="utf-8") as sources, target.open("w", encoding="utf-8") as targets:
        for _ in range(pairs):
            size = length or min(50, max(4, round(random.lognormvariate(3.0, 0.45))))
            words = random.choices(range(vocabulary), weights, k=size)
            order = sorted(range(size), key=lambda i: i + random.choice((0.0, 0.0, 1.5)))
            sources.write(" ".join(f"s{word}" for word in words) + "\n")
            targets.write(" ".join(f"t{words[i]}" for i in order) + "\n")


def matrix_rate(dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> float:
    """The best rate of square products of 1024, 2048 and 4096 in GFLOP/s, on torch's number of threads.

    The rate of each size is a median over at least half a second, since the runs compared with it take minutes.
    """
    device = torch.device(device)
    return max(_rate(*(torch.randn(size, size, device=device).to(dtype) for _ in range(2))) for size in MATRIX_SIZES)


def _rate(a: torch.Tensor, b: torch.Tensor) -> float:
    """The rate of one product, in GFLOP/s."""
    a @ b
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < 0.5:
        synchronise(a.device)
        start = time.perf_counter()
        a @ b
        synchronise(a.device)
        seconds.append(time.perf_counter() - start)
    return float(2 * len(a) ** 3 / statistics.median(seconds) / 1e9)


def matrix_rates(device: str = "cpu") -> dict[str, Callable[[], float]]:
    """Functions that measure the matrix rate, by precision: on a CPU with the library that seqtool chooses, and in fp32
    also with the library that torch chooses.
    """
    if device != "cpu":
        return {
            "bf16": partial(matrix_rate, torch.bfloat16, device),
            "fp16": partial(matrix_rate, torch.float16, device),
        }

    def onednn_rate(dtype: torch.dtype) -> float:
        with onednn():
            return matrix_rate(dtype)

    return {
        "fp32": partial(onednn_rate, torch.float32),
        "bf16": partial(onednn_rate, torch.bfloat16),
        "fp32, torch's choice of library": matrix_rate,
    }


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_in_turn(systems: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure each system `repeats` times, in the order A B A B …, so that drift of the machine affects all alike."""
    measurements: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, system in systems.items():
            measurements[name].append(system())
    return measurements


def medians(measurements: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measurements.items()}


def machine(threads: int) -> dict[str, Any]:
    names = [line.split(":")[1].strip() for line in _cpu_information() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("seqtool", "torch")},
        },
    }


def write(record: Mapping[str, Any], output: Path | None) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _cpu_information() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
