"""`seqtool caption`: images in, captions out."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.data.corpora.coco import image_id
from seqtool.data.images.finding import find_images
from seqtool.errors import InputError
from seqtool.predict.captioner import Caption, Captioner
from seqtool.predict.predictor import END
from seqtool.predict.writing import OutputSettings, Writer
from seqtool.runtime import distributed
from seqtool.runtime.files import one_line, replacing, without_suffix
from seqtool.runtime.outputs import check_outputs
from seqtool.settings import declarations, names
from seqtool.view import plots


@dataclass
class CaptionSettings(declarations.Caption, OutputSettings):
    """The settings of configs/caption.yaml for finding images and for the output."""

    def find(self) -> list[str]:
        """The images. Raises InputError if there is none, or if the output would overwrite one."""
        given = names(self.images)
        images = find_images(given, recursive=self.recursive)
        check_outputs({"output": self.output}, ((one, one) for one in (*given, *images)))
        if not images:
            raise InputError("images=… names no image.")
        return images


def caption(config: DictConfig) -> None:
    """Describe images; only captions go to standard output."""
    settings = CaptionSettings.of(config, Captioner)
    with distributed.group():
        images = distributed.from_first(settings.find)
        with CaptionWriter(settings, Captioner.configured(config)).opened() as writer:
            writer.write_all(images)


class CaptionWriter(Writer[Caption]):
    """Writes captions of images; bad images are reported and left out."""

    unit = "image"
    keys = "image", "captions"
    best = "{source}\t{text}"
    ranked = "{source}\t{text}\t{score:.6f}"
    separator = "\t"

    def __init__(self, settings: CaptionSettings, captioner: Captioner) -> None:
        super().__init__(settings, captioner)
        if self.format == "coco" and not self.single():
            raise InputError("format=coco has one caption an image: leave n_best out, or choose format=jsonl.")
        self.captioner = captioner
        self.results: list[dict[str, Any]] = []  # COCO's format is one JSON list

    def file(self, path: str, stack: ExitStack) -> TextIO:
        if self.format == "coco" and distributed.is_first():  # it has no lines, so part of it is of no use
            return stack.enter_context(replacing(Path(path)))
        return super().file(path, stack)

    def write_all(self, images: Sequence[str]) -> None:
        """Raises InputError if none of the images can be read."""
        if self.format == "coco":
            images = list(dict.fromkeys(images))  # one caption an image
            _check_ids(images)
        with self.progress(len(images)) as bar:
            for name, seen, captions in self.captioner.described(images, likeliest=self.likeliest):
                if isinstance(captions, InputError):
                    tqdm.write(f"Left out: {captions}", file=sys.stderr)
                else:
                    self.write(one_line(name), captions)
                    self._draw(one_line(name), seen, captions[0])
                    self.out.flush()
                bar.update()
        if not self.count:
            raise InputError("None of the images can be read.")
        if self.count < len(images):
            print(f"{len(images) - self.count:,} of {len(images):,} images were left out.", file=sys.stderr)
        if self.format == "coco":
            self.out.write(json.dumps(self.results, ensure_ascii=False) + "\n")

    def text(self, source: str, n_best: Sequence[Caption]) -> str:
        if self.format != "coco":
            return super().text(source, n_best)
        self.results.append({"image_id": _id(source), "caption": n_best[0].text})
        return ""

    def _draw(self, name: str, seen: NDArray[np.uint8], caption: Caption) -> None:
        if self.plot is not None and caption.attention is not None and caption.words:
            stem = re.sub(r"[^\w.-]+", "_", without_suffix(PurePosixPath(name).name))[:80]
            file = self.plot / f"caption-{self.count:04d}-{stem}.png"
            whole = caption.whole_attention if self.end and caption.ended else caption.attention
            words = [*caption.words, END] if self.end and caption.ended else caption.words
            maps = np.asarray(whole).reshape(-1, *caption.grid)
            with plots.or_left_out(file):
                plots.attention_over_image(seen, words, maps, file, chosen=caption.chosen)


def _check_ids(images: Sequence[str]) -> None:
    known: dict[int | str, str] = {}
    for name in images:
        other = known.setdefault(_id(name), name)
        if other != name:
            raise InputError(
                f"{other} and {name} would both have the image id {_id(name)}: describe them in two calls, or "
                "choose format=jsonl."
            )


def _id(name: str) -> int | str:
    return image_id(PurePosixPath(name).name)
