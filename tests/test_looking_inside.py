"""Tests of `inspect` with something to read: arrays, figures of cells, and units that tell a property."""

import html
import json
import re
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_models import run

from seqtool.data.corpora import toy
from seqtool.predict import units
from seqtool.predict.generator import Generator
from seqtool.predict.trace import Trace
from seqtool.predict.translator import Translator
from seqtool.view import plots

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in a directory of the test, and hold only two random units beside each that is found."""
    monkeypatch.chdir(tmp_path)
    for kind in (Generator, Translator):
        monkeypatch.setattr(kind, "find_unit", partialmethod(kind.find_unit, random_units=2))


def trace_of_cell(steps: int, hidden: int) -> Trace:
    """An LSTM that has read random tokens, and a cell of one's own."""
    generator = np.random.default_rng(1)
    arrays = {f"decoder.0.{letter}": generator.normal(size=(steps, hidden)) for letter in "hcg"}
    arrays |= {f"decoder.0.{letter}": generator.uniform(size=(steps, hidden)) ** 2 for letter in "ifo"}
    arrays |= {"own.s": generator.normal(size=(2, 3)), "logits": np.zeros((steps, 5))}
    arrays["decoder.0.c"][:, 2:4] *= 0.001
    axes = {name: ("source" if name == "own.s" else "target", "unit") for name in arrays}
    axes["logits"] = ("target", "symbol")
    return Trace(arrays, axes, {"source": ["x", "<end>"], "target": ["<begin>", *"ab\n"][:steps]})


def test_figures_of_cells_show_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The units that vary least are left out; each gate has its mean and the shares of its saturated units."""
    drawn: dict[str, tuple[Any, ...]] = {}
    monkeypatch.setattr("seqtool.predict.trace.UNITS", 4)
    monkeypatch.setattr(plots, "heat_map", lambda *figure, **_: drawn.setdefault(figure[3].name, figure[:3]))
    trace = trace_of_cell(4, hidden=6)
    files = trace.plot("figures", "svg")
    assert [file.name for file in files] == list(drawn) == ["decoder.0.c.svg", "decoder.0.gates.svg", "own.s.svg"]
    values, tokens, rows = drawn["decoder.0.c.svg"]
    assert (tokens, rows) == (["<begin>", "a", "b", "↵"], ["0", "1", "4", "5"])
    assert np.array_equal(values, np.tanh(trace["decoder.0.c"][:, [0, 1, 4, 5]].T))
    values, _, rows = drawn["decoder.0.gates.svg"]
    assert rows == [f"{gate}{kind}" for gate in "ifo" for kind in (": mean", " < 0.1", " > 0.9")]
    for gate, (mean, low, high) in zip("ifo", values.reshape(3, 3, 4), strict=True):
        for t, units_of_gate in enumerate(trace[f"decoder.0.{gate}"].tolist()):
            assert mean[t] == pytest.approx(sum(units_of_gate) / 6)
            assert low[t] == sum(unit < 0.1 for unit in units_of_gate) / 6
            assert high[t] == sum(unit > 0.9 for unit in units_of_gate) / 6
    assert np.array_equal(drawn["own.s.svg"][0], trace["own.s"].T)


def test_inspect_draws_and_writes_what_a_model_computes(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqtool.predict.trace.UNITS", 4)
    monkeypatch.setattr(plots, "DPI", 30)
    assert run("inspect", "builtin/words", "pair=I see ||| Veo", "plot=figures", "output=trace.npz") == 0
    *_, arrays, figures = capsys.readouterr().out.splitlines()
    assert arrays == "Arrays: trace.npz" and "decoder.attention" not in figures
    files = figures.removeprefix("Figures: ").split(", ")
    assert {Path(file).name for file in files} >= {"encoder.back.0.h.png", "encoder.back.0.gates.png", "decoder.h.png"}
    assert all(Path(file).read_bytes().startswith(b"\x89PNG") for file in files)
    about = json.loads(str(np.load("trace.npz")["about"]))
    assert about["labels"]["target"][0] == "<begin>" and about["labels"]["source"][-1] == "<end>"


def spans(page: str) -> list[tuple[str, float]]:
    """The pieces of a coloured text and their values; a stronger colour of its sign is a greater value."""
    matches = re.findall(
        r'<span style="background: rgb\((0 114 178|194 78 0) / (.*?)\)" title="(.*?)">(.*?)</span>', page, re.DOTALL
    )
    for colour, opacity, value, _ in matches:
        assert (colour == "0 114 178") == (float(value) > 0) or float(value) == 0
        assert float(opacity) == pytest.approx(0.7 * abs(float(value)), abs=1e-3)
    return [(html.unescape(text), float(value)) for _, _, value, text in matches]


def test_the_unit_of_pairs(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder of translations knows its position; the page has the first translations, one to a line."""
    monkeypatch.setattr("seqtool.cli.looking_inside.COLOURED_PAIRS", 9)
    pairs = toy.generate(seed=5, train=0, valid=0, test=120)["test"]
    Path("en").write_text("".join(f"{pair.source}\n" for pair in pairs))
    Path("es").write_text("".join(f"{pair.target}\n" for pair in pairs))
    assert run("inspect", "builtin/words", "input=en,es", "units=position", "plot=new", "output=unit.json") == 0
    output, record = capsys.readouterr().out, json.loads(Path("unit.json").read_text())
    assert output.startswith(f"{record['name']} is {'high' if record['high'] else 'low'} where position (over ")
    assert output.endswith("random units.\nPage: new/position.html\n") and record["auc"] > 0.85 > record["symbol_auc"]
    assert record["p"] <= 0.05 and record["ablation"]["units"] == 2
    lines = "".join(text for text, _ in spans(Path("new/position.html").read_text())).splitlines()
    assert [line.strip() for line in lines] == [pair.target for pair in pairs[:9]]


def test_the_unit_of_a_text(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values on the page are those of the trace. The text is read as it is, with its line ends."""
    monkeypatch.setattr(units, "STREAM_TOKENS", 150)
    monkeypatch.setattr(units, "WARM_UP", 20)
    monkeypatch.setattr("seqtool.cli.looking_inside.COLOURED", 60)
    text = "The cat sees <the> dogs.\n\nIt sleeps.\n" * 40
    Path("text.txt").write_text(text)
    assert run("inspect", "builtin/text", "input=text.txt", "units=column", "plot=.", "output=unit.json") == 0
    record, shown = json.loads(Path("unit.json").read_text()), spans(Path("column.html").read_text())
    assert "".join(piece for piece, _ in shown) == text[:60] + "\n"
    assert run("inspect", "builtin/text", f"text={text[:60]}", "output=trace.npz") == 0
    tensor, i = record["name"].removesuffix("]").split("[")
    expected = np.tanh(np.load("trace.npz")[tensor][1:, int(i)])
    assert [value for _, value in shown[:-1]] == pytest.approx(expected.tolist(), abs=1e-3)


TAKES = "builtin/text holds a language model: give text= or input= and units= or heads= and input=, not "
MESSAGES = {
    "input=a.txt": TAKES,
    "units=column": TAKES,
    "text=a units=column input=a.txt": TAKES,
    "text=a output=a.json": "output=a.json must be a name that ends in .npz or .html.",
    "text=a output=no/a.npz": "no/a.npz cannot be written: there is no directory",
    "units=column input=a.txt output=a.npz": "output=a.npz must be a name that ends in .json.",
    "units=column input=a.json output=a.json": "output=a.json is the same file as input=a.json, which is read: name "
    "another file to write to.",
    "units=colum input=a.json": "Unknown property 'colum'; choose from ",
    "text=a plot=a.txt": "plot=a.txt cannot be used: a.txt is a file, not a directory; name a directory.",
    "output=a.npz": "output= needs what the model is to read: text=, pair= or image=, or units= with input=.",
}


@pytest.mark.parametrize("settings", MESSAGES)
def test_messages(settings: str, capsys: Capture) -> None:
    Path("a.txt").write_text("ab\n")
    Path("a.json").write_text("The cats sleep.\n" * 80)
    assert run("inspect", "builtin/text", *settings.split()) == 2
    assert MESSAGES[settings] in capsys.readouterr().err


def test_messages_about_other_models(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("inspect", "builtin/words", "pair=I see.") == 2
    expected = "pair= must be a sentence and its translation separated by |||, not 'I see.'."
    assert expected in capsys.readouterr().err
    assert run("inspect", "builtin/soft", "input=pairs.txt", "units=position") == 2
    assert "holds a captioner: give image= or image= and text=, not " in capsys.readouterr().err
    assert run("inspect", "builtin/words", "builtin/text", "text=a", "plot=figures") == 2
    assert "inspect needs one path" in capsys.readouterr().err
    assert Trace({"logits": np.zeros((1, 5), np.float32)}, {"logits": ("target", "symbol")}, {}).plot(".") == []
    monkeypatch.setattr(Trace, "plot", lambda *_: [])  # as for a Transformer
    assert run("inspect", "builtin/words", "text=I see.", "plot=figures") == 2
    expected = "words has no states or heads to draw: leave plot= out."
    assert expected in capsys.readouterr().err
