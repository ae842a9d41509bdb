"""Reports in a browser: by a double click, offline, every view by what a person does."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Visit, opened
from demo_models import run

from seqtool.cli import main as cli
from seqtool.metrics.bootstrap import Estimate
from seqtool.runtime.files import config_directory
from seqtool.view import report
from seqtool.view.report import Details, rounded_weights

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "‮עברית",
    "emoji 🐈",
    "plain words here",
]
PICTURE = "data:image/gif;base64,R0lGODdhAQABAIAAAP///////ywAAAAAAQABAAACAkQBADs="


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of section; 120 sentences, some of them hostile."""
    details, count = Details(), 120
    texts = [HOSTILE[i % len(HOSTILE)] + f" {i}" for i in range(count)]
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
    card = {"name": "a.png", "picture": PICTURE, "references": ["a dog"], "values": [[0.5], [0.25]]}
    looks = {
        "words": ["a", "dog"],
        "text": "a dog",
        "grid": [2, 2],
        "weights": rounded_weights(np.array([[1, 0, 0, 0], [0, 0, 0, 1]])),
    }
    plain = {"words": ["a", "cat"], "text": "a cat"}
    cards = [
        {**card, "captions": [{**looks, "chosen": [0, 3]}, plain]},
        {**card, "name": "b.png", "captions": [plain, looks]},
    ]
    losses = {"a": ([1, 10, 20], [3.0, 0.000123, 1.5]), "b": ([1], [2.0])}
    steps = [{"step": 5, "samples": [{"source": "x", "hypothesis": "y"}]}]
    sentences = {
        **{"kind": "sentences", "title": "Sentences", "systems": ["first", "second"], "scores": scores},
        **{"sources": texts, "references": [[text] for text in texts], "values": values},
        "hypotheses": [texts, [text[::-1] for text in texts]],
        "flags": [["empty"] if i % 10 == 0 else [] for i in range(count)],
        "details": details.described(),
    }
    shown = {"pictures": cards, "orders": {"best twelve": [0], "all": [0, 1]}, "systems": ["soft", "hard"]}
    sections = [
        report.facts("Facts", {"name": HOSTILE[0]}),
        report.table("Scores", ("score", "value"), [("BLEU", "37.1")], note="A note."),
        report.curves("Curves", [report.panel("loss", "updates", "nats", losses, log=False)]),
        report.intervals("Lengths", "words", "BLEU", ["≤8", "9+"], {"a": [None, Estimate(30.0, 29.0, 31.0)]}),
        report.samples("Samples", [*steps, {"step": 9, "samples": [{"source": "x", "hypothesis": "z"}]}]),
        sentences,
        {"kind": "pictures", "title": "Pictures", "scores": [{"label": "cider_d", "digits": 3}], **shown},
    ]
    file = tmp_path_factory.mktemp("report") / "report.html"
    report.write(file, report.page("A report", "of a test", sections), details.chunks())
    return file


@pytest.mark.parametrize("visit", ["light", "dark"], indirect=True)
def test_it_is_accessible_and_reflows(visit: Visit, evaluation: Path) -> None:
    page = opened(visit, evaluation)
    page.get_by_role("button", name="Open").first.click()
    page.locator(".inside .tokens").wait_for()
    page.get_by_text("Values").first.click()
    visit.accessible()
    visit.reflows()


def test_strings_stand_there_as_they_are(visit: Visit, evaluation: Path) -> None:
    page = opened(visit, evaluation)
    assert page.title() == "A report"
    assert page.locator("img").count() == 0
    assert page.get_by_text(HOSTILE[0], exact=True).count() == 1
    assert page.locator(".rows tbody tr:not(.inside)").count() == 50


def test_values_of_curves_are_read_by_keys_and_pointer(visit: Visit, evaluation: Path) -> None:
    page = opened(visit, evaluation)
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
def test_ticks_stand_where_their_values_are(log: bool, visit: Visit, tmp_path: Path) -> None:
    """Round values, two of them at least, written alike, whatever the range."""
    ranges = [(0.652, 1.969), (0.186, 0.328), (0.013, 870.0), (2e-7, 9e-7), (0.0001, 0.001), (1.158, 1.887)]
    panels = [report.panel("norm", "updates", "", {"a": ([1, 2], list(one))}, log=log) for one in ranges]
    report.write(tmp_path / "r.html", report.page("A report", "of a test", [report.curves("Curves", panels)]), ())
    page = opened(visit, tmp_path / "r.html")
    for chart, ends in zip(page.locator("svg.chart").all(), ranges, strict=True):
        ticks = chart.locator("text.tick.end").all()
        texts = [tick.text_content() or "" for tick in ticks]
        assert len(ticks) > 1 and len(set(texts)) == len(texts)
        assert len({"e" in text for text in texts if text != "0"}) == 1
        points = chart.locator("polyline").get_attribute("points") or ""
        (_, first), (_, last) = (map(float, point.split(",")) for point in points.split())
        a, b = np.log10(ends) if log else ends
        for text, tick in zip(texts, ticks, strict=True):
            value = np.log10(float(text)) if log else float(text)
            place = first + (last - first) * (value - a) / (b - a)
            assert abs(place - (float(tick.get_attribute("y") or "") - 4)) < 0.5


def test_sentences_sort_filter_page_and_open(visit: Visit, evaluation: Path) -> None:
    page = opened(visit, evaluation)
    rows = page.locator(".rows tbody tr:not(.inside)")
    first = rows.first.locator("td").nth(1)
    page.get_by_role("button", name="BLEU", exact=True).click()
    assert first.text_content() == "120" and page.locator("th[aria-sort=descending]").count() == 1
    page.get_by_role("button", name="BLEU", exact=True).click()
    assert first.text_content() == "1"
    page.get_by_role("button", name="Next").press("Enter")
    assert first.text_content() == "51" and page.get_by_text("51–100 of 120").count() == 1
    page.keyboard.press("Enter")  # the focus stays
    assert first.text_content() == "101"
    page.get_by_role("button", name="First", exact=True).click()
    page.get_by_label("Filter sentences").fill("plain 114")
    assert rows.count() == 1 and first.text_content() == "115"
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
    assert (
        "0.40 %" in inside.locator(".expected").text_content() and "other" in inside.locator(".expected").text_content()
    )
    page.keyboard.press("ArrowLeft")
    assert "90 %" in inside.locator(".expected").text_content()
    inside.locator("svg.links").focus()
    page.keyboard.press("ArrowRight")
    assert "←" in inside.locator(".alignment .reading").text_content()
    inside.get_by_role("button", name="Heat map").click()
    inside.locator("svg.heat").focus()
    page.keyboard.press("ArrowDown")
    assert re.fullmatch(r"\S+ ← \S+: 0\.\d{3}", inside.locator(".alignment .reading").text_content())
    assert inside.locator("mark").count() > 0


def test_all_that_is_chosen_is_printed(visit: Visit, evaluation: Path) -> None:
    """Not only a page of it; what is open stays open, there and after sorting."""
    page = opened(visit, evaluation)
    page.get_by_role("button", name="Open").first.click()
    rows, inside = page.locator(".rows tbody tr:not(.inside)"), page.locator("tr.inside:not([hidden])")
    for kind, count in (("beforeprint", 120), ("afterprint", 50)):
        page.evaluate("(kind) => window.dispatchEvent(new Event(kind))", kind)
        assert rows.count() == count and inside.count() == 1
    page.get_by_role("button", name="BLEU second").click()
    assert inside.count() == 1


def test_three_systems_and_scores_that_are_missing(visit: Visit, tmp_path: Path) -> None:
    """Each difference sorts, and what has no score stands last, whichever way."""
    sentences = {
        **{"kind": "sentences", "title": "Sentences", "systems": ["a", "b", "c"], "sources": ["x", "y", "z"]},
        **{"scores": [{"label": "BLEU", "digits": 1}], "references": [["r"]] * 3, "flags": [[], [], []]},
        "hypotheses": [["one", "two", "three"], ["one", "2", "three"], ["1", "two", "3"]],
        "values": [[[1.0, None, 3.0]], [[2.0, 2.0, 2.0]], [[9.0, 9.0, None]]],
        **{"names": None, "details": None},
    }
    report.write(tmp_path / "report.html", report.page("Three", "systems", [sentences]))
    page = opened(visit, tmp_path / "report.html")
    heads = ["#", "Source", "a", "b", "c", "BLEU", "BLEU b", "BLEU c", "Δ BLEU b", "Δ BLEU c"]
    assert page.locator("th button").all_text_contents() == heads
    orders = {"Δ BLEU b": (["3", "1", "2"], ["1", "3", "2"]), "Δ BLEU c": (["1", "2", "3"], ["1", "2", "3"])}
    for head, found in orders.items():
        for expected in found:
            page.get_by_role("button", name=head, exact=True).click()
            assert page.locator(".rows tbody tr:not(.inside) td:nth-child(2)").all_text_contents() == expected
    assert page.locator(".rows mark").all_text_contents() == ["1", "2", "3"]
    assert page.locator(".rows td.number").get_by_text("–").count() == 5
    visit.accessible()


def test_captions_and_texts_of_models(visit: Visit, shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown_runs)
    for name in ("scenes", "text"):
        assert run("eval", f"checkpoint=runs/{name}", f"report={name}.html", "device=cpu", "threads=1") == 0
    page = opened(visit, Path("scenes.html"))
    assert page.locator(".card").count() == 4
    page.locator(".card .token").first.hover()
    veil = page.locator(".card").first.locator(".veil rect").all()
    assert max(float(one.get_attribute("fill-opacity")) for one in veil) > 0.1
    visit.accessible()
    page = opened(visit, Path("text.html"))
    page.get_by_role("button", name="Open").first.click()
    page.locator(".inside .tokens button").nth(1).click()
    assert page.locator(".inside .likeliest tr").count() == 10
    visit.accessible()


def test_samples_by_step(visit: Visit, evaluation: Path) -> None:
    page = opened(visit, evaluation)
    assert page.locator(".samples dd").nth(1).text_content() == "z"
    page.get_by_label("Step").focus()
    page.keyboard.press("ArrowLeft")
    assert (
        page.locator(".samples dd").nth(1).text_content() == "y"
        and "after 5 steps" in page.locator(".samples").text_content()
    )


def test_pictures_word_by_word(visit: Visit, evaluation: Path) -> None:
    """Under the pointer and by keys; one word singled out; soft beside hard; captions without attention too."""
    page = opened(visit, evaluation)
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


def test_a_run_and_its_report(visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small: list[Any] = ["data.train=60", "data.valid=5", "data.test=5", "data.vocabulary.size=100", "train.steps=2"]
    sizes = [f"model.{one}=8" for one in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
    more = [
        "data.processes=1",
        "device=cpu",
        "threads=1",
        "train.minutes=null",
        "train.show=1",
        "train.log_every=1",
        "run=a",
    ]
    assert cli.run(["train", *small, *sizes, *more], config_directory()) == 0
    assert cli.run(["report", "runs/a"], config_directory()) == 0
    page = opened(visit, Path("runs/a/report.html"))
    assert page.get_by_role("heading", name="Learning curves").count() == 1 and page.locator("svg.chart").count() >= 3
    visit.accessible()
