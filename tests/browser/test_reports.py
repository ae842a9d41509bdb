"""Tests of reports in a browser, opened offline as files: each view is used as a person would use it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Visit, open_report
from demo_models import run
from PIL import Image

from seqtool.cli import main as cli
from seqtool.metrics.bootstrap import Estimate
from seqtool.runtime.files import config_directory
from seqtool.view import report
from seqtool.view.report import SIZE, Details, rounded_weights

HOSTILE_TEXTS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "‮עברית",
    "emoji 🐈",
    "plain words here",
]
PICTURE_URL = "data:image/gif;base64,R0lGODdhAQABAIAAAP///////ywAAAAAAQABAAACAkQBADs="


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of section and 120 sentences, some of them hostile."""
    details, count = Details(), 120
    texts = [HOSTILE_TEXTS[i % len(HOSTILE_TEXTS)] + f" {i}" for i in range(count)]
    generator = np.random.default_rng(0)
    for text in texts:
        words = text.split()
        weights = generator.dirichlet(np.ones(3), len(words))
        predicted = [
            {
                "token": f"▁{word}",
                "probability": 0.004 if i else 0.9,
                "entropy": 1.5,
                "likeliest": [["▁other", 0.6], [f"▁{word}", 0.3]],
            }
            for i, word in enumerate(words)
        ]
        details.add(source=["one", "two", "<end>"], target=words, weights=weights, predicted=predicted)
    scores = [{"label": "BLEU", "digits": 2}]
    values = [[[float(i) for i in range(count)]], [[float(count - i) for i in range(count)]]]
    card = {"name": "a.png", "picture": PICTURE_URL, "references": ["a dog"], "values": [[0.5], [0.25]]}
    caption_with_attention = {
        "words": ["a", "dog"],
        "text": "a dog",
        "grid": [2, 2],
        "weights": rounded_weights(np.array([[1, 0, 0, 0], [0, 0, 0, 1]])),
    }
    plain_caption = {"words": ["a", "cat"], "text": "a cat"}
    cards = [
        {**card, "captions": [{**caption_with_attention, "chosen": [0, 3]}, plain_caption]},
        {**card, "name": "b.png", "captions": [plain_caption, caption_with_attention]},
    ]
    losses = {"a": ([1, 10, 20], [3.0, 0.000123, 1.5]), "b": ([1], [2.0])}
    first_samples = [{"step": 5, "samples": [{"source": "x", "hypothesis": "y"}]}]
    sentences = {
        **{"kind": "sentences", "title": "Sentences", "systems": ["first", "second"], "scores": scores},
        **{"sources": texts, "references": [[text] for text in texts], "values": values},
        "hypotheses": [texts, [text[::-1] for text in texts]],
        "flags": [["empty"] if i % 10 == 0 else [] for i in range(count)],
        "details": {"size": SIZE},
    }
    picture_settings = {"pictures": cards, "orders": {"best twelve": [0], "all": [0, 1]}, "systems": ["soft", "hard"]}
    sections = [
        report.facts("Facts", {"name": HOSTILE_TEXTS[0]}),
        report.table("Scores", ("score", "value"), [("BLEU", "37.1")], note="A note."),
        report.curves("Curves", [report.panel("loss", "updates", "nats", losses, log=False)]),
        report.intervals("Lengths", "words", "BLEU", ["≤8", "9+"], {"a": [None, Estimate(30.0, 29.0, 31.0)]}),
        report.samples("Samples", [*first_samples, {"step": 9, "samples": [{"source": "x", "hypothesis": "z"}]}], {}),
        sentences,
        {"kind": "pictures", "title": "Pictures", "scores": [{"label": "cider_d", "digits": 3}], **picture_settings},
    ]
    file = tmp_path_factory.mktemp("report") / "report.html"
    report.write(file, report.page("A report", "of a test", sections), details.chunks())
    return file


@pytest.mark.parametrize("visit", ["light", "dark"], indirect=True)
def test_a_report_is_accessible_and_reflows(visit: Visit, report_file: Path) -> None:
    page = open_report(visit, report_file)
    page.get_by_role("button", name="Open").first.click()
    page.locator(".inside .tokens").wait_for()
    page.get_by_text("Values").first.click()
    visit.assert_accessible()
    visit.assert_reflows()


def test_hostile_strings_are_shown_literally(visit: Visit, report_file: Path) -> None:
    page = open_report(visit, report_file)
    assert page.title() == "A report"
    assert page.locator("img").count() == 0
    assert page.get_by_text(HOSTILE_TEXTS[0], exact=True).count() == 1
    assert page.locator(".rows tbody tr:not(.inside)").count() == 50


def test_keys_and_pointer_show_values_of_curves(visit: Visit, report_file: Path) -> None:
    page = open_report(visit, report_file)
    chart = page.locator("svg.chart").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    reading = page.locator(".plot .reading").first
    assert reading.text_content() == "updates 1: a 3.000, b 2.000"
    page.keyboard.press("End")
    assert reading.text_content() == "updates 20: a 1.500"
    page.keyboard.press("ArrowLeft")
    assert reading.text_content() == "updates 10: a 0.000123"
    chart.hover(position={"x": 70, "y": 50})
    assert "updates 1:" in reading.text_content()


@pytest.mark.parametrize("log", [True, False], ids=["log", "linear"])
def test_ticks_are_drawn_at_their_values(log: bool, visit: Visit, tmp_path: Path) -> None:
    """Whatever the range, an axis has at least two ticks, with different values in the same notation."""
    ranges = [(0.652, 1.969), (0.186, 0.328), (0.013, 870.0), (2e-7, 9e-7), (0.0001, 0.001), (1.158, 1.887)]
    panels = [report.panel("norm", "updates", "", {"a": ([1, 2], list(values))}, log=log) for values in ranges]
    report.write(tmp_path / "r.html", report.page("A report", "of a test", [report.curves("Curves", panels)]), ())
    page = open_report(visit, tmp_path / "r.html")
    for chart, limits in zip(page.locator("svg.chart").all(), ranges, strict=True):
        ticks = chart.locator("text.tick.end").all()
        texts = [tick.text_content() or "" for tick in ticks]
        assert len(ticks) > 1 and len(set(texts)) == len(texts)
        assert len({"e" in text for text in texts if text != "0"}) == 1
        points = chart.locator("polyline").get_attribute("points") or ""
        (_, first_y), (_, last_y) = (map(float, point.split(",")) for point in points.split())
        first_value, last_value = np.log10(limits) if log else limits
        for text, tick in zip(texts, ticks, strict=True):
            value = np.log10(float(text)) if log else float(text)
            y = first_y + (last_y - first_y) * (value - first_value) / (last_value - first_value)
            assert abs(y - (float(tick.get_attribute("y") or "") - 4)) < 0.5  # labels are 4 pixels below their value


def test_sentences_are_sorted_filtered_paged_and_opened(visit: Visit, report_file: Path) -> None:
    page = open_report(visit, report_file)
    rows = page.locator(".rows tbody tr:not(.inside)")
    first_number = rows.first.locator("td").nth(1)
    assert first_number.text_content() == "1" and page.locator("th[aria-sort=ascending]").count() == 1  # the worst
    page.get_by_role("button", name="BLEU", exact=True).click()
    assert first_number.text_content() == "120" and page.locator("th[aria-sort=descending]").count() == 1
    page.get_by_role("button", name="BLEU", exact=True).click()
    page.get_by_role("button", name="Next").press("Enter")
    assert first_number.text_content() == "51" and page.get_by_text("51–100 of 120").count() == 1
    page.keyboard.press("Enter")  # the button has kept the focus
    assert first_number.text_content() == "101"
    page.get_by_role("button", name="First", exact=True).click()
    page.get_by_label("Filter sentences").fill("plain 114")
    assert rows.count() == 1 and first_number.text_content() == "115"
    page.get_by_label("Filter sentences").fill("")
    page.get_by_label("Only those that are").select_option("empty")
    assert rows.count() == 12
    opener = rows.first.get_by_role("button", name="Open")
    opener.focus()
    page.keyboard.press("Enter")
    inside = page.locator("tr.inside:not([hidden])")
    inside.locator(".link").first.wait_for(state="attached")
    token = inside.locator(".tokens button").nth(1)
    token.click()
    alternatives = inside.locator(".expected")
    assert "0.40 %" in alternatives.text_content() and "other" in alternatives.text_content()
    page.keyboard.press("ArrowLeft")
    assert "90 %" in alternatives.text_content()
    inside.locator("svg.links").focus()
    page.keyboard.press("ArrowRight")
    assert "←" in inside.locator(".alignment .reading").text_content()
    inside.get_by_role("button", name="Heat map").click()
    inside.locator("svg.heat").focus()
    page.keyboard.press("ArrowDown")
    assert re.fullmatch(r"\S+ ← \S+: 0\.\d{3}", inside.locator(".alignment .reading").text_content())
    assert inside.locator("mark").count() > 0


def test_all_sentences_are_printed(visit: Visit, report_file: Path) -> None:
    """All 120 sentences are printed, not only a page of 50; an open row stays open, also after sorting."""
    page = open_report(visit, report_file)
    page.get_by_role("button", name="Open").first.click()
    rows, inside = page.locator(".rows tbody tr:not(.inside)"), page.locator("tr.inside:not([hidden])")
    for kind, count in (("beforeprint", 120), ("afterprint", 50)):
        page.evaluate("(kind) => window.dispatchEvent(new Event(kind))", kind)
        assert rows.count() == count and inside.count() == 1
    for _ in range(2):  # the best of the second system first
        page.get_by_role("button", name="BLEU second").click()
    assert inside.count() == 1


def test_missing_scores_of_three_systems_come_last(visit: Visit, tmp_path: Path) -> None:
    """Sentences can be sorted by each difference; those without a score come last in either direction."""
    sentences = {
        **{"kind": "sentences", "title": "Sentences", "systems": ["a", "b", "c"], "sources": ["x", "y", "z"]},
        **{"scores": [{"label": "BLEU", "digits": 1}], "references": [["r"]] * 3, "flags": [[], [], []]},
        "hypotheses": [["one", "two", "three"], ["one", "2", "three"], ["1", "two", "3"]],
        "values": [[[1.0, None, 3.0]], [[2.0, 2.0, 2.0]], [[9.0, 9.0, None]]],
        **{"names": None, "details": None},
    }
    report.write(tmp_path / "report.html", report.page("Three", "systems", [sentences]))
    page = open_report(visit, tmp_path / "report.html")
    headings = ["#", "Source", "a", "b", "c", "BLEU", "BLEU b", "BLEU c", "Δ BLEU b", "Δ BLEU c"]
    assert [text.rstrip(" ▲") for text in page.locator("th button").all_text_contents()] == headings
    orders = {"Δ BLEU b": (["1", "3", "2"], ["3", "1", "2"]), "Δ BLEU c": (["1", "2", "3"], ["1", "2", "3"])}
    for heading, expected_orders in orders.items():
        for expected in expected_orders:
            page.get_by_role("button", name=heading, exact=True).click()
            assert page.locator(".rows tbody tr:not(.inside) td:nth-child(2)").all_text_contents() == expected
    assert page.locator(".rows mark").all_text_contents() == ["1", "2", "3"]
    assert page.locator(".rows td.number").get_by_text("–").count() == 5
    visit.assert_accessible()


def test_reports_of_captioners_and_texts(visit: Visit, shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown_runs)
    for name in ("scenes", "text"):
        assert run("eval", f"checkpoint=runs/{name}", f"report={name}.html", "device=cpu", "threads=1") == 0
    page = open_report(visit, Path("scenes.html"))
    assert page.locator(".card").count() == 4
    page.locator(".card .token").first.hover()
    veil = page.locator(".card").first.locator(".veil rect").all()
    assert max(float(cell.get_attribute("fill-opacity")) for cell in veil) > 0.1
    visit.assert_accessible()
    page = open_report(visit, Path("text.html"))
    page.get_by_role("button", name="Open").first.click()
    page.locator(".inside .tokens button").nth(1).click()
    assert page.locator(".inside .likeliest tr").count() == 10
    visit.assert_accessible()


def test_samples_are_shown_by_step(visit: Visit, report_file: Path) -> None:
    page = open_report(visit, report_file)
    assert page.locator(".samples dd").nth(1).text_content() == "z"
    page.get_by_label("Validation").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".samples dd").nth(1).text_content() == "y"
    assert "after 5 steps" in page.locator(".samples").text_content()


def test_samples_show_how_attention_develops(visit: Visit, tmp_path: Path) -> None:
    """The slider changes text and attention; the chosen form and the word that is held stay."""

    def samples(weight: float, word: str) -> list[dict[str, Any]]:
        target, weights = [f"▁{word}", "<end>"], [[weight, 1 - weight], [0.5, 0.5]]
        sentence = {"source": ["▁a", "<end>"], "target": target, "weights": weights}
        picture = {"grid": [1, 2], "fit": "squash", "target": target, "weights": weights}
        return [
            {"source": "a", "hypothesis": word, "attention": sentence},
            {"image": "a.png", "hypothesis": word, "attention": picture},
        ]

    steps = [{"step": 5, "samples": samples(1.0, "y")}, {"step": 9, "samples": samples(0.0, "z")}]
    section = report.samples("Samples", steps, {"a.png": PICTURE_URL})
    report.write(tmp_path / "report.html", report.page("Run", "", [section]))
    page = open_report(visit, tmp_path / "report.html")
    slider, cells, veil = page.get_by_label("Validation"), page.locator(".heat .cell"), page.locator(".veil rect")
    assert [cells.nth(i).get_attribute("fill-opacity") for i in range(2)] == ["0.000", "1.000"]
    page.locator(".looking .token").first.click()
    assert float(veil.nth(0).get_attribute("fill-opacity")) > 0 == float(veil.nth(1).get_attribute("fill-opacity"))
    slider.focus()
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext") == "after 5 steps (validation 1 of 2)"
    assert page.locator("output").text_content() == "after 5 steps (validation 1 of 2)"
    assert [cells.nth(i).get_attribute("fill-opacity") for i in range(2)] == ["1.000", "0.000"]
    assert float(veil.nth(1).get_attribute("fill-opacity")) > 0 == float(veil.nth(0).get_attribute("fill-opacity"))
    assert page.locator(".looking .token.on").text_content().strip() == "y"
    page.get_by_role("button", name="Lines").click()
    slider.focus()
    page.keyboard.press("End")
    assert page.locator(".links").count() == 1 and page.locator(".heat").count() == 0
    assert page.locator(".looking .token.on").text_content().strip() == "z"
    visit.assert_accessible()


def test_attention_is_shown_word_by_word(visit: Visit, report_file: Path) -> None:
    """Keys move from word to word, a word can be singled out, and captions may have soft, hard or no attention."""
    page = open_report(visit, report_file)
    card = page.locator(".card").first
    assert page.locator(".card").count() == 1 and card.locator(".looking").count() == 2
    card.get_by_role("button", name="a", exact=True).first.focus()
    page.keyboard.press("ArrowRight")
    dark = card.locator(".veil rect").nth(0).get_attribute("fill-opacity")
    light = card.locator(".veil rect").nth(3).get_attribute("fill-opacity")
    assert (dark, light) == ("0.820", "0.000")
    assert card.locator("rect.frame").first.get_attribute("visibility") == "visible"
    page.get_by_role("button", name="all", exact=True).click()
    assert page.locator(".card").count() == 2
    page.get_by_label("Single out a word").fill("cat")
    assert page.locator(".card").count() == 2 and page.locator(".token.on").first.text_content() == "cat"


def test_the_report_of_a_run_has_learning_curves(visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data: list[Any] = ["data.train=60", "data.valid=5", "data.test=5", "data.vocabulary.size=100", "train.steps=2"]
    sizes = [f"model.{name}=8" for name in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
    settings = [
        "data.processes=1",
        "device=cpu",
        "threads=1",
        "train.minutes=null",
        "train.show=1",
        "train.log_every=1",
        "run=a",
    ]
    assert cli.run(["train", *data, *sizes, *settings], config_directory()) == 0
    assert cli.run(["report", "runs/a"], config_directory()) == 0
    page = open_report(visit, Path("runs/a/report.html"))
    assert page.get_by_role("heading", name="Learning curves").count() == 1 and page.locator("svg.chart").count() >= 3
    visit.assert_accessible()


def test_a_page_of_what_a_model_computes(
    visit: Visit, shown_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`inspect output=inside.html`: an array and a method are chosen by pointer and keys, for a picture and a text."""
    Image.new("RGB", (80, 80), "red").save(tmp_path / "red.png")
    file = tmp_path / "inside.html"
    assert run("inspect", f"checkpoint={shown_runs}/runs/scenes", f"image={tmp_path}/red.png", f"output={file}") == 0
    assert f"Page: {file}" in capsys.readouterr().out
    page = open_report(visit, file)
    page.get_by_label("What to show").select_option("decoder.f")
    page.locator(".inside svg.heat").focus()
    page.keyboard.press("End")
    assert "decoder.f[7] after" in page.locator(".inside .reading").text_content()
    page.get_by_role("button", name="occlusion").press("Enter")
    assert page.locator("svg.picture .veil rect").count() > 1 and page.locator("rect.unknown").count() > 1
    visit.assert_reflows()
    assert run("inspect", f"checkpoint={shown_runs}/runs/attend", "text=I have a cat.", f"output={file}") == 0
    page = open_report(visit, file)
    page.get_by_role("button", name="attention").click()
    page.locator("svg.heat").nth(1).focus()
    page.keyboard.press("End")
    assert re.search(r"<end> ← <end>: [01]\.\d{3}$", page.locator(".reading").nth(1).text_content())


@pytest.mark.parametrize("visit", ["light", "dark"], indirect=True)
def test_heads_gates_and_signs_are_named(visit: Visit, tmp_path: Path) -> None:
    """Layers and heads count from 1, rows of cross-attention say what is written, gates run from closed to open, and
    the signs of attributions have two colours of one scale over a picture.
    """
    cross = {"name": "decoder.layers.0.source_attention", "axes": ["target", "head", "source"]}
    arrays = [
        {"name": "encoder.0.attention", "axes": ["source", "head", "key"], "values": [[[1.0, 0.0]]] * 2},
        {**cross, "values": [[[0.2, 0.8], [0.6, 0.4]]] * 3},
        {**cross, "name": "decoder.layers.1.source_attention", "values": [[[0.2, 0.8], [0.6, 0.4]]] * 3},
        {"name": "decoder.z", "axes": ["target", "unit"], "units": [4], "values": [[0.1], [0.2], [0.3]]}
        | {"gate": [[0.5, 0.5, 0.25], [0.0, 0.0, 0.75], [0.0, 0.0, 0.0]]},
    ]
    labels = {"source": ["▁house", "<end>"], "target": ["<begin>", "▁una", "▁puerta"]}
    example = {"tokens": ["▁una", "▁puerta", "<end>"], "read": labels["target"], "grid": [1, 2]}
    signed = {"method": "integrated", "explained": [-1.0] * 3, "source": [[0.5, 0.0], [-0.25, 1.0], [0.0, 0.0]]}
    weights = {"method": "attention", "explained": [-1.0] * 3, "source": [[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]}
    records = [{**example, **signed}, {**example, **weights}]
    sections = report.inside({"labels": labels, "grid": None, "arrays": arrays}, records, PICTURE_URL)
    report.write(tmp_path / "inside.html", report.page("Inside", "a test", sections))
    page = open_report(visit, tmp_path / "inside.html")
    inside, select = page.locator(".inside"), page.get_by_label("What to show")
    assert inside.locator("h4").text_content().startswith("encoder self-attention, layer 1, head 1 encoder.0.attention")
    select.select_option("decoder.layers.1.source_attention")
    page.get_by_role("button", name="Head 2").click()
    assert inside.locator("h4").text_content().startswith("cross-attention, layer 2, head 2")
    rows = inside.locator("svg .end").all_text_contents()
    assert rows == ["<begin> → una", "una → puerta", "puerta → <end>"]
    select.select_option("decoder.z")
    assert "0 closed" in inside.text_content() and "1 open" in inside.text_content()
    expected = "decoder.z[4] after “puerta”: 0.300. All units: mean 0.25, 75 % closed (under 0.1), 0 % open (over 0.9)"
    assert inside.locator(".reading").text_content() == expected
    assert [cell.get_attribute("fill-opacity") for cell in inside.locator(".cell").all()] == ["0.100", "0.200", "0.300"]
    page.locator(".looking .token").nth(1).click()
    cells = page.locator(".tinted rect")
    assert [cell.get_attribute("fill-opacity") for cell in cells.all()] == ["0.200", "0.800"]
    assert [cell.get_attribute("class") or "" for cell in cells.all()] == ["against", ""]
    assert page.get_by_text("1.000 nats").count() == 1
    visit.assert_accessible()
    visit.assert_reflows()
    page.get_by_role("button", name="attention").click()
    section = page.locator("section").last.text_content()
    assert "no sign" in section and "orange" not in section and page.locator(".tinted").count() == 0


def test_other_outputs_are_refused(shown_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", f"checkpoint={shown_runs}/runs/attend", "text=I have a cat.", "output=inside.txt") == 2
    expected = "output=inside.txt must be a name that ends in .npz or .html."
    assert expected in capsys.readouterr().err
