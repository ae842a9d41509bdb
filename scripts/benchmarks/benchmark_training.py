#!/usr/bin/env python
"""Measure training speed, compared with JoeyNMT, OpenNMT-py and the machine's matrix rate.

    python scripts/benchmarks/benchmark_training.py --threads 2 --peers joeynmt,opennmt --output results/training.json

Every system trains on the same generated text with its own training command, in turn, several times. A run has --steps
updates, of which the first fifth is not counted. Rates are target tokens per second, without padding. Peers are
installed once, into separate environments under --environments. `plain` is seqtool without its faster parts.

A run's share is relative to the rate of the best square matrix product with the library that seqtool chooses. This rate
is measured right before and after the run, since the rate of a shared machine drifts within minutes. A token costs
three times the operations of its forward pass, as counted by torch.

On a GPU, in bf16 and fp16, compared with JoeyNMT in fp16:

    python scripts/benchmarks/benchmark_training.py --device cuda --peers joeynmt
    python scripts/benchmarks/benchmark_training.py --device cuda --peers joeynmt --batch 512
    python scripts/benchmarks/benchmark_training.py --device cuda --peers joeynmt --sizes papers
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import benchmarking
import torch
from hydra import compose, initialize_config_dir
from peers import toolkits
from peers.toolkits import PEERS
from torch.utils.flop_counter import FlopCounterMode

from seqtool.cli.main import config_directory
from seqtool.data.batches import make_source, make_target
from seqtool.settings.classes import build

VOCABULARY = 8000  # the number of entries, four special tokens included
RNNSEARCH = (
    "model=bahdanau model.embedding=256 model.cell=gru model.encoder_hidden=256 model.decoder_hidden=512 "
    "model.alignment=512 model.dropout=0"
)
MODELS = {
    "RNNsearch, readout 512": f"{RNNSEARCH} model.maxout=512",
    "RNNsearch, maxout 256": f"{RNNSEARCH} model.maxout=256",
    "Sutskever, 2×512": "model=sutskever model.embedding=512 model.hidden=512 model.layers=2 model.dropout=0",
}
TRANSFORMER = {
    "Transformer, 256/1024": (
        "model=transformer model.width=256 model.encoder_layers=4 model.decoder_layers=4 model.heads=4 "
        "model.feed_forward=1024 model.dropout=0 model.tie=none"
    )
}
PAPERS = {
    "RNNsearch, 1000/620": (
        "model=bahdanau model.embedding=620 model.cell=gru model.encoder_hidden=1000 model.decoder_hidden=1000 "
        "model.alignment=1000 model.maxout=500 model.dropout=0"
    ),
    "Sutskever, 4×1000": "model=sutskever model.embedding=1000 model.hidden=1000 model.layers=4 model.dropout=0",
}


class Sizes(NamedTuple):
    """The sizes of a comparison.

    models: the settings of seqtool's models, by name
    vocabulary: the number of entries of each vocabulary
    family: the second part of the peers' configurations
    peer: the values in JoeyNMT's configuration that differ from the defaults
    """

    models: dict[str, str]
    vocabulary: int
    family: str
    peer: dict[str, int]


SIZES = {
    "small": Sizes(MODELS, VOCABULARY, "recurrent", {}),
    "transformer": Sizes(TRANSFORMER, VOCABULARY, "transformer", {}),
    "papers": Sizes(PAPERS, 30_000, "recurrent", {"EMBEDDING": 620, "ENCODER": 1000, "DECODER": 1000}),
}
PEER_MODELS = "RNNsearch", "Transformer"  # the names of the models that peers have too begin with these
VARIANTS = {  # the variants of seqtool, by device and name: the precision, and whether the faster parts are left out
    "cpu": {"seqtool": ("fp32", False), "plain": ("fp32", True), "seqtool, bf16": ("bf16", False)},
    "cuda": {"seqtool, bf16": ("bf16", False), "plain, bf16": ("bf16", True), "seqtool, fp16": ("fp16", False)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=VARIANTS, default="cpu")
    parser.add_argument("--batch", type=int, default=64, help="sentences in a batch")
    parser.add_argument("--sizes", choices=SIZES, default="small")
    parser.add_argument("--models", default="", help="only the models whose names begin with this, such as RNNsearch")
    parser.add_argument("--steps", type=int, default=200, help="updates of a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", default="", help=f"any of {','.join(PEERS)}, separated by commas")
    parser.add_argument("--environments", type=Path, default=Path("environments"), help="where peers are installed")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    peers, sizes = toolkits.choose(arguments.peers), SIZES[arguments.sizes]
    if "opennmt" in peers and (arguments.device == "cuda" or arguments.sizes == "papers"):
        sys.exit("OpenNMT-py is compared only on a CPU, and not with --sizes papers: use --peers joeynmt.")
    for name in peers:
        toolkits.install(name, arguments.environments)

    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as scratch:
        data, equal_lengths = Path(scratch, "data"), Path(scratch, "equal-lengths")
        # JoeyNMT trains for one epoch, and nearly all words of the vocabulary should occur.
        pairs = max(arguments.steps * arguments.batch, sizes.vocabulary * 8 // 5)
        write_data(data, pairs, sizes.vocabulary, length=None)
        write_data(equal_lengths, pairs, sizes.vocabulary, length=23)  # 24 tokens with EOS, for the Sutskever model
        torch.set_num_threads(arguments.threads)
        limits = benchmarking.matrix_rates(arguments.device)
        systems: dict[str, Callable[[], float]] = {}
        matrix_rates: dict[str, list[float]] = {}  # by system, beside each of its runs
        for model, settings in sizes.models.items():
            if not model.startswith(arguments.models):
                continue
            text = equal_lengths if "Sutskever" in model else data
            for variant, (precision, _) in VARIANTS[arguments.device].items():
                name = f"{model}: {variant}"
                system = partial(train, Path(scratch), text, settings, variant, arguments)
                systems[name], matrix_rates[name] = with_matrix_rates(limits[precision], system)
        for name in toolkits.systems(peers, arguments.device):
            systems[name] = partial(train_peer, name, Path(scratch), data, arguments)
        measurements = benchmarking.measure_in_turn(systems | limits, arguments.repeats)
    all_rates = {name: measurements.pop(name) for name in limits}
    record = report(measurements, matrix_rates, all_rates, arguments)
    benchmarking.write(record, arguments.output)


def with_matrix_rates(
    limit: Callable[[], float], system: Callable[[], float]
) -> tuple[Callable[[], float], list[float]]:
    """Return a function that measures a system between two matrix rates, and the list of the means of these two."""
    limits: list[float] = []

    def measure() -> float:
        before = limit()
        rate = system()
        limits.append((before + limit()) / 2)
        return rate

    return measure, limits


def report(
    measurements: dict[str, list[float]],
    matrix_rates: dict[str, list[float]],
    all_rates: dict[str, list[float]],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Print a table, and return the record.

    measurements: the rates of all systems, in tokens per second
    matrix_rates: the matrix rate beside each measurement, in GFLOP/s
    all_rates: the matrix rates that were measured in turn with the systems, by library and precision
    """
    medians, limits = benchmarking.medians(measurements), benchmarking.medians(all_rates)
    models, vocabulary, *_ = SIZES[arguments.sizes]
    peers = [name for name in measurements if name.split()[0] in PEERS]
    rows = {}
    print(f"{'':<38}{'tokens/s':>10}{'GFLOP/s':>10}{'share':>8}" + "".join(f"{peer:>22}" for peer in peers))
    for name, rate in medians.items():
        row: dict[str, Any] = {"tokens_per_second": round(rate), "all": [round(value) for value in measurements[name]]}
        if name not in peers:
            model = name.split(": ")[0]
            flop = operations(models[model], vocabulary, 24 if "Sutskever" in model else 21)
            shares = [
                value * flop / 1e9 / limit for value, limit in zip(measurements[name], matrix_rates[name], strict=True)
            ]
            row |= {
                "mflop_per_token": round(flop / 1e6, 1),
                "gflop_per_second": round(rate * flop / 1e9, 1),
                "matrix_rates_beside": [round(value, 1) for value in matrix_rates[name]],
                "shares_of_matrix_rate": [round(value, 3) for value in shares],
                "share_of_matrix_rate": round(statistics.median(shares), 3),
            }
            if model.startswith(PEER_MODELS):
                row |= {f"times_{peer}": round(rate / medians[peer], 2) for peer in peers}
        rows[name] = row
        line = f"{name:<38}{rate:>10,.0f}{row.get('gflop_per_second', ''):>10}{row.get('share_of_matrix_rate', ''):>8}"
        print(line + "".join(f"{row.get(f'times_{peer}', ''):>22}" for peer in peers))
    print("matrix rate in GFLOP/s: " + ", ".join(f"{limit:.0f} ({name})" for name, limit in limits.items()))
    return {
        "machine": benchmarking.machine(arguments.threads),
        **{name: getattr(arguments, name) for name in ("device", "sizes", "batch", "steps")},
        "matrix_rate_gflop_per_second": {name: round(rate, 1) for name, rate in limits.items()},
        "all_matrix_rates": {name: [round(value, 1) for value in values] for name, values in all_rates.items()},
        "rows": rows,
    }


def write_data(directory: Path, pairs: int, vocabulary: int, length: int | None) -> None:
    """Write the text, and in each peer's format the vocabularies, most frequent words first."""
    directory.mkdir()
    for split, count in (("train", pairs), ("valid", 100)):
        files = directory / f"{split}.source", directory / f"{split}.target"
        benchmarking.generate(*files, count, vocabulary=vocabulary - 4, length=length)
    words = {side: [f"{side[0]}{rank}" for rank in range(vocabulary - 4)] for side in ("source", "target")}
    toolkits.write_vocabularies(directory, words)


def train(scratch: Path, data: Path, settings: str, variant: str, arguments: argparse.Namespace) -> float:
    """The tokens per second of `seqtool train`."""
    precision, plain = VARIANTS[arguments.device][variant]
    run = "run"
    command = "from seqtool.cli.main import main; main()"
    if plain:
        command = f"from seqtool.cli import train; train.parts_for = lambda device: parts.PLAIN; {command}"
        command = f"from seqtool.models import parts; {command}"
    overrides = [
        *("data=parallel", f"data.train={data}/train.source,{data}/train.target"),
        *(f"data.valid={data}/valid.source,{data}/valid.target", f"data.cache={scratch}/cache"),
        *("data.vocabulary.kind=word", f"data.vocabulary.size={SIZES[arguments.sizes].vocabulary}"),
        *("data.vocabulary.joint=false", f"device={arguments.device}", f"train.batch_size={arguments.batch}"),
        *(f"train.steps={arguments.steps}", "train.minutes=null", "train.best_by=loss", "validation.sentences=10"),
        *(f"train.log_every={min(5, arguments.steps)}", "validation.max_length=2", f"precision={precision}"),
        f"threads={arguments.threads}",
        *settings.split(),
    ]
    directory = Path(tempfile.mkdtemp(dir=scratch))
    subprocess.run(
        [sys.executable, "-c", command, "train", f"run={run}", *overrides],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    records = [json.loads(line) for line in (directory / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    rates = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
    return float(statistics.median(rates[len(rates) // 5 :]))


def train_peer(name: str, scratch: Path, data: Path, arguments: argparse.Namespace) -> float:
    """The tokens per second that a peer reports."""
    run = Path(tempfile.mkdtemp(dir=scratch))
    settings = {"BATCH": arguments.batch, "CUDA": arguments.device == "cuda", **SIZES[arguments.sizes].peer}
    every = max(1, arguments.steps // 10)
    family = SIZES[arguments.sizes].family
    config = toolkits.configure(name, run, family, DATA=data, STEPS=arguments.steps, EVERY=every, **settings)
    command = toolkits.train_command(name, arguments.environments, config)
    printed = toolkits.run(command, directory=run, threads=arguments.threads)
    pattern = r"\d+/ ?(\d+) tok/s" if name == "opennmt" else r"Tokens per Sec:\s+(\d+)"
    rates = [float(rate) for rate in re.findall(pattern, printed)]
    if not rates:
        sys.exit(f"{name} printed no speed:\n{printed[-2000:]}")
    return float(statistics.median(rates[len(rates) // 5 :]))


def operations(settings: str, vocabulary: int, length: int) -> float:
    """The floating-point operations of training on a token: three times the matrix products of its forward pass."""
    with initialize_config_dir(str(config_directory()), version_base=None):
        config = compose("train", settings.split())
    model = build(config.model, trusted=True, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    sentence = [[4] * (length - 1)] * 64
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.project(model(make_source(sentence), make_target(sentence)[:, :-1]).features)
    return 3 * counter.get_total_flops() / (64 * length)


if __name__ == "__main__":
    main()
