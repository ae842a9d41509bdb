"""A text that a user gave, as a model reads it; what only some outputs need is worked out when it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from seqtool.data.text.alignment import piece_words
from seqtool.data.text.unknown import unknown_of
from seqtool.data.text.vocabulary import Vocabulary


@dataclass(eq=False)
class Given:
    """A text that was given, of which the model reads the first `read` tokens. split: into the words that links number.

    words: all of them, as they are written; places: the word of each piece that is read.
    """

    text: str
    ids: list[int]
    vocabulary: Vocabulary
    split: Callable[[str], list[str]]
    read: int

    @cached_property
    def pieces(self) -> list[str]:
        return self.vocabulary.pieces(self.text)[: self.read]

    @cached_property
    def unknown(self) -> list[str]:
        return unknown_of(self.text, self.ids, self.vocabulary)

    @cached_property
    def words(self) -> list[str]:
        return self.split(self.text)

    @cached_property
    def places(self) -> list[int]:
        return piece_words(self.pieces, list(map(self.vocabulary.normalize, self.words)))
