"""Sentence pairs to token ids, in chunks, over several processes, with what was left out counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data import workers
from seqtool.data.vocabulary import UNK, Vocabulary, load_pair
from seqtool.errors import InputError

CHUNK = 10_000  # pairs
SMALL = 5 * CHUNK  # fewer pairs are encoded sooner than other processes start

Pair = tuple[str, str]


@dataclass
class LimitSettings:
    """Which training pairs are kept: lengths of both sides in tokens, at most `ratio` times the other's.

    null is no limit.
    """

    minimum: int
    maximum: int | None
    ratio: float | None

    def check(self) -> None:
        """Raise InputError on limits that no pair can meet."""
        if self.minimum < 1:
            raise InputError(f"data.limits.minimum is {self.minimum} but must be at least 1.")
        if self.maximum is not None and self.maximum < self.minimum:
            raise InputError(f"data.limits.maximum is {self.maximum}, less than data.limits.minimum, {self.minimum}.")
        if self.ratio is not None and self.ratio < 1:
            raise InputError(f"data.limits.ratio is {self.ratio:g} but must be at least 1.")

    def reason(self, source: int, target: int) -> str | None:
        """Why a pair of these lengths is left out, or None."""
        shorter, longer = sorted((source, target))
        if shorter == 0:
            return "empty"
        if shorter < self.minimum:
            return "too short"
        if self.maximum is not None and longer > self.maximum:
            return "too long"
        if self.ratio is not None and longer > self.ratio * shorter:
            return "ratio"
        return None


@dataclass(frozen=True)
class Side:
    """Token ids of one side's sentences end to end, their lengths, and how many tokens are unknown."""

    tokens: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    unknown: int


@dataclass(frozen=True)
class Encoded:
    """A chunk of pairs, those that are kept; dropped: how many are not, by reason."""

    source: Side
    target: Side
    dropped: Counter[str]


class Encoder:
    """Pairs to ids. With limits the pairs outside them are left out; without, every pair is kept."""

    def __init__(self, source: Vocabulary, target: Vocabulary) -> None:
        self.source = source
        self.target = target

    def __call__(self, pairs: Sequence[Pair], limits: LimitSettings | None) -> Encoded:
        sources = self.source.encode_batch([source for source, _ in pairs])
        targets = self.target.encode_batch([target for _, target in pairs])
        dropped: Counter[str] = Counter()
        if limits is not None:
            reasons = [limits.reason(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]
            dropped.update(reason for reason in reasons if reason)
            sources = [ids for ids, reason in zip(sources, reasons, strict=True) if reason is None]
            targets = [ids for ids, reason in zip(targets, reasons, strict=True) if reason is None]
        return Encoded(_side(sources, self.source), _side(targets, self.target), dropped)


def token_type(vocabulary: Vocabulary) -> np.dtype[np.unsignedinteger]:
    """Two bytes a token where they suffice, otherwise four; little-endian on every machine."""
    return np.dtype("<u2" if len(vocabulary) <= 1 << 16 else "<u4")


def encode(
    pairs: Iterable[Pair],
    directory: Path,
    limits: LimitSettings | None,
    *,
    count: int,
    processes: int | None,
) -> Iterator[Encoded]:
    """The pairs in chunks, in their order, by the vocabularies saved in `directory`.

    Runs in `processes` processes (null: as many as there are CPUs, up to 8), or in this one where the `count`
    of the pairs is small. A few chunks are in memory at a time, however many there are.
    """
    processes = workers.number(processes) if count >= SMALL else 1
    tasks = ((directory, chunk, limits) for chunk in _chunks(pairs))
    yield from workers.in_order(_encoded, tasks, workers=processes)


def _encoded(task: tuple[Path, Sequence[Pair], LimitSettings | None]) -> Encoded:
    directory, pairs, limits = task
    return _encoder(directory)(pairs, limits)


@lru_cache(maxsize=1)
def _encoder(directory: Path) -> Encoder:
    """Of this process."""
    return Encoder(*load_pair(directory))


def _side(sentences: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Side:
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype=token_type(vocabulary), count=int(lengths.sum()))
    return Side(tokens, lengths, int(np.count_nonzero(tokens == UNK)))


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
