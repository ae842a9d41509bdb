"""Measure the peak memory and speed of `seqtool prepare` on generated text, compared with SentencePiece alone.

    python scripts/benchmarks/benchmark_prepare.py [--pairs 2000000] [--processes 2] [--output results/prepare.json]

The peak is the sum of the resident memory of the process and all its children, sampled every 50 ms. It is an upper
bound, because pages that they share (of the interpreter and of libraries) are counted several times. SentencePiece's
rate is that of its encoder alone on the same text, with the same vocabularies and number of threads, and with text and
ids in memory.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
WORD_TYPES = 50_000  # the number of different words of each side
RATE_SAMPLE = 200_000  # the number of pairs on which the rate of SentencePiece is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--size", type=int, default=8000, help="entries of each vocabulary")
    parser.add_argument("--output", type=Path, help="a file for the numbers as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as scratch:
        report = measure(Path(scratch), arguments.pairs, arguments.processes, arguments.size)
    width = max(map(len, report))
    for name, value in report.items():
        print(f"{name:<{width}}  {f'{value:,.1f}' if isinstance(value, float) else value}")
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measure(scratch: Path, pairs: int, processes: int, size: int) -> dict[str, Any]:
    """Prepare generated text, and return the record."""
    files = [scratch / "train.source", scratch / "train.target"]
    for seed, file in enumerate(files):
        generate(file, pairs, seed)
    cache = scratch / "cache"
    settings = {
        "data": "parallel",
        "data.train": ",".join(map(str, files)),
        "data.valid": "null",
        "data.vocabulary.size": size,
        "data.cache": cache,
        "data.processes": processes,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "seqtool", "prepare", *overrides]
    start = time.time()
    peak = peak_memory(subprocess.Popen(command))
    directory = next(cache.glob("parallel-*"))
    vocabularies_time, summary_time = (
        (directory / name).stat().st_mtime for name in ("target.vocabulary", "summary.json")
    )
    learning, encoding = vocabularies_time - start, summary_time - vocabularies_time
    sentencepiece_rate = encoder_rate(directory, files, min(pairs, RATE_SAMPLE), processes)
    rate = pairs / encoding
    return {
        "pairs": pairs,
        "text (MB)": sum(file.stat().st_size for file in files) / 1e6,
        "processes": processes,
        "peak memory of the process tree (MB)": peak / 1e6,
        "start, reading twice, learning two vocabularies (s)": learning,
        "encoding (s)": encoding,
        "pairs/s encoded": rate,
        "pairs/s in all": pairs / (learning + encoding),
        f"pairs/s of SentencePiece alone, {processes} threads": sentencepiece_rate,
        "share of SentencePiece's rate (%)": 100 * rate / sentencepiece_rate,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
    }


def generate(file: Path, lines: int, seed: int) -> None:
    """Write sentences of 3 to 40 words, distributed by Zipf's law."""
    source = random.Random(seed)
    types = ["".join(source.choices(SYLLABLES, k=source.randint(1, 4))) for _ in range(WORD_TYPES)]
    total, weights = 0.0, []
    for rank in range(1, WORD_TYPES + 1):
        total += 1 / rank
        weights.append(total)
    with file.open("w", encoding="utf-8") as output:
        for _ in range(lines):
            words = source.choices(types, cum_weights=weights, k=source.randint(3, 40))
            output.write(" ".join(words).capitalize() + ".\n")


def peak_memory(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process, and return the peak resident memory of it and its descendants in bytes."""
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            peak = max(peak, sum(map(resident, process_tree(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(process.returncode)
    return peak


def process_tree(root: int) -> list[int]:
    """The ids of a process and its descendants."""
    processes = [root]
    for pid in processes:
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            processes += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:  # it has ended
            continue
    return processes


def resident(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def encoder_rate(directory: Path, files: list[Path], pairs: int, threads: int) -> float:
    """The pairs per second of SentencePiece's batch encoder on the first lines of the files."""
    import sentencepiece

    seconds = 0.0
    for side, file in zip(("source", "target"), files, strict=True):
        model = (directory / f"{side}.vocabulary").read_bytes().partition(b"\n")[2]
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        with file.open(encoding="utf-8") as lines:
            text = [line.rstrip("\n") for line, _ in zip(lines, range(pairs), strict=False)]
        start = time.perf_counter()
        processor.encode(text, out_type=int, num_threads=threads)
        seconds += time.perf_counter() - start
    return pairs / seconds


if __name__ == "__main__":
    main()
