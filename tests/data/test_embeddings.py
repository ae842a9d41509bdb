"""Tests of pretrained word vectors, which are read from text files."""

from pathlib import Path

import pytest

from seqtool.data.text.embeddings import read_vectors
from seqtool.data.text.vocabulary import Form, WordVocabulary
from seqtool.errors import InputError

VOCABULARY = WordVocabulary(["▁the", "▁cat"], Form("word", "nfc", lowercase=False))


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_values_are_separated_by_spaces_or_tabs(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\n\n" + "\n".join(f"{separator.join(line.split())}\n" for line in ("the 4 5 6", "cat 1 2 3")))
    rows, vectors = read_vectors(path, VOCABULARY, 3)
    pieces = [VOCABULARY.piece(row) for row in rows]
    assert dict(zip(pieces, vectors.tolist(), strict=True)) == {"▁the": [4, 5, 6], "▁cat": [1, 2, 3]}
    path.write_text(f"the 4 5\ncat{separator}1\n")
    with pytest.raises(InputError, match=r"vectors\.txt line 2 has a vector of 1 values, but .* have 2: set .*=1\) or"):
        read_vectors(path, VOCABULARY, 2)


def test_longer_vectors_below_a_header_are_refused_by_their_length(tmp_path: Path) -> None:
    path = tmp_path / "vectors.vec"
    path.write_text("2 4\nthe 1 2 3 4\ncat 5 6 7 8\n")
    message = r"line 2 has a vector of 4 values, .* have 2: set .*=4 \(of a Transformer model\.width=4\) or"
    with pytest.raises(InputError, match=message):
        read_vectors(path, VOCABULARY, 2)


def test_a_word_with_numbers_is_no_longer_vector(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2\n1 000 3 4\ncat 5 6\n")
    rows, vectors = read_vectors(path, VOCABULARY, 2)
    assert len(rows) == 1 and vectors.tolist() == [[5, 6]]


def test_a_word_that_is_also_a_piece_inside_words_gives_both_its_vector(tmp_path: Path) -> None:
    vocabulary = WordVocabulary(["▁a", "▁cat", "a"], Form("word", "nfc", lowercase=False))
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2\n▁cat 3 4\n")
    rows, vectors = read_vectors(path, vocabulary, 2)
    values = {vocabulary.piece(row): vector for row, vector in zip(rows, vectors.tolist(), strict=True)}
    assert values == {"▁a": [1, 2], "a": [1, 2], "▁cat": [3, 4]}


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-Infinity"])
def test_values_that_are_not_numbers_are_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(f"the 1 2\ncat 1 {value}\n")
    with pytest.raises(InputError, match=r"vectors\.txt line 2 has values that are not numbers\.$"):
        read_vectors(path, VOCABULARY, 2)
