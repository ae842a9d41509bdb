"""Tests that the page and reports hide nothing: direction marks, and words forced, cut off, unknown or left out."""

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Visit, open_report
from PIL import Image
from test_demo import serve_app

import seqtool
from seqtool.demo.app import make_app
from seqtool.demo.engine import Engine
from seqtool.view import report
from seqtool.view.report import SIZE, Details

MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ESCAPED_MARKS = "".join(f"\\u{ord(mark):04x}" for mark in MARKS)
SPOOF = f"a{MARKS}gnp.exe"  # looks like another file name where the marks take effect
READ_ALL_TEXT = """() => {
    const texts = [document.title, document.body.innerText];
    for (const element of document.querySelectorAll(":not(script)")) {
        for (const child of element.childNodes) if (child.nodeType === Node.TEXT_NODE) texts.push(child.data);
        for (const name of ["title", "aria-label"]) texts.push(element.getAttribute(name) ?? "");
    }
    return texts.join("\\n");
}"""


def assert_marks_are_escaped(page: Any) -> None:
    text = page.evaluate(READ_ALL_TEXT)
    assert not set(text) & set(MARKS) and ESCAPED_MARKS in text


@contextmanager
def open_demo(visit: Visit, run: Path, **settings: Any) -> Iterator[Any]:
    engine = Engine([lambda: seqtool.load(run, device="cpu", threads=1)])
    options = {"host": "127.0.0.1", "token": None, **settings}
    query = "" if options["token"] is None else f"?token={options['token']}"
    with serve_app(lambda port: make_app(engine, port=port, **options)) as port:
        visit.page.goto(f"http://127.0.0.1:{port}/{query}")
        wait_for_answer(visit.page)
        yield visit.page
        visit.page.goto("about:blank")  # a page that is left sends no more requests to the server, which ends now


def wait_for_answer(page: Any) -> None:
    page.locator(".column .answer[aria-busy=false]").first.wait_for()


def test_direction_marks_are_escaped_in_a_report(visit: Visit, tmp_path: Path) -> None:
    """The marks are in titles, names of runs, systems and images, texts, tokens, values and readings."""
    details = Details()
    predicted = [{"token": SPOOF, "probability": 0.5, "entropy": 1.0, "likeliest": [[SPOOF, 0.5]]}]
    details.add(source=[SPOOF, "b"], target=[SPOOF], weights=np.array([[0.5, 0.5]]), predicted=predicted)
    sentences = {
        **{"kind": "sentences", "title": SPOOF, "systems": [SPOOF, "b"], "scores": [{"label": SPOOF, "digits": 1}]},
        **{"sources": [SPOOF], "names": [SPOOF], "references": [[SPOOF]], "hypotheses": [[SPOOF], [f"c {SPOOF}"]]},
        **{"values": [[[1.0]], [[2.0]]], "flags": [[SPOOF]], "details": {"size": SIZE}},
    }
    caption = {"words": [SPOOF], "text": SPOOF}
    card = {"name": SPOOF, "picture": "data:,", "references": [SPOOF], "values": [[1.0]], "captions": [caption]}
    pictures = {"kind": "pictures", "title": "Pictures", "systems": [SPOOF], "scores": [{"label": "a", "digits": 1}]}
    sections = [
        report.facts(SPOOF, {SPOOF: SPOOF}),
        report.table("Table", (SPOOF, "b"), [(SPOOF, SPOOF)], note=SPOOF),
        report.curves(
            "Curves", [report.panel(SPOOF, SPOOF, SPOOF, {SPOOF: ([1], [2.0]), "b": ([1], [1.0])}, log=False)]
        ),
        report.samples("Samples", [{"step": 1, "samples": [{SPOOF: SPOOF}]}], {}),
        {**pictures, "pictures": [card], "orders": {SPOOF: [0]}},
        sentences,
    ]
    report.write(tmp_path / "r.html", report.page(SPOOF, SPOOF, sections), details.chunks())
    page = open_report(visit, tmp_path / "r.html")
    for summary in page.locator("summary").all():
        summary.click()
    page.get_by_role("button", name="Open", exact=True).click()
    page.locator("svg.chart").focus()
    page.keyboard.press("ArrowRight")
    page.locator("svg.links").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Heat map").click()
    page.locator("svg.heat").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".predicted .tokens button").click()
    assert_marks_are_escaped(page)
    visit.problems = [problem for problem in visit.problems if "data:," not in problem]  # the picture without data


def test_direction_marks_are_escaped_in_the_demo(visit: Visit, shown_runs: Path, tmp_path: Path) -> None:
    """The marks are in the names of runs and of a picture, and in the message about unknown text."""
    captioning_run, text_run = tmp_path / SPOOF, tmp_path / f"text{SPOOF}"
    shutil.copytree(shown_runs / "runs/scenes", captioning_run)
    shutil.copytree(shown_runs / "runs/text", text_run)
    Image.new("RGB", (64, 64)).save(tmp_path / f"{SPOOF}.png")
    with open_demo(visit, captioning_run) as page:
        page.locator("input[type=file]").set_input_files(tmp_path / f"{SPOOF}.png")
        page.get_by_text("Chosen: ").wait_for()
        assert_marks_are_escaped(page)
    with open_demo(visit, text_run) as page:
        page.get_by_label("Text", exact=True).fill(f"the {SPOOF}")
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("The model does not know").wait_for()
        assert_marks_are_escaped(page)


def test_the_token_is_removed_from_the_address(visit: Visit, shown_runs: Path) -> None:
    """The token is removed from the history, too; after a reload the cookie is enough."""
    with open_demo(visit, shown_runs / "runs/attend", host="0.0.0.0", token="a-token-of-twenty-one") as page:
        assert page.url.endswith("/") and "token" not in page.evaluate("document.URL + JSON.stringify(history.state)")
        page.reload()
        wait_for_answer(page)
        page.locator(".translation").wait_for()


def test_forced_cut_off_and_unknown_words_are_reported(visit: Visit, shown_runs: Path) -> None:
    """The page shows the scores that the HTTP interface returns, of the whole and of the part after a forced word."""
    with open_demo(visit, shown_runs / "runs/attend") as page:
        column = page.locator(".column").first
        assert "Of the whole" not in column.text_content()
        with page.expect_response("**/api/translate") as response:
            column.get_by_label("A word of your own").fill("🐈")
            column.get_by_role("button", name="Force it").click()
        column.locator(".prefix").wait_for()
        best = response.value.json()["translations"][0]["translations"][0]
        for label, suffix in (("Of the whole", "_with_prefix"), ("Of what follows the forced beginning", "")):
            numbers = [f"{best[name + suffix]:.3f}" for name in ("log_probability", "score")]
            sentence = f"{label}: log-probability {numbers[0]}, score {numbers[1]}"
            assert column.get_by_text(sentence).count() == 1
        assert column.get_by_text("The model does not know 1 of the forced tokens.").count() == 1
        with page.expect_response("**/api/translate"):
            page.get_by_label("Text to translate").fill("a 🐈 " + "big cat " * 200)
            page.get_by_role("button", name="Translate").click()
        column.get_by_text("The model does not know “🐈”.").wait_for()
        assert column.get_by_text("The text is too long: its last ").count() == 1
        visit.assert_accessible()


@pytest.mark.parametrize(
    ("hypothesis", "reference", "marked", "struck_out"),
    [
        ("a dog runs", "a big dog runs fast", [], ["big", "fast"]),
        ("a cat sits", "a dog sits", ["cat"], ["dog"]),
        ("", "a dog", [], ["a", "dog"]),
        ("a dog", "", ["a", "dog"], []),
        ("一只狗跑", "一只大狗在跑", [], ["大", "在"]),
        ("same", "same", [], []),
        ("w " * 2100 + "x y", "w " * 2100 + "x z y", [], ["z"]),
    ],
)
def test_words_that_were_left_out_are_struck_out(
    hypothesis: str, reference: str, marked: list[str], struck_out: list[str], visit: Visit, tmp_path: Path
) -> None:
    """The table compares a hypothesis with the first system; an opened row compares it with the reference."""
    sentences = {
        **{"kind": "sentences", "title": "Sentences", "systems": ["a", "b"], "scores": [], "names": None},
        **{"sources": None, "references": [[reference]], "hypotheses": [[reference], [hypothesis]]},
        **{"flags": [[]], "details": None, "values": [[], []]},
    }
    report.write(tmp_path / "r.html", report.page("A report", "", [sentences]))
    page = open_report(visit, tmp_path / "r.html")
    page.get_by_role("button", name="Open", exact=True).click()
    for cell in (page.locator("tr:not(.inside) td").last, page.locator("tr.inside dd").last):
        assert cell.locator("mark").all_text_contents() == marked
        assert cell.locator("del").all_text_contents() == struck_out


def test_a_report_explains_its_marks(shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from demo_models import run

    monkeypatch.chdir(shown_runs)
    for name, line in (("ours.de", "ein Hund"), ("theirs.de", "ein Hund läuft"), ("ref.de", "ein Hund")):
        Path(name).write_text(f"{line}\n" * 2)
    files = ["hypotheses=ours.de", "baseline=theirs.de", "references=ref.de", "bootstrap=2", "report=marked.html"]
    assert run("eval", *files) == 0
    (encoded_report,) = re.findall('id="report">(.*?)<', Path("marked.html").read_text())
    sections = json.loads(gzip.decompress(base64.b64decode(encoded_report)))["sections"]
    assert any("struck out" in (section.get("note") or "") for section in sections)
