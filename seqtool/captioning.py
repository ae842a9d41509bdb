"""`caption`: which images are described and where captions go."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from seqtool import plots
from seqtool.captioner import Caption, Captioner
from seqtool.data.text_files import one_line, replacing
from seqtool.errors import InputError

FORMATS = ("text", "jsonl", "coco")


@dataclass
class CaptionSettings:
    """The settings of configs/caption.yaml about what is written, and where."""

    format: str
    output: str | None
    plot: str | None

    def check(self, *, n_best: int) -> None:
        """Raise InputError on an unknown format, or one that cannot hold what is asked for."""
        if self.format not in FORMATS:
            raise InputError(f"Unknown format '{self.format}'; choose from {', '.join(FORMATS)}.")
        if self.format == "coco" and n_best > 1:
            raise InputError("format=coco has one caption an image: leave n_best out, or choose format=jsonl.")


class CaptionWriter:
    """Describes images and writes what it finds, in order; bad images are reported and left out.

    Output files appear complete or not at all.
    """

    def __init__(self, settings: CaptionSettings, captioner: Captioner) -> None:
        if settings.plot is not None and not captioner.attends:
            raise InputError("plot=… needs a model with attention; this one has a fixed context.")
        self.settings = settings
        self.captioner = captioner
        self.plot = None if settings.plot is None else Path(settings.plot)
        self.count = 0
        self.results: list[dict[str, Any]] = []  # COCO's format is one JSON list

    def __enter__(self) -> "CaptionWriter":
        self.stack = ExitStack()
        if self.plot is not None:
            self.plot.mkdir(parents=True, exist_ok=True)
        output = self.settings.output
        self.out: TextIO = self.stack.enter_context(replacing(Path(output))) if output is not None else sys.stdout
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stack.__exit__(kind, error, trace)
            return
        with self.stack:
            if self.settings.format == "coco":
                self.out.write(json.dumps(self.results, ensure_ascii=False) + "\n")

    def write_all(self, images: Sequence[str]) -> None:
        """Raises InputError where not one of the images can be read."""
        if self.settings.format == "coco":
            _check_ids(images)
        with tqdm(total=len(images), unit="image", disable=None, desc="caption") as bar:
            for name, seen, captions in self.captioner.described(images):
                if isinstance(captions, InputError):
                    tqdm.write(f"Left out: {captions}", file=sys.stderr)
                else:
                    self._write(name, seen, captions)
                bar.update()
        if images and not self.count:
            raise InputError("None of the images can be read.")
        if self.count < len(images):
            print(f"{len(images) - self.count:,} of {len(images):,} images were left out.", file=sys.stderr)

    def _write(self, name: str, seen: NDArray[np.uint8], captions: Sequence[Caption]) -> None:
        self.count += 1
        self._write_text(one_line(name), captions)
        best = captions[0]
        if self.plot is not None and best.words and best.attention is not None:
            stem = re.sub(r"[^\w.-]+", "_", PurePosixPath(one_line(name)).stem)[:80]
            file = self.plot / f"caption-{self.count:04d}-{stem}.png"
            maps = best.attention.reshape(-1, *best.grid)
            plots.attention_over_image(seen, best.words, maps, file, chosen=best.chosen)
        self.out.flush()

    def _write_text(self, name: str, captions: Sequence[Caption]) -> None:
        if self.settings.format == "coco":
            self.results.append({"image_id": image_id(name), "caption": captions[0].text})
        elif self.settings.format == "jsonl":
            record = {"image": name, "captions": [_record(caption) for caption in captions]}
            self.out.write(json.dumps(record, ensure_ascii=False) + "\n")
        elif self.captioner.settings.n_best == 1:
            self.out.write(f"{name}\t{captions[0].text}\n")
        else:
            for caption in captions:
                self.out.write(f"{name}\t{caption.text}\t{caption.score:.6f}\n")


def _check_ids(images: Sequence[str]) -> None:
    known: dict[int | str, str] = {}
    for name in images:
        other = known.setdefault(image_id(name), name)
        if other != name:
            raise InputError(
                f"{other} and {name} would both have the image id {image_id(name)}: describe them in two calls, or "
                "choose format=jsonl."
            )


def image_id(name: str) -> int | str:
    """COCO's number, where the file is named as COCO names files (COCO_val2014_000000000042.jpg, 000000000042.jpg);
    otherwise the file's name.
    """
    match = re.fullmatch(r"(?:COCO_\w+_)?(\d{12})", PurePosixPath(name).stem)
    return int(match[1]) if match else PurePosixPath(name).name


def _record(caption: Caption) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": caption.text,
        "score": caption.score,
        "log_probability": caption.log_probability,
        "words": caption.words,
    }
    if caption.attention is not None:  # of each word, the location with the most attention: row, column
        rows, columns = np.unravel_index(caption.attention.argmax(-1), caption.grid)
        record["attended"] = [[int(row), int(column)] for row, column in zip(rows, columns, strict=True)]
    return record
