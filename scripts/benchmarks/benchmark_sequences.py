#!/usr/bin/env python
"""Measure what an update of training on sequences costs, compared with cross-entropy on as many target tokens.

    python scripts/benchmarks/benchmark_sequences.py --threads 2 --output results/sequences.json

Runs of both kinds start from the built-in models and train in turn: 16 sentences or images with five samples each and
the leave-one-out baseline, and 80 sentences or captions. The ratio is that of the times per target token: of the
samples, and of the references. `rewards` is the share of the rewards in the time of an update.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarking

import seqtool
from seqtool.training.optimisation import Optimisation
from seqtool.training.sequences import Rewards, SequenceLoss
from seqtool.training.trainer import Trainer

WORDS = (
    "init_from=builtin/words data=toy data.vocabulary.reuse=builtin/words data.train=2000 data.valid=20 data.test=20 "
    "model=bahdanau model.embedding=128 model.encoder_hidden=128 model.decoder_hidden=256 model.alignment=128 "
    "model.maxout=128 model.dropout=0.1"
)
PICTURES = (
    "init_from=builtin/{} data=scenes data.vocabulary.reuse=builtin/{} data.train=300 data.valid=20 data.test=20 "
    "experiment=scenes_{} train.by_image=true"
)
MODELS = {
    "RNNsearch": WORDS,
    **{f"{kind} attention": PICTURES.format(*[kind] * 3) for kind in ("soft", "hard")},
}
COMMON = (
    "train.epochs=null train.minutes=null train.validate_every=null train.best_by=loss "
    "device=cpu schedule=constant schedule.warmup=0 optim.lr=0.00001"
)
KINDS = {
    "cross-entropy": "train.batch_size=80",
    "sequences": "train.batch_size={} train.objective=sequence train.samples=5",
}


class Meter:
    """Measures the updates of a run: their seconds, those of the rewards, and their target tokens."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.rewards = 0.0
        self.tokens = 0

    def before(self, function: Any, note: Callable[..., None]) -> Any:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            note(*arguments)
            return function(*arguments, **keywords)

        return noted

    def timed(self, function: Any) -> Any:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **keywords)
            self.rewards += time.perf_counter() - start
            return result

        return timed


def measure(settings: str, run: str) -> dict[str, float]:
    """Train, and return the median seconds of an update, its target tokens, and the share of its rewards."""
    meter, originals = Meter(), (Optimisation.prepare, Rewards.__call__, SequenceLoss._loss_of, Trainer._begin_update)

    def count_samples(loss: Any, source: Any, samples: Any, *_: Any) -> None:
        meter.tokens += sum(len(sequence.tokens) + sequence.ended for row in samples for sequence in row)

    def begin_update(trainer: Any, epoch: Any) -> Any:
        result = originals[3](trainer, epoch)
        if trainer.rewards is None:
            meter.tokens += result[2]
        return result

    Optimisation.prepare = meter.before(originals[0], lambda *_: meter.starts.append(time.perf_counter()))  # type: ignore[method-assign]
    Rewards.__call__ = meter.timed(originals[1])  # type: ignore[method-assign]
    SequenceLoss._loss_of = meter.before(originals[2], count_samples)  # type: ignore[method-assign]
    Trainer._begin_update = begin_update  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            seqtool.train(*settings.split(), run=run)
    finally:
        Optimisation.prepare, Rewards.__call__, SequenceLoss._loss_of, Trainer._begin_update = originals  # type: ignore[method-assign]
    seconds = [end - start for start, end in zip(meter.starts[2:-1], meter.starts[3:], strict=True)]
    updates = len(meter.starts)
    share = meter.rewards / updates / statistics.mean(seconds)
    return {"seconds": statistics.median(seconds), "tokens": meter.tokens / updates, "rewards": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        for name, model in MODELS.items():
            results: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for turn in range(arguments.repeats):
                for kind, settings in KINDS.items():
                    size = 16 if model == WORDS else 80  # the captions of 16 images
                    common = f"{COMMON} threads={arguments.threads} train.steps={arguments.updates}"
                    run = f"{name} {kind} {turn}".replace(" ", "-")
                    results[kind].append(measure(f"{model} {settings.format(size)} {common}", run))
            per_token = {kind: [row["seconds"] / row["tokens"] for row in rows_] for kind, rows_ in results.items()}
            ratios = [
                one / other for one, other in zip(per_token["sequences"], per_token["cross-entropy"], strict=True)
            ]
            rewards = statistics.median(row["rewards"] for row in results["sequences"])
            rows[name] = {"ratio": round(statistics.median(ratios), 2), "rewards": round(rewards, 3), "turns": results}
    record = {"machine": benchmarking.machine(arguments.threads), "rows": rows}
    print(json.dumps({name: {key: row[key] for key in ("ratio", "rewards")} for name, row in rows.items()}, indent=1))
    benchmarking.write(record, arguments.output)


if __name__ == "__main__":
    main()
