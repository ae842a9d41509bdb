#!/usr/bin/env python
"""Measure how fast captioners train and decode, compared with two loops, or a checkpoint on files and on its cache.

    python scripts/benchmarks/benchmark_captioning.py --threads 2 --output results/captioning.json

trains and decodes Show, Attend and Tell (embedding 512, LSTM 512, attention 512, 196 locations of 512, 8,000 words) on
random annotation vectors, in turn with the loops of peers/captioning_loops.py, which multiply with the library that
torch chooses. In training all systems have the same 640 captions in batches of 64, which only seqtool sorts by length;
the rate is words per second, without padding. In decoding all captions have the same length; the rate is
hypothesis-steps per second. `--device cuda` runs on a GPU, in bf16 (the loops too) and in fp16.

    python scripts/benchmarks/benchmark_captioning.py --checkpoint runs/flickr --images 1000 --threads 2

captions the first images of a split of the checkpoint's data, from files and from the cache in turn. The cache is made
if it does not exist.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import benchmarking
import torch
from benchmark_decoding import PRECISIONS
from benchmark_training import VARIANTS
from hydra import compose, initialize_config_dir
from peers.captioning_loops import Hoisted, Tutorial
from torch import Tensor, nn

import seqtool
from seqtool.cli.main import config_directory
from seqtool.data.batches import Batch, make_target
from seqtool.data.images.image_store import prepare_captions
from seqtool.decoding.beam_search import beam_search, length_penalty
from seqtool.errors import InputError
from seqtool.models.backbone import ImageCaptioner
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.inputs import Annotations
from seqtool.models.parts import PLAIN, build_model
from seqtool.predict.captioner import Captioner
from seqtool.runtime.devices import keep_memory
from seqtool.runtime.precision import autocast, onednn
from seqtool.training.losses import TrainingLoss
from seqtool.training.optimisation import make_optimiser

LOCATIONS, D, VOCABULARY = 196, 512, 8000
CAPTIONS, BATCH, STEPS = 640, 64, 20
SIZES = "model.embedding=512 model.hidden=512 model.alignment=512 model.dropout=0"
VGG = "model.encoder.backbone=torchvision/vgg19 model.encoder.layer=features.35 model.encoder.size=224"
SETTINGS = f"model=show_attend_tell {SIZES} {VGG} model.encoder.fine_tune_from=null model.encoder.augment=false"

Work = Callable[[], int]  # a function that returns the amount of its work: words, hypothesis-steps or images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a captioner; without one, untrained models and the loops are compared")
    parser.add_argument("--split", default="valid", help="the split whose images a checkpoint captions")
    parser.add_argument("--images", type=int, default=1000, help="images that a checkpoint captions")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="images that a checkpoint captions at once")
    parser.add_argument("--device", choices=VARIANTS, default="cpu", help="device of the comparison")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_memory()  # as every command does; it applies to the loops too
    record = describe(arguments) if arguments.checkpoint else compare(arguments)
    record = {"machine": benchmarking.machine(arguments.threads), "beam": arguments.beam, **record}
    print(json.dumps(record, indent=1))
    benchmarking.write(record, arguments.output)


def describe(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of a checkpoint: images per second, from files and from the cache."""
    captioner = seqtool.load(
        arguments.checkpoint, beam=arguments.beam, batch_size=arguments.batch_size, threads=arguments.threads
    )
    if not isinstance(captioner, Captioner):
        raise InputError(f"{arguments.checkpoint} holds a translation model: name one that describes images.")
    cache = prepare_captions(captioner.config["data"], captioner.encoder, device=captioner.device)
    split = cache.split(arguments.split)
    files = split.files[: arguments.images]
    systems: dict[str, Work] = {
        "image files": lambda: len(captioner.describe(files)),
        "cached annotation vectors": lambda: len(captioner.caption_prepared(split.pictures, range(len(files)))),
    }
    measurements = rates(systems, captioner.device, arguments.repeats)
    return {
        "checkpoint": arguments.checkpoint,
        "images": len(files),
        "batch_size": arguments.batch_size,
        "images_per_second": {name: round(median, 1) for name, median in benchmarking.medians(measurements).items()},
        "all": {name: [round(rate, 1) for rate in turns] for name, turns in measurements.items()},
    }


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of seqtool, in each precision and without its faster parts, and of the two loops."""
    torch.manual_seed(1)
    values = torch.randn(CAPTIONS, LOCATIONS, D).relu().half()
    random.seed(1)
    lengths = [min(20, max(5, round(random.gauss(11, 3)))) for _ in range(CAPTIONS)]
    captions = [[random.randrange(4, VOCABULARY) for _ in range(length)] for length in lengths]
    with initialize_config_dir(str(config_directory()), version_base=None):
        config = compose("train", SETTINGS.split())
    device, beam = torch.device(arguments.device), arguments.beam
    options = {"base": ImageCaptioner, "target_vocabulary": VOCABULARY, "pretrained": False}
    plain, ours = (build_model(config.model, parts=parts, **options).to(device) for parts in (PLAIN, parts_for(device)))
    plain.load_state_dict(ours.state_dict())
    sizes = {"D": D, "embedding": 512, "hidden": 512, "attention": 512, "vocabulary": VOCABULARY}
    loops = {"tutorial": Tutorial(**sizes).to(device), "hoisted": Hoisted(**sizes).to(device)}
    precisions = PRECISIONS[arguments.device]
    loop_precision = next(iter(precisions.values()))

    by_length = sorted(range(CAPTIONS), key=lengths.__getitem__)
    training: dict[str, Work] = {
        variant: partial(train, plain if is_plain else ours, values, captions, by_length, precision)
        for variant, (precision, is_plain) in VARIANTS[arguments.device].items()
    }
    training |= {name: partial(train_loop, loop, values, captions, loop_precision) for name, loop in loops.items()}
    trained = rates(training, device, arguments.repeats)

    decoding: dict[str, Work] = {
        name: partial(decode, optimise_for_decoding(ours, precision, device).eval(), values[:BATCH], beam, precision)
        for name, precision in precisions.items()
    }
    images = {"tutorial": BATCH // 8, "hoisted": BATCH}  # the tutorial searches image by image: the rate is the same
    decoding |= {
        name: partial(decode_loop, loop, values[: images[name]], beam, loop_precision) for name, loop in loops.items()
    }
    decoded = rates(decoding, device, arguments.repeats)
    return {
        "device": arguments.device,
        "loops": loop_precision,
        "training": table(trained, "words_per_second"),
        "decoding": table(decoded, "hypothesis_steps_per_second"),
    }


def table(measurements: dict[str, list[float]], unit: str) -> dict[str, Any]:
    """The rates of each system, and those of seqtool relative to the loops."""
    medians = benchmarking.medians(measurements)
    peers = ("tutorial", "hoisted")
    return {
        name: {
            unit: round(median),
            "all": [round(rate) for rate in measurements[name]],
            **{f"times_{peer}": round(median / medians[peer], 2) for peer in peers if name not in peers},
        }
        for name, median in medians.items()
    }


def rates(systems: Mapping[str, Work], device: torch.device, repeats: int) -> dict[str, list[float]]:
    """The amount of work that each system does per second, measured in turn."""

    def rate(work: Work) -> float:
        start = time.perf_counter()
        count = work()
        benchmarking.synchronise(device)
        return count / (time.perf_counter() - start)

    return benchmarking.measure_in_turn({name: partial(rate, work) for name, work in systems.items()}, repeats)


def words(captions: list[list[int]]) -> int:
    """The number of words, with an EOS for each caption."""
    return sum(len(ids) + 1 for ids in captions)


def batches(captions: list[list[int]], order: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Batches of the captions in an order: their rows, their ids (BOS … EOS and padding), their lengths with EOS."""
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
def train(model: Any, values: Tensor, captions: list[list[int]], order: list[int], precision: str) -> int:
    """Train a model of seqtool on all captions once."""
    loss = TrainingLoss(model, 0.0).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = parameters[0].device
    optimiser = make_optimiser({"name": "adam", "lr": 0.001}, parameters)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    for rows, target, lengths in batches(captions, order):
        tokens = int(lengths.sum())
        batch = Batch(Annotations(values[rows]), target, rows.numpy(), tokens).to(device)
        optimiser.zero_grad()
        with autocast(device, precision):
            total = loss(batch).total
        scaler.scale(total / tokens).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimiser)
        scaler.update()
    return words(captions)


def train_loop(loop: Tutorial, values: Tensor, captions: list[list[int]], precision: str) -> int:
    """Train a loop on all captions once."""
    device = next(loop.parameters()).device
    optimiser = torch.optim.Adam(loop.parameters())
    for rows, target, lengths in batches(captions, list(range(len(captions)))):
        a = values[rows].to(device).float()
        optimiser.zero_grad()
        with autocast(device, precision):
            loss = loop.loss(a, target.to(device), lengths)
        loss.backward()
        nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimiser.step()
    return words(captions)


@onednn()
@torch.no_grad()
def decode(model: Any, values: Tensor, beam: int, precision: str) -> int:
    """Caption images with a model of seqtool."""
    device = next(model.parameters()).device
    with autocast(device, precision):
        memory, state = model.encode(Annotations(values).to(device))
        hypotheses = beam_search(
            model.step,
            memory,
            state,
            beam=beam,
            maximum=[STEPS] * len(values),
            minimum=STEPS + 1,  # no caption ends before the last step
            n_best=1,
            penalty=length_penalty("average", 0.0),
            coverage=0.0,
            keep_attention=False,
        )
    assert all(len(n_best[0].tokens) == STEPS for n_best in hypotheses)
    return len(values) * beam * STEPS


def decode_loop(loop: Tutorial, values: Tensor, beam: int, precision: str) -> int:
    """Caption images with a loop."""
    device = next(loop.parameters()).device
    with autocast(device, precision):
        loop.beam_search(values.to(device).float(), beam, STEPS)
    return len(values) * beam * STEPS


if __name__ == "__main__":
    main()
