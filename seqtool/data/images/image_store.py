"""The image store: annotation vectors, or pixels, of many images, made once and read memory-mapped.

    cache/images-vgg19-1f2e3d4c5b6a/
        values.bin      float16 annotation vectors N×S×D, or uint8 pixels N×3×size×size (cache/images-pixels-…)
        digests.txt     SHA-256 of each row's image file, sorted: row i belongs to the i-th of them
        summary.json    grid, dimension, backbone, a hash of its weights, which images were refused and why, versions

It is named by the content of the images and by what the backbone computes from them, not by file names, splits or
captions: corpora that share their images share the store.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from seqtool.data.directories import SUMMARY, read_summary
from seqtool.data.images.image_decoding import ImageError, open_image
from seqtool.errors import InputError
from seqtool.models.inputs import Annotations, Pixels

FORMAT = 2  # of the directory; it enters the directory's name
VALUES, DIGESTS = "values.bin", "digests.txt"


class ImageStore:
    """Stored annotation vectors or pixels of images, by row.

    For the files that the store was prepared for:
    digests: of their content, None if there is none.
    rows: where their images are, -1 if refused.
    refused: a sentence that says why, by the file's index.

    For annotation vectors, otherwise None:
    locations: rows and columns of the grid.
    dimension: of a vector.
    """

    def __init__(self, directory: Path, files: Sequence[Path] = (), digests: Sequence[str | None] = ()) -> None:
        """Raises InputError unless the directory is a complete store."""
        self.directory = directory
        self.summary = summary = read_summary(directory, form=FORMAT, kind="an image store")
        self.locations: tuple[int, int] | None = None
        self.dimension: int | None = None
        try:
            if summary["locations"] is not None:
                rows, columns = summary["locations"]
                self.locations, self.dimension = (rows, columns), summary["dimension"]
            kind = "|u1" if self.locations is None else "<f2"
            _, _, *others = shape = tuple(summary["shape"])
            if summary["type"] != kind or len(others) != (2 if self.locations is None else 1):
                raise ValueError("another type or shape")
            self._values = np.memmap(directory / VALUES, kind, mode="r", shape=shape)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{directory / SUMMARY} is damaged: remove {directory} and prepare again.") from error
        row_of = {digest: row for row, digest in enumerate((directory / DIGESTS).read_text().split())}
        self.digests = digests
        self.rows = np.array([row_of.get(digest or "", -1) for digest in digests], np.int64)
        self.refused: dict[int, str] = {}
        for i in np.flatnonzero(self.rows < 0).tolist():
            reason = summary["refused"].get(digests[i])
            self.refused[i] = unreadable(files[i]) if reason is None else f"{files[i]} {reason}"

    def __len__(self) -> int:
        return len(self._values)

    def source(self, rows: Sequence[int] | NDArray[np.integer]) -> Annotations | Pixels:
        """A captioner's input for the images in these rows; one gather from the mapped file."""
        values = torch.from_numpy(np.asarray(self._values[np.asarray(rows, np.int64)]))
        return Pixels(values) if self.locations is None else Annotations(values)

    def fits(self, backbone: nn.Module) -> bool:
        """Whether the stored pixels fit this backbone's input, or the stored annotation vectors are its output."""
        return self.locations is None or self.summary["weights"] == weights_digest(backbone)

    def describe(self) -> str:
        """A line that says what is stored, of which backbone, and how much."""
        summary, shape = self.summary, self._values.shape
        size = f"{shape[0]:,} images, {size_text(self._values.nbytes)}"
        if self.locations is None:
            return f"pixels {shape[2]}×{shape[3]} ({summary['fit']}): {size}"
        layer = f", layer {summary['layer']}" if summary["layer"] is not None else ""
        rows, columns = self.locations
        return f"annotation vectors {rows}×{columns}×{self.dimension} ({summary['backbone']}{layer}): {size}"


def weights_digest(module: nn.Module) -> str:
    """A hash of all parameters and buffers: names, types, shapes and bytes."""
    content = hashlib.sha256()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def is_store(path: Path) -> bool:
    """Whether the directory was made by `prepare_store`."""
    return (path / SUMMARY).is_file() and (path / DIGESTS).is_file()


def size_text(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def unreadable(file: Path) -> str:
    """Why the file has no digest."""
    try:
        open_image(file, name=str(file))
    except ImageError as error:
        return str(error)
    return f"{file} could not be read at first."
