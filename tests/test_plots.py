"""Tests of plots: they show the data, draw any characters, and are written completely or not at all."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from seqtool.errors import InputError
from seqtool.metrics.bootstrap import Estimate
from seqtool.metrics.translation import LengthScore
from seqtool.view import plots


def read_grey(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("L"), dtype=float) / 255


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def record_and_save(figure: Figure, *arguments: Any, **keywords: Any) -> None:
        saved.append(figure)
        save(figure, *arguments, **keywords)

    monkeypatch.setattr(Figure, "savefig", record_and_save)
    return saved


@pytest.mark.parametrize(("greyscale", "ground"), [(False, 1.0), (True, 0.0)])
def test_an_alignment_shows_each_weight_in_its_cell(
    tmp_path: Path, figures: list[Figure], greyscale: bool, ground: float
) -> None:
    """The axes have names, and a bar explains the colours. The ground is white, or black as in the paper."""
    attention = np.random.default_rng(0).dirichlet(np.ones(4) * 0.3, size=3)
    source, target = ["I", "have", "cats", "."], ["Tengo", "gatos", "."]
    plots.alignment(attention, source, target, tmp_path / "alignment.png", greyscale=greyscale)
    axes, bar = figures[0].axes
    (image,) = axes.images
    assert np.allclose(image.get_array(), attention) and image.get_clim() == (0, 1)
    assert image.to_rgba(0.0)[:3] == pytest.approx((ground,) * 3, abs=0.04)
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("source", "target", "attention weight")


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_the_suffix_is_the_format(tmp_path: Path, suffix: str, start: bytes) -> None:
    """A figure that is drawn again is the same file."""
    files = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for file in files:
        plots.alignment(np.ones((1, 2)), ["a", "שלום"], ["b"], file)
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(start) and first == second


def test_colours_are_those_of_the_reports() -> None:
    style = (plots.Path(plots.__file__).with_name("web") / "style.css").read_text()
    assert tuple(re.findall(r"--colour-\d: (#\w+);", style)[:6]) == plots.COLOURS


def test_alignment_draws_any_characters_without_warnings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = ["$5", "and", "$6", "_{x}^", "\\frac", "größer", "naïve", "Ωμέγα", "слово"]
    target = [
        "街",
        "猫です",
        "한국어",
        "שלום",
        "مرحبا",
        "नमस्ते",
        "😀",
        "\u0378",
        "\x00",
        "\u200b",
        "e\u0301",
        "W" * 200,
    ]
    plots.alignment(np.full((12, 9), 0.1), source, target, tmp_path / "a.png")
    assert read_grey(tmp_path / "a.png").shape[1] < 2000
    assert capfd.readouterr() == ("", "")


def test_characters_without_a_font_become_replacement_characters() -> None:
    assert plots.drawable("Straße \u0378 naïve") == "Straße \ufffd naïve"
    assert plots.word_label("W" * 31) == "W" * 29 + "…"
    assert plots.word_label("W" * 30) == "W" * 30


def test_a_second_font_draws_what_the_first_font_lacks() -> None:
    first_characters = plots.characters(plots.fonts_for(frozenset())[0][1])
    from matplotlib import font_manager

    stix = next(font.fname for font in font_manager.fontManager.ttflist if font.name == "STIXGeneral")
    letter = chr(min(code for code in plots.characters(stix) - first_characters if code > 0x1000))
    assert plots.families("a") == ["DejaVu Sans"]
    assert plots.families(letter)[0] == "DejaVu Sans"
    assert len(plots.families(letter)) == 2
    assert plots.drawable(letter) == letter


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 40), (3, 120)])
def test_an_alignment_grows_with_its_words(tmp_path: Path, rows: int, columns: int) -> None:
    plots.alignment(np.ones((rows, columns)), ["wort"] * columns, ["palabra"] * rows, tmp_path / "a.png")
    height, width = read_grey(tmp_path / "a.png").shape
    assert width > columns * plots.CELL_INCHES * plots.DPI
    assert height > rows * plots.CELL_INCHES * plots.DPI


def test_heads_are_labelled_maps_in_a_grid(tmp_path: Path, figures: list[Figure]) -> None:
    """Each map shows the weights of its head; maps of a layer are beside each other, and nothing overlaps."""
    weights = np.random.default_rng(0).dirichlet(np.ones(6), size=(2, 4, 5))
    columns, rows = ["I", "sing", "extraordinarily", "well", ".", "<end>"], ["<begin>", "дом", "c", "d", "e"]
    plots.heads(weights, columns, rows, tmp_path / "heads.png")
    *maps, bar = figures[0].axes
    assert bar.get_ylabel() == "attention weight"
    drawn = np.array([axes.images[0].get_array() for axes in maps])
    assert np.array_equal(drawn, weights.reshape(8, 5, 6))
    assert [axes.get_xlabel() for axes in maps] == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2, 3, 4)]
    assert [label.get_text() for label in (*maps[5].get_xticklabels(), *maps[5].get_yticklabels())] == columns + rows
    boxes = [axes.get_tightbbox() for axes in figures[0].axes]
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
    assert all(np.isclose(box.y0, boxes[0].y0) for box in boxes[:4]) and boxes[4].y1 < boxes[0].y0


@pytest.mark.parametrize(("words", "width"), [(10, 2 * (10 + 1.4) * plots.CELL_INCHES), (150, plots.MAX_INCHES)])
def test_maps_of_heads_shrink_with_the_number_of_words(words: int, width: float) -> None:
    figure = plots.heads(np.ones((1, 2, 1, words)), ["wort"] * words, ["a"], None)
    assert figure.get_size_inches()[0] == pytest.approx(width)
    size = figure.axes[1].get_xticklabels()[-1].get_fontsize() / 72
    assert size == pytest.approx(0.62 * width / (2 * (words + 1.4)))


def test_an_alignment_refuses_a_wrong_shape_and_empty_texts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"attention is \(2, 3\) for 3 target and 2 source words"):
        plots.alignment(np.ones((2, 3)), ["a", "b"], ["a", "b", "c"], tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"attention is \(0, 1\)"):
        plots.alignment(np.ones((0, 1)), ["a"], [], tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    path = tmp_path / ("ü (1) #=" + "x" * 240 + ".png")
    plots.alignment(np.ones((1, 1)), ["a"], ["b"], path)
    before = path.read_bytes()

    def fail(self: Figure, file: Path, **settings: object) -> None:
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots.alignment(np.zeros((1, 1)), ["a"], ["b"], path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def write_metrics(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_metrics_are_sorted_and_read_without_a_cut_last_line(tmp_path: Path) -> None:
    path = write_metrics(
        tmp_path / "metrics.jsonl",
        {"step": 1, "loss": 5.0, "note": "text", "best": True},
        {"step": 3, "loss": 9.0},
        {"step": 2, "loss": 4, "bleu": 0.5},
        {"step": 3, "loss": 3.0, "gradient": float("nan")},
    )
    expected = {"loss": ([1, 2, 3], [5.0, 4.0, 3.0]), "bleu": ([2], [0.5])}
    assert plots.read_metrics(path) == expected
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert plots.read_metrics(path) == expected


NOT_A_STEP = "line 2 is not a JSON object with a 'step'."


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *((line, NOT_A_STEP) for line in (b"{", b"[1]", b"3", b'{"loss": 1}', b'{"step": "x"}', b'{"step": null}')),
        (b'{"step": 1, "note": "\xff"}', "is not UTF-8: it is damaged."),
    ],
)
def test_metrics_with_an_invalid_line_are_refused(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(InputError) as error:
        plots.read_metrics(path)
    assert str(error.value) == f"{path} {problem}"


def test_learning_curves_draw_every_kind_of_value(tmp_path: Path) -> None:
    path = write_metrics(
        tmp_path / "metrics.jsonl",
        *({"step": step, "loss": 5 / (step + 1), "learning_rate": 0.1 / (step + 1)} for step in range(100)),
        {"step": 50, "valid_loss": 2.0, "valid_bleu": 20.0},
        {"step": 99, "valid_loss": 1.0, "valid_bleu": 30.0},
    )
    plots.learning_curves({"run": path}, tmp_path / "all.png")
    loss_only = write_metrics(tmp_path / "loss_only.jsonl", {"step": 1, "loss": 1.0})
    plots.learning_curves({"run": loss_only}, tmp_path / "loss_only.png")
    assert read_grey(tmp_path / "all.png").shape[0] > 1.5 * read_grey(tmp_path / "loss_only.png").shape[0]
    empty = write_metrics(tmp_path / "empty.jsonl", {"step": 1, "seconds": 1.0})
    with pytest.raises(InputError) as error:
        plots.learning_curves({"run": empty}, tmp_path / "empty.png")
    assert str(error.value) == f"{empty} holds no losses, scores or learning rates to draw."


def test_negative_scores_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []
    save = Figure.savefig

    def record_and_save(figure: Figure, *arguments: Any, **keywords: Any) -> None:
        limits.extend(axes.get_ylim() for axes in figure.axes)
        save(figure, *arguments, **keywords)

    monkeypatch.setattr(Figure, "savefig", record_and_save)
    records = ({"step": step, "loss": 1.0 + step, "valid_mine.Gain": -3.0 + step} for step in range(2))
    plots.learning_curves({"run": write_metrics(tmp_path / "metrics.jsonl", *records)}, tmp_path / "curves.png")
    (loss, _), (gain, _) = limits
    assert loss == 0 and gain < -3


@pytest.mark.parametrize("norms", [(0.0, 0.04, 0.07), (0.04, 0.0), (0.0, 0.0)])
def test_norms_of_0_do_not_stretch_the_picture(norms: tuple[float, ...], tmp_path: Path) -> None:
    """A logarithmic axis has no place for them; samples with equal rewards have no gradient."""
    records = ({"step": step, "loss": 1.0, "gradient_norm": norm} for step, norm in enumerate(norms))
    plots.learning_curves({"run": write_metrics(tmp_path / "metrics.jsonl", *records)}, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as image:
        assert max(image.size) < 2000


def test_gradient_flow_draws_all_norms_above_0(tmp_path: Path) -> None:
    def make_measurement(h: list[float], c: list[float] | None = None, **other_cells: list[float]) -> dict[str, Any]:
        state = {"h": h} if c is None else {"h": h, "c": c}
        other_states = {name: {"h": values} for name, values in other_cells.items()}
        return {
            "gradients": {"decoder.0": {"h": [1.0]}, "decoder.1": state, **other_states},
            "singular_values": {"decoder.0": [1.0], "decoder.1": [1.2, 0.5, 0.0], **other_cells},
        }

    measurements = {
        "step 1": make_measurement([0.0, 1e-30, 1e-3, 1.0], [0.1, 1.0, 1.0, 1.0]),
        "step 2": make_measurement([0.5, 0.6, 0.8, 1.0], encoder=[0.2, 2.0]),
        "run $1$ 街": make_measurement([float("nan"), 1.0]),
    }
    plots.gradient_flow(measurements, tmp_path / "flow.png")
    plots.gradient_flow({"step 1": make_measurement([0.0, 0.0])}, tmp_path / "vanished.png")
    assert (read_grey(tmp_path / "flow.png") < 0.5).sum() > (read_grey(tmp_path / "vanished.png") < 0.5).sum()


def test_bleu_by_length_may_have_gaps(tmp_path: Path) -> None:
    def scores(*values: float | None) -> list[LengthScore]:
        return [
            LengthScore(label, 10, None if value is None else Estimate(value, value - 1, value + 2))
            for label, value in zip(("≤8", "9–14", "≥15"), values, strict=True)
        ]

    plots.bleu_by_length({"bahdanau": scores(38, 37, 35), "sutskever": scores(28, None, 12)}, tmp_path / "bleu.png")
    assert read_grey(tmp_path / "bleu.png").min() < 0.5


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, seqtool.view.plots; print([name for name in ('matplotlib', 'torch') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
