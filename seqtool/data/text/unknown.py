"""What a vocabulary does not know of a text, and the sentences that say so."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seqtool.data.text.alignment import SPACE
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.models.tokens import UNK

SHARE = 0.01  # of a split's tokens: a larger share of unknown ones is reported
READ = 10_000  # examples in which the unknown pieces of a split are counted
NAMED = 5


def unknown_pieces(texts: Sequence[str], vocabulary: Vocabulary) -> list[list[str]]:
    """The pieces of each text that the vocabulary does not know, as they are written."""
    encoded = zip(texts, vocabulary.encode_batch(texts), strict=True)
    return [unknown_of(text, ids, vocabulary) for text, ids in encoded]


def unknown_of(text: str, ids: Sequence[int], vocabulary: Vocabulary) -> list[str]:
    """The same for a single text with its ids."""
    if UNK not in ids:
        return []
    return [piece for piece, index in zip(vocabulary.pieces(text), ids, strict=True) if index == UNK]


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


def of_cache(summary: Mapping[str, Any]) -> Iterator[str]:
    """A sentence about the splits of a cache of which much is unknown, if there are any."""
    shares = []
    for name, split in summary["splits"].items():
        sides = {side: split[side] for side in ("source", "target") if side in split} or {"": split}
        for side, entry in sides.items():
            if is_much(entry):
                where = f"{name}'s {side}" if side else name
                pieces = entry.get("commonest_unknown", "")  # empty if none is among the first examples
                shares.append(f"{entry['unknown'] / entry['tokens']:.1%} in {where}{pieces and f': {pieces}'}")
    if shares:
        yield (
            f"Many tokens are unknown to the vocabulary, {'; '.join(shares)}. A larger data.vocabulary.size, a smaller "
            "data.vocabulary.minimum_count or data.vocabulary.kind=bpe leaves fewer."
        )


def _shown(piece: str) -> str:
    text = piece.replace(SPACE, " ").strip(" ") or " "
    return text if text.isprintable() else text.encode("unicode_escape").decode()
