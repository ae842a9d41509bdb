#!/usr/bin/env python
"""Take the screenshots of the demo and of a report for docs/; `bash scripts/make_docs.sh screenshots` calls it.

    python scripts/development/screenshots.py --folder docs/pictures

Needs Chromium and Playwright (pip install playwright; apt-get install chromium).
"""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

VIEWPORT = {"width": 1200, "height": 860}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--translator", default="builtin/words", help="a translation model")
    parser.add_argument("--captioner", default="builtin/soft")
    parser.add_argument("--folder", type=Path, default=Path("docs/pictures"), help="the directory for the pictures")
    arguments = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=VIEWPORT)
        with serve_demo(arguments.translator) as address:
            page.goto(address)
            page.get_by_role("button", name="Words", exact=True).click()
            page.locator(".tokens button").nth(3).click()
            page.locator(".search summary").click()
            page.locator("svg.tree").wait_for()
            page.screenshot(path=arguments.folder / "demo_words.png", full_page=True)
        with serve_demo(arguments.captioner) as address:
            page.goto(address)
            page.locator(".looking .token").nth(2).hover()
            page.screenshot(path=arguments.folder / "demo_pictures.png", full_page=True)
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "report.html")
            command = ["eval", f"checkpoint={arguments.translator}", "split=test", f"report={report}"]
            subprocess.run([sys.executable, "-m", "seqtool", *command], check=True, capture_output=True)
            page.goto(report.as_uri())
            page.get_by_role("button", name="BLEU", exact=True).click()
            page.get_by_role("button", name="BLEU", exact=True).click()
            page.get_by_role("button", name="Open").first.click()
            page.locator(".sentences").scroll_into_view_if_needed()
            page.screenshot(path=arguments.folder / "report.png")
        browser.close()


@contextmanager
def serve_demo(checkpoint: str) -> Iterator[str]:
    """Serve a demo within the context, and yield its address."""
    command = ["demo", f"checkpoint={checkpoint}", "port=0"]
    server: Any = subprocess.Popen([sys.executable, "-m", "seqtool", *command], stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        yield address[0]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


if __name__ == "__main__":
    main()
