#!/usr/bin/env python
"""How fast captioners train and describe: beside two loops, or a checkpoint from image files and from its cache.

    python scripts/benchmark_captioning.py --threads 2 --output results/captioning.json

trains and decodes Show, Attend and Tell (embedding 512, LSTM 512, attention 512, 196 locations of 512, 8,000 words)
from made-up annotation vectors, in turn with the loops of peers/captioning_loops.py, whose products are left to the
library that torch chooses. In training all see the same 640 captions in batches of 64, seqtool sorted by length
as it always does; words a second, without padding. In decoding every caption is forced to one length; hypothesis-steps
a second.

    python scripts/benchmark_captioning.py --checkpoint runs/flickr --images 1000 --threads 2

describes the first images of a split of the data that the checkpoint was trained on (its cache is made where it is not
there), in turn from files and from the cache.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import benchmarking
import torch
from hydra import compose, initialize_config_dir
from peers.captioning_loops import Hoisted, Tutorial
from torch import Tensor, nn

import seqtool
from seqtool.captioner import Captioner
from seqtool.cli import config_directory
from seqtool.config import build
from seqtool.data.batches import Annotations, Batch, make_target
from seqtool.data.caption_preparation import prepare_captions
from seqtool.data.vocabulary import EOS
from seqtool.decoding import beam_search, length_penalty
from seqtool.devices import keep_memory, onednn
from seqtool.errors import InputError
from seqtool.losses import TrainingLoss
from seqtool.models import sharing
from seqtool.optimisation import make_optimiser

LOCATIONS, D, VOCABULARY = 196, 512, 8000
CAPTIONS, BATCH, STEPS = 640, 64, 20
SIZES = "model.embedding=512 model.hidden=512 model.alignment=512 model.dropout=0"
VGG = "model.encoder.backbone=torchvision/vgg19 model.encoder.layer=features.35 model.encoder.size=224"
SETTINGS = f"model=show_attend_tell {SIZES} {VGG} model.encoder.fine_tune_from=null model.encoder.augment=false"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a captioner; without one, made-up models and loops are compared")
    parser.add_argument("--split", default="valid")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_memory()  # as every command does; the loops have it, too
    record = describe(arguments) if arguments.checkpoint else compare(arguments)
    record = {"machine": benchmarking.machine(arguments.threads), "beam": arguments.beam, **record}
    print(json.dumps(record, indent=1))
    benchmarking.write(record, arguments.output)


def describe(arguments: argparse.Namespace) -> dict[str, Any]:
    """Images a second of a checkpoint."""
    captioner = seqtool.load(
        arguments.checkpoint, beam=arguments.beam, batch_size=arguments.batch_size, threads=arguments.threads
    )
    if not isinstance(captioner, Captioner):
        raise InputError(f"{arguments.checkpoint} holds a translation model: name one that describes images.")
    cache = prepare_captions(captioner.config["data"], captioner.encoder, device=captioner.device, trusted=False)
    split = cache.split(arguments.split)
    files = split.files[: arguments.images]
    ways = {
        "image files": partial(rate, len(files), lambda: captioner.describe(files)),
        "cached annotation vectors": partial(
            rate, len(files), lambda: captioner.describe_pictures(split, range(len(files)))
        ),
    }
    found = benchmarking.in_turn(ways, arguments.repeats)
    return {
        "checkpoint": arguments.checkpoint,
        "images": len(files),
        "batch_size": arguments.batch_size,
        "images_per_second": {name: round(median, 1) for name, median in benchmarking.medians(found).items()},
        "all": {name: [round(one, 1) for one in rates] for name, rates in found.items()},
    }


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """seqtool, its plain path and bf16, and the two loops."""
    torch.manual_seed(1)
    values = torch.randn(CAPTIONS, LOCATIONS, D).relu().half()
    random.seed(1)
    lengths = [min(20, max(5, round(random.gauss(11, 3)))) for _ in range(CAPTIONS)]
    captions = [[random.randrange(4, VOCABULARY) for _ in range(length)] for length in lengths]
    with initialize_config_dir(str(config_directory()), version_base=None):
        config = compose("train", SETTINGS.split())
    ours = build(config.model, trusted=True, target_vocabulary=VOCABULARY, pretrained=False)
    sizes = {"D": D, "embedding": 512, "hidden": 512, "attention": 512, "vocabulary": VOCABULARY}
    loops = {"tutorial": Tutorial(**sizes), "hoisted": Hoisted(**sizes)}
    words = sum(lengths) + CAPTIONS

    in_order = sorted(range(CAPTIONS), key=lengths.__getitem__)
    training = {
        "seqtool": partial(rate, words, lambda: train(ours, values, captions, in_order)),
        "plain": partial(rate, words, lambda: train(ours, values, captions, in_order, plain=True)),
        "seqtool, bf16": partial(rate, words, lambda: train(ours, values, captions, in_order, bf16=True)),
        **{name: partial(rate, words, partial(train_loop, loop, values, captions)) for name, loop in loops.items()},
    }
    trained = benchmarking.in_turn(training, arguments.repeats)

    ours.eval()
    with torch.no_grad():
        ours.output.bias[EOS] = -1e4  # no caption ends before its last step
    few = {"tutorial": BATCH // 8}  # image by image: the rate is the same for fewer

    def search(name: str) -> None:
        a = values[: few.get(name, BATCH)]
        if name in loops:
            loops[name].beam_search(a.float(), arguments.beam, STEPS)
        else:
            decode(ours, a, arguments.beam)

    decoding = {
        name: partial(rate, few.get(name, BATCH) * arguments.beam * STEPS, partial(search, name))
        for name in ("seqtool", *loops)
    }
    decoded = benchmarking.in_turn(decoding, arguments.repeats)
    return {"training": table(trained, "words_per_second"), "decoding": table(decoded, "hypothesis_steps_per_second")}


def table(found: dict[str, list[float]], unit: str) -> dict[str, Any]:
    medians = benchmarking.medians(found)
    peers = ("tutorial", "hoisted")
    return {
        name: {
            unit: round(median),
            "all": [round(one) for one in found[name]],
            **{f"times_{peer}": round(median / medians[peer], 2) for peer in peers if name not in peers},
        }
        for name, median in medians.items()
    }


def rate(count: int, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def batches(captions: list[list[int]], order: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(rows, BOS … EOS and padding, lengths with EOS)."""
    chunks = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    return [
        (
            torch.tensor(rows),
            make_target([captions[row] for row in rows]),
            torch.tensor([len(captions[row]) + 1 for row in rows]),
        )
        for rows in chunks
    ]


@onednn()
def train(
    model: Any, values: Tensor, captions: list[list[int]], order: list[int], *, plain: bool = False, bf16: bool = False
) -> None:
    loss = TrainingLoss(model, 0.0).train()
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimiser = make_optimiser({"name": "adam", "lr": 0.001}, parameters)
    for rows, target, lengths in batches(captions, order):
        tokens = int(lengths.sum())
        optimiser.zero_grad()
        with sharing.plain() if plain else nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                total = loss(Batch(Annotations(values[rows]), target, rows.numpy(), tokens)).total
            (total / tokens).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()


def train_loop(loop: Tutorial, values: Tensor, captions: list[list[int]]) -> None:
    optimiser = torch.optim.Adam(loop.parameters())
    for rows, target, lengths in batches(captions, list(range(len(captions)))):
        optimiser.zero_grad()
        loop.loss(values[rows].float(), target, lengths).backward()
        nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimiser.step()


@onednn()
@torch.no_grad()
def decode(model: Any, values: Tensor, beam: int) -> None:
    memory, state = model.encode(Annotations(values))
    found = beam_search(
        model.step,
        memory,
        state,
        beam=beam,
        maximum=[STEPS] * len(values),
        n_best=1,
        penalty=length_penalty("average", 0.0),
        coverage=0.0,
        keep_attention=False,
    )
    assert all(len(one[0].tokens) == STEPS for one in found)


if __name__ == "__main__":
    main()
