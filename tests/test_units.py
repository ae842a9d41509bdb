"""Tests of units that tell a property: the search, the properties, the ablation and the Python interface."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, product
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import make_model, random_sentences
from torch import Tensor

import seqtool
from seqtool.data.batches import make_source
from seqtool.data.text.properties import RULES
from seqtool.data.text.vocabulary import Form, WordVocabulary
from seqtool.errors import InputError
from seqtool.models.cells import cells_of
from seqtool.models.language_model import LanguageModel
from seqtool.models.tokens import BOS
from seqtool.models.tracing import trace
from seqtool.models.transformer import TransformerLanguageModel
from seqtool.predict import units
from seqtool.predict.generator import GenerateSettings, Generator
from seqtool.predict.predictor import encode
from seqtool.predict.units import Reading, auc, find_unit, midranks, search, symbol_auc, to_truths

# The search


def slow_signals(generator: torch.Generator, tokens: int) -> Tensor:
    """256 AR(1) signals, x_t = 0.9 x_{t−1} + noise, tokens × units."""
    signals = torch.randn(tokens, 256, generator=generator)
    for x, previous in zip(signals[1:], signals, strict=False):
        x += 0.9 * previous
    return signals


def slow_property(generator: torch.Generator, tokens: int) -> Tensor:
    """Truth values that change at about every 25th token."""
    return (torch.rand(tokens, generator=generator) < 0.04).cumsum(0) % 2 == 1


def test_a_planted_unit_is_found() -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        truths, signals = slow_property(generator, 1200), slow_signals(generator, 1200)
        planted, sign = int(torch.randint(256, (), generator=generator)), (-1) ** seed
        signals[:, planted] = sign * truths + 0.5 * torch.randn(1200, generator=generator)
        number, best = search(signals.split(100, 1), truths)
        assert (number, best["high"]) == (planted, sign == 1) and best["p"] <= 0.05
        assert [best["first_auc"], best["auc"]] == pytest.approx([0.92, 0.92], abs=0.04)  # Φ(√2)


def test_random_slow_signals_give_no_false_find() -> None:
    """The best of 256 looks good where it was chosen, but not on the second half."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        _, best = search([slow_signals(generator, 1000)], slow_property(generator, 1000))
        assert best["first_auc"] > 0.65 and best["p"] > 0.05


def test_auc_equals_counting() -> None:
    generator = torch.Generator().manual_seed(1)
    signals = torch.randint(6, (5, 40), generator=generator).float()  # many ties
    signals[0] = 1.0
    truths = torch.rand(3, 40, generator=generator) < 0.4
    aucs = auc(midranks(signals), truths)
    for signal, row in zip(signals.tolist(), aucs.tolist(), strict=True):
        for true, value in zip(truths.tolist(), row, strict=True):
            with_property, without = (
                [x for x, y in zip(signal, true, strict=True) if y == is_true] for is_true in (1, 0)
            )
            wins = [(x > y) + (x == y) / 2 for x, y in product(with_property, without)]
            assert value == pytest.approx(mean(wins), abs=1e-12)
    assert aucs[0].tolist() == [0.5, 0.5, 0.5]


def test_the_last_symbol_alone() -> None:
    """In the first half, symbol 7 always has the property and 8 half of the time; 9, which is new, gets their mean."""
    symbols, first = torch.tensor([7, 7, 8, 8, 7, 8, 8, 9]), [True, True, True, False]  # shares 1, 1/2, 1/2 and 3/4
    assert symbol_auc(symbols, torch.tensor([*first, True, False, False, True])) == 1
    assert symbol_auc(symbols, torch.tensor([*first, False, True, False, True])) == (0 + 0.5 + 0 + 1) / 4


@pytest.mark.parametrize(
    ("numbers", "threshold", "truths"),
    [
        ([0, 3, 1, 9, 5], 2, [0, 1, 0, 1, 1]),
        ([1, 1, 1, 0, 1], 0, [1, 1, 1, 0, 1]),
        ([0, 0, 2, 0, 0], 0, [0, 0, 1, 0, 0]),
    ],
)
def test_numbers_are_compared_with_their_median(numbers: list[int], threshold: float, truths: list[int]) -> None:
    """The median is that of the first four; if it is their maximum, the next number takes its place."""
    assert to_truths(np.array(numbers), np.arange(4))[1] == threshold
    assert to_truths(np.array(numbers), np.arange(4))[0].tolist() == [bool(truth) for truth in truths]


# Properties


def marks(name: str, text: str) -> list[str]:
    """A property of each character of a text, by line: | where it is true, and blank where it is false."""
    values, lines = "".join(" |"[int(value > 0)] for value in RULES[name](list(text))), text.split("\n")
    starts = accumulate((len(line) + 1 for line in lines), initial=0)
    return [values[start : start + len(line)].rstrip() for start, line in zip(starts, lines, strict=False)]


PYTHON = r"""
x = 'it\'s "a" # b' + r'\d'  # don't "quote" (
'''One
"two's) ''' + f("{x['a']}", '(' // 2)  # [1]
"""
PYTHON_MARKS = {
    "string": [
        r"""    ||||||||||||||     |||                    """,
        r"""||||||""",
        r"""||||||||||      |||||||||   ||""",
    ],
    "comment": [
        r"""                             |||||||||||||||||""",
        r"",
        r"""                                       |||||""",
    ],
    "depth": ["", "", r"""               |||||||||||||||||||||"""],
}
C = r"""
char a = '"', b = '\''; // don't "quote"
#define F(x) "\"#" /* "c" (
'd' */ g[F("/*") + (1)]; // }
"""
C_MARKS = {
    "string": [
        r"""         ||       |||""",
        r"""             |||| """,
        r"""           ||| """,
    ],
    "comment": [
        r"""                        ||||||||||||||||""",
        r"""                   ||||||||""",
        r"""|||||                    ||||""",
    ],
    "depth": [
        "",
        r"""         ||""",
        r"""        ||||||||||||||""",
    ],
}


@pytest.mark.parametrize(("text", "expected"), [(PYTHON, PYTHON_MARKS), (C, C_MARKS)], ids=["Python", "C"])
def test_properties_of_source_code(text: str, expected: dict[str, list[str]]) -> None:
    """Escaped quotes, quotes and brackets in comments, comment marks in strings, and division or # that are neither."""
    for name, lines in expected.items():
        assert marks(name, text.strip("\n")) == [line.rstrip() for line in lines], name


def test_quotation_marks_of_prose() -> None:
    r"""Marks are paired within a paragraph, and \" is not a mark. Apostrophes are none."""
    text = 'He said "don\'t\n(go) \\" now" and "so\n\non. “Yes «no» ”.'
    assert marks("quotes", text) == ["        ||||||", "|||||||||||", "", "    ||||||||||"]


def test_brackets_without_a_partner_do_not_count() -> None:
    depth = RULES["depth"](list(":( a) b] [c {d] e ((f} g"))
    assert depth.tolist() == [int(digit) for digit in "0111" + "0" * 5 + "1" * 5 + "0" * 10]


def test_numbers_along_a_text() -> None:
    assert RULES["column"](list("ab\n\nc")).tolist() == [1, 2, 0, 0, 1]
    assert RULES["position"](["▁ab", "c", "\n", "▁d", "e"]).tolist() == [1, 2, 0, 1, 2]
    pieces = ["▁Mis", "▁ga", "tos", "▁ven", "▁la", "▁casa", ".", "▁Two", "▁Cats"]
    assert RULES["number"](pieces).tolist() == [False, False, True, True, True, False, False, False, True]


# A model whose units are known

LETTERS = "ab.“”"
VOCABULARY = WordVocabulary(LETTERS, Form("char", "none", lowercase=False, verbatim=True))


@pytest.fixture
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read streams of 200 tokens, the first 20 of which do not count."""
    monkeypatch.setattr(units, "STREAM_TOKENS", 200)
    monkeypatch.setattr(units, "WARM_UP", 20)


def quoting_text(length: int, seed: int = 0) -> str:
    """Random letters and full stops; after every full stop a quotation is opened or closed."""
    letters = np.random.default_rng(seed).choice(list("aaabbb."), length)
    stops = np.cumsum(letters == ".")
    return "".join(letter + "“”"[stop % 2 - 1] * (letter == ".") for letter, stop in zip(letters, stops, strict=True))


def quoting_model() -> LanguageModel:
    """An LSTM in which unit 0 is 0.76 inside a quotation and −0.76 outside, and unit 1 is 0.76 after a full stop and
    −0.76 otherwise. The other 6 units are random and read by nothing. Unit 0 chooses between “ and ” after a stop.
    """
    torch.manual_seed(0)
    size, stop, opening, closing = len(VOCABULARY), *map(VOCABULARY.index, ".“”")
    model = LanguageModel(
        target_vocabulary=size, embedding=size, hidden=8, layers=1, cell="lstm", dropout=0.0, tie="none"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.target_embedding.weight.copy_(torch.eye(size))
        gates = next(iter(model.decoder)).input.weight.view(4, 8, size)  # i, f, g, o
        gates.normal_()
        gates[:, :2] = torch.tensor([-10.0, 10, 0, 10])[:, None, None]
        gates[:3, 0, opening], gates[:3, 0, closing] = torch.tensor([10.0, -10, 10]), torch.tensor([10.0, -10, -10])
        gates[:3, 1] = torch.tensor([10.0, -10, -10])[:, None]
        gates[2, 1, stop] = 10
        model.output.weight[[opening, closing], 1] = 8.0
        model.output.weight[[opening, closing], 0] = torch.tensor([-8.0, 8])
        model.output.weight[4 : stop + 1, 1] = -8.0
        model.output.bias[:4] = -20
    return model.eval()


def quoting_generator() -> Generator:
    settings = {**Generator.default_settings(), "device": "cpu"}
    for hardware in ("device", "threads"):
        settings.pop(hardware)
    model, device = quoting_model(), torch.device("cpu")
    generator = Generator(
        [model], target_vocabulary=VOCABULARY, device=device, settings=GenerateSettings(**settings), config={}
    )
    generator.plain_model = model
    return generator


@pytest.mark.usefixtures("short_streams")
def test_a_unit_that_a_model_depends_on() -> None:
    """Without unit 0, “ and ” are about equally likely, which costs ln 2. Only unit 1, without which no mark is
    expected, hurts more.
    """
    generator, text = quoting_generator(), quoting_text(2500)
    before = generator.predict_tokens(VOCABULARY.encode(text), lambda _: None, likeliest=0)[0]
    unit = generator.find_unit(text, "quotes")
    assert (unit.name, unit.high, unit.units, unit.threshold) == ("decoder.0.h[0]", True, 16, None)
    assert (unit.first_auc, unit.auc) == (1, 1) and unit.p <= 0.05 and unit.symbol_auc < 0.7
    held = unit.ablation
    assert held is not None and held.units == 7 and held.hurt_less == 6 / 7
    assert held.rise == pytest.approx(np.log(2), abs=0.1) and held.elsewhere == pytest.approx(0, abs=0.01)
    assert not any(cell._forward_hooks for cell in cells_of(generator.plain_model).values())
    assert np.array_equal(generator.predict_tokens(VOCABULARY.encode(text), lambda _: None, likeliest=0)[0], before)
    assert json.loads(json.dumps(asdict(unit)))["ablation"]["hurt_less"] == 6 / 7
    assert str(unit).splitlines()[0].startswith("decoder.0.h[0] is high where quotes is true: at ")
    assert str(unit).endswith("elsewhere, a greater difference than of 86% of 7 random units.")


@pytest.mark.usefixtures("short_streams")
def test_rules_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function and its dotted name are the same rule; numbers work as well, and a rule says what is decided."""
    (tmp_path / "own_rule.py").write_text("def stop(pieces):\n    return [2.5 * (piece == '.') for piece in pieces]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    generator, text = quoting_generator(), quoting_text(3000)
    named = generator.find_unit(text, "own_rule.stop", random_units=0)
    assert (named.name, named.auc, named.symbol_auc, named.threshold) == ("decoder.0.h[1]", 1, 1, 0)
    assert "(over 0)" in str(named) and named.ablation is None

    def stop(pieces: Sequence[str]) -> list[bool]:
        return [piece == "." for piece in pieces]

    unit = generator.find_unit(text, stop, decides=lambda pieces: [piece in "“”" for piece in pieces], random_units=3)
    assert (unit.property, unit.name, unit.auc) == ("stop", named.name, 1)
    assert unit.ablation is not None and unit.ablation.rise > 2 and unit.ablation.units == 3


ERRORS: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "short": ("ab.“", "quotes", {}, "The text has 4 tokens, too few to find a unit: give at least 1,000."),
    "first": (
        "ab" * 1000 + quoting_text(1500),
        "quotes",
        {},
        "The property 'quotes' is false throughout the first half: give",
    ),
    "second": (
        quoting_text(1500) + "ab" * 1000,
        "quotes",
        {},
        "The property 'quotes' is false throughout the second half",
    ),
    "constant": (
        quoting_text(2000),
        lambda pieces: [7] * len(pieces),
        {},
        "The property '<lambda>' is false throughout",
    ),
    "name": (
        quoting_text(2000),
        "qoutes",
        {},
        "Unknown property 'qoutes'; choose from string, comment, quotes, depth, num",
    ),
    "module": (quoting_text(2000), "gone.rule", {}, "Unknown target 'gone.rule': there is no module 'gone'."),
    "length": (quoting_text(2000), lambda pieces: [True], {}, "The property has 1 values for "),
    "type": (
        quoting_text(2000),
        lambda pieces: pieces,
        {},
        "A value of the property is '[ab.]', not a truth value or a f",
    ),
    "infinite": (
        quoting_text(2000),
        lambda pieces: [np.inf] * len(pieces),
        {},
        "A value of the property is inf, not a",
    ),
    "decides": (
        quoting_text(2000),
        "quotes",
        {"decides": lambda pieces: [False] * len(pieces)},
        "The property decides no token in the second half: give",
    ),
    "list": (["ab"], "quotes", {}, "find_unit takes a list of texts, but number 1 is a list, not text."),
}


@pytest.mark.usefixtures("short_streams")
@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_sentence(case: str) -> None:
    text, rule, options, message = ERRORS[case]
    generator = quoting_generator()
    with pytest.raises(InputError, match=f"^{message}") as error:
        generator.find_unit(text, rule, **options)
    assert str(error.value).count(". ") == 0 and str(error.value).endswith(".")
    assert not any(cell._forward_hooks for cell in cells_of(generator.plain_model).values())


def test_a_transformer_has_no_units() -> None:
    settings = {"width": 8, "heads": 2, "feed_forward": 12, "norm": "pre", "positions": "sinusoids", "context": 16}
    model = TransformerLanguageModel(target_vocabulary=len(VOCABULARY), layers=1, dropout=0.0, tie="none", **settings)
    text = encode([quoting_text(1000)], VOCABULARY)[0]
    with torch.inference_mode(), pytest.raises(InputError, match=r"^The decoder has no recurrent cells"):
        find_unit(Reading.of(model.eval(), None, [text]), "quotes")


# Reading rows at once


@pytest.mark.usefixtures("short_streams")
def test_streams_are_read_as_if_alone() -> None:
    """States and losses of each stream are those of a trace that begins with its first token."""
    model, (text,) = quoting_model(), encode([quoting_text(450)], VOCABULARY)
    with torch.inference_mode():
        reading = Reading.of(model, None, [text])
        states, nats = reading.states()["decoder.0.c"], reading.nats()[0]
    count, length = nats.shape
    length -= 1  # EOS, which no text of a language model has, is not counted
    assert count == len(text.ids) // 200 > 1 and states.shape == (count * (length - 20), 8)
    for stream, c in enumerate(states.chunk(count)):
        start = stream * length
        tokens = torch.tensor([BOS, *text.ids[start : start + length]])
        traced = trace(model, None, tokens)
        assert torch.allclose(c, traced["decoder.0.c"].values[21:], atol=1e-5)
        log_p = traced["logits"].values[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        assert torch.allclose(nats[stream, :-1].float(), -log_p, atol=1e-4)
        assert reading.numbers[stream].tolist() == [-1] * 21 + list(range(start + 20, start + length)) + [-1]


@pytest.mark.parametrize("name", ["bahdanau-deep", "bahdanau-gru_cho", "luong", "sutskever-lstm"])
def test_sentences_are_read_as_if_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of the decoder are those of a trace, whatever the batch's other rows. Encoders' states are left out."""
    model, sources, targets = make_model(name), random_sentences(4, seed=1), random_sentences(4, seed=2)
    texts: Any = [SimpleNamespace(ids=ids, pieces=list(map(str, ids))) for ids in targets]
    with torch.inference_mode():
        reading = Reading.of(model, make_source(sources), texts)
        nats = reading.nats()
        monkeypatch.setattr("seqtool.predict.units.ROWS_AT_ONCE", 3)  # of the four sentences
        assert torch.allclose(reading.nats(), nats, atol=1e-5)
        states = reading.states()
    traces = [
        trace(model, make_source([source]), torch.tensor([BOS, *target]))
        for source, target in zip(sources, targets, strict=True)
    ]
    expected = {key for key in traces[0] if not key.startswith("encoder") and key[-1] in "hc"}
    assert states.keys() == expected
    for key, columns in states.items():
        assert torch.allclose(columns, torch.cat([traced[key].values[1:] for traced in traces]), rtol=1e-4, atol=1e-5)
    assert reading.numbers[reading.numbers >= 0].tolist() == list(range(sum(map(len, targets))))


def test_pairs_that_do_not_fit() -> None:
    """That a decoder of translations knows its position is tested with the command, in test_looking_inside."""
    translator = seqtool.load("builtin/words", device="cpu")
    with pytest.raises(InputError, match=r"^Sources and targets must have the same length, not 2 and 1"):
        translator.find_unit(["I see.", "She sees."], ["Veo."], "position")
    with pytest.raises(InputError, match=r"^The text has 0 tokens, too few"):
        translator.find_unit([], [], "position")
