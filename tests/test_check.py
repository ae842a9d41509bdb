"""`seqtool check`: right answers are accepted however they are written, and wrong ones are told their mistake."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from exercises import more_wrong, ours, right, wrong
from omegaconf import OmegaConf

from seqtool.cli import check as checking
from seqtool.cli import main as cli
from seqtool.cli.exercises import CASES, EXERCISES, Difference, _equal, _tensors, compare, described
from seqtool.runtime.files import config_directory

ROOT = Path(__file__).parent.parent
USUAL = [case for case in CASES if case.scale == 1]


@pytest.fixture(autouse=True)
def working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("mine", "broken", "needs"):
        sys.modules.pop(name, None)


def run(line: str) -> int:
    return cli.run(line.split(), config_directory())


# Right answers


@pytest.mark.parametrize("name", EXERCISES)
def test_the_textbook_solution_equals_the_code_of_the_package(name: str) -> None:
    assert compare(name, ours.ANSWERS[name]) is None
    for case in CASES:
        results = _tensors(EXERCISES[name].solution(), EXERCISES[name], case, False)
        assert isinstance(results, dict) and not any(result.isnan().any() for result in results.values())


@pytest.mark.parametrize("solution", right.CATALOGUE)
def test_a_right_answer_is_accepted(solution: str, capsys: pytest.CaptureFixture[str]) -> None:
    exercise, answer = right.CATALOGUE[solution], f"exercises.right.{solution}"
    checking.check(OmegaConf.create({"answer": [exercise, answer]}))
    assert capsys.readouterr().out == f"Right: {answer} gives what {exercise} asks for.\n"


# Wrong answers


@pytest.mark.parametrize("name", EXERCISES)
def test_every_known_mistake_differs_from_ours_and_from_every_other(name: str) -> None:
    exercise = EXERCISES[name]
    expected = [_tensors(exercise.solution(), exercise, case, False) for case in USUAL]
    answers: dict[str, list[list[object]]] = {}
    for mistake, answer in exercise.known_mistakes():
        answers.setdefault(mistake, []).append([_tensors(answer, exercise, case, False) for case in USUAL])
    for mistake, variants in answers.items():
        for variant in variants:
            pairs = zip(variant, expected, strict=True)
            assert any(not isinstance(theirs, Difference) and not _equal(theirs, our) for theirs, our in pairs), mistake
            others = [other for clause in answers if clause != mistake for other in answers[clause]]
            assert not any(all(map(_equal, variant, other)) and all(map(_equal, other, variant)) for other in others)


@pytest.mark.parametrize("name", EXERCISES)
def test_what_a_mistake_replaces_is_in_the_textbook_solution(name: str) -> None:
    for mistake, replacements in EXERCISES[name].mistakes.items():
        source = EXERCISES[name].textbook
        for replacement in replacements.split(" ; "):
            piece, _, by = replacement.partition(" ⇒")
            assert piece in source, f"{mistake}: {piece}"
            source = source.replace(piece, by.strip(" "))


@pytest.mark.parametrize(
    ("catalogue", "solution"), [(module, name) for module in (wrong, more_wrong) for name in module.CATALOGUE]
)
def test_a_wrong_answer_is_told_its_mistake(catalogue: object, solution: str) -> None:
    exercise, mistake = catalogue.CATALOGUE[solution]  # type: ignore[attr-defined]
    target = vars(catalogue)[solution]
    difference = compare(exercise, target() if isinstance(target, type) else target)
    assert difference is not None
    assert mistake in f"{difference.what}. {difference.mistake or 'none'}.", difference
    assert len(difference.what) < 300 and "\n" not in difference.what


# Output

MINE = """
import torch

LENGTH = 3

def dot(queries, annotations):
    return queries @ annotations.mT

def scaled(queries, annotations):
    return dot(queries, annotations) / queries.shape[-1]

def raises(queries, annotations):
    return other(queries, annotations)

def other(queries, annotations):
    return dot(queries, annotations)[len(queries) + 1]

def positional(q, a):
    return q @ a.mT

def missing(queries, annotations, other):
    return dot(queries, annotations)

class Dot(torch.nn.Module):
    def forward(self, queries, annotations):
        return dot(queries, annotations)

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
    def forward(self, queries, annotations):
        return queries

class Sized:
    def __init__(self, size): ...

class Plain: ...
"""


@pytest.fixture
def mine(working_directory: None) -> None:
    Path("mine.py").write_text(MINE)
    Path("broken.py").write_text("def dot(queries, annotations:\n    return 1\n")
    Path("needs.py").write_text("import torch\nx = torch.zeros(2)[3]\n")


def test_the_exercises_and_what_they_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check") == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["dot(queries, annotations)", "scaled_dot(queries, annotations)"]
    assert run("check label_smoothing") == 0
    text = capsys.readouterr().out
    assert text.startswith("label_smoothing(logits, labels, smoothing): the mean over the real positions of ")
    assert text.endswith("\n  arguments: logits (B×T×V), labels (B×T), smoothing (0.1)\n  returns: loss\n")


def test_right_and_wrong(mine: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check dot mine.dot") == run("check dot mine.Dot") == 0
    assert capsys.readouterr().out.splitlines()[1] == "Right: mine.Dot gives what dot asks for."
    assert run("check scaled_dot mine.scaled") == 2
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.startswith("Difference: scores, 3×4×5, differs by up to 1.952 at [")
    assert "where yours is " in first and first.endswith(" (B=3, T=4, S=5).")
    assert second == "Likely mistake: the scores are divided by d instead of √d."
    assert err == "seqtool: mine.scaled is not right yet.\n"


def test_an_exception_is_shown_with_its_line(
    mine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check dot mine.raises") == 2
    out, err = capsys.readouterr()
    line = "mine.py, line 16, return dot(queries, annotations)[len(queries) + 1]"
    error = "IndexError: index 4 is out of bounds for dimension 0 with size 3"
    assert out.splitlines()[0] == f"Difference: {line}: {error} (B=3, T=4, S=5)."
    assert out.splitlines()[1] == "Likely mistake: positions are counted from 0, so the last of n is n − 1."
    assert err == "seqtool: mine.raises is not right yet.\n"
    monkeypatch.setenv("SEQTOOL_DEBUG", "1")
    assert run("check dot mine.raises") == 2
    assert 'mine.py", line 13, in raises' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dott mine.dot", "Unknown exercise 'dott'; did you mean 'dot'?"),
        ("mine.dot dot", "Unknown exercise 'mine.dot'; did you mean 'dot'?"),
        ("dot dot", "'dot' must name a function or class with its module, such as mine.Class."),
        ("dot mine.dot mine.Dot", "check needs one exercise and one answer: seqtool check NAME mine.Class."),
        ("dot mien.dot", "Unknown target 'mien.dot': there is no module 'mien'; did you mean 'mine'?"),
        ("dot mine.Dott", "Unknown target 'mine.Dott'; did you mean 'mine.Dot'?"),
        (
            "dot mine.Sized",
            "mine.Sized cannot be imported, or made without arguments: TypeError: Sized.__init__() missing 1 required "
            "positional argument: 'size'.",
        ),
        (
            "dot mine.Linear",
            "mine.Linear has its own parameters (inner.weight, inner.bias): make them arguments of the call.",
        ),
        (
            "dot broken.dot",
            "broken.dot cannot be imported, or made without arguments: SyntaxError: '(' was never closed (broken.py, "
            "line 1).",
        ),
        (
            "dot needs.dot",
            "needs.dot cannot be imported, or made without arguments: needs.py, line 2, x = torch.zeros(2)[3]: "
            "IndexError: index 3 is out of bounds for dimension 0 with size 2.",
        ),
        ("dot mine.dot answr=1", "Unknown setting 'answr'; did you mean 'answer'?"),
    ],
)
def test_bad_input(mine: None, line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"check {line}") == 2
    assert capsys.readouterr() == ("", f"seqtool: {message}\n")


@pytest.mark.parametrize(
    ("line", "error", "mistake"),
    [
        (
            "dot mine.positional",
            "positional() got an unexpected keyword argument 'queries'",
            "the arguments are passed by name, so they must have the names of the exercise",
        ),
        (
            "dot mine.missing",
            "missing() missing 1 required positional argument: 'other'",
            "the arguments are passed by name, so they must have the names of the exercise",
        ),
        (
            "dot mine.Plain",
            "'Plain' object is not callable",
            "an answer is a function, or a class with __call__ or, if it is a torch.nn.Module, forward",
        ),
    ],
)
def test_what_cannot_be_called(
    mine: None, line: str, error: str, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"check {line}") == 2
    out, err = capsys.readouterr()
    assert out == f"Difference: TypeError: {error} (B=3, T=4, S=5).\nLikely mistake: {mistake}.\n"
    assert err == f"seqtool: {line.split()[1]} is not right yet.\n"


# The page.


def test_the_page_describes_every_exercise() -> None:
    page = (ROOT / "docs/exercises.md").read_text("utf-8")
    for name, exercise in EXERCISES.items():
        row = [f"`{name}`", exercise.equation, described(exercise.arguments), described(exercise.results)]
        assert f"\n| {' | '.join(row)} |" in page
        assert page.count(f"`{name}`") >= 2


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/exercises.md").read_text("utf-8")
    Path("mine.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    assert run("check additive mine.additive") == 2
    output = "".join(capsys.readouterr())
    assert all(f"    {line}\n" in page for line in output.splitlines())


def test_numbers_are_the_same_in_every_process() -> None:
    state = torch.get_rng_state()
    exercise = EXERCISES["masked_loss"]
    first, second = exercise.draw(CASES[1]), exercise.draw(CASES[1])
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(state, torch.get_rng_state())
