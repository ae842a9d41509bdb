"""A text with its token ids. What only some outputs need, its pieces and words, is worked out when it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from seqtool.data.text.alignment import piece_words
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.models.tokens import UNK


@dataclass(eq=False)
class EncodedText:
    """A text and the ids of its tokens, without BOS and EOS.

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
        return piece_words(self.pieces, list(map(self.vocabulary.form.normalize, self.words)))
