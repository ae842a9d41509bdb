"""What callers in Python hand over: lists, which are checked before any work and refused without printing what they
hold, and texts with their token ids.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from typing import Any

import numpy as np

from seqtool.data.text.alignment import piece_words
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.errors import InputError
from seqtool.models.tokens import UNK


def check_texts(values: Any, *, what: str, kind: str) -> list[str]:
    """The texts of a list. `what`: the beginning of a message, as "translate takes"; `kind`: what each text is."""
    return [str(text) for text in check_list(values, what, kind, lambda text: isinstance(text, str), "text")]


def check_paths(values: Any, *, what: str, kind: str) -> list[str]:
    """The paths of a list."""
    listed = check_list(values, what, kind, lambda path: isinstance(path, str | PathLike), "a path")
    return [str(fspath(path)) for path in listed]


def check_list(values: Any, what: str, kind: str, suits: Callable[[Any], bool], wanted: str) -> list[Any]:
    """The items of a list, a tuple, or an array or column of a table; a set has no order, and a table has columns."""
    if suits(values):
        raise InputError(f"{what} a list of {kind}s: write [{kind}] for a single one.")
    unfit = isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Collection)
    if unfit or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{what} a list of {kind}s, not {_described(values)}.")
    items = list(values)
    for number, item in enumerate(items, 1):
        if not suits(item):
            raise InputError(f"{what} a list of {kind}s, but number {number:,} is {_described(item)}, not {wanted}.")
    return items


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} ({' × '.join(map(str, value.shape)) or 'one number'})"
    name = type(value).__name__
    return "None" if value is None else f"a{'n' if name[0] in 'aeiou' else ''} {name}"


@dataclass(eq=False)
class EncodedText:
    """A text and the ids of its tokens, without BOS and EOS. Its pieces and words, which only some outputs need, are
    worked out when they are asked for.

    limit: the number of tokens that the model reads; None is all of them
    split: the text into the words that links number
    """

    text: str
    ids: list[int]
    vocabulary: Vocabulary
    limit: int | None = None
    split: Callable[[str], list[str]] = str.split

    @property
    def read(self) -> list[int]:
        """The ids that the model reads."""
        return self.ids[: self.limit]

    @cached_property
    def all_pieces(self) -> list[str]:
        """A piece for each id; unknown ones as they are written."""
        if UNK in self.ids:
            return self.vocabulary.pieces(self.text)
        return list(map(self.vocabulary.piece, self.ids))

    @property
    def pieces(self) -> list[str]:
        """A piece for each id that the model reads."""
        return self.all_pieces[: self.limit]

    @cached_property
    def unknown(self) -> list[str]:
        """The pieces of the whole text that the vocabulary does not have."""
        if UNK not in self.ids:
            return []
        return [piece for piece, index in zip(self.all_pieces, self.ids, strict=True) if index == UNK]

    @cached_property
    def words(self) -> list[str]:
        """All words, as they are written."""
        return self.split(self.text)

    @cached_property
    def places(self) -> list[int]:
        """The word of each piece that the model reads."""
        return piece_words(self.pieces, list(map(self.vocabulary.normalize, self.words)))


def encoded(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    limit: int | None = None,
    split: Callable[[str], list[str]] = str.split,
) -> list[EncodedText]:
    """The texts with their ids; `limit` and `split` as in `EncodedText`."""
    ids = vocabulary.encode_batch(texts)
    return [EncodedText(*pair, vocabulary, limit, split) for pair in zip(texts, ids, strict=True)]
