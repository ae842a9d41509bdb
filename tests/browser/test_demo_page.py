"""The demo in a browser: each view by what a person does, with pointer and keys."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Visit
from PIL import Image
from test_demo import STRANGE, Server, place  # noqa: F401 a fixture

STRANGE_SHOWN = [one for one in STRANGE if one.strip() and len(one) < 100 and "\x00" not in one]


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
    visit.page.locator(".column .found[aria-busy=false]").first.wait_for()
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
        visit.accessible()
        visit.reflows()


def test_a_sentence_is_translated_by_both_models(visit: Visit, words: Server) -> None:
    page = opened(visit, words)
    source = page.get_by_label("Text to translate")
    for sentence in STRANGE_SHOWN:
        source.fill(sentence)
        page.keyboard.press("Control+Enter")
        with page.expect_response("**/api/translate") as answered:
            page.get_by_role("button", name="Translate").click()
        settled(page)
        expected = json.loads(answered.value.request.post_data)["model"]
        answer = words.post("/api/translate", {"sentences": [sentence], "model": expected}).json
        text = answer["translations"][0]["translations"][0]["text"] or "(nothing)"
        assert page.locator(".translation").nth(expected).text_content() == text
    assert page.locator("img").count() == 0


def test_a_word_is_forced(visit: Visit, words: Server) -> None:
    """By a click, by keys, and by typing: the prefix stays, the rest is searched anew."""
    page = opened(visit, words)
    column = page.get_by_role("region", name="attend")
    settled(page)
    column.locator(".tokens button").nth(1).click()
    alternative = column.locator(".expected .force").nth(1)
    forced = alternative.text_content().strip()
    alternative.focus()
    page.keyboard.press("Enter")
    column.locator(".prefix").wait_for()
    settled(page)
    begins = column.locator(".prefix").text_content()
    assert begins.startswith("Begins with “") and forced in begins
    prefix = begins.split("“")[1].split("”")[0]
    expected = words.post(
        "/api/translate", {"sentences": ["I have a big cat but a small house."], "prefixes": [prefix]}
    ).json
    assert column.locator(".translation").text_content() == expected["translations"][0]["translations"][0]["text"]
    column.get_by_label("A word of your own").fill("casa")
    column.get_by_role("button", name="Force it").click()
    until(page, lambda: "casa" in column.locator(".prefix").text_content())
    settled(page)
    assert column.locator(".translation").text_content().startswith("casa")
    column.get_by_role("button", name="Remove the prefix").click()
    column.locator(".prefix").wait_for(state="detached")


def test_controls_change_the_search(visit: Visit, words: Server) -> None:
    page = opened(visit, words)
    page.get_by_label("n best").fill("3")
    page.get_by_label("n best").press("Tab")
    page.locator("ol li").nth(2).wait_for()
    column = page.get_by_role("region", name="attend")
    column.get_by_text("The search").click()
    tree = column.locator("svg.tree")
    tree.focus()
    page.keyboard.press("ArrowRight")
    reading = column.locator(".search .reading")
    assert "step 1:" in reading.text_content() and "score" in reading.text_content()
    column.get_by_role("button", name="Without").click()
    assert "log-probability" in reading.text_content()
    assert column.locator(".node.pruned").count() > 0 and column.locator(".node.best").count() > 1
    page.get_by_label("Beam", exact=True).fill("0")
    page.get_by_label("Beam", exact=True).press("Tab")
    page.get_by_role("alert").first.wait_for()
    assert "beam must be at least 1" in page.get_by_role("alert").first.text_content()
    page.get_by_label("Beam", exact=True).fill("5")
    page.get_by_label("Sample").check()
    until(page, lambda: page.locator("[role=alert], .search").count() == 0)
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
    assert page.locator(".veil rect").first.get_attribute("fill-opacity") != "0"
    page.locator(".found > div .tokens").last.locator("button").first.click()
    page.locator(".expected .force").nth(1).click()
    page.locator(".prefix").wait_for()
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


def test_what_comes_next_as_one_types(visit: Visit, texts: Server) -> None:
    page = opened(visit, texts)
    text = page.get_by_label("Text", exact=True)
    text.fill("")
    text.press_sequentially("the c")
    until(page, lambda: page.locator(".found .tokens button").count() == 5)
    assert page.locator(".likeliest .force").count() >= 8
    page.locator(".likeliest .force").first.click()
    until(page, lambda: page.locator(".found .tokens button").count() == 6)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_role("button", name="Continue").click()
    page.locator(".continuation").wait_for()
    assert len(page.locator(".continuation").text_content()) == 6 + 12


def test_it_says_that_the_model_is_loading(visit: Visit, place: Path) -> None:  # noqa: F811
    server = Server(place, "checkpoint=runs/attend")
    visit.page.route(
        "**/api/model", lambda route: route.fulfill(json={"state": "loading", "models": [], "problem": ""})
    )
    visit.page.goto(f"http://127.0.0.1:{server.port}/")
    visit.page.get_by_text("Loading the model…").wait_for()
    visit.page.unroute("**/api/model")
    visit.page.locator(".translation").wait_for()
    server.end()
