#!/usr/bin/env python
"""Check that two checkouts compute the same numbers from the same initial weights and data, by their commands.

    git worktree add ../before COMMIT
    python scripts/development/compare_checkouts.py ../before --multi30k data/multi30k --output checkouts.json

The script compares:

- for every kind of model, without dropout and with the seed fixed, the losses of 50 updates in float64 (to 1e-9), and
  in float32 the loss of one update (to 1e-5) and its gradient (to 1e-5 of each parameter's norm). The gradient is SGD's
  momentum after the first update, which the checkpoint contains;
- with --multi30k, the translations of Multi30k's test set of 2016 and the captions of 200 built-in pictures, with beams
  of 5 and 1. The first checkout trains both models. At most two outputs may differ, with scores less than 1e-4 apart;
- the scores and p-values of files of translations and captions, which must be equal to the last digit.

Give --only the models whose settings both checkouts have: the first ones had no train.by_image or train.objective.

The exit status is 1 if any of these differs.
"""

import argparse
import gzip
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import benchmarking
from benchmark_change import commit, run
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
UPDATES, PICTURES = 50, 200
DOUBLE, SINGLE = 1e-9, 1e-5  # the relative differences allowed in float64 and float32
TIE, MAX_TIES = 1e-4, 2  # different outputs are allowed if their scores differ by less than TIE, in MAX_TIES outputs
NEGLIGIBLE = 1e-6  # a parameter's difference is divided by at least this share of the whole gradient's norm
COMMON = (
    "device=cpu threads=1 data.processes=1 train.batch_size=48 train.minutes=null train.validate_every=1000 "
    "train.log_every=1 train.best_by=loss train.keep_last=1 model.dropout=0"
)
PAIRS = f"{COMMON} validation.sentences=2 validation.max_length=2"
WORDS = f"{PAIRS} data=toy data.train=500 data.valid=10 data.test=10 data.vocabulary.size=200"
JOINT = f"{WORDS} data.vocabulary.joint=true model.tie=all"
SCENES = f"{PAIRS} data=scenes data.train=100 data.valid=4 data.test=4 model.encoder.augment=false"
IMAGES = f"{SCENES} model.embedding=12 model.hidden=20"
FROZEN = f"{IMAGES} model.encoder.fine_tune_from=null"
BAHDANAU = "model=bahdanau model.embedding=12 model.encoder_hidden=10 model.decoder_hidden=20 model.alignment=14"
LUONG = f"{WORDS} model=luong model.embedding=12 model.hidden=20 model.alignment=14"
SUTSKEVER = "model=sutskever model.embedding=12 model.hidden=20"
TRANSFORMER = "model.width=16 model.heads=2 model.feed_forward=24"
TEXT = f"{COMMON} data=text train.bptt=20"
LANGUAGE_MODEL = f"{TEXT} model=language_model model.embedding=12 model.hidden=20"
SOFT = "model=show_attend_tell model.alignment=14"
HARD = f"{SOFT} model.attention=hard"
REWARDED = "train.objective=sequence"
MODELS = {
    **{f"bahdanau, {cell}": f"{WORDS} {BAHDANAU} model.cell={cell}" for cell in ("gru", "lstm", "gru_cho", "rnn")},
    **{f"bahdanau, {score}": f"{WORDS} {BAHDANAU} model.score={score}" for score in ("dot", "general", "scaled_dot")},
    "bahdanau, two layers": f"{WORDS} {BAHDANAU} model.encoder_layers=2 model.decoder_layers=2",
    "bahdanau, tied": f"{JOINT} {BAHDANAU} model.maxout=12 train.label_smoothing=0.1",
    "luong": LUONG,
    "luong, two layers, additive": f"{LUONG} model.layers=2 model.score=additive model.cell=gru",
    "sutskever": f"{WORDS} {SUTSKEVER}",
    "sutskever, gru, not reversed": f"{WORDS} {SUTSKEVER} model.cell=gru model.reverse=false",
    "transformer": f"{WORDS} model=transformer {TRANSFORMER} model.encoder_layers=2 model.decoder_layers=2",
    "transformer, tied, post-norm": f"{JOINT} model=transformer {TRANSFORMER} model.norm=post",
    "transformer captioner": f"{SCENES} model=transformer_captioner {TRANSFORMER} model.layers=2",
    "transformer language model": f"{TEXT} model=transformer_language_model {TRANSFORMER} model.layers=2",
    **{f"language model, {cell}": f"{LANGUAGE_MODEL} model.cell={cell}" for cell in ("lstm", "gru", "rnn")},
    **{
        f"show_tell, {context}": f"{FROZEN} model=show_tell model.context={context}"
        for context in ("first_step", "initial_state", "every_step")
    },
    "show_attend_tell, soft": f"{IMAGES} {SOFT}",
    "show_attend_tell, soft, frozen, no gate": f"{FROZEN} {SOFT} model.gate=false",
    "show_attend_tell, hard": f"{IMAGES} {HARD}",
    "show_attend_tell, hard, two samples": f"{FROZEN} {HARD} model.samples=2 model.baseline=leave_one_out "
    "model.credit=future",
    "bahdanau, rewarded": f"{WORDS} {BAHDANAU} {REWARDED}",
    "show_attend_tell, soft, by image": f"{FROZEN} {SOFT} train.by_image=true",
    "show_attend_tell, soft, by image, scheduled sampling": f"{FROZEN} {SOFT} train.by_image=true "
    "train.teacher=linear train.teacher_k=0.5",
    "show_attend_tell, soft, rewarded": f"{FROZEN} {SOFT} {REWARDED}",
    "show_attend_tell, hard, rewarded": f"{FROZEN} {HARD} {REWARDED}",
}
TRANSLATOR = "experiment=multi30k_bahdanau device=cpu validation.sentences=100"
CAPTIONER = f"experiment=scenes_soft schedule.warmup=100 device=cpu data.train=2000 data.valid=50 data.test={PICTURES}"
COMMANDS = """
import json, runpy, sys
import torch
torch.set_default_dtype(getattr(torch, sys.argv[1]))
for line in json.loads(sys.argv[2]):
    sys.argv = ["seqtool", *line.split()]
    try:
        runpy.run_module("seqtool", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"seqtool {line}: exit status {ended.code}")
"""


@dataclass(frozen=True)
class Row:
    """A comparison: its name, the difference, and the maximum allowed."""

    name: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed

    def record(self) -> dict[str, Any]:
        """The row for JSON, in which an infinite difference is null."""
        difference = self.difference if math.isfinite(self.difference) else None
        return {**asdict(self), "difference": difference, "holds": self.holds}


@dataclass(frozen=True)
class Side:
    """A checkout and the directory in which its commands run."""

    checkout: Path
    directory: Path

    def run(self, lines: Sequence[str], dtype: str = "float32") -> str:
        """Run command lines, one after another in one process, and return their output."""
        return run(self.directory, self.checkout, [sys.executable, "-c", COMMANDS, dtype, json.dumps(lines)])


Pair = tuple[Side, ...]  # the checkouts before and after the change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the checkout before the change")
    parser.add_argument("after", type=Path, nargs="?", default=ROOT, help="the checkout after it; by default this one")
    parser.add_argument("--multi30k", type=Path, help="the directory of Multi30k's files")
    parser.add_argument(
        "--minutes", type=float, default=3, help="minutes of training each of the translator and the captioner"
    )
    parser.add_argument("--only", default="", help="a regular expression: compare only what matches")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    checkouts, rows = {"before": arguments.before, "after": arguments.after}, []
    with tempfile.TemporaryDirectory(prefix="seqtool-compare-") as directory:
        pair = tuple(Side(checkout.resolve(), Path(directory, name)) for name, checkout in checkouts.items())
        for side in pair:
            side.directory.mkdir()
        for row in comparisons(pair, arguments):
            rows.append(row)
            mark = "" if row.holds else "  DIFFERENT"
            print(f"{row.name:<66}{row.difference:>9.2g}, at most {row.allowed:g}{mark}", flush=True)
    failed = sum(not row.holds for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} hold")
    record = {
        "machine": benchmarking.machine(1),
        "commits": {side.directory.name: commit(side.checkout) for side in pair},
        "rows": [row.record() for row in rows],
    }
    benchmarking.write(record, arguments.output)
    sys.exit(1 if failed or not rows else 0)


def comparisons(pair: Pair, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of all comparisons."""
    pattern = re.compile(arguments.only)
    models = {name: settings for name, settings in MODELS.items() if pattern.search(name)}
    if models:
        yield from training(pair, models)
    if arguments.multi30k is not None and pattern.search("translations"):
        yield from translations(pair, arguments.multi30k.resolve(), arguments.minutes)
    if arguments.multi30k is not None and pattern.search("captions"):
        yield from captions(pair, arguments.minutes)
    if pattern.search("metrics"):
        yield from metrics(pair)


def training(pair: Pair, models: Mapping[str, str]) -> Iterator[Row]:
    """Compare losses and gradients, which start from the first checkout's initial weights."""
    runs = {name: re.sub(r"\W+", "-", name) for name in models}
    settings_with_weights = {
        name: f"{settings} init_from={pair[0].directory}/runs/{runs[name]}" for name, settings in models.items()
    }
    for name in settings_with_weights:
        if FROZEN in settings_with_weights[name]:  # random weights of an encoder differ between float64 and float32
            weights = pair[0].directory / "runs" / runs[name] / "checkpoints" / "step-0000001" / "model.safetensors"
            settings_with_weights[name] += f" model.encoder.weights={weights}"
    double = f"data.cache=double train.steps={UPDATES}"  # a cache holds an encoder's output, in the encoder's precision
    single = "data.cache=single train.steps=1 optim=sgd optim.momentum=0.9 train.clip_norm=null"
    pair[0].run([f"train run={runs[name]} {settings} train.steps=1" for name, settings in models.items()])
    for side in pair:
        side.run(
            [f"train run=double-{runs[name]} {settings} {double}" for name, settings in settings_with_weights.items()],
            "float64",
        )
        side.run(
            [f"train run=single-{runs[name]} {settings} {single}" for name, settings in settings_with_weights.items()]
        )
    for name, directory in runs.items():
        curves = [losses(side.directory / "runs" / f"double-{directory}") for side in pair]
        single_runs = [side.directory / "runs" / f"single-{directory}" for side in pair]
        yield Row(f"{name}: {len(curves[0])} losses, float64", max_difference(*curves), DOUBLE)
        yield Row(f"{name}: first loss, float32", max_difference(*map(losses, single_runs)), SINGLE)
        yield Row(f"{name}: gradient, float32", max_gradient_difference(*map(gradient, single_runs)), SINGLE)


def losses(run: Path) -> list[float]:
    """The losses of a run's updates."""
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [math.nan if record["loss"] is None else record["loss"] for record in records if "loss" in record]


def max_difference(before: Sequence[float], after: Sequence[float]) -> float:
    """The maximum relative difference; infinite if the sequences have different lengths."""
    if len(before) != len(after):
        return math.inf
    return finite_max(abs(new - old) / abs(old) for old, new in zip(before, after, strict=True))


def finite_max(differences: Iterable[float]) -> float:
    """The maximum; infinite if any is NaN or infinite, or if there are none."""
    values = list(differences)
    return max(values) if values and all(map(math.isfinite, values)) else math.inf


def gradient(run: Path) -> dict[str, Tensor]:
    """The momentum of SGD after one update, by the parameter's number among those that are trained."""
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    tensors = load_file(checkpoint / "training.safetensors")
    return {name: tensor.double() for name, tensor in tensors.items() if name.endswith(".momentum_buffer")}


def max_gradient_difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """The maximum difference in a parameter's gradient, relative to its norm; infinite if shapes differ."""
    shapes = [{name: tensor.shape for name, tensor in gradient.items()} for gradient in (before, after)]
    if shapes[0] != shapes[1]:
        return math.inf
    min_norm = NEGLIGIBLE * math.hypot(*(float(tensor.norm()) for tensor in before.values()))
    return finite_max(
        float((after[name] - tensor).norm()) / max(float(tensor.norm()), min_norm) for name, tensor in before.items()
    )


def translations(pair: Pair, data: Path, minutes: float) -> Iterator[Row]:
    """Compare the translations of a model that the first checkout trains."""
    pair[0].run([f"train run=translator {TRANSLATOR} data.directory={data} train.minutes={minutes}"])
    sentences = pair[0].directory / "test.en"
    sentences.write_bytes(gzip.decompress((data / "test_2016_flickr.en.gz").read_bytes()))
    yield from compare_outputs(
        pair, "translations", f"translate checkpoint={pair[0].directory}/runs/translator input={sentences}"
    )


def captions(pair: Pair, minutes: float) -> Iterator[Row]:
    """Compare the captions of a model that the first checkout trains."""
    pair[0].run([f"train run=captioner {CAPTIONER} data.directory=pictures train.minutes={minutes}"])
    images = pair[0].directory / "pictures" / "test"
    yield from compare_outputs(
        pair, "captions", f"caption checkpoint={pair[0].directory}/runs/captioner images={images}"
    )


def compare_outputs(pair: Pair, outputs: str, command: str) -> Iterator[Row]:
    """Count outputs that differ; the number is infinite if the scores of any such pair are not nearly equal."""
    for beam in (5, 1):
        bests = []
        for side in pair:
            side.run([f"{command} beam={beam} precision=fp32 device=cpu format=jsonl output=beam-{beam}.jsonl"])
            lines = (side.directory / f"beam-{beam}.jsonl").read_text(encoding="utf-8").splitlines()
            bests.append([json.loads(line)[outputs][0] for line in lines])
        score_pairs = [
            (old["score"], new["score"]) for old, new in zip(*bests, strict=True) if old["text"] != new["text"]
        ]
        ties = all(abs(old - new) < TIE for old, new in score_pairs)
        name = (
            f"{len(bests[0]):,} {outputs}, {len({best['text'] for best in bests[0]}):,} of them different, beam {beam}"
        )
        yield Row(name, len(score_pairs) if ties else math.inf, MAX_TIES)


def metrics(pair: Pair) -> Iterator[Row]:
    """Compare the scores of lines of the project's pages. The hypotheses have words dropped and swapped."""
    draw = random.Random(1)
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "data/README.md", "results/README.md")]
    lines = [line for page in pages for line in page.splitlines() if len(line.split()) > 3]
    texts = {name: [perturb(line, draw) for line in lines] for name in ("hypotheses", "baseline", "second")}
    captions = {"hypotheses": texts["hypotheses"], "references": list(zip(lines, texts["second"], strict=True))}
    for side in pair:
        for name, text in {**texts, "references": lines}.items():
            (side.directory / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        for name, values in captions.items():
            (side.directory / f"{name}.json").write_text(json.dumps(dict(enumerate(values))), encoding="utf-8")
    options = "references=references,second baseline=baseline sources=second bootstrap=200"
    evaluations = {
        "translations": f"hypotheses=hypotheses {options}",
        "translations in lower case": "hypotheses=hypotheses references=references lowercase=true tokenize=intl",
        "captions": "hypotheses=hypotheses.json references=references.json task=captioning",
        "captions as they are": "hypotheses=hypotheses.json references=references.json task=captioning tokenize=none",
    }
    for name, settings in evaluations.items():
        before, after = (json.loads(side.run([f"eval {settings} format=json"])) for side in pair)
        yield Row(f"metrics of {len(lines):,} {name}: numbers that differ", count_differences(before, after), 0)


def perturb(line: str, draw: random.Random) -> str:
    """The line with words dropped and neighbours swapped at random."""
    words = [word for word in line.split() if draw.random() > 0.15] or ["nothing"]
    for i in range(len(words) - 1):
        if draw.random() < 0.1:
            words[i : i + 2] = words[i + 1], words[i]
    return " ".join(words)


def count_differences(before: Any, after: Any) -> int:
    """The number of values of a record that are missing or different in another. Additional values do not count, nor do
    the ends of intervals, because early versions drew other resamples for a comparison with a baseline.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        return sum(
            count_differences(value, after.get(name)) for name, value in before.items() if name not in ("low", "high")
        )
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return sum(map(count_differences, before, after))
    return int(before != after)


if __name__ == "__main__":
    main()
