"""`seqtool check`: right answers are accepted however they are written, and wrong ones are told their mistake."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from seqtool.cli import check as checking
from seqtool.cli import main as cli
from seqtool.cli.exercises.answers import ANSWERS
from seqtool.cli.exercises.comparison import compare
from seqtool.cli.exercises.exercise import EXERCISES
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory

SOLUTIONS = Path(__file__).parent / "exercises"
sys.path.insert(0, str(SOLUTIONS))
import right  # noqa: E402
import wrong  # noqa: E402

sys.path.pop(0)


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SOLUTIONS)
    monkeypatch.setattr(sys, "path", list(sys.path))


def check(*words: str) -> None:
    checking.check(OmegaConf.create({"answer": list(words)}))


@pytest.mark.parametrize("solution", wrong.CATALOGUE)
def test_a_wrong_answer_is_told_its_mistake(solution: str, capsys: pytest.CaptureFixture[str]) -> None:
    exercise, mistake = wrong.CATALOGUE[solution]
    with pytest.raises(InputError, match=rf"^wrong\.{solution} is not right yet\.$"):
        check(exercise, f"wrong.{solution}")
    difference, likely = capsys.readouterr().out.splitlines()
    assert difference.startswith("Difference: ")
    assert likely.startswith("Likely mistake: ") and mistake in likely, f"{difference}\n{likely}"


@pytest.mark.parametrize("solution", right.CATALOGUE)
def test_a_right_answer_is_accepted(solution: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(right.CATALOGUE[solution], f"right.{solution}")
    assert capsys.readouterr().out.startswith(f"Right: the results")
