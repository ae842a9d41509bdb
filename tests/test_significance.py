"""Tests of intervals and p-values: equal systems do not differ, and texts with few lines are resampled in blocks."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_report import blocks

from seqtool.cli import main as cli
from seqtool.data.corpora.parallel import ParallelFiles
from seqtool.errors import InputError
from seqtool.metrics import java
from seqtool.metrics.bootstrap import p_value
from seqtool.runtime import files
from seqtool.runtime.files import config_directory, read_lines, write_lines


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_captions(name: str, texts: Sequence[str]) -> str:
    Path(name).write_text(json.dumps(dict(enumerate(texts))))
    return name


COUNT = 60
REFERENCES = [f"a small dog {n} runs over the wet grass {n}" for n in range(COUNT)]
# The systems share no n-gram of three words with the references.
WORSE, BETTER = [f"x{n} y dog z" for n in range(COUNT)], [f"x{n} small dog z" for n in range(COUNT)]


def compare(capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, Any]:
    assert run("eval", *settings, "bootstrap=50", "format=json") == 0
    return {score["name"]: score for score in json.loads(capsys.readouterr().out)["comparison"]["differences"]}


def captioning_settings(worse: Sequence[str] = WORSE, better: Sequence[str] = BETTER) -> list[str]:
    files = {"references": REFERENCES[: len(worse)], "baseline": worse, "hypotheses": better}
    return ["task=captioning", *(f"{name}={write_captions(f'{name}.json', texts)}" for name, texts in files.items())]


def test_scores_of_zero_do_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a matching n-gram, only the small number that keeps BLEU from dividing by zero differs."""
    differences = compare(capsys, *captioning_settings())
    assert differences["bleu1"]["p_value"] < 0.05
    for name in ("bleu3", "bleu4", "bleu4_no_bp"):
        assert 0 <= differences[name]["system"]["value"] < 5e-5 and differences[name]["p_value"] == 1, name


def test_translations_without_a_common_word_do_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in {"r": REFERENCES, "b": ["§"] * COUNT, "h": ["§ ¶"] * COUNT}.items():
        write_lines(Path(name), lines)
    differences = compare(capsys, "hypotheses=h", "references=r", "baseline=b")
    assert differences["BLEU"]["p_value"] == differences["chrF2"]["p_value"] == 1


def test_rounding_is_no_difference() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(1e-13, 1e-14, 100)
    assert p_value(1e-13, noise) == 1
    assert np.isnan(p_value(1.0, np.array([0.5, np.nan])))  # a score without a value on some resample


@pytest.mark.parametrize(("count", "is_few"), [(4, True), (COUNT, False)])
def test_few_segments_give_a_warning(count: int, is_few: bool, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    compare(capsys, *captioning_settings(WORSE[:count], BETTER[:count]))
    for name, lines in {"r": REFERENCES, "b": WORSE, "h": BETTER}.items():
        write_lines(Path(name), lines[:count])
    compare(capsys, "hypotheses=h", "references=r", "baseline=b")
    assert ["unreliable" in message for message in caplog.messages] == [True, True] * is_few


def test_bootstrap_0_gives_no_intervals_or_p_values(capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the JSON and the report still have all scores."""
    write_lines(Path("r"), REFERENCES)
    write_lines(Path("h"), [line[:-4] for line in REFERENCES])
    texts = ["hypotheses=h", "references=r", "sources=r", "baseline=r", "plot=figures", "report=page.html"]
    for settings in (texts, [*captioning_settings(REFERENCES), "report=page.html"]):
        assert run("eval", *settings, "bootstrap=0") == 0
        table = capsys.readouterr().out
        assert "[" not in table.replace("[0.0", "[") and "| - " in table, table
        assert run("eval", *settings, "bootstrap=0", "format=json") == 0
        text = capsys.readouterr().out
        assert not {"low", "high", "p_value", "intervals"} & set(text.split('"')), text
        assert "bs:" not in text and Path("page.html").stat().st_size
    assert run("eval", *texts, "bootstrap=1") == 2
    assert "bootstrap must be at least 2, or 0 for no intervals, not 1." in capsys.readouterr().err


LINES = [f"well, prince {n}" for n in range(200)]
TEXTS = {  # a text, whether it is resampled by blocks, and whether its blocks or lines are few
    "lines": ("\n".join(LINES), False, False),
    "only carriage returns": ("\r".join(LINES), True, False),
    "one line": ("".join(LINES) * 3, True, False),
    "a short line": ("well, prince 5", True, True),
    "few lines, one of them most of the text": ("\n".join(["a", "b", "".join(LINES), "c"]), True, False),
    "many lines, one of them most of the text": ("\n".join([*LINES[:60], "".join(LINES)]), True, False),
    "few long lines": ("\n".join(["".join(LINES)] * 3), True, False),
    "few short lines": ("\n".join(LINES[:5]), False, True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run of a language model."""
    directory = tmp_path_factory.mktemp("model")
    sizes = ["model.embedding=8", "model.hidden=8", "train.steps=1", "device=cpu", "threads=1", "train.bptt=20"]
    data = ["data=text", "data.train=text", "data.valid=text", "train.batch_size=4"]
    with contextlib.chdir(directory):
        Path("text").write_text("\n".join(LINES))
        assert run("train", "model=language_model", *data, *sizes, "run=a") == 0
    return directory / "runs" / "a"


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_resampled_by_lines_or_blocks(name: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text with hardly any lines is resampled by blocks of symbols, and other texts by lines."""
    text, by_blocks, is_few = TEXTS[name]
    Path("read").write_bytes(text.encode())
    settings = ("eval", f"checkpoint={model}", "text=read", "bootstrap=50", "device=cpu", "threads=1")
    capsys.readouterr()
    assert run(*settings, "format=json") == 0
    bits = json.loads(capsys.readouterr().out)["bits_per_character"]
    assert bits["low"] < bits["value"] < bits["high"]
    assert run(*settings) == 0
    output = capsys.readouterr().out
    reason = "has a line that is more than half of it" if name.startswith("many") else "has few lines"
    assert (f"blocks of the text, which {reason}." in output) == by_blocks
    assert ("unreliable" in output) == is_few


RETURNS = {
    b"a\rb\rc": "abc",
    b"a\rb\rc\r": "abc",
    b"a\rb\rc\n": "abc",
    b"a\r\nb\r\nc": "abc",
    b"\xef\xbb\xbfa\rb": "ab",
}


@pytest.mark.parametrize("content", RETURNS)
def test_carriage_returns_end_lines(content: bytes, caplog: Any) -> None:
    """The file has no other line ends. Nothing is logged."""
    Path("lines").write_bytes(content)
    expected = list(RETURNS[content])
    assert list(read_lines(Path("lines"))) == expected and not caplog.messages
    write_lines(Path("others"), expected)
    corpus = ParallelFiles(train=["lines", "others"], valid=None, test=None, source_language="a", target_language="b")
    assert list(corpus.pairs("train")) == list(zip(expected, expected, strict=True))
    assert run("eval", "hypotheses=lines", "references=others", "format=json", "ter=false") == 0


def test_carriage_returns_within_lines_are_reported(caplog: Any) -> None:
    files.warn_of_carriage_return.cache_clear()
    Path("lines").write_bytes(b"a\nb\rc\nd\re\n")
    for _ in range(2):
        assert list(read_lines(Path("lines"))) == ["a", "b\rc", "d\re"]
    assert caplog.messages == [
        r"lines line 2 contains \r (a carriage return), which is not treated as a line end: end lines with \n."
    ]
    Path("long").write_bytes(b"a\r" * (8 << 20))
    with pytest.raises(InputError, match=r"^long line 1 has 16 MB or more: end lines with \\n instead of \\r\.$"):
        list(read_lines(Path("long")))


class Meteor:
    def compute_score(self, references: Any, hypotheses: Any) -> tuple[float, list[float]]:
        return len(hypotheses["0"][0]) / 100, []


@pytest.fixture
def jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace pycocoevalcap, and Java by a version that SPICE cannot use."""
    for name in ("meteor", "spice"):
        module = SimpleNamespace(**{name.capitalize(): Meteor})
        monkeypatch.setitem(sys.modules, f"pycocoevalcap.{name}.{name}", module)
    monkeypatch.setattr(java.shutil, "which", lambda _: "java")
    monkeypatch.setattr(java.subprocess, "run", lambda *_, **__: SimpleNamespace(stderr='version "17.0.1"'))


@pytest.mark.usefixtures("jars")
def test_meteor_is_computed_for_both_systems(capsys: pytest.CaptureFixture[str]) -> None:
    """METEOR is in the table, the JSON and the report. Scores of single captions are refused."""
    settings = ["eval", *captioning_settings(), "java=true", "bootstrap=2"]
    assert run(*settings, "format=json", "report=page.html") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["comparison"]["java"] == {"meteor": {"baseline": 0.1, "system": 0.14}} and report["meteor"] == 0.14
    assert "METEOR of baseline" in json.dumps(blocks(Path("page.html")))
    assert run(*settings) == 0
    assert "meteor: baseline 0.1000, system 0.1400, difference +0.0400, without p" in capsys.readouterr().out
    assert run(*settings, "format=jsonl") == 2
    assert "java=true gives no scores of single captions: leave it out with format=jsonl." in capsys.readouterr().err
