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
from tqdm import tqdm

from seqtool import plots
from seqtool.captioner import Caption, Captioner
from seqtool.data.images import fit, read_image
from seqtool.data.text_files import replacing
from seqtool.errors import InputError

FORMATS = ("text", "jsonl", "coco")
SHOWN = 256  # pixels of a side, at least, of the pictures that attention is drawn over


@dataclass
class CaptionSettings:
    """The settings of configs/caption.yaml about what is written, and where."""

    format: str
    output: str | None
    plot: str | None

    def check(self) -> None:
        """Raise InputError on an unknown format."""
        if self.format not in FORMATS:
            raise InputError(f"Unknown format '{self.format}'; choose from {', '.join(FORMATS)}.")


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
        if kind is None and self.settings.format == "coco":
            self.out.write(json.dumps(self.results, ensure_ascii=False) + "\n")
        self.stack.__exit__(kind, error, trace)

    def write_all(self, images: Sequence[str]) -> None:
        """Raises InputError where not one of the images can be read."""
        with tqdm(total=len(images), unit="image", disable=None, desc="caption") as bar:
            for name, captions in self.captioner.described(images):
                if isinstance(captions, InputError):
                    tqdm.write(f"Left out: {captions}", file=sys.stderr)
                else:
                    self._write(name, captions)
                bar.update()
        if images and not self.count:
            raise InputError("None of the images can be read.")
        if self.count < len(images):
            print(f"{len(images) - self.count:,} of {len(images):,} images were left out.", file=sys.stderr)

    def _write(self, name: str, captions: Sequence[Caption]) -> None:
        self.count += 1
        self._write_text(name, captions)
        if self.plot is not None and captions[0].words:
            self._draw(name, captions[0], self.plot)
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

    def _draw(self, name: str, caption: Caption, folder: Path) -> None:
        assert caption.attention is not None
        encoder = self.captioner.encoder
        image = fit(read_image(name), size=max(encoder.size, SHOWN), mode=encoder.fit)
        stem = re.sub(r"[^\w.-]+", "_", PurePosixPath(name).stem)[:80]
        plots.attention_over_image(
            image,
            caption.words,
            caption.attention.reshape(-1, *caption.grid),
            folder / f"caption-{self.count:04d}-{stem}.png",
            chosen=caption.chosen,
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
