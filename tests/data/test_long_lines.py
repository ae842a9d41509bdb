"""Tests of extremely long lines: they are read in pieces, which give the symbols of the whole line."""

import gzip
import random
from itertools import chain
from pathlib import Path

import pytest

from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.text.vocabulary import VocabularySettings, train
from seqtool.errors import InputError
from seqtool.runtime import files
from seqtool.runtime.files import read_lines

WORDS = ["naïve", "cafe\u0301", "日本", "cat", "x,", "a\r", "🙂", "", "of"]
LONG_LINE = " ".join(random.Random(0).choices(WORDS, k=1000))


@pytest.fixture(autouse=True)
def lower_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read lines of more than 500 bytes in pieces."""
    for name, size in {"MAX_LINE_BYTES": 500, "CHUNK_BYTES": 64, "MAX_WORD_BYTES": 16}.items():
        monkeypatch.setattr(files, name, size)


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "unigram"])
@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_pieces_give_the_symbols_of_the_whole_line(name: str, kind: str, tmp_path: Path) -> None:
    path, text = tmp_path / name, f"{LONG_LINE}\nshort\n\n{LONG_LINE}"
    with gzip.open(path, "wb") if name == "a.gz" else path.open("wb") as file:
        file.write(f"\ufeff{text}".encode())
    pieces = list(read_lines(path, with_ends=True))
    assert "".join(pieces) == text and "short\n" in pieces
    sizes = sorted(len(piece.encode()) for piece in pieces)
    assert sizes[-3] <= 64 + 16  # only the first pieces of the two long lines have more bytes
    settings = VocabularySettings(
        kind=kind, size=23, minimum_count=1, sample=None, reuse=None, normalization="nfc", lowercase=False
    )
    vocabulary = train(text.splitlines(keepends=True), settings, verbatim=True)
    assert list(chain.from_iterable(vocabulary.encode_batch(pieces))) == vocabulary.encode(text)
    corpus = PlainText(train=str(path), valid=None, test=None, valid_share=0.1)
    assert "".join(line for split in corpus.splits() for line in corpus.lines(split)) == text


@pytest.mark.parametrize("text", ["日本語" * 400, "é" * 1000, "x" * 2000])
def test_characters_of_a_line_without_spaces_stay_whole(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(read_lines(tmp_path / "a.txt", with_ends=True))
    assert "".join(pieces) == text and len(pieces) > 10


def test_invalid_long_lines_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" + b"x" * 700 + b"\xff" + b"\x80" * 3000)
    with pytest.raises(InputError, match=r"a\.txt line 2 is not valid UTF-8 \(byte 701 of the line\)"):
        list(read_lines(path, with_ends=True))
    with pytest.raises(InputError, match=r"a\.txt line 2 has 0 MB or more: break it into sentences\.$"):
        list(read_lines(path))
