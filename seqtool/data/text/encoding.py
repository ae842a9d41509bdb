"""Text to token ids, in chunks, over several processes, counting the examples left out."""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, compress, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.vocabulary import Vocabulary, load_all
from seqtool.errors import InputError
from seqtool.models.tokens import UNK
from seqtool.runtime.workers import in_order
from seqtool.settings import declarations

CHUNK = 10_000  # examples
SMALL = 5 * CHUNK  # fewer are encoded before other processes could start

Texts = tuple[str, ...]  # an example's texts: a pair's source and target, or only a caption


@dataclass
class LimitSettings(declarations.Limits):
    """Limits for training examples: the length of each side in tokens, at most `ratio` times the other's.

    null is no limit, and so is a setting that a kind of data does not have.
    """

    def check(self) -> None:
        """Raise InputError on limits that no example can meet."""
        declarations.check_values(self, "data.limits.")
        if self.maximum is not None and self.maximum < self.minimum:
            raise InputError(f"data.limits.maximum is {self.maximum}, less than data.limits.minimum, {self.minimum}.")

    def reason(self, *lengths: int) -> str | None:
        """Why an example whose sides have these lengths is left out, or None."""
        shorter, longer = min(lengths), max(lengths)
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
    """A chunk of examples: which are kept, their sides, and how many are not (`dropped`), by reason."""

    sides: tuple[Side, ...]
    kept: NDArray[np.bool_]
    dropped: Counter[str]


def token_type(vocabulary: Vocabulary) -> np.dtype[np.unsignedinteger]:
    """Two bytes per token if they suffice, otherwise four; little-endian on every machine."""
    return np.dtype("<u2" if len(vocabulary) <= 1 << 16 else "<u4")


def encode(
    examples: Iterable[Texts],
    directory: Path,
    sides: Sequence[str],
    limits: LimitSettings | None,
    *,
    count: int,
    processes: int | None,
) -> Generator[Encoded, None, None]:
    """The examples encoded in chunks, in order, by the vocabularies of these sides that are saved in `directory`.

    Runs in `processes` processes (null: as many as there are CPUs, up to 8), or in this one if the `count`
    of examples is small. Only a few chunks are in memory at a time.
    """
    iterator = iter(examples)
    chunks = iter(lambda: list(islice(iterator, CHUNK)), [])
    encoded = partial(encode_chunk, directory=directory, sides=tuple(sides), limits=limits)
    return in_order(encoded, chunks, processes=processes if count >= SMALL else 1)


def encode_chunk(
    examples: Sequence[Texts], *, directory: Path, sides: tuple[str, ...], limits: LimitSettings | None
) -> Encoded:
    """The examples as ids, each side by its vocabulary. Without limits every one is kept."""
    vocabularies = _loaded(directory, sides).values()
    texts = zip(*examples, strict=True)
    ids = [vocabulary.encode_batch(lines) for vocabulary, lines in zip(vocabularies, texts, strict=True)]
    lengths = (map(len, example) for example in zip(*ids, strict=True))
    reasons = [None if limits is None else limits.reason(*each) for each in lengths]
    kept = np.array([reason is None for reason in reasons])
    return Encoded(
        sides=tuple(
            _side(list(compress(side, kept)), vocabulary) for side, vocabulary in zip(ids, vocabularies, strict=True)
        ),
        kept=kept,
        dropped=Counter(reason for reason in reasons if reason),
    )


_loaded = lru_cache(maxsize=1)(load_all)  # once per process


def _side(sentences: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Side:
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    tokens = np.fromiter(chain.from_iterable(sentences), dtype=token_type(vocabulary), count=int(lengths.sum()))
    return Side(tokens, lengths, int(np.count_nonzero(tokens == UNK)))
