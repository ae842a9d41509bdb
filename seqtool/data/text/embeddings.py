"""Pretrained word vectors from a text file, lines of `word value value …` as word2vec, GloVe and fastText write."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.vocabulary import Vocabulary
from seqtool.errors import InputError
from seqtool.runtime.files import read_lines


def pretrained(path: Path, vocabulary: Vocabulary, size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The ids that have a vector in the file, and the vectors (ids × size).

    A word's vector goes to the piece that starts a word (▁cat); a piece inside a word gets one only if the file
    lists the piece itself. The first line may be word2vec's header of two numbers; blank lines count for nothing.
    InputError names a line with another number of values, or says that no word is in the vocabulary.
    """
    ids: dict[str, int] = {}
    for index in range(4, len(vocabulary)):
        piece = vocabulary.piece(index)
        ids |= {piece: index, piece.removeprefix("▁"): index}
    vectors: dict[int, NDArray[np.float32]] = {}
    for number, line in enumerate(read_lines(path), 1):
        word, *values = line.rstrip().replace("\t", " ").rsplit(" ", size)  # a word may hold spaces
        if not line.strip() or (number == 1 and len(line.split()) == 2):
            continue
        if len(values) != size or (number == 1 and " " in word and _numbers(word.split(" ")[1:]) is not None):
            count = len(line.split()) - 1
            raise InputError(
                f"{path} line {number} has a vector of {count} values, but the model's embeddings have {size}: "
                f"set model.embedding={count} or use other vectors."
            )
        if word in ids:
            vector = _numbers(values)
            if vector is None or not np.isfinite(vector).all():
                raise InputError(f"{path} line {number} has values that are not numbers.")
            vectors[ids[word]] = vector
    if not vectors:
        raise InputError(f"No word of {path} is in the vocabulary: are these vectors of this language?")
    rows = sorted(vectors)
    return np.array(rows), np.stack([vectors[row] for row in rows])


def _numbers(texts: list[str]) -> NDArray[np.float32] | None:
    """The numbers that these are; None unless all are."""
    try:
        return np.array(texts, dtype=np.float32)
    except ValueError:
        return None
