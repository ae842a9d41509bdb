"""Text to token ids, a chunk at a time, and which training examples are left out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.vocabulary import Vocabulary, load_all
from seqtool.errors import InputError
from seqtool.models.tokens import UNK
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
    sides_kept = []
    for side, vocabulary in zip(ids, vocabularies, strict=True):
        sentences = list(compress(side, kept))
        counts = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        tokens = np.fromiter(chain.from_iterable(sentences), dtype=token_type(vocabulary), count=int(counts.sum()))
        sides_kept.append(Side(tokens, counts, int(np.count_nonzero(tokens == UNK))))
    return Encoded(tuple(sides_kept), kept, Counter(reason for reason in reasons if reason))


_loaded = lru_cache(maxsize=1)(load_all)  # once per process
