"""Batches of a text: contiguous streams side by side, read chunk after chunk."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from seqtool.data.batches import Batch, Indices
from seqtool.data.columns import Ids
from seqtool.models.tokens import BOS, PAD


class Streams:
    """A text as up to `rows` streams of equal length, a token more or less, read at most `steps` tokens at a time.

    A chunk is known by where its labels begin and end in the text and by its number, a row for each stream, B×3. The
    first token of a stream is predicted from the last one of the stream before, which is not in its state; that of the
    text from BOS.
    """

    def __init__(self, text: Ids, *, rows: int, steps: int) -> None:
        self._text = text
        self._steps = steps
        rows = max(1, min(rows, len(text)))
        self._bounds: NDArray[np.int64] = np.arange(rows + 1) * len(text) // rows

    @property
    def rows(self) -> int:
        """The number of streams."""
        return len(self._bounds) - 1

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._text)

    @property
    def chunks(self) -> int:
        """In an epoch."""
        return -(-int(np.diff(self._bounds).max(initial=0)) // self._steps)

    def chunk(self, number: int) -> Indices:
        """The places of one chunk; a stream that has ended has an empty one."""
        ends = self._bounds[1:]
        starts = np.minimum(self._bounds[:-1] + number * self._steps, ends)
        return np.stack([starts, np.minimum(starts + self._steps, ends), np.full_like(ends, number)], 1)

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "StreamEpoch":
        """The chunks of one pass over the text: the same in each, and however the rest is set."""
        return StreamEpoch(self)

    def labels(self, indices: Indices) -> int:
        return int((indices[:, 1] - indices[:, 0]).sum())

    def collate(self, indices: ArrayLike) -> Batch:
        """The chunk at these places, or some rows of it, as a batch."""
        places: Indices = np.asarray(indices, np.int64)
        target = np.full((len(places), 1 + max(1, int((places[:, 1] - places[:, 0]).max()))), PAD, np.int64)
        for row, (start, end, _) in zip(target, places, strict=True):
            row[0] = BOS if start == 0 else self._text[start - 1]
            row[1 : 1 + end - start] = self._text[start:end]
        return Batch(None, torch.from_numpy(target), places, self.labels(places), continues=bool(places[0, 2] > 0))


class StreamEpoch:
    """The chunks of one pass over the text, in their order."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def __len__(self) -> int:
        return self._streams.chunks

    def batches(self, position: int, count: int) -> list[Indices]:
        """Up to `count` chunks from `position` on."""
        return [self._streams.chunk(i) for i in range(position, min(position + count, len(self)))]

    def has_ended(self, position: int) -> bool:
        return position >= len(self)

    def share(self, position: int) -> float:
        """How much of the epoch comes before `position`."""
        return position / max(1, len(self))
