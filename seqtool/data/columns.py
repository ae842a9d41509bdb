"""Columns of token ids on disk: written a chunk at a time, and read memory-mapped.

    train.source.tokens.bin      ids end to end, two or four bytes each
    train.source.offsets.bin     where each sentence begins, and the last one ends

Every number is little-endian.
"""

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.encoding import Encoded
from seqtool.runtime.files import cut

OFFSET = np.dtype("<i8")
GIVE_BACK = 2**4  # reads, each of which may load a megabyte
NOTHING = {"sentences": 0, "tokens": 0, "unknown": 0, "bytes": 0}

Ids = NDArray[np.unsignedinteger]


class Column:
    """The sentences of one side of a split: token ids, without BOS and EOS. `stem` as in cache/…/train.source."""

    def __init__(self, stem: Path, kind: np.dtype[np.unsignedinteger]) -> None:
        self.stream: Ids = mapped(stem.with_name(f"{stem.name}.tokens.bin"), kind)  # all sentences end to end
        self._offsets = mapped(stem.with_name(f"{stem.name}.offsets.bin"), OFFSET)
        self._read = 0

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        ids = np.array(self.stream[self._offsets[index] : self._offsets[index + 1]])
        self._give_back(1)
        return ids

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths, in tokens, of the sentences with these indices."""
        lengths: NDArray[np.int64] = self._offsets[indices + 1] - self._offsets[indices]
        self._give_back(len(indices))
        return lengths

    def _give_back(self, read: int) -> None:
        """Release the files' pages after so many reads all over them; the system's cache keeps their content."""
        self._read += read
        if self._read >= GIVE_BACK:
            self._read = 0
            for values in (self.stream, self._offsets):
                if isinstance(values, np.memmap):
                    values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class ColumnsWriter:
    """Writes the columns of a split, one per side, and for captions the image that each describes.

    stem: as in cache/…/train.
    image_of: the image of every caption, including those that are left out.
    begun: how far an interrupted preparation came, in examples (`read`) and in the counts of each side.
    """

    def __init__(
        self, stem: Path, sides: Sequence[str], *, image_of: NDArray[np.int64] | None, begun: Mapping[str, Any]
    ) -> None:
        self.counts: dict[str, Mapping[str, int]] = {side: begun.get(side, NOTHING) for side in sides}
        self._image_of = image_of
        self._read = begun["read"]
        self._stem = stem
        self.keep(self.counts)

    def write(self, chunk: Encoded) -> None:
        for (name, before), side in zip(self.counts.items(), chunk.sides, strict=True):
            self._append(f"{name}.tokens", side.tokens)
            self._append(f"{name}.offsets", (before["tokens"] + np.cumsum(side.lengths)).astype(OFFSET))
            more = (len(side.lengths), len(side.tokens), side.unknown, side.tokens.nbytes)
            self.counts[name] = {key: before[key] + count for key, count in zip(NOTHING, more, strict=True)}
        if self._image_of is not None:
            images = self._image_of[self._read :][: len(chunk.kept)]
            self._append("image_of", images[chunk.kept].astype(OFFSET))
        self._read += len(chunk.kept)

    def keep(self, counts: Mapping[str, Any]) -> None:
        """Cut the files back to these counts. Extending a new file of offsets to 8 bytes writes its first offset, 0."""
        sizes = {}
        for side in self.counts:
            sizes[f"{side}.tokens"] = counts[side]["bytes"]
            sizes[f"{side}.offsets"] = OFFSET.itemsize * (counts[side]["sentences"] + 1)
            if self._image_of is not None:
                sizes["image_of"] = OFFSET.itemsize * counts[side]["sentences"]
        for name, size in sizes.items():
            with self._open(name) as file:
                cut(file, size)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        with self._open(name) as file:
            file.write(values.tobytes())

    def _open(self, name: str) -> BinaryIO:
        return self._stem.with_name(f"{self._stem.name}.{name}.bin").open("ab")


def mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The file's numbers, memory-mapped; an empty file, which cannot be mapped, gives an empty array."""
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)
