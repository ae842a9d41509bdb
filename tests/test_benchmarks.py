"""Tests of the benchmarks' own functions, on systems that are made up."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts/benchmarks"
WRITES = "import sys; n = len(open(sys.argv[1]).readlines()); open(sys.argv[2], 'w').write(('word ' * {} + '\\n') * n)"


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import benchmark_engines

    return benchmark_engines


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "start-up").write_text("a b c d e\n" * 8)
    return tmp_path


def command(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code, "{source}", "{target}"]


def test_a_ratio_takes_the_best_setting_and_needs_both_sides(engines: ModuleType) -> None:
    rates = {
        "seqtool Transformer fp32": 300.0,
        "CTranslate2 float32, workers: 1": 100.0,
        "CTranslate2 float32, workers: 2": 200.0,
        "seqtool RNNsearch fp32": 300.0,
    }
    assert engines.ratios(rates) == {"seqtool Transformer fp32 / CTranslate2 float32": 1.5}


def test_a_system_that_refuses_is_left_out_with_its_last_line(engines: ModuleType, data: Path) -> None:
    refuses = engines.System(command("import sys; sys.exit('Starting …\\nno int8 here')"))
    writes = engines.System(command(WRITES.format(25)))
    record = engines.measure({"refuses": refuses, "writes": writes}, data, ["a b c d e"] * 20, repeats=2)
    assert record["refused"] == {"refuses": "no int8 here"}
    assert [*record["rows"]] == ["writes"]
    row = record["rows"]["writes"]
    assert len(row["all"]) == len(row["seconds of all sentences"]) == len(row["seconds of 8 sentences"]) == 2


@pytest.mark.parametrize("words", [23, 26])
def test_translations_of_another_length_end_the_run(engines: ModuleType, data: Path, words: int) -> None:
    with pytest.raises(SystemExit, match=f"8 lines of {words} to {words} words for 8 sentences"):
        engines.System(command(WRITES.format(words))).translate(data / "start-up")
