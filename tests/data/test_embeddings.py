"""Pretrained word vectors, read from the files that others write."""

from pathlib import Path

import pytest

from seqtool.data.text.embeddings import read_vectors
from seqtool.data.text.vocabulary import Form, WordVocabulary
from seqtool.errors import InputError

WORDS = WordVocabulary(["▁the", "▁cat"], Form("word", "nfc", lowercase=False))


@pytest.mark.parametrize("between", [" ", "\t"])
def test_values_have_spaces_or_tabs_between_them(between: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\n\n" + "\n".join(f"{between.join(line.split())}\n" for line in ("the 4 5 6", "cat 1 2 3")))
    rows, vectors = read_vectors(path, WORDS, 3)
    assert dict(zip(map(WORDS.piece, rows), vectors.tolist(), strict=True)) == {"▁the": [4, 5, 6], "▁cat": [1, 2, 3]}
    path.write_text(f"the 4 5\ncat{between}1\n")
    with pytest.raises(InputError, match=r"vectors\.txt line 2 has a vector of 1 values, but .* have 2: set .*=1 or"):
        read_vectors(path, WORDS, 2)


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-Infinity"])
def test_what_is_no_number_is_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(f"the 1 2\ncat 1 {value}\n")
    with pytest.raises(InputError, match=r"vectors\.txt line 2 has values that are not numbers\.$"):
        read_vectors(path, WORDS, 2)
