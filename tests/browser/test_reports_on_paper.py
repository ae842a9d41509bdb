"""Tests of what a report looks like: printed, in Hebrew, and with labels and numbers that are easily wrong."""

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Visit, open_report

from seqtool.view import report
from seqtool.view.report import SIZE, Details

HEBREW = ["▁", "של", "▁", "עו", "▁", "לם", "<end>"]
LONG = ["a", "house", "Donaudampfschifffahrt", "internationalisation"]


def sentences(texts: Sequence[str], values: Sequence[float], **other: Any) -> dict[str, Any]:
    """A section with a system whose translations are also the references."""
    references, scores = [[text] for text in texts], [{"label": "BLEU", "digits": 3}]
    section = {"kind": "sentences", "title": "Sentences", "systems": ["first"], "scores": scores, "sources": None}
    parts = {"references": references, "hypotheses": [list(texts)], "values": [[list(values)]], "details": None}
    return {**section, "names": None, "flags": [[] for _ in texts], **parts, **other}


def open_attention(visit: Visit, file: Path, source: Sequence[str], target: Sequence[str]) -> Any:
    """Open a report of one sentence with the attention of these words."""
    details = Details()
    details.add(source=source, target=target, weights=np.full((len(target), len(source)), 1 / len(source)))
    section = sentences(["a text"], [1.0], details={"size": SIZE})
    report.write(file, report.page("A report", "of a sentence", [section]), details.chunks())
    page = open_report(visit, file)
    page.get_by_role("button", name="Open").click()
    page.locator("svg.links").wait_for()
    return page


def contents(pdf: bytes) -> Iterator[bytes]:
    """The compressed streams in a PDF, among them what is drawn on each page."""
    for stream in re.findall(rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            yield zlib.decompress(stream)


def test_hebrew_is_read_from_the_right_if_spaces_are_pieces(visit: Visit, tmp_path: Path) -> None:
    page = open_attention(visit, tmp_path / "report.html", HEBREW, ["peace", "world", "<end>"])
    hebrew, english = (
        [float(word.get_attribute("x")) for word in page.locator(f".word[data-{side}]").all()]
        for side in ("source", "target")
    )
    assert hebrew == sorted(hebrew, reverse=True) and english == sorted(english)


def test_labels_of_a_heat_map_are_whole(visit: Visit, tmp_path: Path) -> None:
    page = open_attention(visit, tmp_path / "report.html", LONG, LONG[::-1])
    page.get_by_role("button", name="Heat map").click()
    drawing = page.locator("svg.heat").bounding_box()
    boxes = [label.bounding_box() for label in page.locator("svg.heat text").all()]
    assert len(boxes) == 8 and all(box["x"] >= drawing["x"] and box["y"] >= drawing["y"] for box in boxes)
    for start, size in (("x", "width"), ("y", "height")):
        assert max(box[start] + box[size] for box in boxes) <= drawing[start] + drawing[size]


def test_numbers_and_counts_are_read_as_a_person_writes_them(visit: Visit, tmp_path: Path) -> None:
    """A small negative number is 0.000, one step is a step, and TER names its direction."""
    terms = {"scores": [{"label": "TER", "digits": 3, "lower": True}]}
    samples = report.samples("Samples", [{"step": 1, "samples": [{"text": "a"}]}], {})
    sections = [sentences(["one", "two"], [-0.0001, -0.1], **terms), samples]
    report.write(tmp_path / "report.html", report.page("A report", "of two sentences", sections))
    page = open_report(visit, tmp_path / "report.html")
    assert page.locator("td.number:last-child").all_text_contents() == ["0.000", "-0.100"]  # the worst first
    assert page.locator("th", has_text="TER").locator("small").text_content() == "lower is better"
    assert "after 1 step (" in page.locator(".samples").text_content()


@pytest.mark.parametrize("visit", ["dark"], indirect=True)
def test_many_captions_are_printed_on_few_white_pages(visit: Visit, tmp_path: Path) -> None:
    """The head of the table is on each page. No row is like another, so only the head's glyphs are on all pages."""
    values = [number / 1000 for number in range(500)]
    texts = [f"{number} dogs run to {number + 7} balls on {number * 3} hills" for number in range(500)]
    names = [f"{number:05}.jpg" for number in range(500)]
    file = tmp_path / "report.html"
    report.write(file, report.page("Captions", "of 500 pictures", [sentences(texts, values, names=names)]))
    page = open_report(visit, file)
    pdf = page.pdf(prefer_css_page_size=True)
    assert 5 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 15
    pages = [set(re.findall(rb"<(\w{12,})> Tj", content)) for content in contents(pdf) if b" Tj" in content]
    assert len(pages) == len(re.findall(rb"/Type /Page\b", pdf)) and set.intersection(*pages)
    page.emulate_media(media="print")
    ground, letters = page.evaluate("[getComputedStyle(document.body)].flatMap((s) => [s.backgroundColor, s.color])")
    assert (ground, letters) == ("rgb(255, 255, 255)", "rgb(22, 25, 29)")
    widths = page.evaluate("[...document.querySelectorAll('tbody td:nth-child(4)')].map((cell) => cell.offsetWidth)")
    assert min(widths) > 200
