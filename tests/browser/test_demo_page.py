"""Tests of the demo in a browser: each view is used as a person would use it, with pointer and keys."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from shutil import copytree
from typing import Any
from xml.etree import ElementTree

import pytest
from chromium import Visit
from PIL import Image
from test_demo import Server, directory, serve_app, strange_sentences  # noqa: F401 a fixture

import seqtool
from seqtool.demo.app import make_app
from seqtool.demo.engine import Engine
from seqtool.errors import InputError

SVG = "{http://www.w3.org/2000/svg}"
SENTENCE = "I have a big cat but a small house."


@pytest.fixture(scope="module")
def translation_demo(directory: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(directory, "checkpoint=runs/attend,runs/fixed").ready()
    yield server
    assert "Traceback" not in server.end()


@pytest.fixture(scope="module")
def caption_demo(directory: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(directory, "checkpoint=runs/scenes").ready()
    yield server
    assert "Traceback" not in server.end()


@pytest.fixture(scope="module")
def mixed_demo(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:  # noqa: F811
    """The port of a demo with a model of each task, a second captioner that passes for one with hard attention, and
    one that cannot be loaded.
    """

    def load(run: Path) -> Any:
        return seqtool.load(run, device="cpu", threads=1)

    def load_hard() -> Any:
        captioner = load(copytree(directory / "runs/scenes", tmp_path_factory.mktemp("runs") / "hard"))
        captioner.models[0].hard = True
        return captioner

    def fail() -> Any:
        raise InputError("runs/lost has no weights.")

    engine = Engine(
        [fail, *(partial(load, directory / "runs" / run) for run in ("attend", "scenes", "text")), load_hard]
    )
    with serve_app(lambda port: make_app(engine, host="127.0.0.1", port=port, token=None)) as port:
        yield port


@pytest.fixture(scope="module")
def text_demo(directory: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(directory, "checkpoint=runs/text").ready()
    yield server
    assert "Traceback" not in server.end()


def open_demo(visit: Visit, server: Server) -> Any:
    visit.page.goto(f"http://127.0.0.1:{server.port}/")
    visit.page.locator(".column .answer[aria-busy=false]").first.wait_for()
    return visit.page


def wait_until(page: Any, condition: Callable[[], Any]) -> None:
    """Wait until a condition holds. Playwright's own wait would run a script, which the page's policy forbids."""
    for _ in range(300):  # 15 seconds
        if condition():
            return
        page.wait_for_timeout(50)
    assert condition()


def wait_for_answers(page: Any) -> None:
    """Wait until every column has its answer."""
    wait_until(page, lambda: page.locator("[aria-busy=true]").count() == 0)


@pytest.mark.parametrize("visit", ["light", "dark"], indirect=True)
def test_views_are_accessible(visit: Visit, translation_demo: Server, caption_demo: Server, text_demo: Server) -> None:
    for server in (translation_demo, caption_demo, text_demo):
        page = open_demo(visit, server)
        wait_for_answers(page)
        for summary in page.locator("summary").all():
            summary.click()
        visit.assert_accessible()
        visit.assert_reflows()


def test_a_sentence_is_translated_by_both_models(visit: Visit, translation_demo: Server) -> None:
    """By default 14 strange sentences are typed; `SEQTOOL_PAGE_SENTENCES=300` makes it 300."""
    page = open_demo(visit, translation_demo)
    source = page.get_by_label("Text to translate")
    for sentence in strange_sentences(int(os.environ.get("SEQTOOL_PAGE_SENTENCES", "14"))):
        source.fill(sentence)
        page.get_by_role("button", name="Translate").click()
        wait_for_answers(page)
        assert_same_as_api(page, translation_demo, sentence)
    source.fill("the old dog")
    page.keyboard.press("Control+Enter")
    wait_for_answers(page)
    assert_same_as_api(page, translation_demo, "the old dog")
    with page.expect_response(lambda response: "a red house" in (response.request.post_data or "")):
        source.fill("a red house")  # without a click: the page translates while one types
    wait_for_answers(page)
    assert_same_as_api(page, translation_demo, "a red house")
    assert page.locator("img").count() == 0
    assert page.get_by_text("The lines were read as one sentence.").count() == 0
    source.fill("a red\nhouse")
    page.get_by_text("The lines were read as one sentence.").first.wait_for()


def assert_same_as_api(page: Any, translation_demo: Server, sentence: str, **settings: Any) -> None:
    """Assert that both columns show the text, the scores and the weights that the HTTP interface returns."""
    for model in range(2):
        request = {"sentences": [sentence], "model": model, "weights": model == 0, "settings": settings}
        best = translation_demo.post("/api/translate", request).json["translations"][0]["translations"][0]
        column = page.locator(".column").nth(model)
        assert column.locator(".translation").text_content() == (best["text"] or "(nothing)")
        numbers = re.findall(r"-?\d+\.\d+", column.locator(".status").first.text_content())
        expected = [best["log_probability"], best["score"]]
        assert [float(number) for number in numbers] == pytest.approx(expected, abs=6e-4)
        weights = [weight for row in best.get("attention") or [] for weight in row]
        drawn_weights = [weight for weight in weights if weight >= 0.02]  # smaller ones have no line
        read_opacities = "lines => lines.map((line) => line.getAttribute('stroke-opacity'))"
        opacities = column.locator(".link").evaluate_all(read_opacities)
        assert [float(opacity) for opacity in opacities] == pytest.approx(drawn_weights, abs=6e-4)


def test_a_word_is_forced(visit: Visit, translation_demo: Server) -> None:
    """A word is forced by a click, by keys and by typing; the prefix stays, and the remainder is searched again."""
    page = open_demo(visit, translation_demo)
    column = page.get_by_role("region", name="attend")
    wait_for_answers(page)
    column.locator(".tokens button").nth(1).click()
    assert column.get_by_label("Replace").input_value() == "1"
    alternative = column.locator(".expected .force").nth(1)
    forced_word = alternative.text_content().strip()
    alternative.focus()
    page.keyboard.press("Enter")
    column.locator(".prefix").wait_for()
    wait_for_answers(page)
    prefix_note = column.locator(".prefix").text_content()
    assert prefix_note.startswith("Begins with “") and forced_word in prefix_note
    tokens = column.locator(".answer .predicted .tokens button").all_text_contents()
    prefix = [token.replace(" ", "▁").replace("␣", "▁") for token in tokens[:2]]
    expected = translation_demo.post("/api/translate", {"sentences": [SENTENCE], "prefixes": [prefix]}).json
    assert column.locator(".translation").text_content() == expected["translations"][0]["translations"][0]["text"]
    column.get_by_label("A word of your own").fill("casa")
    column.get_by_role("button", name="Force it").click()
    wait_until(page, lambda: "casa" in column.locator(".prefix").text_content())
    wait_for_answers(page)
    assert column.locator(".translation").text_content().startswith("casa")
    column.get_by_role("button", name="Remove the prefix").click()
    column.locator(".prefix").wait_for(state="detached")
    wait_for_answers(page)
    links = column.locator("svg.links")
    links.locator(".word[data-target]").nth(2).click()
    assert column.locator(".tokens button").nth(2).get_attribute("class").endswith(" on")
    links.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert column.locator(".tokens button").nth(0).get_attribute("class").endswith(" on")


def test_controls_change_the_search(visit: Visit, translation_demo: Server) -> None:
    page = open_demo(visit, translation_demo)
    page.get_by_label("n best").fill("3")
    page.get_by_label("n best").press("Tab")
    page.locator("ol li").nth(2).wait_for()
    wait_for_answers(page)
    column = page.get_by_role("region", name="attend")
    column.get_by_text("The search").click()
    tree, reading, nodes = column.locator("svg.tree"), column.locator(".search .reading"), column.locator(".node")
    nodes.nth(2).hover()
    tree.focus()
    page.keyboard.press("End")  # the tree scrolls under the pointer, which must not change the chosen node
    page.wait_for_timeout(200)
    assert nodes.last.get_attribute("class").endswith(" on")
    nodes.nth(1).dispatch_event("pointerdown")  # as a finger's tap does, without moving
    assert nodes.nth(1).get_attribute("class").endswith(" on")
    page.keyboard.press("Home")
    description = re.fullmatch(r"step 1: .*, score (\S+), log-probability (\S+?)(, number .*)?", reading.text_content())
    node_score = column.locator(".node .tick").first
    assert description and float(node_score.text_content()) == pytest.approx(float(description[1]), abs=0.006)
    column.get_by_role("button", name="Without").click()
    assert float(node_score.text_content()) == pytest.approx(float(description[2]), abs=0.006)
    assert column.locator(".node.pruned").count() > 0 and column.locator(".node.best").count() > 1
    page.get_by_label("Beam", exact=True).fill("0")
    page.get_by_label("Beam", exact=True).press("Tab")
    page.get_by_role("alert").first.wait_for()
    assert "beam must be at least 1" in page.get_by_role("alert").first.text_content()
    page.get_by_label("Beam", exact=True).fill("5")
    page.get_by_label("Sample").check()
    wait_until(page, lambda: page.locator("[role=alert], .search").count() == 0)
    page.get_by_label("n best").fill("1")
    page.get_by_label("Temperature").fill("1.5")
    for seed in range(2, 5):
        with page.expect_response(lambda response, seed=seed: f'"seed":{seed}' in (response.request.post_data or "")):
            page.get_by_label("Seed").fill(str(seed))
            page.get_by_label("Seed").press("Tab")
        wait_for_answers(page)
        assert_same_as_api(page, translation_demo, SENTENCE, sample=True, temperature=1.5, seed=seed)
    visit.problems = [problem for problem in visit.problems if "400 (Bad Request)" not in problem]  # of beam 0


def test_the_page_explains_why_a_translation_was_not_chosen(visit: Visit, translation_demo: Server) -> None:
    page = open_demo(visit, translation_demo)
    column = page.get_by_role("region", name="attend")
    wait_for_answers(page)
    column.get_by_text("Why not mine?").click()
    column.get_by_label("Your translation").fill("hombre hombre hombre")
    page.keyboard.press("Enter")
    answer = column.locator(".why")
    answer.get_by_text("It left the beam at step").wait_for()
    assert "Kept there:" in answer.text_content()


def test_a_scene_is_edited(visit: Visit, caption_demo: Server) -> None:
    """Each change of an object gives a new picture and caption; a word is forced, and the attention map moves."""
    page = open_demo(visit, caption_demo)
    wait_for_answers(page)

    def picture_url() -> str:
        wait_for_answers(page)
        return str(page.locator("svg.picture image").get_attribute("href"))

    picture_urls = [picture_url()]
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
        picture_urls.append(picture_url())
    assert len(set(picture_urls)) == 5
    page.locator(".looking .token").first.focus()
    assert max(float(cell.get_attribute("fill-opacity")) for cell in page.locator(".veil rect").all()) > 0.1
    page.locator(".predicted .tokens button").first.click()
    page.locator(".expected .force").nth(1).click()
    page.locator(".prefix").wait_for()
    wait_for_answers(page)
    page.get_by_label("A word of your own").fill("blue")
    page.get_by_role("button", name="Force it").click()
    wait_until(page, lambda: "“blue”" in page.locator(".prefix").text_content())
    wait_for_answers(page)
    page.locator(".looking .token").nth(1).click()
    assert page.locator(".predicted .tokens button").nth(1).get_attribute("class").endswith(" on")
    assert page.get_by_label("Hard attention").count() == 0  # the model has soft attention


def test_a_picture_is_chosen_or_dropped(visit: Visit, caption_demo: Server, tmp_path: Path) -> None:
    Image.new("RGB", (90, 60), "red").save(tmp_path / "red.png")
    page = open_demo(visit, caption_demo)
    with page.expect_response("**/api/caption") as response:
        page.locator("input[type=file]").set_input_files(tmp_path / "red.png")
    assert response.value.json()["captions"][0]["image"] == "red.png"
    wait_for_answers(page)
    make_transfer = """(bytes) => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
        return transfer;
    }"""
    transfer = page.evaluate_handle(make_transfer, list((tmp_path / "red.png").read_bytes()))
    with page.expect_response("**/api/caption") as response:
        page.dispatch_event(".drop", "drop", {"dataTransfer": transfer})
    assert response.value.json()["captions"][0]["image"] == "dropped.png"
    wait_for_answers(page)
    assert "Chosen: dropped.png" in page.locator(".column").first.text_content()
    assert page.get_by_role("img", name="Photo: dropped.png").locator("image").count() == 1
    assert page.locator(".item").count() == 0 and not page.get_by_label("Scene", exact=True).is_visible()
    with page.expect_response("**/api/caption") as response:
        page.get_by_role("button", name="Back to the scene").click()
    assert response.value.json()["captions"][0]["image"] == "scene" and page.locator(".item").count() > 0


def test_next_tokens_are_shown_while_one_types(visit: Visit, text_demo: Server) -> None:
    page = open_demo(visit, text_demo)
    text_field = page.get_by_label("Text", exact=True)
    text_field.fill("")
    text_field.press_sequentially("the c")
    wait_until(page, lambda: page.locator(".answer .tokens button").count() == 5)
    assert page.locator(".likeliest .force").count() >= 8
    page.locator(".likeliest .force").first.click()
    wait_until(page, lambda: page.locator(".answer .tokens button").count() == 6)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_role("button", name="Continue").click()
    page.locator(".continuation").wait_for()
    assert len(page.locator(".continuation").text_content()) == 6 + 12
    text_field.press_sequentially("a")  # which removes the continuation of the previous text
    assert page.locator(".continuation").count() == 0


def test_the_page_says_that_the_model_is_loading(visit: Visit, directory: Path) -> None:  # noqa: F811
    """The message stays until the model is loaded, and the token of the address is kept in a cookie."""
    may_load, token = threading.Event(), "a-token-of-twenty-one"

    def load() -> Any:
        may_load.wait(20)
        return seqtool.load(directory / "runs/attend", device="cpu", threads=1)

    engine = Engine([load])
    with serve_app(lambda port: make_app(engine, host="0.0.0.0", port=port, token=token)) as port:
        visit.page.goto(f"http://127.0.0.1:{port}/?token={token}")
        visit.page.get_by_text("Loading the models…").wait_for()
        assert engine.state == "loading"
        may_load.set()
        visit.page.locator(".translation").wait_for()
        assert "attend" in visit.page.locator("#state").text_content()


def test_a_link_keeps_what_is_shown(visit: Visit, translation_demo: Server) -> None:
    """A reload shows the same text, settings, forced words, form and open tree; forced words are taken back singly."""
    page = open_demo(visit, translation_demo)
    page.get_by_label("Text to translate").fill("the old dog")
    page.get_by_label("n best").fill("2")
    page.get_by_label("n best").press("Tab")
    column = page.get_by_role("region", name="attend")
    wait_for_answers(page)
    for word in ("casa", "grande"):
        wait_for_answers(page)
        column.get_by_label("Replace").select_option(index=1 if word == "grande" else 0)
        column.get_by_label("A word of your own").fill(word)
        column.get_by_role("button", name="Force it").click()
        column.get_by_role("button", name=f"Take back {word}").wait_for()
        wait_for_answers(page)
    column.get_by_role("button", name="Heat map").click()
    column.get_by_text("The search").click()
    column.locator("svg.tree").wait_for()
    column.get_by_label("Hide pruned branches").check()
    assert column.locator(".node.pruned").count() == 0 < column.locator(".node").count()
    prefix = column.locator(".prefix").text_content()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.reload()
    column.locator("svg.tree").wait_for()
    wait_for_answers(page)
    assert page.get_by_label("Text to translate").input_value() == "the old dog"
    assert page.get_by_label("n best").input_value() == "2" and column.locator(".prefix").text_content() == prefix
    assert column.locator("svg.heat").count() == 1 and column.locator(".node.pruned").count() == 0
    column.get_by_role("button", name="Take back grande").press("Enter")
    column.get_by_role("button", name="Take back grande").wait_for(state="detached")
    wait_until(page, lambda: page.evaluate("document.activeElement.tagName") == "BUTTON")
    assert column.get_by_role("button", name="Take back casa").count() == 1
    column.locator(".hypothesis").nth(1).click()
    assert column.locator(".hypothesis").nth(1).get_attribute("aria-pressed") == "true"
    column.locator("svg.tree").wait_for()
    assert column.locator("svg.heat").count() == 1


def test_a_forced_word_is_not_lost_to_a_second_answer(visit: Visit, translation_demo: Server) -> None:
    """A text and a setting that are changed at once are one question, and a word that is forced meanwhile is kept."""
    page = open_demo(visit, translation_demo)
    wait_for_answers(page)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.get_by_label("Text to translate").fill("the old dog")
    page.get_by_label("n best").fill("2")
    page.get_by_label("n best").press("Tab")
    page.wait_for_timeout(700)  # more than the pause after which a typed text is translated
    wait_for_answers(page)
    assert len(requests) == page.locator(".column").count()  # one for each model
    column = page.get_by_role("region", name="attend")
    page.get_by_label("n best").fill("1")
    column.get_by_label("A word of your own").fill("casa")
    column.get_by_role("button", name="Force it").click()
    column.get_by_role("button", name="Take back casa").wait_for()


def test_an_error_keeps_the_answer(visit: Visit, translation_demo: Server) -> None:
    page = open_demo(visit, translation_demo)
    wait_for_answers(page)
    page.get_by_label("n best").fill("9")
    page.get_by_label("n best").press("Tab")
    page.get_by_role("alert").first.wait_for()
    assert "“n best” (9) cannot be more than beam (5)" in page.get_by_role("alert").first.text_content()
    assert page.locator(".translation").count() == 2
    visit.assert_accessible()
    page.route("**/api/translate", lambda route: route.abort())
    page.get_by_label("n best").fill("2")
    page.get_by_label("n best").press("Tab")
    wait_until(page, lambda: "The server does not answer" in page.get_by_role("alert").first.text_content())
    page.unroute("**/api/translate")
    wait_until(page, lambda: page.get_by_role("alert").count() == 0)  # it is asked again without a click
    visit.problems.clear()


def test_tasks_are_switched(visit: Visit, mixed_demo: int) -> None:
    page = visit.page
    page.goto(f"http://127.0.0.1:{mixed_demo}/")
    page.locator(".translation").wait_for()
    assert "Left out, since it cannot be loaded: runs/lost has no weights." in page.get_by_role("alert").text_content()
    page.get_by_role("button", name="Texts").click()
    page.locator(".likeliest").first.wait_for()
    page.get_by_role("button", name="Pictures").click()
    page.locator(".looking .token").nth(0).click()
    page.locator("h1").hover()
    assert page.locator(".board .veil rect").count() > 1  # the gaze is held
    page.keyboard.press("Escape")
    assert page.locator(".board .veil rect").count() == 0
    page.get_by_label("Go through the words").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".board .veil rect").count() > 1
    wait_for_answers(page)
    visit.assert_accessible()
    requests: list[Any] = []
    page.on("request", lambda request: requests.append(json.loads(request.post_data)))
    page.get_by_label("Hard attention").select_option("argmax")
    wait_until(page, lambda: len(requests) == 2)
    wait_for_answers(page)
    assert [request["settings"] for request in requests] == [{}, {"hard_attention": "argmax"}]  # soft, hard
    page.get_by_role("region", name="hard").locator(".looking .token").first.click()
    assert page.locator(".board .frame").get_attribute("visibility") == "visible"  # the location that was chosen
    page.get_by_role("button", name="Words").first.click()
    assert page.locator(".translation").count() == 1


def test_the_page_is_enlarged_for_a_projector(visit: Visit, translation_demo: Server) -> None:
    visit.page.set_viewport_size({"width": 1920, "height": 1080})
    page = open_demo(visit, translation_demo)
    wait_for_answers(page)
    body, word = page.locator("body"), page.locator("svg.links .word").first
    width, height = body.bounding_box()["width"], word.bounding_box()["height"]
    page.get_by_role("button", name="Large type").click()
    assert body.bounding_box()["width"] == 1920 > width
    assert word.bounding_box()["height"] == pytest.approx(1.5 * height, rel=0.1)
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_pieces_are_joined_to_words(visit: Visit, translation_demo: Server) -> None:
    """A word has the product of its pieces' probabilities, and the mean of their attention."""
    request = {"sentences": [SENTENCE], "weights": True, "likeliest": 1}
    best = translation_demo.post("/api/translate", request).json["translations"][0]
    source, best = best["translations"][0]["source_tokens"], best["translations"][0]
    page = open_demo(visit, translation_demo)
    wait_for_answers(page)
    column = page.get_by_role("region", name="attend")
    assert column.locator(".tokens button").count() == len(best["predicted"])
    page.get_by_role("button", name="Words").click()

    def groups(pieces: list[str]) -> list[list[int]]:
        starts = [i for i, piece in enumerate(pieces) if i == 0 or piece.startswith("▁") or piece == "<end>"]
        return [list(range(*ends)) for ends in zip(starts, [*starts[1:], len(pieces)], strict=True)]

    words = groups([prediction["token"] for prediction in best["predicted"]])
    assert len(words) < len(best["predicted"])
    titles = column.locator(".tokens button").evaluate_all("words => words.map((word) => word.title)")
    percentages = [float(title.split()[-2]) for title in titles]
    expected = [100 * prod(best["predicted"][i]["probability"] for i in word) for word in words]
    assert percentages == pytest.approx(expected, rel=0.05, abs=0.5)
    means = [
        sum(best["attention"][t][i] for t in word for i in columns) / len(word)
        for word in words
        for columns in groups(source)
    ]
    column.get_by_role("button", name="Heat map").click()
    opacities = column.locator(".heat .cell").evaluate_all(
        "cells => cells.map((cell) => Number(cell.getAttribute('fill-opacity')))"
    )
    assert opacities == pytest.approx(means, abs=6e-4)
    pieces = [prediction["token"] for prediction in best["predicted"]]
    body = {"source": SENTENCE, "text": best["tokens"], "method": "integrated"}
    explained = translation_demo.post("/api/inside", body).json
    column.get_by_text("What each token depends on").click()
    part = column.locator(".explaining").nth(1)
    part.locator("rect.cell").first.hover()
    read = re.search(r": (\S+) of (\S+) nats", part.locator(".reading").text_content())
    sums = [sum(explained["source"][t][i] for t in words[0] for i in groups(source)[0])]
    sums.append(sum(explained["explained"][t] for t in words[0]))
    assert read and [float(number) for number in read.groups()] == pytest.approx(sums, abs=6e-4)
    column.get_by_text("Inside: states, gates and heads").click()
    column.get_by_label("What to show").select_option("attention")
    rows = column.locator(".inside svg .end").all_text_contents()
    texts = ["".join(pieces[i] for i in word).replace("▁", " ").strip() for word in words]
    assert [row.split(" → ")[-1][:8] for row in rows] == [text[:8] for text in texts]


def test_drawings_are_saved(visit: Visit, translation_demo: Server, caption_demo: Server) -> None:
    """The file shows what the page shows, with its colours, without the page's style."""
    page = open_demo(visit, translation_demo)
    wait_for_answers(page)
    column = page.get_by_role("region", name="attend")

    def saved(name: str, region: Any) -> Any:
        with page.expect_download() as download:
            region.get_by_role("button", name="Save as SVG").click()
        assert download.value.suggested_filename == name
        return ElementTree.parse(download.value.path()).getroot()

    lines = saved("alignment.svg", column.locator(".alignment"))
    assert "".join(lines.itertext()) == "".join(column.locator("svg.links text").all_text_contents())
    assert {line.get("stroke") for line in lines.iter(f"{SVG}line")} == {"rgb(0, 114, 178)"}
    column.get_by_text("The search").click()
    column.locator("svg.tree").wait_for()
    tree = saved("search.svg", column.locator(".search"))
    assert len(list(tree.iter(f"{SVG}path"))) == column.locator(".node").count()
    assert {path.get("fill") for path in tree.iter(f"{SVG}path")} == {"none"}
    page = open_demo(visit, caption_demo)
    wait_for_answers(page)
    assert next(saved("caption.svg", page).iter(f"{SVG}image")).get("href").startswith("data:image/")


def test_hovering_does_not_move_the_page(visit: Visit, translation_demo: Server) -> None:
    visit.page.set_viewport_size({"width": 1000, "height": 500})
    page = open_demo(visit, translation_demo)
    wait_for_answers(page)
    column = page.get_by_role("region", name="attend")
    column.locator("svg.links").scroll_into_view_if_needed()
    words, tokens = column.locator("svg.links .word[data-target]"), column.locator(".tokens button")
    last = column.locator(".beside form")
    before = page.evaluate("scrollY"), last.bounding_box()
    for element in (words.nth(1), tokens.nth(0), tokens.nth(2), words.nth(0)):
        element.hover(force=True)
        assert (page.evaluate("scrollY"), last.bounding_box()) == before
    assert column.locator(".link.off").count() > 0
    page.locator("h2").first.hover()
    assert column.locator(".link.off").count() == 0  # all are shown again


def test_inside_a_translation_by_pointer_and_keys(visit: Visit, translation_demo: Server) -> None:
    """States, gates and attributions: a row colours the text, and a contrast is named beside its token."""
    page = open_demo(visit, translation_demo)
    column = page.locator(".column").first
    column.get_by_text("Inside: states, gates and heads").click()
    states = column.locator(".explaining .inside")
    states.locator("svg.heat").focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    reading = states.locator(".reading").text_content()
    unit, token, value = re.fullmatch(r"(\S+\[\d+\]) after “(.+)”: (-?\d\.\d{3})", reading).groups()
    assert states.locator(".coloured").text_content().startswith(f"{unit}: ")
    coloured = states.locator(".coloured span").nth(2)
    assert token in coloured.text_content() and float(coloured.get_attribute("title")) == round(float(value), 2)
    states.get_by_label("What to show").select_option("decoder.z")
    states.locator("svg.heat rect.cell").first.hover()
    assert re.search(r"All units: mean 0\.\d\d, .+ % closed \(under 0\.1\)", states.locator(".reading").text_content())
    column.get_by_text("What each token depends on").click()
    explained = column.locator(".explaining").nth(1)
    explained.get_by_role("button", name="occlusion").press("Enter")
    wait_for_answers(page)
    explained.locator("rect.unknown").first.wait_for()  # nothing can be said of <end> and <begin>
    explained.get_by_label("Another token").fill("casa")
    page.keyboard.press("Enter")
    wait_until(page, lambda: ", not casa" in (explained.locator("svg.heat text.end").first.text_content() or ""))
    options = explained.get_by_label("The token to explain").locator("option").all_text_contents()
    assert ", not casa ←" in explained.locator(".reading").text_content()  # the word is chosen at once
    place, own = next(re.findall(r"^(\d+): (\w+)$", text)[0] for text in options if re.search(r": \w+$", text))
    explained.get_by_label("The token to explain").select_option(str(int(place) - 1))
    explained.get_by_label("Another token").fill(own)
    page.keyboard.press("Enter")
    explained.get_by_text(f"“{own}” is the token itself: type another one to compare it with.").wait_for()
    explained.get_by_role("button", name="attention").click()
    wait_until(page, lambda: "Weights from 0 to 1." in (explained.locator(".note").first.text_content() or ""))
    wait_until(page, lambda: "method=attention" in page.url)
    page.reload()
    column.locator(".explaining[open] svg.heat").nth(1).wait_for()
    assert explained.get_by_role("button", name="attention").get_attribute("aria-pressed") == "true"


def test_what_a_model_wrote_while_it_learnt(visit: Visit, mixed_demo: int, directory: Path) -> None:  # noqa: F811
    """A slider goes through the validations whose samples the run kept; a damaged file is said, and stops nothing."""
    seen = {"source": ["▁a", "<end>"], "target": ["▁un", "<end>"], "weights": [[1.0, 0.0], [0.0, 1.0]]}
    steps = [{"step": n, "samples": [{"hypothesis": text, "attention": seen}]} for n, text in ((5, "y"), (9, "un"))]
    file, page = directory / "runs/attend/samples.jsonl", visit.page
    try:
        file.write_text("".join(json.dumps(step) + "\n" for step in steps))
        page.goto(f"http://127.0.0.1:{mixed_demo}/")
        page.get_by_text("What attend wrote while it learnt").click()
        slider, samples = page.get_by_label("Validation"), page.locator(".samples")
        assert samples.locator("dd").text_content() == "un" and samples.locator(".heat").count() == 1
        slider.focus()
        page.keyboard.press("Home")
        assert slider.get_attribute("aria-valuetext") == "after 5 steps (validation 1 of 2)"
        assert samples.locator("dd").text_content() == "y"
        wait_for_answers(page)
        visit.assert_accessible()
        visit.assert_reflows()
        file.write_text('{"step": 5, "samples": 3}\n\n')
        page.reload()
        page.locator(".translation").wait_for()
        alerts = page.get_by_role("alert").all_text_contents()
        assert any("samples.jsonl" in text and "holds no samples" in text for text in alerts), alerts
        visit.problems.clear()  # the browser reports the refusal too
    finally:
        file.unlink()
