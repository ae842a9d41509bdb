#!/usr/bin/env python
"""How fast seqtool translates: compared with JoeyNMT and OpenNMT-py, or with a trained checkpoint.

    python scripts/benchmarks/benchmark_decoding.py --input test.en --peers joeynmt,opennmt --output results/search.json

Every system translates the sentences with its own command and an untrained model: the first of benchmark_training.py's
`--sizes small` or `transformer`, with the same vocabulary of 8,000 entries in each. Untrained models do not end a
sentence, so every translation has the greatest length allowed, which is checked. All decode as many sentences at once
as give 320 hypotheses. Greedy search translates every sentence five times, so that a run takes longer than its
start-up. The time of a second run over eight sentences, which covers starting and loading, is subtracted. The rate is
hypothesis-steps per second, for seqtool also as a share of the machine's matrix rate. `--device cuda --peers joeynmt`
compares on a GPU, in bf16 and fp16 with JoeyNMT in fp16.

    python scripts/benchmarks/benchmark_decoding.py --input test.en --checkpoint runs/multi30k-bahdanau --threads 2

translates with a trained model, and prints the share of the machine's matrix rate. Operations are counted by torch
(matrix products only); the limit is the best rate of square products of 1024, 2048 and 4096, measured in turn.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import benchmarking
import torch
from benchmark_training import SIZES, VOCABULARY
from hydra import compose, initialize_config_dir
from peers import toolkits
from torch.utils.flop_counter import FlopCounterMode

import seqtool
from seqtool.cli.main import config_directory
from seqtool.data.batches import make_source
from seqtool.decoding.batching import HYPOTHESES_PER_BATCH
from seqtool.errors import InputError
from seqtool.models.fast.packed import Packed
from seqtool.predict.translator import Translator
from seqtool.runtime.devices import keep_memory
from seqtool.runtime.files import read_lines
from seqtool.runtime.precision import onednn
from seqtool.settings.classes import build

LENGTH = 25  # words of every translation
WORD = re.compile(r"[^\W_]+")  # without punctuation, which seqtool would make entries of their own
PRECISIONS = {
    "cpu": {"seqtool": "fp32", "seqtool, bf16": "bf16"},
    "cuda": {"seqtool, bf16": "bf16", "seqtool, fp16": "fp16"},
}
FEW = 8
BEAMS = 5  # hypotheses per sentence, at least: with a narrower beam it is translated several times
STEPS, RATE = 5, "0.000000000001"  # training updates, which leave the model unchanged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, type=Path, help="sentences, one per line; may be .gz")
    parser.add_argument("--checkpoint", help="a trained model; without one, systems are compared")
    parser.add_argument("--sizes", choices=("small", "transformer"), default="small", help="of the comparison")
    parser.add_argument("--beams", default="5,1", help="of the comparison")
    parser.add_argument("--beam", type=int, default=5, help="of a checkpoint")
    parser.add_argument("--device", choices=PRECISIONS, default="cpu", help="of the comparison")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", default="", help="joeynmt, opennmt, or both with a comma")
    parser.add_argument("--environments", type=Path, default=Path("environments"), help="where peers are installed")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    record = translate(arguments) if arguments.checkpoint else compare(arguments)
    record = {"machine": benchmarking.machine(arguments.threads), **record}
    print(json.dumps(record, indent=1))
    benchmarking.write(record, arguments.output)


def translate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Sentences per second of a checkpoint."""
    keep_memory()  # as every command does
    translator = seqtool.load(arguments.checkpoint, beam=arguments.beam, threads=arguments.threads)
    if not isinstance(translator, Translator):
        raise InputError(f"{arguments.checkpoint} holds a captioner: name a translation model.")
    sentences = list(read_lines(arguments.input))
    own = {torch.ops.mkldnn._linear_pointwise: _packed} if Packed.takes(torch.float32) else {}
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        translations = translator.translate(sentences)

    def rate() -> float:
        start = time.perf_counter()
        assert translator.translate(sentences) == translations
        return len(sentences) / (time.perf_counter() - start)

    def limit() -> float:
        with onednn():
            return benchmarking.matrix_rate(device=translator.device)

    measurements = benchmarking.in_turn({"sentences": rate, "products": limit}, arguments.repeats)
    median, best = benchmarking.medians(measurements).values()
    reached = counter.get_total_flops() / len(sentences) * median / 1e9
    return {
        "checkpoint": arguments.checkpoint,
        "sentences": len(sentences),
        "beam": arguments.beam,
        "device": str(translator.device),
        "sentences_per_second": round(median, 1),
        "all": [round(value, 1) for value in measurements["sentences"]],
        "gflop_per_sentence": round(counter.get_total_flops() / len(sentences) / 1e9, 3),
        "gflop_per_second": round(reached, 1),
        "matrix_rate_gflop_per_second": round(best, 1),
        "share_of_matrix_rate": round(reached / best, 3),
    }


def _packed(x: torch.Size, matrix: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    """Operations of a product with a matrix in oneDNN's layout, which torch's counter does not count."""
    return 2 * x.numel() * matrix[0]


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    peers = toolkits.chosen(arguments.peers)
    precisions = PRECISIONS[arguments.device]
    if "opennmt" in peers and arguments.device != "cpu":
        sys.exit("OpenNMT-py is compared only on a CPU: use --peers joeynmt.")
    for name in peers:
        toolkits.install(name, arguments.environments)
    sentences = [" ".join(WORD.findall(line.lower())) for line in read_lines(arguments.input)]
    sentences = [line for line in sentences if 5 <= len(line.split()) < LENGTH]
    rows: dict[str, Any] = {}
    others = toolkits.systems(peers, arguments.device)
    limits = benchmarking.matrix_rates(arguments.device)
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as scratch:
        data = Path(scratch)
        write_data(data, sentences)
        for beam in map(int, arguments.beams.split(",")):
            every = sentences * max(1, BEAMS // beam)
            (data / "input").write_text("\n".join(every) + "\n", encoding="utf-8")
            ways: dict[str, Callable[[], float]] = {}
            for name in (*precisions, *others):
                run = Path(tempfile.mkdtemp(dir=data))
                make = partial(prepare_seqtool if name in precisions else prepare_peer, name)
                ways[name] = partial(rate_of, make(run, data, beam, arguments), run, data, len(every), beam)
            measurements = benchmarking.in_turn(ways | limits, arguments.repeats)
            medians = benchmarking.medians(measurements)
            rows[f"beam {beam}"] = {
                name: {
                    "hypothesis_steps_per_second": round(median),
                    "sentences_per_second": round(median / beam / LENGTH, 1),
                    "all": [round(value) for value in measurements[name]],
                }
                for name, median in medians.items()
                if name in ways
            }
            for name, precision in precisions.items():
                rate, limit = medians[name], medians[precision]
                rows[f"beam {beam}"][name] |= {
                    **{f"times_{peer}": round(rate / medians[peer], 2) for peer in others},
                    "matrix_rate_gflop_per_second": round(limit, 1),
                    "share_of_matrix_rate": round(rate * operations(sentences, beam, arguments.sizes) / 1e9 / limit, 3),
                }
    return {
        "device": arguments.device,
        "sizes": arguments.sizes,
        "sentences": len(sentences),
        "words of each translation": LENGTH,
        "rows": rows,
    }


def model_settings(sizes: str) -> str:
    return next(iter(SIZES[sizes].models.values()))


def operations(sentences: list[str], beam: int, sizes: str) -> float:
    """Floating-point operations of a hypothesis-step: the decoder's, and its share of the encoder's."""
    sentence = [4] * round(statistics.mean(len(line.split()) for line in sentences))
    with initialize_config_dir(str(config_directory()), version_base=None):
        config = compose("train", model_settings(sizes).split())
    model = build(config.model, trusted=True, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    with FlopCounterMode(display=False) as reading, torch.no_grad():
        memory, state = model.encode(make_source([sentence]))
    with FlopCounterMode(display=False) as writing, torch.no_grad():
        for _ in range(LENGTH):
            state = model.step(memory, state, torch.tensor([4])).state
    return (writing.get_total_flops() + reading.get_total_flops() / beam) / LENGTH


def write_data(data: Path, sentences: list[str]) -> None:
    """Write the sentences as a corpus and as input. Their words, with made-up ones to fill it up, are the vocabulary of
    both sides, which has the same number of entries in every system.
    """
    words = [word for word, _ in Counter(" ".join(sentences).split()).most_common(VOCABULARY - 4)]
    words += [f"word{rank}" for rank in range(VOCABULARY - 4 - len(words))]
    toolkits.write_vocabularies(data, {"source": words, "target": words})
    whole = "\n".join(sentences) + "\n"
    vocabulary = "\n".join(" ".join(words[i : i + 20]) for i in range(0, len(words), 20)) + "\n"
    for side in ("source", "target"):
        for split, text in (("train", vocabulary + whole), ("valid", whole)):
            (data / f"{split}.{side}").write_text(text, encoding="utf-8")
    (data / "few").write_text("\n".join(sentences[:FEW]) + "\n", encoding="utf-8")


Translate = Callable[[Path], Any]


def prepare_seqtool(name: str, run: Path, data: Path, beam: int, arguments: argparse.Namespace) -> Translate:
    overrides = [
        *("data=parallel", f"data.train={data}/train.source,{data}/train.target", f"data.cache={data}/cache"),
        *(f"data.valid={data}/few,{data}/few", "data.vocabulary.kind=word", f"data.vocabulary.size={VOCABULARY}"),
        *("data.vocabulary.joint=false", f"train.steps={STEPS}", "train.best_by=loss", "validation.max_length=2"),
        *(f"optim.lr={RATE}", f"device={arguments.device}"),
        *(f"threads={arguments.threads}", *model_settings(arguments.sizes).split()),
    ]
    seqtool_command = [sys.executable, "-m", "seqtool"]
    toolkits.run([*seqtool_command, "train", "run=run", *overrides], directory=run, threads=arguments.threads)
    vocabularies = list(run.glob("runs/run/checkpoints/*/*.vocabulary"))
    sizes = {json.loads(file.read_bytes().partition(b"\n")[0])["size"] for file in vocabularies}
    assert sizes == {VOCABULARY}, f"seqtool's vocabularies have {sizes} entries, and those of the peers {VOCABULARY:,}"
    settings = [f"beam={beam}", f"min_length={LENGTH}", f"max_length={LENGTH}", f"threads={arguments.threads}"]
    settings += [f"precision={PRECISIONS[arguments.device][name]}", f"device={arguments.device}"]
    command = [*seqtool_command, "translate", "checkpoint=runs/run", *settings]

    def translate(source: Path) -> None:
        subprocess.run([*command, f"input={source}", f"output={run}/output"], cwd=run, check=True, capture_output=True)
        check(name, (run / "output").read_text(encoding="utf-8").splitlines(), source)

    return translate


def prepare_peer(name: str, run: Path, data: Path, beam: int, arguments: argparse.Namespace) -> Translate:
    sentences = HYPOTHESES_PER_BATCH // beam
    search = {"BEAM": beam, "SENTENCES": sentences, "SHORTEST": LENGTH, "LONGEST": LENGTH, "RATE": RATE}
    few = {"STEPS": STEPS, "EVERY": STEPS, "VALIDATE": STEPS}
    family = SIZES[arguments.sizes].family
    config = toolkits.configure(name, run, family, DATA=data, CUDA=arguments.device == "cuda", **few, **search)
    train = toolkits.train_command(name, arguments.environments, config)
    toolkits.run(train, directory=run, threads=arguments.threads)

    def translate(source: Path) -> None:
        command = toolkits.translate_command(
            name,
            arguments.environments,
            config,
            run,
            source,
            beam=beam,
            sentences=HYPOTHESES_PER_BATCH // beam,
            length=LENGTH,
        )
        printed = toolkits.run(command, directory=run, threads=arguments.threads, source=source)
        check(name, toolkits.translated(name, run, printed), source)

    return translate


def check(name: str, translations: list[str], source: Path) -> None:
    """Check that the translations have about as many words as are counted."""
    count = len(source.read_text(encoding="utf-8").splitlines())
    words = sum(len(line.split()) for line in translations[:count])
    if not 0.98 * count * LENGTH <= words <= 1.02 * count * LENGTH:
        sys.exit(f"{name} wrote {words:,} words for {count:,} sentences, not {LENGTH} each.")


def rate_of(translate: Translate, run: Path, data: Path, sentences: int, beam: int) -> float:
    seconds = []
    for name in ("few", "input"):
        start = time.perf_counter()
        translate(data / name)
        seconds.append(time.perf_counter() - start)
    return (sentences - FEW) * beam * LENGTH / (seconds[1] - seconds[0])


if __name__ == "__main__":
    main()
