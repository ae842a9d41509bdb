#!/usr/bin/env python
"""Measure how often captions of the built-in images are true, and attention lies on the objects that they name.

    python scripts/evaluate_scenes.py checkpoint=runs/scenes [data=data/scenes] [split=test] [output=FILE.json]

Further settings are those of `seqtool.load`: beam=5, threads=1, hard_attention=sample and so on.

true        the share of captions that can be parsed and whose claims are all true: shape, colour, size, number,
            place and relation (scene_captions.py)
recall      the share of the kinds (shape, colour and number) and relations in a scene's references that are also
            in its caption; mean over scenes
attention   the share of object words whose cell with the most attention overlaps a box of one of their objects. An
            object word is the noun of a noun phrase whose kind is in the scene
chance      this share if cells were drawn uniformly: the mean share of cells that overlap such a box
"""

import json
import os
import platform
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from scene_captions import is_true, object_words, read_scenes, recall

import seqtool
from seqtool.data.corpora.scene_drawing import SIDE, Box, Scene
from seqtool.data.corpora.scenes import read_captions
from seqtool.data.text.words import words_and_punctuation
from seqtool.errors import InputError
from seqtool.predict.captioner import Caption, Captioner
from seqtool.settings import declarations

DEFAULTS = {"checkpoint": "", "data": "data/scenes", "split": "test", "output": ""}
SCORED = {name for name, setting in declarations.command_settings("eval").items() if setting.scored}
SCENE_KINDS = ("one object", "one kind", "two kinds", "three kinds")

Cell = tuple[int, int]  # row and column


def main(arguments: Sequence[str]) -> None:
    settings = DEFAULTS | dict(_setting(argument) for argument in arguments)
    checkpoint, data, split, output = (settings.pop(name) for name in DEFAULTS)
    if not checkpoint:
        raise InputError("checkpoint=… is missing: name a run or a checkpoint.")
    images, scenes = read_captions(Path(data), split), read_scenes(Path(data), split)
    options: Any = OmegaConf.to_container(
        OmegaConf.from_dotlist([f"{name}={value}" for name, value in settings.items()])
    )
    captioner = seqtool.load(checkpoint, **options)
    if not isinstance(captioner, Captioner):
        raise InputError(f"{checkpoint} holds a translation model: name one that describes images.")
    captions = [n_best[0] for n_best in captioner.describe([str(image.file) for image in images])]
    record = measure(captions, [scenes[image.identifier] for image in images], [image.captions for image in images])
    record["untrue"] = [
        {"file": f"{split}/{image.identifier}", "caption": caption.text, "reference": image.captions[0]}
        for image, caption in zip(images, captions, strict=True)
        if not is_true(caption.text, scenes[image.identifier])
    ]
    print(table(record))
    if output:
        settings_used = {name: value for name, value in asdict(captioner.settings).items() if name in SCORED}
        record["checkpoints"] = [str(each.path) for each in captioner.checkpoints]
        record["decoding"] = {name: value for name, value in settings_used.items() if value is not None}
        record = {"command": shlex.join(["python", *sys.argv]), "hardware": hardware(), **record}
        Path(output).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def measure(
    captions: Sequence[Caption], scenes: Sequence[Scene], references: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Compute the shares defined in the module's docstring; attention and chance are None for a model without
    attention.
    """
    truths: dict[str, list[bool]] = defaultdict(list)
    recalls, hits, chances = [], [], []
    for caption, scene, scene_references in zip(captions, scenes, references, strict=True):
        truths[_kind(scene)].append(is_true(caption.text, scene))
        recalls.append(recall(caption.text, scene_references))
        if caption.attention is None:
            continue
        if caption.words != words_and_punctuation(caption.text):
            raise InputError(
                "The model writes pieces of words: attention is measured only for models with vocabulary.kind=word."
            )
        for word, boxes in object_words(caption.text, scene):
            object_cells = cells(boxes, caption.grid)
            hits.append(most_attended(caption, word) in object_cells)
            chances.append(len(object_cells) / (caption.grid[0] * caption.grid[1]))
    return {
        "scenes": len(captions),
        "true": _mean([truth for kind_truths in truths.values() for truth in kind_truths]),
        "recall": _mean(recalls),
        "true_by_kind": {kind: _mean(truths[kind]) for kind in SCENE_KINDS if kind in truths},
        "object_words": len(hits),
        "attention": _mean(hits) if hits else None,
        "chance": _mean(chances) if hits else None,
    }


def most_attended(caption: Caption, word: int) -> Cell:
    """The row and column of the cell with the most attention at this word."""
    assert caption.attention is not None
    row, column = divmod(int(caption.attention[word].argmax()), caption.grid[1])
    return row, column


def cells(boxes: Sequence[Box], grid: tuple[int, int]) -> set[Cell]:
    """The cells of the grid, which covers the whole picture, that overlap a box."""
    height, width = SIDE / grid[0], SIDE / grid[1]
    return {
        (row, column)
        for row in range(grid[0])
        for column in range(grid[1])
        for left, top, right, bottom in boxes
        if column * width < right and (column + 1) * width > left and row * height < bottom and (row + 1) * height > top
    }


def table(record: Mapping[str, Any]) -> str:
    """The record as a table for people."""
    rows = [("scenes", f"{record['scenes']:,}"), ("true", f"{record['true']:.1%}")]
    rows += [(f"  {kind}", f"{share:.1%}") for kind, share in record["true_by_kind"].items()]
    rows.append(("recall", f"{record['recall']:.1%}"))
    if record["attention"] is not None:
        rows.append(("object words", f"{record['object_words']:,}"))
        rows.append(("attention", f"{record['attention']:.1%} (chance {record['chance']:.1%})"))
    return "\n".join(f"{name:<15}{value}" for name, value in rows)


def hardware() -> str:
    """The machine, with its versions of Python and torch."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{platform.machine()}, {cpus} CPUs, {torch.get_num_threads()} threads{gpu}, {versions}"


def _kind(scene: Scene) -> str:
    """The kind of a scene, one of SCENE_KINDS."""
    kinds = len({(item.shape, item.colour) for item in scene.items})
    return SCENE_KINDS[0] if len(scene.items) == 1 else SCENE_KINDS[kinds]


def _setting(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals:
        raise InputError(f"'{argument}' is not a setting: write key=value.")
    return name, value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(str(error))
