"""Tests of the figures of every command that draws: formats, one colour for a run, directions and readable axes."""

import base64
import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_models import run
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from seqtool.cli.inspect import facts
from seqtool.training import checkpoint
from seqtool.training.recording import MetricsLog
from seqtool.view import plots

STARTS = {"svg": b"<?xml", "pdf": b"%PDF"}
FLOW = {"decoder": {"h": [0.5, 0.2, 1.0]}}
COMMANDS = {
    "translate svg": ["translate", "checkpoint=runs/attend", "input=in.en", "max_length=5", "output={}/out"],
    "caption pdf": ["caption", "checkpoint=runs/scenes", "images=data/scenes/test/00000.png", "output={}/out"],
    "score svg": ["score", "checkpoint=runs/attend", "sources=in.en", "references=in.en", "output={}/out"],
    "eval pdf": ["eval", "hypotheses=in.en", "references=in.en", "sources=in.en", "bootstrap=0", "ter=false"],
    "inspect svg": ["inspect", "runs/attend", "runs/fixed"],
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (saved.append(figure), path.touch()))
    return saved


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_draws_takes_the_format(
    command: str, shown_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shown_runs)
    Path("in.en").write_text("the cat sees the dog\n")
    (name, *arguments), suffix = COMMANDS[command], command.split()[1]
    machine = [] if name in ("eval", "inspect") else ["device=cpu", "threads=1"]
    paths = [argument.format(tmp_path) for argument in arguments]
    assert run(name, *paths, *machine, f"plot={tmp_path / 'figures'}", f"figures={suffix}") == 0
    files = list((tmp_path / "figures").iterdir())
    assert files and all(file.suffix == f".{suffix}" for file in files)
    assert all(file.read_bytes().startswith(STARTS[suffix]) for file in files)


def write_run(directory: Path, *names: str) -> None:
    """Write what a run records, with these scores, and its gradients."""
    directory.mkdir(parents=True)
    values = dict.fromkeys(names, 0.5)
    lines = [{"step": step, "loss": 3.0, "gradient_norm": 0.2 * step, **values} for step in (1, 2)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flow = {"step": 2, "tokens": 3, "gradients": FLOW, "singular_values": {"decoder": [1.0, 0.5]}}
    (directory / "gradient_flow.jsonl").write_text(json.dumps(flow) + "\n")


def panels_of(page: Path) -> list[dict[str, Any]]:
    """The panels of curves in a report."""
    content = re.findall(r'id="report">(.*?)</script>', page.read_text(), re.DOTALL)[0]
    sections = json.loads(gzip.decompress(base64.b64decode(content)))["sections"]
    return [panel for section in sections if section["kind"] == "curves" for panel in section["panels"]]


def test_a_run_has_one_colour_on_the_page_and_in_figures(
    tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run keeps the second colour, also in panels that the first run is not in. Loss and TER say that lower
    is better.
    """
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/first"), "valid_loss")
    write_run(Path("runs/second"), "valid_loss", "valid_ter")
    assert run("report", "runs/first", "runs/second", "output=both.html") == 0
    assert run("inspect", "runs/first", "runs/second", "plot=figures") == 0
    panels = panels_of(Path("both.html"))
    colours = {(line["name"].startswith("second"), line["colour"]) for panel in panels for line in panel["series"]}
    assert len(panels) == 4 and colours == {(False, 0), (True, 1)}
    axes = [axes for figure in figures for axes in figure.axes]
    drawn = {
        (str(line.get_label()).startswith("second"), to_hex(line.get_color())) for panel in axes for line in panel.lines
    }
    assert drawn == {(False, plots.COLOURS[0]), (True, plots.COLOURS[1])}
    labels = [panel.get_ylabel() for panel in axes]
    assert "loss in nats per token\n(lower is better)" in labels and "TER (lower is better)" in labels
    assert panels[0]["title"] == "loss in nats per token\n(lower is better)"
    assert "TER (lower is better)" in [panel["label"] for panel in panels]


def test_steps_of_a_run_are_shades_of_its_colour(tmp_path: Path, figures: list[Figure]) -> None:
    measurement = {"step": 1, "gradients": FLOW, "singular_values": {"decoder": [1.0, 0.5]}}
    plots.gradient_flow({f"step {step}": measurement for step in range(3)}, tmp_path / "flow.png")
    for axes in figures[0].axes:
        assert {to_hex(line.get_color()) for line in axes.lines} == {plots.COLOURS[0]}
        assert [line.get_alpha() for line in axes.lines] == plots.opacities(3) == [0.3, 0.65, 1.0]


@pytest.mark.parametrize("low, high", [(0.186, 0.328), (0.2, 1.5), (1.1, 1.3), (0.05, 1.8)])
def test_a_short_logarithmic_axis_has_plain_labels(
    low: float, high: float, tmp_path: Path, figures: list[Figure]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": i, "gradient_norm": norm}) + "\n" for i, norm in enumerate((low, high)))
    )
    plots.learning_curves({"run": path}, tmp_path / "curves.png")
    (axes,) = figures[0].axes
    labels = [label for label in axes.get_yticklabels(which="both") if label.get_text()]
    texts = [label.get_text() for label in labels if low <= label.get_position()[1] <= high]
    assert 2 <= len(texts) == len(set(texts)) <= 8 and all(low <= float(text) <= high for text in texts)


def test_one_epoch_is_an_epoch(shown_runs: Path) -> None:
    text_checkpoint = checkpoint.find(shown_runs / "runs" / "text")
    text_checkpoint.progress.update(step=1, epoch=1)
    assert facts(text_checkpoint)["trained"].startswith("1 step, 1 epoch")
    text_checkpoint.progress.update(step=2_000, epoch=0)
    assert facts(text_checkpoint)["trained"].startswith("2,000 steps, 0 epochs")


def test_a_run_that_records_nothing_draws_nothing(
    tmp_path: Path, curves: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was stopped before its first update."""
    settings: Any = SimpleNamespace(tensorboard=False)
    MetricsLog(tmp_path, settings, {}, step=0).draw(last=True)
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())
