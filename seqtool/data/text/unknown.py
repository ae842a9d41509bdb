"""What a vocabulary does not know of a text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from seqtool.data.text.alignment import SPACE
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.models.tokens import UNK

SHARE = 0.01  # of a split's tokens: a larger share of unknown ones is reported
READ = 10_000  # examples in which the unknown pieces of a split are counted
NAMED = 5


def commonest_in(texts: Sequence[str], vocabulary: Vocabulary) -> str:
    """The commonest pieces of the texts that the vocabulary does not know, as they are written."""
    encoded = zip(texts, vocabulary.encode_batch(texts), strict=True)
    pieces = (zip(vocabulary.pieces(text), ids, strict=True) for text, ids in encoded if UNK in ids)
    return commonest(Counter(piece for piece, index in chain.from_iterable(pieces) if index == UNK))


def commonest(counts: Mapping[str, int]) -> str:
    """The commonest of the pieces, each with its count: “<” (320), “>” (318)."""
    chosen = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMED]
    return ", ".join(f"“{_shown(piece)}” ({count:,})" for piece, count in chosen)


def sentence(counts: Mapping[str, int]) -> str:
    """A sentence that names the pieces."""
    return f"{'The commonest are' if len(counts) > NAMED else 'Unknown:'} {commonest(counts)}."


def is_much(side: Mapping[str, Any]) -> bool:
    """Whether more than `SHARE` of a side's tokens are unknown, by its entry in a cache's summary."""
    return bool(side["unknown"] > SHARE * side["tokens"])


def _shown(piece: str) -> str:
    text = piece.replace(SPACE, " ").strip(" ") or " "
    return text if text.isprintable() else text.encode("unicode_escape").decode()
