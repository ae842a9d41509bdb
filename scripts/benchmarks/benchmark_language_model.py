#!/usr/bin/env python
"""Compare the training speed of a language model with that of a plain loop over torch.nn.LSTM of the same sizes.

    python scripts/benchmarks/benchmark_language_model.py --threads 2 --updates 4 --output results/language_model.json

Both models train on the same streams, chunk by chunk with the state carried over, with Adam and gradient clipping.
After a warm-up they run in turn, --updates at a time. Rates are characters per second. The ratio is the median of the
pairs, with the interval that contains 90 % of them. Without --text they train on the sentences of the built-in grammar.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import benchmarking
import numpy as np
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from seqtool import tasks
from seqtool.data.batches import Streams
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.initialisation import initialise
from seqtool.models.tokens import PAD
from seqtool.runtime.devices import Machine, keep_memory
from seqtool.runtime.files import config_directory
from seqtool.runtime.precision import autocast, onednn
from seqtool.settings import typed
from seqtool.training.optimisation import make_optimisation
from seqtool.training.saving import TrainSettings
from seqtool.training.trainer import Stop, Trainer

CPU = torch.device("cpu")


class PlainModel(nn.Module):
    """The language model, written as in a tutorial."""

    def __init__(self, symbols: int, *, embedding: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return self.output(self.dropout(h)), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, help="a text to train on")
    parser.add_argument("--updates", type=int, default=8, help="updates in each turn")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_memory()
    overrides = ["data=text", "experiment=shakespeare_lstm"]
    overrides += [] if arguments.text is None else [f"data.train={arguments.text}"]
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", overrides)
    cache = tasks.task_of_data(config).prepare(config)
    rows: dict[str, Any] = {}
    with onednn():
        for precision in ("fp32", "bf16"):
            systems = {
                "seqtool": seqtool_system(config, cache, precision),
                "torch.nn.LSTM": plain_system(config, cache, precision),
            }
            for system in systems.values():
                system(arguments.updates)  # warm-up: oneDNN generates its code
            measurements = benchmarking.measure_in_turn(
                {name: lambda system=system: system(arguments.updates) for name, system in systems.items()},
                arguments.pairs,
            )
            ratios = sorted(a / b for a, b in zip(*measurements.values(), strict=True))
            low, high = np.percentile(ratios, [5, 95])
            medians = benchmarking.medians(measurements)
            rows[precision] = {
                **{f"{name}, characters/s": round(value) for name, value in medians.items()},
                "ratio": round(statistics.median(ratios), 3),
                "ratio_90_per_cent": [round(float(low), 3), round(float(high), 3)],
            }
            print(precision, rows[precision])
    machine = benchmarking.machine(arguments.threads)
    benchmarking.write({"machine": machine, "pairs": arguments.pairs, "rows": rows}, arguments.output)


class QuietTrainer(Trainer):
    """A trainer that neither validates nor saves."""

    def _validate(self, *, scheduled: bool) -> None:
        self.progress.last = {"step": self.progress.step}


def seqtool_system(config: Any, cache: Any, precision: str) -> Callable[[int], float]:
    """Return a function that measures the characters per second of updates as `seqtool train` makes them."""
    task, settings = tasks.task_of_data(config), typed(TrainSettings, config.train)
    settings.minutes = settings.epochs = None
    torch.manual_seed(1)
    model = task.make_model(config, cache, pretrained=False, parts=parts_for(CPU))
    initialise(model, config.initialisation)
    optimisation = make_optimisation(config.optim, config.schedule, task.parameter_groups(model, config))
    streams, token_counts = task.examples(cache, settings), list[int]()  # one count for each update
    add = lambda nll, tokens, norm: token_counts.append(tokens)  # noqa: E731
    log: Any = SimpleNamespace(add=add, bar=lambda *_: nullcontext(), updated=lambda *_: None)
    checkpoints: Any = SimpleNamespace(is_due=lambda *_: False)
    machine, validator = Machine(CPU, precision), cast(Any, None)
    trainer = QuietTrainer(
        model, streams, optimisation, validator, checkpoints, log, settings, machine, best_by="loss", seed=1
    )

    def run(updates: int) -> float:
        token_counts.clear()
        settings.steps, start = trainer.progress.step + updates, time.perf_counter()
        trainer.train(Stop())
        return sum(token_counts) / (time.perf_counter() - start)

    return run


def plain_system(config: Any, cache: Any, precision: str) -> Callable[[int], float]:
    """Return a function that measures the characters per second of the same updates of PlainModel."""
    sizes = {name: config.model[name] for name in ("embedding", "hidden", "layers", "dropout")}
    torch.manual_seed(1)
    model = PlainModel(len(cache.target_vocabulary), **sizes).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=config.optim.lr, fused=True)
    streams: Streams = tasks.task_of_data(config).examples(cache, typed(TrainSettings, config.train))
    chunks = cycle(range(len(streams) - 1))
    state: Any = None  # carried over from chunk to chunk

    def run(updates: int) -> float:
        nonlocal state
        characters, start = 0, time.perf_counter()
        for _ in range(updates):
            batch = streams.collate(streams.chunk(next(chunks)))
            optimiser.zero_grad(set_to_none=True)
            with autocast(CPU, precision):
                logits, state = model(batch.inputs, state if batch.continues else None)
                logits, labels = logits.flatten(0, 1).float(), batch.labels.flatten()
                loss = nn.functional.cross_entropy(logits, labels, ignore_index=PAD)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
            optimiser.step()
            state = tuple(tensor.detach() for tensor in state)
            characters += batch.tokens
        return characters / (time.perf_counter() - start)

    return run


if __name__ == "__main__":
    main()
