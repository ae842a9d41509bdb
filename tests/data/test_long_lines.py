"""A text with a line that is longer than any: it is read in pieces, and has the symbols that it would have whole."""

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
SPACED = " ".join(random.Random(0).choices(WORDS, k=1000))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of 500 bytes are long."""
    for name, size in {"MAX_LINE_BYTES": 500, "CHUNK_BYTES": 64, "MAX_WORD_BYTES": 16}.items():
        monkeypatch.setattr(files, name, size)


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "unigram"])
@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_the_symbols_are_those_of_the_whole(name: str, kind: str, tmp_path: Path) -> None:
    path, text = tmp_path / name, f"{SPACED}\nshort\n\n{SPACED}"
    with gzip.open(path, "wb") if name == "a.gz" else path.open("wb") as file:
        file.write(f"\ufeff{text}".encode())
    pieces = list(read_lines(path, with_ends=True))
    assert "".join(pieces) == text and "short\n" in pieces
    assert sorted(len(piece.encode()) for piece in pieces)[-3] <= 64 + 16  # but for the beginnings of the two lines
    settings = VocabularySettings(
        kind=kind, size=23, minimum_count=1, sample=None, reuse=None, normalization="nfc", lowercase=False
    )
    known = train(text.splitlines(keepends=True), settings, verbatim=True)
    assert list(chain.from_iterable(known.encode_batch(pieces))) == known.encode(text)
    corpus = PlainText(train=str(path), valid=None, test=None, valid_share=0.1)
    assert "".join(line for split in corpus.splits() for line in corpus.lines(split)) == text


@pytest.mark.parametrize("text", ["日本語" * 400, "é" * 1000, "x" * 2000])
def test_without_white_space_no_character_is_cut(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(read_lines(tmp_path / "a.txt", with_ends=True))
    assert "".join(pieces) == text and len(pieces) > 10


def test_what_is_no_text_is_still_said(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" + b"x" * 700 + b"\xff" + b"\x80" * 3000)
    with pytest.raises(InputError, match=r"a\.txt line 2 is not valid UTF-8 \(byte 701 of the line\)"):
        list(read_lines(path, with_ends=True))
    with pytest.raises(InputError, match=r"a\.txt line 2 has 0 MB or more: break it into sentences\.$"):
        list(read_lines(path))
