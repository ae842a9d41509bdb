#!/usr/bin/env python
"""Measure how fast seqtool translates, compared with CTranslate2 and Marian, two engines that are made for decoding.

    python scripts/benchmarks/benchmark_engines.py --input test.en --latency --output results/engines.json

Every system translates the same sentences with a command of its own, in turn, with beam 5, 64 sentences at once and an
untrained model: seqtool and CTranslate2 with the Transformer of benchmark_training.py, seqtool with its RNNsearch with
readout 512, and Marian with two recurrent models, a smaller and a larger decoder, since it has one size for encoder and
decoder. All vocabularies have 8,000 entries. All translations take 25 steps, which is checked: the last one gives a
word, or EOS in Marian.

The rate is hypothesis-steps per second. As in benchmark_decoding.py, the time of a run over eight sentences, which
covers starting and loading, is subtracted; the record also has the seconds of both commands. CTranslate2 runs with one
worker of all threads, and with workers of one thread. Ratios are relative to the best of an engine's settings. With
--latency the first 100 sentences are then translated one at a time. With --long 4, four times the sentences are then
translated by seqtool's Transformer in fp32, from a file, which several processes share if it is long, and from a pipe,
which one process translates.

A system that refuses, such as a precision that the processor lacks, is left out, and its message is in the record. The
engines are installed once, into separate environments under --environments.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import benchmarking
from benchmark_decoding import (
    LENGTH,
    START_UP_SENTENCES,
    decoding_rate,
    model_settings,
    read_sentences,
    train_seqtool,
    translate_command,
    write_data,
)
from peers import toolkits
from peers.marian_model import end_at

from seqtool.settings.declarations import HYPOTHESES_PER_BATCH

BEAM = 5
LATENCY_SENTENCES = 100
MODELS = {"Transformer": "transformer", "RNNsearch": "small"}  # the sizes of seqtool's models in benchmark_decoding.py
PRECISIONS = "fp32", "bf16", "int8"
MARIAN_SIZES = (256, 512), (512, 256)  # of the embeddings and of the states
RATIOS = (
    "seqtool Transformer fp32 / CTranslate2 float32",
    "seqtool Transformer int8 / CTranslate2 int8",
    "seqtool Transformer bf16 / seqtool Transformer fp32",
    "seqtool RNNsearch int8 / seqtool RNNsearch fp32",
    "seqtool RNNsearch int8 / seqtool RNNsearch bf16",
    "seqtool RNNsearch fp32 / Marian float32",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, type=Path, help="sentences, one per line; may be .gz")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency", action="store_true", help="also translate one sentence at a time")
    parser.add_argument("--long", type=int, default=0, metavar="TIMES", help="also translate this many times as many")
    parser.add_argument("--only", default="", help="only the systems whose names match this regular expression")
    parser.add_argument("--environments", type=Path, default=Path("environments"), help="where engines are installed")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    environments, threads = arguments.environments.absolute(), arguments.threads
    for name in toolkits.ENGINES:
        toolkits.install(name, environments)
    sentences = read_sentences(arguments.input)
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as scratch:
        data = Path(scratch)
        write_data(data, sentences)
        make_models(data, environments, threads)
        record = {
            "machine": benchmarking.machine(threads),
            "engines": {name: version(name, environments) for name in toolkits.ENGINES},
            "beam": BEAM,
            "steps of each translation": LENGTH,
        }
        make = partial(make_systems, data, environments, threads)
        parts = {"all sentences": (sentences, make(one_at_a_time=False))}
        if arguments.latency:
            parts["one sentence at a time"] = (sentences[:LATENCY_SENTENCES], make(one_at_a_time=True))
        if arguments.long:
            parts["a long file"] = (sentences * arguments.long, for_long_files(data, threads))
        for part, (chosen, systems) in parts.items():
            systems = {name: system for name, system in systems.items() if re.search(arguments.only, name)}
            if not systems:
                continue
            print(f"\n{part} ({len(chosen):,})", flush=True)
            record[part] = measure(systems, data, chosen, arguments.repeats)
    benchmarking.write(record, arguments.output)


def version(name: str, environments: Path) -> str:
    """The version of an engine that is installed."""
    code = f"from importlib.metadata import version; print(version('{name}'))"
    return toolkits.run([environments / name / "bin/python", "-c", code], directory=environments, threads=1).strip()


def make_models(data: Path, environments: Path, threads: int) -> None:
    """Make the models of all systems in the directory of `write_data`."""
    for model, sizes in MODELS.items():
        (data / model).mkdir()
        train_seqtool(data / model, data, model_settings(sizes), "cpu", threads)
    program = Path(toolkits.__file__).with_name("ctranslate2_model.py")
    command = [environments / "ctranslate2/bin/python", program, data / "joeynmt.source", data / "ctranslate2"]
    toolkits.run(command, directory=data, threads=threads)
    for embedding, state in MARIAN_SIZES:
        command = marian_command("train", data / "untrained.npz", data, environments)
        command += ["--type", "s2s", "--train-sets", data / "train.source", data / "train.target"]
        command += ["--dim-emb", embedding, "--dim-rnn", state, "--overwrite", "--seed", 1, "--cpu-threads", 1]
        command += ["--after-batches", 1, "--mini-batch", 8, "--learn-rate", "1e-12"]
        toolkits.run(command, directory=data, threads=threads)
        end_at(LENGTH, data / "untrained.npz", data / f"marian-{embedding}-{state}.npz")


def marian_command(name: str, model: Path, data: Path, environments: Path) -> list[object]:
    """The beginning of one of Marian's commands, `train` or `decode`."""
    vocabularies = [data / "marian.source", data / "marian.target"]
    return [environments / "pymarian/bin/pymarian", name, "-m", model, "--vocabs", *vocabularies]


class System:
    """A command that translates a file, and the seconds that each of its runs took.

    command: its arguments, where {source} and {target} stand for the files
    """

    def __init__(self, command: Iterable[object]) -> None:
        self.command = [str(argument) for argument in command]
        self.seconds: list[float] = []

    def translate(self, source: Path) -> None:
        """Translate a file. Raises `RuntimeError` with the last line of what the command printed if it fails, and exits
        if a translation does not take LENGTH steps.
        """
        target = source.with_name("output")
        target.unlink(missing_ok=True)
        command = [argument.format(source=source, target=target) for argument in self.command]
        start = time.perf_counter()
        process = subprocess.run(command, capture_output=True, text=True)
        self.seconds.append(time.perf_counter() - start)
        if process.returncode:
            printed = (process.stdout + process.stderr).strip() or f"exit status {process.returncode}"
            raise RuntimeError(printed.splitlines()[-1])
        sentences = len(source.read_text(encoding="utf-8").splitlines())
        words = [len(line.split()) for line in target.read_text(encoding="utf-8").splitlines()]
        if len(words) != sentences or not set(words) <= {LENGTH - 1, LENGTH}:  # the last token may be EOS
            sys.exit(
                f"{' '.join(command)} wrote {len(words):,} lines of {min(words, default=0)} to {max(words, default=0)} "
                f"words for {sentences:,} sentences, not of {LENGTH}, or {LENGTH - 1} and EOS."
            )


def make_systems(data: Path, environments: Path, threads: int, *, one_at_a_time: bool) -> dict[str, System]:
    """All systems, by name, with the models of `make_models`."""
    batch = 1 if one_at_a_time else HYPOTHESES_PER_BATCH // BEAM
    systems = {}
    for model in MODELS:
        for precision in PRECISIONS:
            command = translate_command(data / model, BEAM, precision, "cpu", threads)
            command += ["input={source}", "output={target}", *(["batch_size=1"] if one_at_a_time else [])]
            systems[f"seqtool {model} {precision}"] = System(command)

    program = Path(toolkits.__file__).with_name("ctranslate2_translate.py")
    for compute in ("float32", "int8"):
        for each in sorted({1, threads}):
            workers = 1 if one_at_a_time else threads // each
            sizes = [compute, workers, each, batch, BEAM, LENGTH]
            command = [environments / "ctranslate2/bin/python", program, data / "ctranslate2", *sizes]
            name = f"CTranslate2 {compute}, workers: {workers}, threads of each: {each}"
            systems[name] = System([*with_threads(each), *command, "{source}", "{target}"])

    for embedding, state in MARIAN_SIZES:
        command = marian_command("decode", data / f"marian-{embedding}-{state}.npz", data, environments)
        command += ["--input", "{source}", "--output", "{target}", "--quiet"]
        command += ["--beam-size", BEAM, "--max-length-factor", LENGTH, "--allow-unk", "--workspace", 512]
        command += ["--cpu-threads", 1 if one_at_a_time else threads]  # one sentence occupies one of them
        command += ["--mini-batch", batch, "--maxi-batch", 100, "--maxi-batch-sort", "src"]
        systems[f"Marian float32, embedding {embedding}, state {state}"] = System([*with_threads(1), *command])
    return systems


def for_long_files(data: Path, threads: int) -> dict[str, System]:
    """seqtool's Transformer, with several processes and with one."""
    command = " ".join(translate_command(data / "Transformer", BEAM, "fp32", "cpu", threads))
    return {
        "seqtool Transformer fp32, a file": System(["sh", "-c", f"{command} input={{source}} output={{target}}"]),
        "seqtool Transformer fp32, a pipe": System(["sh", "-c", f"cat {{source}} | {command} output={{target}}"]),
    }


def with_threads(threads: int) -> list[str]:
    """The beginning of a command whose libraries start this many threads in each of its own."""
    return ["env", f"OMP_NUM_THREADS={threads}", f"MKL_NUM_THREADS={threads}"]


def measure(systems: Mapping[str, System], data: Path, sentences: list[str], repeats: int) -> dict[str, Any]:
    """Measure the systems in turn, except those that refuse to translate the first sentences; print a table.

    data: a directory with the file `start-up` of `write_data`
    """
    (data / "input").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    refused = {}
    for name, system in systems.items():
        try:
            system.translate(data / "start-up")
        except RuntimeError as error:
            refused[name] = str(error)
        system.seconds.clear()
    rates = {
        name: partial(decoding_rate, system.translate, data, len(sentences), BEAM)
        for name, system in systems.items()
        if name not in refused
    }
    measurements = benchmarking.measure_in_turn(rates, repeats)
    medians = benchmarking.medians(measurements)
    print(f"{'':<56}{'steps/s':>9}{'ms a sentence':>15}{'whole command, s':>18}")
    rows = {}
    for name, rate in medians.items():
        start_up, whole = ([round(value, 2) for value in systems[name].seconds[first::2]] for first in range(2))
        milliseconds = 1000 * BEAM * LENGTH / rate
        rows[name] = {
            "hypothesis_steps_per_second": round(rate),
            "all": [round(value) for value in measurements[name]],
            "milliseconds_per_sentence": round(milliseconds, 2),
            f"seconds of {START_UP_SENTENCES} sentences": start_up,
            "seconds of all sentences": whole,
            "command": re.sub(r"/\S*/", "", " ".join(systems[name].command)),  # without directories
        }
        print(f"{name:<56}{rate:>9,.0f}{milliseconds:>15.2f}{statistics.median(whole):>18.2f}")
    quotients = ratios(medians)
    for name, value in (quotients | refused).items():
        print(f"{name}: {value}")
    return {"sentences": len(sentences), "rows": rows, "ratios": quotients, "refused": refused}


def ratios(rates: Mapping[str, float]) -> dict[str, float]:
    """Those of RATIOS whose systems were measured: each side is the best of the systems whose names begin with it."""
    quotients = {}
    for name in RATIOS:
        ours, theirs = (
            max((rate for system, rate in rates.items() if system.startswith(side)), default=0.0)
            for side in name.split(" / ")
        )
        if ours and theirs:
            quotients[name] = round(ours / theirs, 3)
    return quotients


if __name__ == "__main__":
    main()
