"""The demo in a browser: each view by what a person does, with pointer and keys."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Visit
from PIL import Image
from test_demo import Server, place, serving, strange_sentences  # noqa: F401 a fixture

import seqtool
from seqtool.demo.app import make_app
from seqtool.demo.engine import Engine

SENTENCE = "I have a big cat but a small house."


@pytest.fixture(scope="module")
def words(place: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(place, "checkpoint=runs/attend,runs/fixed").ready()
    yield server
    assert "Traceback" not in server.end()


@pytest.fixture(scope="module")
def pictures(place: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(place, "checkpoint=runs/scenes").ready()
    yield server
    assert "Traceback" not in server.end()


@pytest.fixture(scope="module")
def texts(place: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(place, "checkpoint=runs/text").ready()
    yield server
    assert "Traceback" not in server.end()


def opened(visit: Visit, server: Server) -> Any:
    visit.page.goto(f"http://127.0.0.1:{server.port}/")
    visit.page.locator(".column .answer[aria-busy=false]").first.wait_for()
    return visit.page


def until(page: Any, holds: Callable[[], Any]) -> None:
    """Wait until something holds: the page's policy allows no scripts of a test's own that could."""
    for _ in range(300):
        if holds():
            return
        page.wait_for_timeout(50)
    assert holds()


def settled(page: Any) -> None:
    """Until every column has its answer."""
    until(page, lambda: page.locator("[aria-busy=true]").count() == 0)


@pytest.mark.parametrize("visit", ["light", "dark"], indirect=True)
def test_views_are_accessible(visit: Visit, words: Server, pictures: Server, texts: Server) -> None:
    for server in (words, pictures, texts):
        page = opened(visit, server)
        settled(page)
        for summary in page.locator("summary").all():
            summary.click()
        visit.assert_accessible()
        visit.assert_reflows()


def test_a_sentence_is_translated_by_both_models(visit: Visit, words: Server) -> None:
    """Whatever it is; `SEQTOOL_PAGE_SENTENCES=300` types so many."""
    page = opened(visit, words)
    source = page.get_by_label("Text to translate")
    for sentence in strange_sentences(int(os.environ.get("SEQTOOL_PAGE_SENTENCES", "14"))):
        source.fill(sentence)
        page.get_by_role("button", name="Translate").click()
        settled(page)
        same_as_api(page, words, sentence)
    source.fill("the old dog")
    page.keyboard.press("Control+Enter")
    settled(page)
    same_as_api(page, words, "the old dog")
    with page.expect_response(lambda one: "a red house" in (one.request.post_data or "")):
        source.fill("a red house")  # and nothing else: it is translated as one types
    settled(page)
    same_as_api(page, words, "a red house")
    assert page.locator("img").count() == 0
    assert page.get_by_text("The lines were read as one sentence.").count() == 0
    source.fill("a red\nhouse")
    page.get_by_text("The lines were read as one sentence.").first.wait_for()


def same_as_api(page: Any, words: Server, sentence: str, **settings: Any) -> None:
    """Both columns show the text, the scores and the weights of the interface's answer."""
    for model in range(2):
        request = {"sentences": [sentence], "model": model, "weights": model == 0, "settings": settings}
        best = words.post("/api/translate", request).json["translations"][0]["translations"][0]
        column = page.locator(".column").nth(model)
        assert column.locator(".translation").text_content() == (best["text"] or "(nothing)")
        numbers = re.findall(r"-?\d+\.\d+", column.locator(".status").first.text_content())
        assert [float(one) for one in numbers] == pytest.approx([best["log_probability"], best["score"]], abs=6e-4)
        drawn = [weight for row in best.get("attention") or [] for weight in row if weight >= 0.02]
        lines = column.locator(".link").evaluate_all("lines => lines.map((one) => one.getAttribute('stroke-opacity'))")
        assert [float(one) for one in lines] == pytest.approx(drawn, abs=6e-4)


def test_a_word_is_forced(visit: Visit, words: Server) -> None:
    """By a click, by keys, and by typing: the prefix stays, the rest is searched anew."""
    page = opened(visit, words)
    column = page.get_by_role("region", name="attend")
    settled(page)
    column.locator(".tokens button").nth(1).click()
    assert column.get_by_label("Replace").input_value() == "1"
    alternative = column.locator(".expected .force").nth(1)
    forced = alternative.text_content().strip()
    alternative.focus()
    page.keyboard.press("Enter")
    column.locator(".prefix").wait_for()
    settled(page)
    begins = column.locator(".prefix").text_content()
    assert begins.startswith("Begins with “") and forced in begins
    tokens = column.locator(".answer > .predicted .tokens button").all_text_contents()
    prefix = [one.replace(" ", "▁").replace("␣", "▁") for one in tokens[:2]]
    expected = words.post("/api/translate", {"sentences": [SENTENCE], "prefixes": [prefix]}).json
    assert column.locator(".translation").text_content() == expected["translations"][0]["translations"][0]["text"]
    column.get_by_label("A word of your own").fill("casa")
    column.get_by_role("button", name="Force it").click()
    until(page, lambda: "casa" in column.locator(".prefix").text_content())
    settled(page)
    assert column.locator(".translation").text_content().startswith("casa")
    column.get_by_role("button", name="Remove the prefix").click()
    column.locator(".prefix").wait_for(state="detached")
    settled(page)
    lines = column.locator("svg.links")
    lines.locator(".word[data-target]").nth(2).click()
    assert column.locator(".tokens button").nth(2).get_attribute("class").endswith(" on")
    lines.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert column.locator(".tokens button").nth(0).get_attribute("class").endswith(" on")


def test_controls_change_the_search(visit: Visit, words: Server) -> None:
    page = opened(visit, words)
    page.get_by_label("n best").fill("3")
    page.get_by_label("n best").press("Tab")
    page.locator("ol li").nth(2).wait_for()
    column = page.get_by_role("region", name="attend")
    column.get_by_text("The search").click()
    tree, reading, nodes = column.locator("svg.tree"), column.locator(".search .reading"), column.locator(".node")
    nodes.nth(2).hover()
    tree.focus()
    page.keyboard.press("End")  # and the tree scrolls away under the pointer
    page.wait_for_timeout(200)
    assert nodes.last.get_attribute("class").endswith(" on")
    nodes.nth(1).dispatch_event("pointerdown")  # as a finger's tap does, without moving
    assert nodes.nth(1).get_attribute("class").endswith(" on")
    page.keyboard.press("Home")
    shown = re.fullmatch(r"step 1: .*, score (\S+), log-probability (\S+?)(, number .*)?", reading.text_content())
    number = column.locator(".node .tick").first
    assert shown and float(number.text_content()) == pytest.approx(float(shown[1]), abs=0.006)
    column.get_by_role("button", name="Without").click()
    assert float(number.text_content()) == pytest.approx(float(shown[2]), abs=0.006)
    assert column.locator(".node.pruned").count() > 0 and column.locator(".node.best").count() > 1
    page.get_by_label("Beam", exact=True).fill("0")
    page.get_by_label("Beam", exact=True).press("Tab")
    page.get_by_role("alert").first.wait_for()
    assert "beam must be at least 1" in page.get_by_role("alert").first.text_content()
    page.get_by_label("Beam", exact=True).fill("5")
    page.get_by_label("Sample").check()
    until(page, lambda: page.locator("[role=alert], .search").count() == 0)
    page.get_by_label("n best").fill("1")
    page.get_by_label("Temperature").fill("1.5")
    for seed in range(2, 5):
        with page.expect_response(lambda one, seed=seed: f'"seed":{seed}' in (one.request.post_data or "")):
            page.get_by_label("Seed").fill(str(seed))
            page.get_by_label("Seed").press("Tab")
        settled(page)
        same_as_api(page, words, SENTENCE, sample=True, temperature=1.5, seed=seed)
    visit.problems = [one for one in visit.problems if "400 (Bad Request)" not in one]


def test_why_not_mine(visit: Visit, words: Server) -> None:
    page = opened(visit, words)
    column = page.get_by_role("region", name="attend")
    settled(page)
    column.get_by_text("Why not mine?").click()
    column.get_by_label("Your translation").fill("hombre hombre hombre")
    page.keyboard.press("Enter")
    answer = column.locator(".why")
    answer.get_by_text("It left the beam at step").wait_for()
    assert "Kept there:" in answer.text_content()


def test_a_scene_is_edited(visit: Visit, pictures: Server) -> None:
    """By dragging, by keys, by its colour, and the caption follows; a word is forced and the gaze moves."""
    page = opened(visit, pictures)
    settled(page)

    def picture() -> str:
        settled(page)
        return str(page.locator("svg.picture image").get_attribute("href"))

    seen = [picture()]
    item = page.locator(".item").first
    for change in ("drag", "key", "colour", "add"):
        with page.expect_response("**/api/caption"):
            if change == "drag":
                box = item.bounding_box()
                page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
                page.mouse.down()
                page.mouse.move(box["x"] + 60, box["y"] + 60, steps=3)
                page.mouse.up()
            elif change == "key":
                item.focus()
                page.keyboard.press("ArrowDown")
            elif change == "colour":
                page.get_by_label("Colour").select_option("purple")
            else:
                page.get_by_role("button", name="Add an object").click()
        page.wait_for_timeout(300)
        seen.append(picture())
    assert len(set(seen)) == 5
    page.locator(".looking .token").first.focus()
    assert max(float(one.get_attribute("fill-opacity")) for one in page.locator(".veil rect").all()) > 0.1
    page.locator(".predicted .tokens button").first.click()
    page.locator(".expected .force").nth(1).click()
    page.locator(".prefix").wait_for()
    settled(page)
    page.get_by_label("A word of your own").fill("blue")
    page.get_by_role("button", name="Force it").click()
    until(page, lambda: "“blue”" in page.locator(".prefix").text_content())
    settled(page)
    page.locator(".looking .token").nth(1).click()
    assert page.locator(".predicted .tokens button").nth(1).get_attribute("class").endswith(" on")
    with page.expect_response("**/api/caption"):
        page.get_by_label("Attention").select_option("argmax")
    page.wait_for_timeout(300)
    settled(page)
    page.locator(".looking .token").first.focus()
    until(page, lambda: page.locator(".looking rect.frame[visibility=visible]").count() == 1)


def test_a_picture_is_chosen(visit: Visit, pictures: Server, tmp_path: Path) -> None:
    Image.new("RGB", (90, 60), "red").save(tmp_path / "red.png")
    page = opened(visit, pictures)
    with page.expect_response("**/api/caption") as answered:
        page.locator("input[type=file]").set_input_files(tmp_path / "red.png")
    assert answered.value.json()["captions"][0]["image"] == "red.png"
    settled(page)
    dropped = """(bytes) => {
        const given = new DataTransfer();
        given.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
        return given;
    }"""
    given = page.evaluate_handle(dropped, list((tmp_path / "red.png").read_bytes()))
    with page.expect_response("**/api/caption") as answered:
        page.dispatch_event(".drop", "drop", {"dataTransfer": given})
    assert answered.value.json()["captions"][0]["image"] == "dropped.png"
    settled(page)
    assert "Chosen: dropped.png" in page.locator(".column").first.text_content()


def test_what_comes_next_as_one_types(visit: Visit, texts: Server) -> None:
    page = opened(visit, texts)
    text = page.get_by_label("Text", exact=True)
    text.fill("")
    text.press_sequentially("the c")
    until(page, lambda: page.locator(".answer .tokens button").count() == 5)
    assert page.locator(".likeliest .force").count() >= 8
    page.locator(".likeliest .force").first.click()
    until(page, lambda: page.locator(".answer .tokens button").count() == 6)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_role("button", name="Continue").click()
    page.locator(".continuation").wait_for()
    assert len(page.locator(".continuation").text_content()) == 6 + 12
    text.press_sequentially("a")  # the continuation was of another text
    assert page.locator(".continuation").count() == 0


def test_it_says_that_the_model_is_loading(visit: Visit, place: Path) -> None:  # noqa: F811
    """As long as it does; the token of the address stays in a cookie."""
    held, token = threading.Event(), "a-token-of-twenty-one"

    def load() -> list[Any]:
        held.wait(20)
        return [seqtool.load(place / "runs/attend", device="cpu", threads=1)]

    engine = Engine(load)
    with serving(lambda port: make_app(engine, host="0.0.0.0", port=port, token=token)) as port:
        visit.page.goto(f"http://127.0.0.1:{port}/?token={token}")
        visit.page.get_by_text("Loading the model…").wait_for()
        assert engine.state == "loading"
        held.set()
        visit.page.locator(".translation").wait_for()
        assert "attend" in visit.page.locator("#state").text_content()
