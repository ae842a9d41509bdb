"""Tests of figures: they do not depend on or change matplotlib's settings, and a failing figure ends no command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

STYLE = "figure.facecolor: red\nlines.linewidth: 9\nfont.size: 30\ntext.usetex: True\nsavefig.dpi: 20\nnot.known: 1\n"
SENTENCES = ["I have a cat.", "She sees the house."]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.fixture
def runs(shown_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the runs; the working directory has a text file and a matplotlibrc."""
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    Path("matplotlibrc").write_text(STYLE)
    return shown_runs / "runs"


def draw_curves(run: Path, directory: Path) -> bytes:
    """Draw the learning curves of a run in this process, and return the image."""
    assert cli.run(["inspect", str(run), f"plot={directory}"], config_directory()) == 0
    return (directory / "learning_curves.png").read_bytes()


def test_figures_do_not_depend_on_the_environment(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "style").write_text(STYLE)
    (tmp_path / "file").touch()
    environment = {
        "MPLBACKEND": "module://matplotlib_inline.backend_not_here",
        "MATPLOTLIBRC": str(tmp_path / "style"),
        "MPLCONFIGDIR": str(tmp_path / "file" / "cannot-be-made"),
        "DISPLAY": ":99",
        "PYTHONPATH": str(Path(seqtool.__file__).parents[1]),
    }
    command = [sys.executable, "-m", "seqtool", "inspect", str(runs / "fixed"), "plot=there"]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "there" / "learning_curves.png").read_bytes() == draw_curves(runs / "fixed", tmp_path / "here")


def test_drawing_leaves_the_callers_matplotlib_unchanged(runs: Path, tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    expected = draw_curves(runs / "fixed", tmp_path / "before")
    with matplotlib.rc_context({"lines.linewidth": 7.0, "font.size": 3.0, "axes.facecolor": "black"}):
        pyplot.switch_backend("svg")
        figure = pyplot.figure()
        try:
            settings = dict(matplotlib.rcParams)
            assert draw_curves(runs / "fixed", tmp_path / "after") == expected
            assert dict(matplotlib.rcParams) == settings
            assert (pyplot.get_backend(), pyplot.get_fignums(), pyplot.gcf()) == ("svg", [figure.number], figure)
        finally:
            pyplot.close(figure)
            pyplot.switch_backend("agg")


def train_command(runs: Path) -> tuple[list[str], str]:
    """Return a command that draws a figure, and the file of the figure."""
    shutil.copytree(runs / "fixed", "runs/copy")
    shutil.copytree(runs.parent / "cache", "cache")
    return ["train", "run=copy", "train.resume=true", "train.steps=4"], "runs/copy/learning_curves.png"


def translate_command(runs: Path) -> tuple[list[str], str]:
    command = ["translate", f"checkpoint={runs / 'attend'}", "input=in.txt", "output=out.txt", "device=cpu"]
    return [*command, "max_length=5", "plot=p"], "p/alignment-0001.png"


def score_command(runs: Path) -> tuple[list[str], str]:
    command = ["score", f"checkpoint={runs / 'attend'}", "sources=in.txt", "references=in.txt", "device=cpu"]
    return [*command, "plot=p", "output=out.txt"], "p/alignment-0001.png"


def caption_command(runs: Path) -> tuple[list[str], str]:
    image = next((runs.parent / "data" / "scenes").rglob("*.png"))
    command = ["caption", f"checkpoint={runs / 'scenes'}", f"images={image}", "device=cpu", "max_length=5"]
    return [*command, "plot=p", "output=out.txt"], f"p/caption-0001-{image.stem}.png"


def eval_command(runs: Path) -> tuple[list[str], str]:
    command = ["eval", "hypotheses=in.txt", "references=in.txt", "sources=in.txt", "bootstrap=10"]
    return [*command, "plot=p"], "p/bleu_by_length.png"


@pytest.mark.usefixtures("curves")
@pytest.mark.parametrize(
    ("make_command", "error"),
    [
        (train_command, RuntimeError("odd")),
        (train_command, OSError(28, "No space left")),
        (translate_command, ValueError("no such $font$")),
        (score_command, OSError(28, "No space left")),
        (caption_command, RuntimeError("odd")),
        (eval_command, ValueError("odd")),
    ],
)
def test_a_failing_figure_does_not_end_the_command(
    runs: Path, make_command: Any, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.figure import Figure

    def fail(*_: object, **__: object) -> None:
        raise error

    command, figure = make_command(runs)
    monkeypatch.setattr(Figure, "savefig", fail)
    assert run(*command) == 0
    warning = capsys.readouterr().err
    reason = "No space left" if isinstance(error, OSError) else f"({type(error).__name__}: {error})"
    assert f"{figure} is left out: " in warning and reason in warning and "Traceback" not in warning
    assert not Path(figure).exists()


def test_inspect_reports_a_failing_figure_in_one_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: [][0])
    assert run("inspect", str(runs / "fixed"), "plot=p") == 2
    assert capsys.readouterr().err.startswith("seqtool: matplotlib cannot draw it (IndexError: ")
