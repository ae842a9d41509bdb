"""Figures look the same wherever they are drawn, leave a caller's matplotlib alone, and stop no work if they fail."""

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
def place(shown_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    Path("matplotlibrc").write_text(STYLE)
    return shown_runs / "runs"


def drawn(run: Path, folder: Path) -> bytes:
    """The learning curves of a run, drawn in this process."""
    assert cli.run(["inspect", str(run), f"plot={folder}"], config_directory()) == 0
    return (folder / "learning_curves.png").read_bytes()


def test_nothing_in_the_environment_decides(place: Path, tmp_path: Path) -> None:
    (tmp_path / "style").write_text(STYLE)
    (tmp_path / "file").touch()
    environment = {
        "MPLBACKEND": "module://matplotlib_inline.backend_not_here",
        "MATPLOTLIBRC": str(tmp_path / "style"),
        "MPLCONFIGDIR": str(tmp_path / "file" / "cannot-be-made"),
        "DISPLAY": ":99",
        "PYTHONPATH": str(Path(seqtool.__file__).parents[1]),
    }
    command = [sys.executable, "-m", "seqtool", "inspect", str(place / "fixed"), "plot=there"]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "there" / "learning_curves.png").read_bytes() == drawn(place / "fixed", tmp_path / "here")


def test_a_callers_matplotlib_stays_as_it_is(place: Path, tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import pyplot

    before = drawn(place / "fixed", tmp_path / "before")
    with matplotlib.rc_context({"lines.linewidth": 7.0, "font.size": 3.0, "axes.facecolor": "black"}):
        pyplot.switch_backend("svg")
        figure = pyplot.figure()
        try:
            settings = dict(matplotlib.rcParams)
            assert drawn(place / "fixed", tmp_path / "after") == before
            assert dict(matplotlib.rcParams) == settings
            assert (pyplot.get_backend(), pyplot.get_fignums(), pyplot.gcf()) == ("svg", [figure.number], figure)
        finally:
            pyplot.close(figure)
            pyplot.switch_backend("agg")


def training(place: Path) -> tuple[list[str], str]:
    shutil.copytree(place / "fixed", "runs/mine")
    shutil.copytree(place.parent / "cache", "cache")
    return ["train", "run=mine", "train.resume=true", "train.steps=4"], "runs/mine/learning_curves.png"


def translating(place: Path) -> tuple[list[str], str]:
    command = ["translate", f"checkpoint={place / 'attend'}", "input=in.txt", "output=out.txt", "device=cpu"]
    return [*command, "max_length=5", "plot=p"], "p/alignment-0001.png"


def scoring(place: Path) -> tuple[list[str], str]:
    command = ["score", f"checkpoint={place / 'attend'}", "sources=in.txt", "references=in.txt", "device=cpu"]
    return [*command, "plot=p", "output=out.txt"], "p/alignment-0001.png"


def captioning(place: Path) -> tuple[list[str], str]:
    image = next((place.parent / "data" / "scenes").rglob("*.png"))
    command = ["caption", f"checkpoint={place / 'scenes'}", f"images={image}", "device=cpu", "max_length=5"]
    return [*command, "plot=p", "output=out.txt"], f"p/caption-0001-{image.stem}.png"


def evaluating(place: Path) -> tuple[list[str], str]:
    command = ["eval", "hypotheses=in.txt", "references=in.txt", "sources=in.txt", "bootstrap=10"]
    return [*command, "plot=p"], "p/bleu_by_length.png"


@pytest.mark.usefixtures("curves")
@pytest.mark.parametrize(
    ("work", "error"),
    [
        (training, RuntimeError("odd")),
        (training, OSError(28, "No space left")),
        (translating, ValueError("no such $font$")),
        (scoring, OSError(28, "No space left")),
        (captioning, RuntimeError("odd")),
        (evaluating, ValueError("odd")),
    ],
)
def test_a_figure_that_fails_ends_no_work(
    place: Path, work: Any, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.figure import Figure

    def fail(*_: object, **__: object) -> None:
        raise error

    command, figure = work(place)
    monkeypatch.setattr(Figure, "savefig", fail)
    assert run(*command) == 0
    said = capsys.readouterr().err
    reason = "No space left" if isinstance(error, OSError) else f"({type(error).__name__}: {error})"
    assert f"{figure} is left out: " in said and reason in said and "Traceback" not in said
    assert not Path(figure).exists()


def test_a_figure_that_was_asked_for_alone_fails_in_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: [][0])
    assert run("inspect", str(place / "fixed"), "plot=p") == 2
    assert capsys.readouterr().err.startswith("seqtool: matplotlib cannot draw it (IndexError: ")
