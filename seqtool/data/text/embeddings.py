"""Reads pretrained word vectors from text files of word2vec, GloVe and fastText, with lines `word value value …`."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.vocabulary import SPECIALS, Vocabulary
from seqtool.errors import InputError
from seqtool.runtime.files import read_lines


def read_vectors(path: Path, vocabulary: Vocabulary, size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Read the vectors of a vocabulary's pieces. Returns the ids that have a vector, and the vectors, ids × size.

    A piece that is a whole word (▁cat) gets the vector of the word. A piece inside a word has a vector only if the file
    lists the piece itself; a word that is also such a piece gives its vector to both. The first line may be word2vec's
    header of two numbers. Blank lines are skipped.

    Raises InputError for a line that does not have `size` numbers, or if no word is in the vocabulary.
    """
    ids: dict[str, set[int]] = {}
    for index in range(len(SPECIALS), len(vocabulary)):
        piece = vocabulary.piece(index)
        for spelling in (piece, piece.removeprefix("▁")):
            ids.setdefault(spelling, set()).add(index)
    vectors: dict[int, NDArray[np.float32]] = {}
    is_first = True  # the vector tells whether vectors are longer; a later word may contain numbers
    for number, line in enumerate(read_lines(path), 1):
        word, *values = line.rstrip().replace("\t", " ").rsplit(" ", size)  # a word may contain spaces
        if not line.strip() or (number == 1 and len(line.split()) == 2):
            continue
        if len(values) != size or (is_first and " " in word and _numbers(word.split(" ")[1:]) is not None):
            count = len(line.split()) - 1
            raise InputError(
                f"{path} line {number} has a vector of {count} values, but the model's embeddings have {size}: "
                f"set model.embedding={count} (of a Transformer model.width={count}) or use other vectors."
            )
        is_first = False
        if word in ids:
            vector = _numbers(values)
            if vector is None or not np.isfinite(vector).all():
                raise InputError(f"{path} line {number} has values that are not numbers.")
            vectors |= dict.fromkeys(ids[word], vector)
    if not vectors:
        raise InputError(f"No word of {path} is in the vocabulary: are these vectors for this language?")
    rows = sorted(vectors)
    return np.array(rows), np.stack([vectors[row] for row in rows])


def _numbers(fields: list[str]) -> NDArray[np.float32] | None:
    """The fields as numbers; None if any of them is not a number."""
    try:
        return np.array(fields, dtype=np.float32)
    except ValueError:
        return None
