"""N-grams as numbers: counting them in many captions at once with numpy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Tokens = Sequence[str]

ORDERS = (1, 2, 3, 4)
_WORD_BITS = 32  # an n-gram's key is the number of its first n-1 words, shifted, and the number of its last word


@dataclass(frozen=True)
class Counts:
    """How often each n-gram of one order stands in each caption: entries sorted by caption, then by n-gram."""

    caption: Integers
    ngram: Integers
    count: Integers


class NGramIndex:
    """Numbers the n-grams of some captions, 0 to `sizes[n - 1]` for order n; those of other captions come after."""

    def __init__(self, captions: Sequence[Tokens]) -> None:
        self._words: dict[str, int] = {}
        self._keys: list[Integers] = []
        flat = [self._words.setdefault(word, len(self._words)) for caption in captions for word in caption]
        windows = _Windows(captions, flat)
        self.ids = [windows.words]  # by order, of all windows of the captions
        self.caption_of = [windows.caption]
        for _ in ORDERS[1:]:
            keys, inverse = np.unique(windows.next_keys(self.ids[-1]), return_inverse=True)
            self._keys.append(keys)
            self.ids.append(inverse.astype(np.int64))
            self.caption_of.append(windows.caption)
        self.sizes = [len(self._words), *(len(keys) for keys in self._keys)]

    def counts(self) -> list[Counts]:
        """The counts of its own captions, by order."""
        return [_count(*windows) for windows in zip(self.caption_of, self.ids, strict=True)]

    def counts_of(self, captions: Sequence[Tokens]) -> list[Counts]:
        """The counts of other captions, by order; n-grams that the index does not hold are numbered from its size."""
        new: dict[str, int] = {}
        known, size = self._words, len(self._words)
        flat = []
        for caption in captions:
            for word in caption:
                number = known.get(word)
                flat.append(new.setdefault(word, size + len(new)) if number is None else number)
        windows = _Windows(captions, flat)
        ids = windows.words
        counts = [_count(windows.caption, ids)]
        for keys in self._keys:
            ids = _look_up(windows.next_keys(ids), keys)
            counts.append(_count(windows.caption, ids))
        return counts


class _Windows:
    """The windows of n words inside captions, n growing by one with each `next_keys`."""

    def __init__(self, captions: Iterable[Tokens], flat: Sequence[int]) -> None:
        lengths = [len(caption) for caption in captions]
        self.words = np.array(flat, dtype=np.int64)
        self.caption = np.repeat(np.arange(len(lengths)), lengths)
        self._all_captions = self.caption
        self._start = np.arange(len(self.words))
        self._order = 1

    def next_keys(self, ids: Integers) -> Integers:
        """The keys of the windows one word longer, given the n-gram numbers of the present ones."""
        last = self._start + self._order
        inside = last < len(self.words)
        inside[inside] = self._all_captions[last[inside]] == self.caption[inside]
        self._order += 1
        self._start, self.caption = self._start[inside], self.caption[inside]
        return (ids[inside] << _WORD_BITS) | self.words[last[inside]]


def find(keys: Integers, table: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Where each key stands in the sorted table, and whether it does."""
    if len(table) == 0:
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=bool)
    places = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return places, table[places] == keys


def _look_up(keys: Integers, table: Integers) -> Integers:
    ids, known = find(keys, table)
    if not known.all():
        ids[~known] = len(table) + np.unique(keys[~known], return_inverse=True)[1]
    return ids


def _count(caption: Integers, ids: Integers) -> Counts:
    size = int(ids.max()) + 1 if len(ids) else 1
    keys, count = np.unique(caption * size + ids, return_counts=True)
    return Counts(keys // size, keys % size, count.astype(np.int64))
