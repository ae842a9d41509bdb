"""Image files to pixels of one size, over several processes; none of them imports torch."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data.images.image_decoding import ImageError, fit, open_image
from seqtool.errors import InputError, UnfinishedError
from seqtool.runtime.workers import in_order

CHUNK = 64  # images that are read, and go through the backbone, together
SMALL = 4 * CHUNK  # fewer images are read before other processes could start
MOST_BYTES = 2**30  # of a file: files are read whole, in several processes at once


@dataclass(frozen=True)
class Chunk:
    """pixels: images×3×size×size of the images that can be read; refused: by place in the chunk, why the others
    cannot, as a clause without the file's name.
    """

    pixels: NDArray[np.uint8]
    refused: dict[int, str]


def load(
    images: Sequence[tuple[str, Path]], *, size: int, mode: str, processes: int | None
) -> Generator[Chunk, None, None]:
    """The images, each a file and the SHA-256 of its content, `CHUNK` at a time in their order, fitted to size×size
    pixels (`mode` as for `images.fit`). Raises InputError if a file's content is different, or it is gone.
    """
    chunks = (images[start : start + CHUNK] for start in range(0, len(images), CHUNK))
    return in_order(partial(_load, size=size, mode=mode), chunks, processes=processes if len(images) >= SMALL else 1)


def _load(images: Sequence[tuple[str, Path]], *, size: int, mode: str) -> Chunk:
    pixels = np.empty((len(images), 3, size, size), np.uint8)
    refused: dict[int, str] = {}
    for place, (digest, file) in enumerate(images):
        try:
            image = open_image(BytesIO(_content(file, digest)), name=str(file))
            pixels[place - len(refused)] = fit(image, size=size, mode=mode).transpose(2, 0, 1)
        except ImageError as error:
            refused[place] = error.reason
    return Chunk(pixels[: len(images) - len(refused)], refused)


def _content(file: Path, expected: str) -> bytes:
    """The file's content, checked, so that its row in the store is computed from the content that names it."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
            digest = sha256(content)
            while more := stream.read(MOST_BYTES):
                digest.update(more)
    except OSError as error:
        raise UnfinishedError(f"{file} can no longer be read ({error.strerror}): prepare again once it can.") from error
    if digest.hexdigest() != expected:
        raise InputError(f"{file} changed while it was read: prepare again.")
    if len(content) > MOST_BYTES:
        raise ImageError(str(file), f"has more than {MOST_BYTES >> 30} GB: make it smaller.")
    return content
