"""Batches of examples, and the order in which an epoch visits them.

Sentences of similar length are batched together, in an order that depends only on the seed and the epoch. Plain text is
read as contiguous streams in parallel, chunk by chunk. Training uses both through the interfaces `Examples` and
`Epoch`. `cache.Split` reads pairs and captions and makes batches of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from seqtool.models.inputs import Images, Source, Tensors
from seqtool.models.tokens import BOS, EOS, PAD

Ids = Sequence[int] | NDArray[np.integer]
Indices = NDArray[np.int64]

BUFFER = 2**19  # examples that are shuffled together; 2**22 took more memory
BLOCKS_PER_BUFFER = 64  # neighbouring examples stay together in a block, so that a buffer is read in few places


@dataclass(frozen=True)
class Batch(Tensors):
    """A batch of examples."""

    source: Source | Images | None  # the encoder's input; None for a language model
    target: Tensor  # B×(T+1) ids; each row is BOS, a sentence, EOS and padding
    indices: Indices  # the examples' indices in the split
    tokens: int  # the number of labels that are not padding
    continues: bool | None = None  # whether rows continue those of the batch before; None for independent examples

    @property
    def inputs(self) -> Tensor:
        """B×T: the tokens that the decoder reads."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """B×T: the tokens to predict, one position ahead of `inputs`."""
        return self.target[:, 1:]


def shared(images: Images, row: NDArray[np.int64]) -> Images:
    """The images of a batch of captions, each of which describes the image in its `row`."""
    count = len(images.values)
    groups = row.reshape(-1, len(row) // count if count and len(row) % count == 0 else 1)
    if (groups != groups[:, :1]).any():  # images have different numbers of captions, or captions are mixed
        groups = row[:, None]
    is_in_order = np.array_equal(groups[:, 0], np.arange(count))
    rows = None if is_in_order else torch.from_numpy(groups[:, 0].copy())
    return replace(images, rows=rows, captions_each=groups.shape[1])


def make_source(sentences: Sequence[Ids]) -> Source:
    """Make an encoder's input from token ids without special tokens."""
    lengths = torch.tensor([len(ids) + 1 for ids in sentences], dtype=torch.int64)
    return Source(_pad(sentences, prefix=[]), lengths)


def make_target(sentences: Sequence[Ids]) -> Tensor:
    """Make the B×(T+1) target from ids without special tokens: each row is BOS, the sentence, EOS and padding."""
    return _pad(sentences, prefix=[BOS])


class Examples(Protocol):
    """The examples of a split on which a model is trained. Each has an index."""

    @property
    def stream_count(self) -> int | None:
        """The number of parallel streams whose state is carried from batch to batch; None for independent examples."""

    def __len__(self) -> int: ...

    def count_labels(self, indices: Indices) -> int:
        """The number of tokens to predict in these examples."""

    def count_targets(self, indices: Indices) -> int:
        """The number of sequences to predict in these examples: one each, or all captions of an image."""

    def collate(self, indices: ArrayLike) -> Batch:
        """Make a batch of these examples, in this order, without drawing random numbers."""

    def probes(self, limit: int) -> Batch:
        """Make a batch of up to `limit` examples of equal length for measuring gradients; always the same batch."""

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "Epoch":
        """One pass over all examples. Equal arguments give equal batches.

        size: the size of a batch, in `unit`s.
        unit: `sentences` or `tokens`.
        pool: the number of batches whose examples are sorted by length together.
        seed: the run's seed.
        epoch: the number of the pass, counted from 0.
        """


class Epoch(Protocol):
    """The batches of one pass over the examples, numbered from 0. A batch is the array of its examples' indices."""

    def __len__(self) -> int:
        """The number of batches, or an estimate of it."""

    def batches(self, position: int, count: int) -> list[Indices]:
        """Up to `count` batches, starting at `position`; at least one unless the epoch has ended."""

    def fraction_done(self, position: int) -> float:
        """The fraction of the epoch before `position`. Call `batches` with this position first."""


class HasLengths(Protocol):
    """Examples whose sources and targets have different lengths."""

    def __len__(self) -> int: ...

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """The lengths in tokens of these examples' sources and of their targets."""


class ShuffledEpoch:
    """An epoch of independent examples, which visits each of them once.

    Up to `buffer` examples are shuffled at once. If there are more, blocks of neighbours are shuffled and divided into
    buffers of equal size, to within a block. The buffers are read, shuffled and batched one after another, so that
    memory does not grow with the corpus.

    The shuffled examples are cut into pools of about `pool` batches. Each pool is sorted by length and cut into batches
    of `size` sentences, or of at most `size` target tokens, including EOS and padding; a longer sentence is a batch by
    itself. Then the batches are shuffled.
    """

    def __init__(
        self, examples: HasLengths, *, size: int, unit: str, seed: int, epoch: int, pool: int, buffer: int = BUFFER
    ) -> None:
        self._examples = examples
        self._size, self._unit, self._pool, self._seed = size, unit, pool, [seed, epoch]
        self._block_size = max(1, buffer // BLOCKS_PER_BUFFER)
        buffer_size = self._block_size * BLOCKS_PER_BUFFER
        self._buffer_count = 1 if len(examples) <= buffer else math.ceil(len(examples) / buffer_size)
        self._load_buffer(0, start=0)
        first_buffer_size = max(1, int(self._examples_before[-1]))
        self._expected_batches = math.ceil(len(self._batches) * len(examples) / first_buffer_size)

    def __len__(self) -> int:
        """The number of batches; with several buffers, an estimate from the first buffer."""
        return self._expected_batches

    def batches(self, position: int, count: int) -> list[Indices]:
        if position < self._start:
            self._load_buffer(0, start=0)
        while position >= (end := self._start + len(self._batches)) and self._buffer_number < self._buffer_count - 1:
            self._load_buffer(self._buffer_number + 1, start=end)
        return self._batches[position - self._start :][:count]

    def fraction_done(self, position: int) -> float:
        """The fraction of examples before `position`; with a single buffer, the similar fraction of batches."""
        batches = position - self._start
        if self._buffer_count == 1:
            return batches / max(1, len(self._batches))
        return int(self._examples_before[batches]) / len(self._examples)

    def _load_buffer(self, number: int, *, start: int) -> None:
        """Make the batches of a buffer; the first of them has the position `start`."""
        self._buffer_number, self._start = number, start
        n, generator = len(self._examples), np.random.default_rng(self._seed)
        examples_before_buffer = 0  # the number of examples in earlier buffers
        if self._buffer_count == 1:
            order = generator.permutation(n)
        else:
            starts = generator.permutation(math.ceil(n / self._block_size)) * self._block_size
            ends = np.minimum(starts + self._block_size, n)
            first, last = (len(starts) * buffer // self._buffer_count for buffer in (number, number + 1))
            examples_before_buffer = int((ends - starts)[:first].sum())
            blocks = [np.arange(*block) for block in zip(starts[first:last], ends[first:last], strict=True)]
            generator = np.random.default_rng([*self._seed, number])
            order = generator.permutation(np.concatenate(blocks))
        self._batches = self._make_batches(order, generator)
        # the number of examples before each batch, and before the next buffer
        self._examples_before = examples_before_buffer + np.cumsum([0, *map(len, self._batches)])

    def _make_batches(self, order: Indices, generator: np.random.Generator) -> list[Indices]:
        """Cut shuffled examples into batches of similar length, in random order."""
        if len(order) == 0:
            return []
        size = self._size
        source_lengths, target_lengths = self._examples.lengths(order)
        label_counts = target_lengths + 1
        # with the unit "tokens", the average over batches
        sentences_per_batch = size if self._unit == "sentences" else max(1, int(size / label_counts.mean()))
        batches = []
        for start in range(0, len(order), self._pool * sentences_per_batch):
            pool = slice(start, start + self._pool * sentences_per_batch)
            by_length = np.lexsort((source_lengths[pool], label_counts[pool]))  # by target, then by source
            if self._unit == "sentences":
                cuts = list(range(size, len(by_length), size))
            else:
                cuts = _token_cuts(label_counts[pool][by_length].tolist(), size)
            batches += np.split(order[pool][by_length], cuts)
        return [batches[index] for index in generator.permutation(len(batches))]


class Streams:
    """A text divided into up to `stream_count` streams of equal length, read in parallel, `steps` tokens at a time.

    It is both an `Examples` and an `Epoch`, since all epochs have the same batches: the text's chunks in order.

    A chunk's indices are B×3: for each stream, the positions in the text where its labels begin and end, and the
    chunk's number. The first token of a stream is predicted from the last token of the previous stream, but without
    that stream's state; the text's first token is predicted from BOS.
    """

    def __init__(self, text: NDArray[np.unsignedinteger], *, stream_count: int, steps: int) -> None:
        self.tokens = len(text)
        self.stream_count = max(1, min(stream_count, len(text)))
        self._text = text
        self._steps = steps
        self._bounds: NDArray[np.int64] = np.arange(self.stream_count + 1) * len(text) // self.stream_count

    def __len__(self) -> int:
        """The number of chunks."""
        return -(-int(np.diff(self._bounds).max(initial=0)) // self._steps)

    def chunk(self, number: int) -> Indices:
        """The indices of the chunk with this number; a stream that has ended has an empty range."""
        ends = self._bounds[1:]
        starts = np.minimum(self._bounds[:-1] + number * self._steps, ends)
        return np.stack([starts, np.minimum(starts + self._steps, ends), np.full_like(ends, number)], 1)

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "Streams":
        """The streams themselves: every epoch has the same batches, whatever the arguments."""
        return self

    def batches(self, position: int, count: int) -> list[Indices]:
        return [self.chunk(number) for number in range(position, min(position + count, len(self)))]

    def fraction_done(self, position: int) -> float:
        return position / max(1, len(self))

    def probes(self, limit: int) -> Batch:
        """The first chunk of the first `limit` streams."""
        return self.collate(self.chunk(0)[:limit])

    def count_labels(self, indices: Indices) -> int:
        return int((indices[:, 1] - indices[:, 0]).sum())

    def count_targets(self, indices: Indices) -> int:
        return len(indices)

    def collate(self, indices: ArrayLike) -> Batch:
        """Make a batch of a chunk. The indices may be those of all its streams or of some streams."""
        ranges: Indices = np.asarray(indices, np.int64)
        longest = max(1, int((ranges[:, 1] - ranges[:, 0]).max()))
        target = np.full((len(ranges), 1 + longest), PAD, np.int64)
        for row, (start, end, _) in zip(target, ranges, strict=True):
            row[0] = BOS if start == 0 else self._text[start - 1]
            row[1 : 1 + end - start] = self._text[start:end]
        tokens, continues = self.count_labels(ranges), bool(ranges[0, 2] > 0)
        return Batch(None, torch.from_numpy(target), ranges, tokens, continues)


def _token_cuts(lengths: list[int], size: int) -> list[int]:
    """The indices at which to cut increasing lengths into batches with at most `size` tokens, padding included."""
    cuts, start = [], 0
    for end, length in enumerate(lengths):
        if end > start and (end - start + 1) * length > size:
            cuts.append(end)
            start = end
    return cuts


def _pad(sentences: Sequence[Ids], *, prefix: list[int]) -> Tensor:
    """Make a tensor with a row for each sentence: the tokens of `prefix`, the sentence, EOS and padding."""
    lengths, start = np.array([len(ids) for ids in sentences], dtype=np.int64), len(prefix)
    tokens = np.full((len(sentences), start + max(lengths, default=0) + 1), PAD, dtype=np.int64)
    tokens[:, :start] = prefix
    columns = np.arange(tokens.shape[1] - start)
    tokens[:, start:][columns < lengths[:, np.newaxis]] = np.concatenate([np.zeros(0, np.int64), *sentences])
    tokens[np.arange(len(tokens)), start + lengths] = EOS
    return torch.from_numpy(tokens)
