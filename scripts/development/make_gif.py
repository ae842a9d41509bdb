#!/usr/bin/env python
"""Record the demo as a GIF for the README; `bash scripts/make_docs.sh screenshots` calls it.

    python scripts/development/make_gif.py --translator builtin/words --captioner builtin/soft

A sentence is typed and translated, the alignment followed word by word, and another word forced; then the words of a
caption show where they looked, and an object of the scene is moved. Needs Chromium and Playwright (pip install
playwright; apt-get install chromium).
"""

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from screenshots import serve_demo

VIEWPORT = {"width": 1000, "height": 960}  # pixels
SIZE = (800, 768)  # of the GIF
LIMIT = 2_000_000  # bytes
SENTENCE = "I have a big cat but a small house."


class Recording:
    """The frames of a page, each with the time for which it is shown, in milliseconds."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.times: list[int] = []

    def show(self, milliseconds: int) -> None:
        """Add the page as it is now; if it looks as in the last frame, show that for longer."""
        frame = Image.open(io.BytesIO(self.page.screenshot(animations="disabled"))).convert("RGB").resize(SIZE)
        if self.frames and frame.tobytes() == self.frames[-1].tobytes():
            self.times[-1] += milliseconds
            return
        self.frames.append(frame)
        self.times.append(milliseconds)

    def save(self, file: Path) -> None:
        """Save the frames with one palette of 64 colours, taken from all of them, and refuse a file above the limit."""
        width, height = SIZE
        strip = Image.new("RGB", (width, height * len(self.frames)))
        for i, frame in enumerate(self.frames):
            strip.paste(frame, (0, height * i))
        palette = strip.quantize(64, method=Image.Quantize.MEDIANCUT)
        first, *other_frames = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames)
        first.save(file, save_all=True, append_images=other_frames, duration=self.times, loop=0, optimize=True)
        size = file.stat().st_size
        print(f"{file}: {len(self.frames)} frames, {sum(self.times) / 1000:.0f} s, {size:,} bytes")
        if size > LIMIT:
            raise SystemExit(f"{file} has {size:,} bytes, more than {LIMIT:,}: record fewer frames or a smaller page.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--translator", default="builtin/words", help="a translation model with attention")
    parser.add_argument("--captioner", default="builtin/soft", help="a captioner of the built-in pictures")
    parser.add_argument("--output", type=Path, default=Path("docs/pictures/demo.gif"))
    arguments = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=VIEWPORT, reduced_motion="reduce")
        recording = Recording(page)
        with serve_demo(arguments.translator) as address:
            page.goto(address)
            page.locator("svg.links").wait_for()
            record_words(recording)
        with serve_demo(arguments.captioner) as address:
            page.goto(address)
            page.locator(".looking .token").first.wait_for()
            record_picture(recording)
        browser.close()
    recording.save(arguments.output)


def wait_for_answer(page: Any) -> None:
    """Wait until the page has asked for an answer, and shows it."""
    page.wait_for_timeout(400)  # a change is asked for after a moment
    page.locator("[aria-busy=true]").wait_for(state="detached")


def record_words(recording: Recording) -> None:
    """Record a sentence typed and translated, its alignment, and a word forced."""
    page = recording.page
    wait_for_answer(page)
    source = page.get_by_label("Text to translate")
    source.fill("")
    for i in range(0, len(SENTENCE) + 1, 5):
        source.fill(SENTENCE[:i])
        recording.show(150)
    source.fill(SENTENCE)
    page.get_by_role("button", name="Translate").click()
    wait_for_answer(page)
    recording.show(1500)
    for word in page.locator("svg.links .word[data-target]").all()[4:-2]:  # "un gato grande pero una casa pequeña"
        word.hover()
        recording.show(600)
    tokens = page.locator(".answer .tokens button")
    tokens.nth(4).click()
    recording.show(1500)
    page.locator(".expected .force").nth(1).click()
    wait_for_answer(page)
    recording.show(2000)


def record_picture(recording: Recording) -> None:
    """Record where each word of a caption looked, and a scene whose object is dragged."""
    page = recording.page
    wait_for_answer(page)
    recording.show(1200)
    words = page.locator(".looking .token")
    for word in range(words.count()):
        words.nth(word).hover()
        recording.show(500)
    item = page.locator(".item").first
    item.scroll_into_view_if_needed()
    box = item.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 6):
        page.mouse.move(x + 15 * step, y + 10 * step)
        recording.show(120)
    page.mouse.up()
    wait_for_answer(page)
    recording.show(2500)


if __name__ == "__main__":
    main()
