"""Tests of the example of n-gram models: they are distributions, follow the formula, and find what is in a text."""

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from example_modules import imported

from seqtool.data.corpora.plain_text import BUILT_IN, PlainText
from seqtool.runtime.configs import defaults

LETTERS = "abcd"


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with imported("ngram", tmp_path_factory.mktemp("ngram")) as module:
        yield module


def markov(length: int, seed: int) -> tuple[list[str], float]:
    """A text whose letters depend on the two before them, and the mean of −log of its letters' true probabilities."""
    draw, rows = random.Random(seed), random.Random(0)
    table = {(a, b): [rows.random() ** 4 + 0.01 for _ in LETTERS] for a in LETTERS for b in LETTERS}
    text, nats = ["a", "b"], 0.0
    for _ in range(length):
        weights = table[text[-2], text[-1]]
        text.extend(draw.choices(LETTERS, weights))
        nats -= math.log(weights[LETTERS.index(text[-1])] / sum(weights))
    return text[2:], nats / length


@pytest.mark.parametrize("n", range(1, 6))
def test_probabilities_sum_to_one_after_every_context(ngram: Any, n: int) -> None:
    text, _ = markov(300, seed=1)
    model = ngram.NGramModel(text, n)
    contexts = [text[-6:], ["d"] * 6, ["never", "seen"] * 3, [ngram.BEGIN] * 6]
    for context in contexts:
        probabilities = [model.probability(token, context) for token in [*LETTERS, "another"]]
        assert sum(probabilities) == pytest.approx(1, abs=1e-12)
        assert min(probabilities) > 0


def by_the_formula(tokens: Sequence[str], n: int, token: str, context: Sequence[str], *, highest: bool = True) -> float:
    """p_n(token | context), counted anew from the text for every term, with discounts of 1/2."""
    if n == 0:
        return 1 / (len({*tokens}) + 1)
    padded = ["", "", *tokens]
    h = tuple(context[len(context) - n + 1 :])
    windows = [tuple(padded[i - 2 : i + 1]) for i in range(2, len(padded))]  # of a model of order 3
    parts = [window[3 - n :] for window in windows]
    if not highest:
        longer = {window[2 - n :] for window in windows}
        parts = [window[1:] for window in longer]
    shorter = by_the_formula(tokens, n - 1, token, context, highest=False)
    total = sum(part[:-1] == h for part in parts)
    if not total:
        return shorter
    different = len({part for part in parts if part[:-1] == h})
    return max(parts.count((*h, token)) - 0.5, 0) / total + 0.5 * different / total * shorter


def test_it_is_interpolated_kneser_ney(ngram: Any) -> None:
    text = "abracadabra alakazam"
    model = ngram.NGramModel(text, 3)
    model.orders = [order._replace(discount=0.5) for order in model.orders]
    for context in ("", "ab", "ra", "az", "zz"):
        for token in "abrz?":
            padded = [*["", ""][len(context) :], *context]
            assert model.probability(token, padded) == pytest.approx(by_the_formula(text, 3, token, padded))


def test_discounts_are_estimated_from_the_counts_of_one_and_two(ngram: Any) -> None:
    assert ngram.NGramModel("aaabbcde", 1).orders[0].discount == 3 / (3 + 2 * 1)


def test_an_order_that_the_text_has_is_enough(ngram: Any) -> None:
    """On a Markov text of order two, 3-grams come close to its entropy; fewer are worse, and more are no better."""
    (train, _), (test, entropy) = markov(20_000, seed=1), markov(5_000, seed=2)
    nats = [ngram.NGramModel(train, n).nats(test) / len(test) for n in range(1, 6)]
    assert nats[0] > nats[1] + 0.03 and nats[1] > nats[2] + 0.03
    assert nats[2] == pytest.approx(entropy, rel=0.01)
    assert min(nats[3:]) > nats[2]


def test_on_a_memoryless_text_no_order_beats_the_first(ngram: Any) -> None:
    draw, weights = random.Random(0), [8, 4, 2, 1]
    train, test = (draw.choices(LETTERS, weights, k=k) for k in (20_000, 5_000))
    entropy = -sum(weight / 15 * math.log(weight / 15) for weight in weights)
    nats = [ngram.NGramModel(train, n).nats(test) / len(test) for n in range(1, 5)]
    assert nats[0] == pytest.approx(entropy, rel=0.02)
    assert nats[0] == min(nats)


def test_the_text_is_split_as_for_training(ngram: Any, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"line {number}\n" for number in range(99)), encoding="utf-8")
    corpus = PlainText(train=str(file), valid=None, test=None, valid_share=defaults("data/text")["valid_share"])
    assert ngram.texts(file) == tuple("".join(corpus.lines(split)) for split in ("train", "valid"))


def test_the_table(ngram: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On the beginning of the built-in text longer contexts help characters, and the recurrent model sees furthest."""
    monkeypatch.setitem(BUILT_IN, "train", 600)
    ngram.main(["--test", "800"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(tuple("u12345b"))]
    bits = {line[:22].strip(): float(line.split()[-1]) for line in lines}
    of_characters = [bits["uniform, characters"], *(bits[f"{n}-gram, characters"] for n in range(1, 6))]
    assert of_characters == sorted(of_characters, reverse=True)
    assert bits["builtin/text (LSTM)"] < min(value for name, value in bits.items() if "gram" in name)
    assert bits["uniform, words"] > bits["1-gram, words"] > bits["2-gram, words"] > bits["3-gram, words"]
