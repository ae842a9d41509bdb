"""Tests of word alignments: words, their pieces, attention between words, and the Pharaoh format."""

from typing import Any

import numpy as np
import pytest

from seqtool.data.text.alignment import (
    diagonal,
    format_grid,
    format_pharaoh,
    hard_alignment,
    parse_pharaoh,
    piece_words,
    uniform,
    word_attention,
)
from seqtool.data.text.words import words_and_punctuation
from seqtool.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  \t ", []),
        ("I have a cat.", ["I", "have", "a", "cat", "."]),
        ("¿Tienes un gato?", ["¿", "Tienes", "un", "gato", "?"]),
        ("don't re-open l'eau 3.5", ["don't", "re-open", "l'eau", "3.5"]),
        ("«Ja», sagte er …", ["«", "Ja", "»,", "sagte", "er", "…"]),
        ("(wait...) ?", ["(", "wait", "...)", "?"]),
        ("so ... yes", ["so", "...", "yes"]),
    ],
)
def test_text_is_split_into_words(text: str, expected: list[str]) -> None:
    assert words_and_punctuation(text) == expected


def test_words_of_tokenised_text_are_its_tokens() -> None:
    for text in ["¿Tienes, (un) «gato»...?", 'A man in 3.5-inch heels, "riding" a bike!', "don't . . ."]:
        assert words_and_punctuation(" ".join(words_and_punctuation(text))) == words_and_punctuation(text)
        assert "".join(words_and_punctuation(text)) == text.replace(" ", "")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        (["▁Ten", "go", "▁un", "▁gato", "."], [0, 0, 1, 2, 3]),
        (["▁", "Ten", "go", "▁", "un"], [0, 0, 0, 1, 1]),  # a space alone belongs to the word that it begins
        (["▁a", "▁"], [0, -1]),
        (["▁"], [-1]),
        (["▁a", "\n", "b", "\n"], [0, 1, 1, -1]),  # so does other white space, which verbatim vocabularies have
        (["▁new▁york", "▁city"], [0, 2]),  # a piece over two words belongs to the first
        (["▁cat", "..", ".", "▁¿", "que"], [0, 1, 1, 2, 3]),
        (["⁇", "▁⁇"], [0, 1]),
        (list("▁a▁bc."), [0, 0, 1, 1, 1, 2]),
    ],
)
def test_pieces_belong_to_words(pieces: list[str], expected: list[int]) -> None:
    text = "".join(pieces).replace("▁", " ")
    assert piece_words(pieces, words_and_punctuation(text)) == expected


def attend_between_words(attention: Any, source: list[str], target: list[str]) -> Any:
    """Turn attention between pieces into attention between the words and marks that the pieces make up."""
    source_words, target_words = (words_and_punctuation("".join(side).replace("▁", " ")) for side in (source, target))
    shape = len(target_words), len(source_words)
    return word_attention(attention, piece_words(source, source_words), piece_words(target, target_words), shape)


def test_word_attention_sums_over_source_and_averages_over_target_pieces() -> None:
    attention = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 0.2, 0.8]])
    result = attend_between_words(attention, ["▁big", "ger", "▁cat"], ["▁ga", "to", "▁grande"])
    np.testing.assert_allclose(result, [[0.5, 0.5], [0.2, 0.8]])


def test_word_attention_keeps_whole_words_and_mass() -> None:
    generator = np.random.default_rng(0)
    attention = generator.dirichlet(np.ones(4), size=3)
    np.testing.assert_allclose(attend_between_words(attention, ["▁a", "▁b", "▁c", "."], ["▁x", "▁y", "."]), attention)
    split = attend_between_words(attention, ["▁a", "b", "▁", "c"], ["▁x", "y", "z"])
    assert split.shape == (1, 2)
    np.testing.assert_allclose(split.sum(axis=1), 1)


def test_word_attention_of_an_empty_side() -> None:
    assert attend_between_words(np.zeros((0, 2)), ["▁a", "b"], []).shape == (0, 1)
    assert attend_between_words(np.zeros((1, 0)), [], ["▁a"]).shape == (1, 0)


def test_word_attention_refuses_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"attention is \(2, 2\) for \(1, 2\) target and source pieces"):
        attend_between_words(np.ones((2, 2)), ["▁a", "b"], ["▁x"])


def test_hard_alignment_links_each_target_word_to_its_maximum() -> None:
    assert hard_alignment(np.array([[0.1, 0.9], [0.5, 0.5], [0.0, 0.0]])) == {(1, 0), (0, 1)}
    assert hard_alignment(np.zeros((2, 0))) == set()


def test_baselines_link_every_target_word_once() -> None:
    assert diagonal(3, 3) == {(0, 0), (1, 1), (2, 2)}
    assert diagonal(2, 4) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert diagonal(4, 2) == {(1, 0), (3, 1)}
    generator = np.random.default_rng(1)
    for source_length, target_length in [(1, 5), (7, 3), (25, 25)]:
        for links in (
            diagonal(source_length, target_length),
            uniform(source_length, target_length, generator),
        ):
            assert sorted(target for _, target in links) == list(range(target_length))
            assert all(0 <= source < source_length for source, _ in links)
    assert diagonal(0, 3) == uniform(0, 3, generator) == set()


def test_pharaoh_round_trip() -> None:
    line = "0-0 2-1 1-2 2?2"
    sure, possible = parse_pharaoh(line + "\n")
    assert sure == {(0, 0), (2, 1), (1, 2)}
    assert possible == {(2, 2)}
    assert parse_pharaoh(format_pharaoh(sure, possible)) == (sure, possible)
    assert format_pharaoh(sure, possible) == line
    assert parse_pharaoh("") == (set(), set())
    assert format_pharaoh(set()) == ""


def test_a_grid_has_a_row_for_each_target_word_and_a_column_for_each_source_word() -> None:
    """Columns are as wide as their words: Chinese characters take two columns, and combining marks none."""
    attention = np.array([[0.0, 1.0, 0.5], [0.26, 0.1, 0.74]])
    assert format_grid(attention, ["I", "see", "you"], ["我", "ve\u0301o"]).splitlines() == [
        "     I  see  you",
        "我      ███  ▒▒▒",
        "ve\u0301o  ░       ▓▓▓",
    ]
    assert format_grid(np.array([[1.0]]), ["我们"], ["we"]) == "    我们\nwe  ████\n"


@pytest.mark.parametrize("item", ["0_1", "1-", "-1-2", "0-1-2", "a-b", "0--1", "٣-1"])
def test_malformed_pharaoh_links_are_refused(item: str) -> None:
    with pytest.raises(InputError) as error:
        parse_pharaoh(f"0-0 {item}", location="gold.align line 3")
    assert str(error.value) == (
        f"gold.align line 3: '{item}' is not an alignment link; expected i-j (sure) or i?j (possible), "
        "where i is the source word and j the target word, both counted from 0."
    )
