#!/usr/bin/env python
"""Measure how fast seqtool translates, compared with JoeyNMT and OpenNMT-py, or with the machine's matrix rate.

    python scripts/benchmarks/benchmark_decoding.py --input test.en --peers joeynmt,opennmt --output results/search.json

Every system translates the sentences with its own command and an untrained model: the first model of
benchmark_training.py's `--sizes small` or `transformer`, with a vocabulary of 8,000 entries. Untrained models do not
end a sentence, so every translation has the maximum length, which is checked. All decode 320 hypotheses at once. With
greedy search every sentence is translated five times, so that a run takes longer than its start-up. The time of a run
over eight sentences, which covers starting and loading, is subtracted. The rate is hypothesis-steps per second, for
seqtool also as a share of the machine's matrix rate. `--device cuda --peers joeynmt` compares on a GPU, in bf16 and
fp16 with JoeyNMT in fp16.

    python scripts/benchmarks/benchmark_decoding.py --input test.en --checkpoint runs/multi30k-bahdanau --threads 2

translates with a trained model, and prints its share of the machine's matrix rate: the best rate of square products of
1024, 2048 and 4096, measured in turn. torch counts the operations, of matrix products only.
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
from seqtool.errors import InputError
from seqtool.models.fast.packed import PackedLinear
from seqtool.predict.translator import Translator
from seqtool.runtime.devices import keep_memory
from seqtool.runtime.files import read_lines
from seqtool.runtime.precision import onednn
from seqtool.settings.classes import build
from seqtool.settings.declarations import HYPOTHESES_PER_BATCH

LENGTH = 25  # the number of words in every translation
WORD = re.compile(r"[^\W_]+")  # a word without punctuation, which seqtool would split off
PRECISIONS = {
    "cpu": {"seqtool": "fp32", "seqtool, bf16": "bf16"},
    "cuda": {"seqtool, bf16": "bf16", "seqtool, fp16": "fp16"},
}
START_UP_SENTENCES = 8  # the number of sentences whose time covers starting and loading
MIN_HYPOTHESES = 5  # the number of hypotheses of a sentence: with a narrower beam it is translated several times
SEQTOOL = [sys.executable, "-m", "seqtool"]
STEPS, RATE = 5, "0.000000000001"  # the training updates, and a learning rate that leaves the model unchanged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, type=Path, help="sentences, one per line; may be .gz")
    parser.add_argument("--checkpoint", help="a trained model; without one, systems are compared")
    parser.add_argument(
        "--sizes", choices=("small", "transformer"), default="small", help="sizes of the models that are compared"
    )
    parser.add_argument("--beams", default="5,1", help="beams of the comparison")
    parser.add_argument("--beam", type=int, default=5, help="beam of a checkpoint")
    parser.add_argument("--device", choices=PRECISIONS, default="cpu", help="device of the comparison")
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
    """The record of a checkpoint: sentences per second, and the share of the matrix rate."""
    keep_memory()  # as every command does
    translator = seqtool.load(arguments.checkpoint, beam=arguments.beam, threads=arguments.threads)
    if not isinstance(translator, Translator):
        raise InputError(f"{arguments.checkpoint} holds a captioner: name a translation model.")
    sentences = list(read_lines(arguments.input))
    counts = {torch.ops.mkldnn._linear_pointwise: _packed_operations} if PackedLinear.supports(torch.float32) else {}
    with FlopCounterMode(display=False, custom_mapping=counts) as counter:
        translations = translator.translate(sentences)

    def rate() -> float:
        start = time.perf_counter()
        assert translator.translate(sentences) == translations
        return len(sentences) / (time.perf_counter() - start)

    def limit() -> float:
        with onednn():
            return benchmarking.matrix_rate(device=translator.device)

    measurements = benchmarking.measure_in_turn({"sentences": rate, "products": limit}, arguments.repeats)
    median, matrix_rate = benchmarking.medians(measurements).values()
    gflop_per_second = counter.get_total_flops() / len(sentences) * median / 1e9
    return {
        "checkpoint": arguments.checkpoint,
        "sentences": len(sentences),
        "beam": arguments.beam,
        "device": str(translator.device),
        "sentences_per_second": round(median, 1),
        "all": [round(value, 1) for value in measurements["sentences"]],
        "gflop_per_sentence": round(counter.get_total_flops() / len(sentences) / 1e9, 3),
        "gflop_per_second": round(gflop_per_second, 1),
        "matrix_rate_gflop_per_second": round(matrix_rate, 1),
        "share_of_matrix_rate": round(gflop_per_second / matrix_rate, 3),
    }


def _packed_operations(x: torch.Size, matrix: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    """The operations of a product with a matrix in oneDNN's layout, which torch's counter leaves out."""
    return 2 * x.numel() * matrix[0]


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of all systems: their rates by beam, and seqtool's rates relative to the peers' and to the limit."""
    peers = toolkits.choose(arguments.peers)
    precisions = PRECISIONS[arguments.device]
    if "opennmt" in peers and arguments.device != "cpu":
        sys.exit("OpenNMT-py is compared only on a CPU: use --peers joeynmt.")
    for name in peers:
        toolkits.install(name, arguments.environments)
    sentences = read_sentences(arguments.input)
    rows: dict[str, Any] = {}
    peer_systems = toolkits.systems(peers, arguments.device)
    limits = benchmarking.matrix_rates(arguments.device)
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as scratch:
        data = Path(scratch)
        write_data(data, sentences)
        for beam in map(int, arguments.beams.split(",")):
            repeated = sentences * max(1, MIN_HYPOTHESES // beam)
            (data / "input").write_text("\n".join(repeated) + "\n", encoding="utf-8")
            systems: dict[str, Callable[[], float]] = {}
            for name in (*precisions, *peer_systems):
                run = Path(tempfile.mkdtemp(dir=data))
                make = partial(prepare_seqtool if name in precisions else prepare_peer, name)
                systems[name] = partial(decoding_rate, make(run, data, beam, arguments), data, len(repeated), beam)
            measurements = benchmarking.measure_in_turn(systems | limits, arguments.repeats)
            medians = benchmarking.medians(measurements)
            rows[f"beam {beam}"] = {
                name: {
                    "hypothesis_steps_per_second": round(median),
                    "sentences_per_second": round(median / beam / LENGTH, 1),
                    "all": [round(value) for value in measurements[name]],
                }
                for name, median in medians.items()
                if name in systems
            }
            for name, precision in precisions.items():
                rate, limit = medians[name], medians[precision]
                rows[f"beam {beam}"][name] |= {
                    **{f"times_{peer}": round(rate / medians[peer], 2) for peer in peer_systems},
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
    """The settings of the first model of these sizes."""
    return next(iter(SIZES[sizes].models.values()))


def operations(sentences: list[str], beam: int, sizes: str) -> float:
    """The floating-point operations of a hypothesis-step: the decoder's, and a share of the encoder's."""
    sentence = [4] * round(statistics.mean(len(line.split()) for line in sentences))
    with initialize_config_dir(str(config_directory()), version_base=None):
        config = compose("train", model_settings(sizes).split())
    model = build(config.model, trusted=True, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    with FlopCounterMode(display=False) as encoding, torch.no_grad():
        memory, state = model.encode(make_source([sentence]))
    with FlopCounterMode(display=False) as decoding, torch.no_grad():
        for _ in range(LENGTH):
            state = model.step(memory, state, torch.tensor([4])).state
    return (decoding.get_total_flops() + encoding.get_total_flops() / beam) / LENGTH


def read_sentences(path: Path) -> list[str]:
    """The sentences of a file with 5 to LENGTH - 1 words, in lower case and without punctuation."""
    sentences = [" ".join(WORD.findall(line.lower())) for line in read_lines(path)]
    return [line for line in sentences if 5 <= len(line.split()) < LENGTH]


def write_data(data: Path, sentences: list[str]) -> None:
    """Write the sentences as a corpus. Their words, and made-up words to fill it up, are the vocabulary of both sides,
    which has the same size in every system.
    """
    words = [word for word, _ in Counter(" ".join(sentences).split()).most_common(VOCABULARY - 4)]
    words += [f"word{rank}" for rank in range(VOCABULARY - 4 - len(words))]
    toolkits.write_vocabularies(data, {"source": words, "target": words})
    lines = "\n".join(sentences) + "\n"
    vocabulary = "\n".join(" ".join(words[i : i + 20]) for i in range(0, len(words), 20)) + "\n"
    for side in ("source", "target"):
        for split, text in (("train", vocabulary + lines), ("valid", lines)):
            (data / f"{split}.{side}").write_text(text, encoding="utf-8")
    (data / "start-up").write_text("\n".join(sentences[:START_UP_SENTENCES]) + "\n", encoding="utf-8")


Translate = Callable[[Path], Any]  # a function that translates a file


def prepare_seqtool(name: str, run: Path, data: Path, beam: int, arguments: argparse.Namespace) -> Translate:
    """Make seqtool's model, and return the function that translates a file with it."""
    device, threads = arguments.device, arguments.threads
    train_seqtool(run, data, model_settings(arguments.sizes), device, threads)
    command = translate_command(run, beam, PRECISIONS[device][name], device, threads)

    def translate(source: Path) -> None:
        subprocess.run([*command, f"input={source}", f"output={run}/output"], check=True, capture_output=True)
        check(name, (run / "output").read_text(encoding="utf-8").splitlines(), source)

    return translate


def train_seqtool(run: Path, data: Path, settings: str, device: str, threads: int) -> None:
    """Make a model of seqtool with these settings, whose vocabularies have VOCABULARY entries."""
    overrides = [
        *("data=parallel", f"data.train={data}/train.source,{data}/train.target", f"data.cache={data}/cache"),
        *(
            f"data.valid={data}/start-up,{data}/start-up",
            "data.vocabulary.kind=word",
            f"data.vocabulary.size={VOCABULARY}",
        ),
        *("data.vocabulary.joint=false", f"train.steps={STEPS}", "train.best_by=loss", "validation.max_length=2"),
        *(f"optim.lr={RATE}", f"device={device}", f"threads={threads}", *settings.split()),
    ]
    toolkits.run([*SEQTOOL, "train", "run=run", *overrides], directory=run, threads=threads)
    vocabularies = list(run.glob("runs/run/checkpoints/*/*.vocabulary"))
    sizes = {json.loads(file.read_bytes().partition(b"\n")[0])["size"] for file in vocabularies}
    assert sizes == {VOCABULARY}, (
        f"seqtool's vocabularies have {sizes} entries, but those of the peers have {VOCABULARY:,}"
    )


def translate_command(run: Path, beam: int, precision: str, device: str, threads: int) -> list[str]:
    """The command that translates with the model of `train_seqtool`, without the names of its files."""
    settings = [f"beam={beam}", f"min_length={LENGTH}", f"max_length={LENGTH}", f"threads={threads}"]
    settings += [f"precision={precision}", f"device={device}"]
    return [*SEQTOOL, "translate", f"checkpoint={run}/runs/run", *settings]


def prepare_peer(name: str, run: Path, data: Path, beam: int, arguments: argparse.Namespace) -> Translate:
    """Make a peer's model, and return the function that translates a file with it."""
    sentences = HYPOTHESES_PER_BATCH // beam
    search = {"BEAM": beam, "SENTENCES": sentences, "SHORTEST": LENGTH, "LONGEST": LENGTH, "RATE": RATE}
    updates = {"STEPS": STEPS, "EVERY": STEPS, "VALIDATE": STEPS}
    family = SIZES[arguments.sizes].family
    config = toolkits.configure(name, run, family, DATA=data, CUDA=arguments.device == "cuda", **updates, **search)
    train = toolkits.train_command(name, arguments.environments, config)
    toolkits.run(train, directory=run, threads=arguments.threads)

    def translate(source: Path) -> None:
        sizes = {"beam": beam, "sentences": sentences, "length": LENGTH}
        command = toolkits.translate_command(name, arguments.environments, config, run, source, **sizes)
        printed = toolkits.run(command, directory=run, threads=arguments.threads, source=source)
        check(name, toolkits.read_translations(name, run, printed), source)

    return translate


def check(name: str, translations: list[str], source: Path) -> None:
    """Exit unless the translations have LENGTH words on average, within 2 %."""
    count = len(source.read_text(encoding="utf-8").splitlines())
    words = sum(len(line.split()) for line in translations[:count])
    if not 0.98 * count * LENGTH <= words <= 1.02 * count * LENGTH:
        sys.exit(f"{name} wrote {words:,} words for {count:,} sentences, not {LENGTH} each.")


def decoding_rate(translate: Translate, data: Path, sentences: int, beam: int) -> float:
    """The hypothesis-steps per second, without the time of starting and loading."""
    seconds = []
    for name in ("start-up", "input"):
        start = time.perf_counter()
        translate(data / name)
        seconds.append(time.perf_counter() - start)
    return (sentences - START_UP_SENTENCES) * beam * LENGTH / (seconds[1] - seconds[0])


if __name__ == "__main__":
    main()
