"""Count the kernels that an update and a step of decoding start on a GPU, and how often the host waits for it.

    python scripts/count_launches.py [FAMILY ...] [--output results/launches.json]

No GPU is needed: a simulated one counts (its rules are at the top of tests/pretended_gpu.py). `seqtool train` trains on
640 pairs of 25 random words, 64 at a time, from a vocabulary of some 8,000, with Adam (which updates all tensors by a
few kernels) and clipping of gradients; the third update counts. The weights stay random, so that no search ends early.
A step of decoding is a tenth of the difference between searching for 20 and for 10 words: 16 sentences, five hypotheses
each. The models are narrow, since their widths change no count.
"""

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pretended_gpu

import seqtool
from seqtool.data.directories import versions
from seqtool.training.recording import MetricsLog

BRIEF = "validation.sentences=2 validation.max_length=2"
PAIRS = f"{BRIEF} data=parallel data.train=train.tsv data.valid=valid.tsv data.vocabulary.kind=word"
PHOTOS = f"{BRIEF} data=photos data.directory=photos data.train=photos/captions.jsonl data.vocabulary.kind=word"
TEXT = "data=text data.train=train.txt data.vocabulary.kind=word data.vocabulary.size=8000 train.bptt=100"
HIDDEN = "model.embedding=32 model.hidden=32"
RNNSEARCH = f"{PAIRS} model=bahdanau model.embedding=32 model.encoder_hidden=16 model.decoder_hidden=32"
FAMILIES = {
    "RNNsearch, gru": f"{RNNSEARCH} model.cell=gru",
    "RNNsearch, gru_cho": f"{RNNSEARCH} model.cell=gru_cho",
    "Luong, 2 × LSTM": f"{PAIRS} model=luong {HIDDEN} model.layers=2",
    "Sutskever": f"{PAIRS} model=sutskever {HIDDEN}",
    "Show, Attend and Tell": (
        f"{PHOTOS} model=show_attend_tell {HIDDEN} model.encoder.size=64 model.encoder.fine_tune_from=null "
        "model.encoder.augment=false"
    ),
    "Transformer, 4 + 4": f"{PAIRS} model=transformer model.width=32 model.encoder_layers=4 model.decoder_layers=4",
    "language model, 2 × LSTM": f"{TEXT} model=language_model {HIDDEN} model.layers=2",
}
COMMON = (
    "data.vocabulary.minimum_count=1 data.vocabulary.size=8000 data.processes=1 device=cuda train.batch_size=64 "
    "train.minutes=null train.steps=3 train.clip_norm=1 train.log_every=1000 optim.lr=1e-9"
)
WORDS, SENTENCES, DECODED = 25, 640, 16


def write_data() -> None:
    """Write pairs, a text, and black pictures with captions of 20 words, to the current directory."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(7990)]
    for name, count in (("train", SENTENCES), ("valid", 64)):
        lines = [[" ".join(draw.choices(words, k=WORDS)) for _ in range(2)] for _ in range(count)]
        Path(f"{name}.tsv").write_text("".join("\t".join(pair) + "\n" for pair in lines), "utf-8")
    Path("train.txt").write_text(" ".join(draw.choices(words, k=100_000)), "utf-8")
    Path("photos").mkdir()
    records = []
    for number in range(256):
        Image.fromarray(np.full((64, 64, 3), number, np.uint8)).save(f"photos/{number}.png")
        records.append({"file": f"{number}.png", "captions": [" ".join(draw.choices(words, k=20))]})
    Path("photos/captions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


@contextlib.contextmanager
def counting_updates(gpu: pretended_gpu.Gpu) -> Iterator[list[tuple[dict[str, int], Counter[str]]]]:
    """Within the context, the counts after each update of a training are appended to the list."""
    counts: list[tuple[dict[str, int], Counter[str]]] = []
    updated = MetricsLog.updated

    def count(log: MetricsLog, *arguments: Any) -> None:
        updated(log, *arguments)
        counts.append((gpu.counts(), Counter(gpu.launches)))

    with mock.patch.object(MetricsLog, "updated", count):
        yield counts


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after}


def count(family: str, precision: str, *, decodes: bool = True, shown: int = 0) -> dict[str, Any]:
    """Train and decode with a family of models; return what an update and a step of decoding start.

    decodes: False leaves decoding out
    shown: the number of operations that are printed, those with the most kernels first
    """
    with pretended_gpu.simulate_gpu() as gpu:
        run = f"{family}-{precision}".replace(" ", "").replace(",", "-")
        settings = f"{FAMILIES[family]} {COMMON} precision={precision}".split()
        silent = io.StringIO()
        with counting_updates(gpu) as counts, contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            seqtool.train(*settings, run=run)
        (*_, (before, launches_before), (after, launches)) = counts
        row: dict[str, Any] = {"update": difference(after, before)}
        for name, number in (launches - launches_before).most_common(shown):
            print(f"  {number:5}  {name}")
        if not decodes or "data=parallel" not in FAMILIES[family]:
            return row
        sources = [line.split("\t")[0] for line in Path("valid.tsv").read_text("utf-8").splitlines()[:DECODED]]
        searches, operations = [], []
        for length in (10, 20):
            options = {"device": "cuda", "precision": precision, "beam": 5, "max_length": length}
            translator: Any = seqtool.load(f"runs/{run}", **options)
            translator.translate(sources)  # prepares the model
            start, operations_before = gpu.counts(), Counter(gpu.launches)
            translator.translate(sources)
            searches.append(difference(gpu.counts(), start))
            operations.append(gpu.launches - operations_before)
        for name, number in (operations[1] - operations[0]).most_common(shown):
            print(f"  {number / 10:5.1f}  {name}, in a step of decoding")
        return row | {"step": {name: (searches[1][name] - searches[0][name]) / 10 for name in searches[0]}}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count what a GPU would be asked to do, on a simulated one.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"one of {'; '.join(FAMILIES)}")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--operations", type=int, default=0, metavar="N", help="print the N commonest operations")
    parser.add_argument("--output", type=Path, help="write the counts to this JSON file")
    options = parser.parse_args(arguments)
    output = None if options.output is None else options.output.resolve()
    rows = []
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        write_data()
        print(f"{'':24}  precision  {'update: launches':>17}  waits  cuDNN  step: launches  waits")
        for family in options.families or FAMILIES:
            for precision in options.precision:
                row = {"family": family, "precision": precision, **count(family, precision, shown=options.operations)}
                rows.append(row)
                update, step = row["update"], row.get("step")
                line = f"{family:24}  {precision:9}  {update['launches']:17,.0f} {update['waits']:6.0f}"
                line += f" {update['recurrences']:6.0f}"
                print(line + (f"  {step['launches']:14.1f} {step['waits']:6.1f}" if step else ""))
    if output is not None:
        record = {"settings": COMMON, "families": FAMILIES, "versions": versions(), "rows": rows}
        output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
