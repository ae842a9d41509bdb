"""Batches: sentences of similar length together, in an order that depends only on the seed and the epoch; or, for a
text, contiguous streams in parallel, read chunk by chunk.

Training sees both through two interfaces: `Examples`, and an `Epoch` of them. `cache.Split` reads the pairs and
captions of which `make_batch` makes a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from seqtool.models.inputs import Annotations, Pixels, Source
from seqtool.models.tokens import BOS, EOS, PAD

Ids = Sequence[int] | NDArray[np.integer]
Indices = NDArray[np.int64]

BUFFER = 2**19  # examples that are shuffled at once
BLOCKS = 64  # per buffer


@dataclass(frozen=True)
class Batch:
    """target: B×(T+1) ids, each row BOS, a sentence, EOS and then padding; indices: the examples' indices in the
    split; tokens: the number of labels that are not padding.

    continues: for streams, whether each row continues that of the batch before, and so starts from its last state.
    None if examples are independent.
    """

    source: Source | Annotations | Pixels | None
    target: Tensor
    indices: Indices
    tokens: int
    continues: bool | None = None

    @property
    def inputs(self) -> Tensor:
        """B×T: what the decoder reads."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """B×T: the tokens to predict, one position ahead of `inputs`."""
        return self.target[:, 1:]

    def pinned(self) -> "Batch":
        """The batch in pinned memory, from which a GPU copies by itself."""
        source = None if self.source is None else self.source.pinned()
        return replace(self, source=source, target=self.target.pin_memory())

    def to(self, device: torch.device | str) -> "Batch":
        source = None if self.source is None else self.source.to(device)
        return replace(self, source=source, target=self.target.to(device, non_blocking=True))


def make_batch(source: Source | Annotations | Pixels, targets: Sequence[Ids], indices: Indices) -> Batch:
    """The batch of independent examples: their sources, as an encoder takes them, and their targets' token ids."""
    return Batch(source, make_target(targets), indices, tokens=sum(len(ids) + 1 for ids in targets))


def make_source(sentences: Sequence[Ids]) -> Source:
    """Token ids without special tokens, as an encoder's input."""
    lengths = torch.tensor([len(ids) + 1 for ids in sentences], dtype=torch.int64)
    return Source(_padded(sentences, before=[]), lengths)


def make_target(sentences: Sequence[Ids]) -> Tensor:
    """Token ids without special tokens, as B×(T+1): BOS, the sentence, EOS, padding."""
    return _padded(sentences, before=[BOS])


class Examples(Protocol):
    """The examples of a split, by index: what a model is trained on."""

    @property
    def rows(self) -> int | None:
        """The parallel streams whose state is carried from batch to batch; None for independent examples."""

    def __len__(self) -> int: ...

    def labels(self, indices: Indices) -> int:
        """The number of tokens to predict in these examples."""

    def collate(self, indices: ArrayLike) -> Batch:
        """These examples as a batch, in their order. It draws no random numbers."""

    def probes(self, most: int) -> Batch:
        """Up to `most` examples of one length, always the same ones, to measure gradients with."""

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "Epoch":
        """One pass over all examples. Equal arguments give equal batches.

        Args:
            size: of a batch, in `unit`s.
            unit: `sentences` or `tokens`.
            pool: so many batches are sorted by length together.
            seed: of the run.
            epoch: the number of the pass, from 0 on.
        """


class Epoch(Protocol):
    """The batches of one pass over the examples, each as its examples' indices, by position from 0 on."""

    def __len__(self) -> int:
        """The number of batches, or an estimate."""

    def batches(self, position: int, count: int) -> list[Indices]:
        """Up to `count` batches from `position` on, at least one before the end."""

    def has_ended(self, position: int) -> bool:
        """Whether no batch is left at `position`, which `batches` has reached."""

    def fraction_done(self, position: int) -> float:
        """The fraction of the epoch before `position`, which `batches` has reached."""


class WithLengths(Protocol):
    """Examples with sources and targets of different lengths."""

    def __len__(self) -> int: ...

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """The lengths of these sources and targets, in tokens."""


class ShuffledEpoch:
    """An epoch of independent examples: each of them once.

    Up to `buffer` examples are shuffled at once. If there are more, blocks of neighbours are shuffled and divided into
    buffers of equal size, to within a block; the buffers are read, shuffled and batched one after another, so memory
    does not grow with the corpus.

    The shuffled examples are cut into pools of about `pool` batches; each pool is sorted by length and cut into batches
    of `size` sentences, or of at most `size` target tokens (EOS and padding included; a longer sentence is a batch of
    its own); the batches are shuffled.
    """

    def __init__(
        self, examples: WithLengths, *, size: int, unit: str, seed: int, epoch: int, pool: int, buffer: int = BUFFER
    ) -> None:
        self._examples = examples
        self._size, self._unit, self._pool = size, unit, pool
        self._seed = [seed, epoch]
        self._block = max(1, buffer // BLOCKS)
        self._buffers = 1 if len(examples) <= buffer else math.ceil(len(examples) / (self._block * BLOCKS))
        self._go_to(0, start=0)
        first = max(1, int(self._examples_before[-1]))
        self._expected = math.ceil(len(self._batches) * len(examples) / first)

    def __len__(self) -> int:
        """The number of batches; if there are several buffers, an estimate from the first."""
        return self._expected

    def batches(self, position: int, count: int) -> list[Indices]:
        if position < self._start:
            self._go_to(0, start=0)
        while position >= (end := self._start + len(self._batches)) and self._number < self._buffers - 1:
            self._go_to(self._number + 1, start=end)
        return self._batches[position - self._start :][:count]

    def has_ended(self, position: int) -> bool:
        return self._number == self._buffers - 1 and position >= self._start + len(self._batches)

    def fraction_done(self, position: int) -> float:
        """Counted in examples; with one buffer in batches, which is nearly the same."""
        batches = position - self._start
        if self._buffers == 1:
            return batches / max(1, len(self._batches))
        return int(self._examples_before[batches]) / len(self._examples)

    def _go_to(self, number: int, *, start: int) -> None:
        """Make the batches of a buffer, which begin at the position `start`."""
        self._number, self._start = number, start
        n, generator = len(self._examples), np.random.default_rng(self._seed)
        before = 0  # examples of other buffers
        if self._buffers == 1:
            order = generator.permutation(n)
        else:
            starts = generator.permutation(math.ceil(n / self._block)) * self._block
            ends = np.minimum(starts + self._block, n)
            first, last = (len(starts) * buffer // self._buffers for buffer in (number, number + 1))
            before = int((ends - starts)[:first].sum())
            blocks = [np.arange(*block) for block in zip(starts[first:last], ends[first:last], strict=True)]
            generator = np.random.default_rng([*self._seed, number])
            order = generator.permutation(np.concatenate(blocks))
        self._batches = self._cut(order, generator)
        self._examples_before = before + np.cumsum([0, *map(len, self._batches)])  # before each batch, and at the end

    def _cut(self, order: Indices, generator: np.random.Generator) -> list[Indices]:
        if len(order) == 0:
            return []
        size = self._size
        sources, targets = self._examples.lengths(order)
        labels = targets + 1
        sentences = size if self._unit == "sentences" else max(1, int(size / labels.mean()))  # in a batch, on average
        batches = []
        for start in range(0, len(order), self._pool * sentences):
            pool = slice(start, start + self._pool * sentences)
            by_length = np.lexsort((sources[pool], labels[pool]))  # by target, then by source
            if self._unit == "sentences":
                cuts = list(range(size, len(by_length), size))
            else:
                cuts = _token_cuts(labels[pool][by_length].tolist(), size)
            batches += np.split(order[pool][by_length], cuts)
        return [batches[place] for place in generator.permutation(len(batches))]


class Streams:
    """A text as up to `rows` streams of equal length, to within a token, read at most `steps` tokens at a time. They
    are examples, and also their only epoch: the text's chunks in order.

    A chunk's indices, B×3, say for each stream where its labels begin and end in the text, and the chunk's number.
    The first token of a stream is predicted from the last one of the stream before, but without that stream's state;
    the text's first token is predicted from BOS.
    """

    def __init__(self, text: NDArray[np.unsignedinteger], *, rows: int, steps: int) -> None:
        self.tokens = len(text)
        self.rows = max(1, min(rows, len(text)))
        self._text = text
        self._steps = steps
        self._bounds: NDArray[np.int64] = np.arange(self.rows + 1) * len(text) // self.rows

    def __len__(self) -> int:
        """The number of chunks."""
        return -(-int(np.diff(self._bounds).max(initial=0)) // self._steps)

    def chunk(self, number: int) -> Indices:
        """The indices of one chunk; a stream that has ended has an empty range."""
        ends = self._bounds[1:]
        starts = np.minimum(self._bounds[:-1] + number * self._steps, ends)
        return np.stack([starts, np.minimum(starts + self._steps, ends), np.full_like(ends, number)], 1)

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "Streams":
        """Itself: every epoch has the same batches, whatever the other settings."""
        return self

    def batches(self, position: int, count: int) -> list[Indices]:
        return [self.chunk(number) for number in range(position, min(position + count, len(self)))]

    def has_ended(self, position: int) -> bool:
        return position >= len(self)

    def fraction_done(self, position: int) -> float:
        return position / max(1, len(self))

    def probes(self, most: int) -> Batch:
        """The first chunk of up to `most` streams."""
        return self.collate(self.chunk(0)[:most])

    def labels(self, indices: Indices) -> int:
        return int((indices[:, 1] - indices[:, 0]).sum())

    def collate(self, indices: ArrayLike) -> Batch:
        """The chunk with these indices, or some of its rows, as a batch."""
        ranges: Indices = np.asarray(indices, np.int64)
        longest = max(1, int((ranges[:, 1] - ranges[:, 0]).max()))
        target = np.full((len(ranges), 1 + longest), PAD, np.int64)
        for row, (start, end, _) in zip(target, ranges, strict=True):
            row[0] = BOS if start == 0 else self._text[start - 1]
            row[1 : 1 + end - start] = self._text[start:end]
        return Batch(None, torch.from_numpy(target), ranges, self.labels(ranges), continues=bool(ranges[0, 2] > 0))


def _token_cuts(lengths: list[int], size: int) -> list[int]:
    """Where batches after the first begin in increasing lengths, if rows times the longest must stay within `size`."""
    cuts, start = [], 0
    for end, length in enumerate(lengths):
        if end > start and (end - start + 1) * length > size:
            cuts.append(end)
            start = end
    return cuts


def _padded(sentences: Sequence[Ids], *, before: list[int]) -> Tensor:
    """A row for each sentence: the tokens of `before`, the sentence, EOS and padding."""
    extra = len(before) + 1
    longest = max((len(ids) for ids in sentences), default=0)
    tokens = np.full((len(sentences), longest + extra), PAD, dtype=np.int64)
    for row, ids in zip(tokens, sentences, strict=True):
        row[: len(ids) + extra] = np.concatenate([before, ids, [EOS]])
    return torch.from_numpy(tokens)
