"""N-grams as numbers: counting them in many captions at once with numpy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

ORDERS = (1, 2, 3, 4)
_WORD_BITS = 32  # an n-gram's key is the number of its first n-1 words, shifted, and the number of its last word


@dataclass(frozen=True)
class Counts:
    """How often each n-gram of one order stands in each caption: entries sorted by caption, then by n-gram.

    place: for each n-gram, by its number, where it stands among the words of all captions.
    """

    caption: Integers
    ngram: Integers
    count: Integers
    place: Integers


def count_ngrams(words: Sequence[str], lengths: Integers) -> Iterator[Counts]:
    """The counts of each order, given the words of all captions, one caption after another, and each one's length."""
    numbers: dict[str, int] = {}
    word = np.array([numbers.setdefault(one, len(numbers)) for one in words], dtype=np.int64)
    caption = np.repeat(np.arange(len(lengths)), lengths)
    end = np.repeat(np.cumsum(lengths), lengths)  # of the caption that each word is in
    start, ngram = np.arange(len(word)), np.zeros_like(word)
    for n in ORDERS:
        inside = start + n <= end[start]
        start = start[inside]
        keys = (ngram[inside] << _WORD_BITS) | word[start + n - 1]
        known, ngram = np.unique(keys, return_inverse=True)
        place = np.zeros_like(known)
        place[ngram] = start
        size = max(len(known), 1)
        entries, count = np.unique(caption[start] * size + ngram, return_counts=True)
        yield Counts(entries // size, entries % size, count, place)
