"""Image files to pixels of one size, over several processes; none of them imports torch."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data import workers
from seqtool.data.images import ImageError, fit, open_image

CHUNK = 64  # images that are read together, and then go through the backbone together
SMALL = 4 * CHUNK  # fewer images are read sooner than other processes start


@dataclass(frozen=True)
class Chunk:
    """pixels: images×3×size×size of the images that can be read; refused: of the others why not, a clause without
    the file's name, by place in the chunk.
    """

    pixels: NDArray[np.uint8]
    refused: dict[int, str]


def load(files: Sequence[Path], *, size: int, mode: str, processes: int | None) -> Generator[Chunk, None, None]:
    """The images, `CHUNK` at a time in their order, fitted to size×size pixels (`mode` as for `images.fit`)."""
    number = workers.number(processes) if len(files) >= SMALL else 1
    chunks = (files[start : start + CHUNK] for start in range(0, len(files), CHUNK))
    return workers.in_order(partial(_load, size=size, mode=mode), chunks, workers=number)


def _load(files: Sequence[Path], *, size: int, mode: str) -> Chunk:
    pixels = np.empty((len(files), 3, size, size), np.uint8)
    refused: dict[int, str] = {}
    for place, file in enumerate(files):
        try:
            pixels[place - len(refused)] = fit(open_image(file, name=str(file)), size=size, mode=mode).transpose(
                2, 0, 1
            )
        except ImageError as error:
            refused[place] = error.reason
    return Chunk(pixels[: len(files) - len(refused)], refused)
