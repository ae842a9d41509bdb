"""The page and reports show what is there: marks of direction, and what was forced, cut off, unknown or left out."""

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
from chromium import Visit, opened
from PIL import Image
from test_demo import serving

import seqtool
from seqtool.demo.app import make_app
from seqtool.demo.engine import Engine
from seqtool.view import report
from seqtool.view.report import Details

MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
SHOWN = "".join(f"\\u{ord(mark):04x}" for mark in MARKS)
TRICK = f"a{MARKS}gnp.exe"
TEXTS = """() => {
    const texts = [document.title, document.body.innerText];
    for (const one of document.querySelectorAll(":not(script)")) {
        for (const child of one.childNodes) if (child.nodeType === Node.TEXT_NODE) texts.push(child.data);
        for (const name of ["title", "aria-label"]) texts.push(one.getAttribute(name) ?? "");
    }
    return texts.join("\\n");
}"""


def no_marks(page: Any) -> None:
    text = page.evaluate(TEXTS)
    assert not set(text) & set(MARKS) and SHOWN in text


@contextmanager
def demo(visit: Visit, run: Path, **settings: Any) -> Iterator[Any]:
    engine = Engine(lambda: [seqtool.load(run, device="cpu", threads=1)])
    chosen = {"host": "127.0.0.1", "token": None, **settings}
    query = "" if chosen["token"] is None else f"?token={chosen['token']}"
    with serving(lambda port: make_app(engine, port=port, **chosen)) as port:
        visit.page.goto(f"http://127.0.0.1:{port}/{query}")
        settled(visit.page)
        yield visit.page
        visit.page.goto("about:blank")  # asks nothing more of a server that ends


def settled(page: Any) -> None:
    page.locator(".column .answer[aria-busy=false]").first.wait_for()


def test_marks_of_direction_in_a_report(visit: Visit, tmp_path: Path) -> None:
    """In titles, names of runs, systems and images, texts, tokens, values and readings."""
    details = Details()
    predicted = [{"token": TRICK, "probability": 0.5, "entropy": 1.0, "likeliest": [[TRICK, 0.5]]}]
    details.add(source=[TRICK, "b"], target=[TRICK], weights=np.array([[0.5, 0.5]]), predicted=predicted)
    sentences = {
        **{"kind": "sentences", "title": TRICK, "systems": [TRICK, "b"], "scores": [{"label": TRICK, "digits": 1}]},
        **{"sources": [TRICK], "names": [TRICK], "references": [[TRICK]], "hypotheses": [[TRICK], [f"c {TRICK}"]]},
        **{"values": [[[1.0]], [[2.0]]], "flags": [[TRICK]], "details": details.described()},
    }
    caption = {"words": [TRICK], "text": TRICK}
    card = {"name": TRICK, "picture": "data:,", "references": [TRICK], "values": [[1.0]], "captions": [caption]}
    pictures = {"kind": "pictures", "title": "Pictures", "systems": [TRICK], "scores": [{"label": "a", "digits": 1}]}
    sections = [
        report.facts(TRICK, {TRICK: TRICK}),
        report.table("Table", (TRICK, "b"), [(TRICK, TRICK)], note=TRICK),
        report.curves(
            "Curves", [report.panel(TRICK, TRICK, TRICK, {TRICK: ([1], [2.0]), "b": ([1], [1.0])}, log=False)]
        ),
        report.samples("Samples", [{"step": 1, "samples": [{TRICK: TRICK}]}]),
        {**pictures, "pictures": [card], "orders": {TRICK: [0]}},
        sentences,
    ]
    report.write(tmp_path / "r.html", report.page(TRICK, TRICK, sections), details.chunks())
    page = opened(visit, tmp_path / "r.html")
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
    no_marks(page)
    visit.problems = [one for one in visit.problems if "data:," not in one]


def test_marks_of_direction_in_the_demo(visit: Visit, shown_runs: Path, tmp_path: Path) -> None:
    """In the name of a run and of a picture, and in what is said of a text."""
    captioner, text = tmp_path / TRICK, tmp_path / f"text{TRICK}"
    shutil.copytree(shown_runs / "runs/scenes", captioner)
    shutil.copytree(shown_runs / "runs/text", text)
    Image.new("RGB", (64, 64)).save(tmp_path / f"{TRICK}.png")
    with demo(visit, captioner) as page:
        page.locator("input[type=file]").set_input_files(tmp_path / f"{TRICK}.png")
        page.get_by_text("Chosen: ").wait_for()
        no_marks(page)
    with demo(visit, text) as page:
        page.get_by_label("Text", exact=True).fill(f"the {TRICK}")
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("The model does not know").wait_for()
        no_marks(page)


def test_the_token_leaves_the_address(visit: Visit, shown_runs: Path) -> None:
    """And its history; after loading anew, the cookie serves."""
    with demo(visit, shown_runs / "runs/attend", host="0.0.0.0", token="a-token-of-twenty-one") as page:
        assert page.url.endswith("/") and "token" not in page.evaluate("document.URL + JSON.stringify(history.state)")
        page.reload()
        settled(page)
        page.locator(".translation").wait_for()


def test_what_was_forced_cut_off_and_unknown(visit: Visit, shown_runs: Path) -> None:
    """The page shows the interface's numbers, of the whole and of what follows a forced word."""
    with demo(visit, shown_runs / "runs/attend") as page:
        column = page.locator(".column").first
        assert "Of the whole" not in column.text_content()
        with page.expect_response("**/api/translate") as answered:
            column.get_by_label("A word of your own").fill("🐈")
            column.get_by_role("button", name="Force it").click()
        column.locator(".prefix").wait_for()
        best = answered.value.json()["translations"][0]["translations"][0]
        for begin, ending in (("Of the whole", "_with_prefix"), ("Of what follows the forced beginning", "")):
            numbers = [f"{best[name + ending]:.3f}" for name in ("log_probability", "score")]
            said = f"{begin}: log-probability {numbers[0]}, score {numbers[1]}"
            assert column.get_by_text(said).count() == 1
        assert column.get_by_text("The model does not know 1 of the forced tokens.").count() == 1
        with page.expect_response("**/api/translate"):
            page.get_by_label("Text to translate").fill("a 🐈 " + "big cat " * 200)
            page.get_by_role("button", name="Translate").click()
        column.get_by_text("The model does not know “🐈”.").wait_for()
        assert column.get_by_text("The text is too long: its last ").count() == 1
        visit.accessible()


@pytest.mark.parametrize(
    ("text", "other", "marked", "struck"),
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
def test_words_that_were_left_out(
    text: str, other: str, marked: list[str], struck: list[str], visit: Visit, tmp_path: Path
) -> None:
    """In the table, beside the first system; and in an opened row, beside the reference."""
    sentences = {
        **{"kind": "sentences", "title": "Sentences", "systems": ["a", "b"], "scores": [], "names": None},
        **{"sources": None, "references": [[other]], "hypotheses": [[other], [text]], "flags": [[]], "details": None},
        "values": [[], []],
    }
    report.write(tmp_path / "r.html", report.page("A report", "", [sentences]))
    page = opened(visit, tmp_path / "r.html")
    page.get_by_role("button", name="Open", exact=True).click()
    for place in (page.locator("tr:not(.inside) td").last, page.locator("tr.inside dd").last):
        assert place.locator("mark").all_text_contents() == marked
        assert place.locator("del").all_text_contents() == struck


def test_a_report_says_what_is_marked(shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from demo_models import run

    monkeypatch.chdir(shown_runs)
    for name, line in (("ours.de", "ein Hund"), ("theirs.de", "ein Hund läuft"), ("ref.de", "ein Hund")):
        Path(name).write_text(f"{line}\n" * 2)
    files = ["hypotheses=ours.de", "baseline=theirs.de", "references=ref.de", "bootstrap=2", "report=marked.html"]
    assert run("eval", *files) == 0
    (data,) = re.findall('id="report">(.*?)<', Path("marked.html").read_text())
    sections = json.loads(gzip.decompress(base64.b64decode(data)))["sections"]
    assert any("struck out" in (section.get("note") or "") for section in sections)
