"""A real browser: Chromium, driven by Playwright. If either is missing, the tests are skipped."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]
LOCAL = ("http://127.0.0.1:", "file://", "data:", "blob:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """A page, and its problems: console errors, exceptions, and requests to other machines."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on(
            "console",
            lambda message: self.problems.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message) or dialog.dismiss())

    def _asked(self, address: str) -> None:
        if not address.startswith(LOCAL):
            self.problems.append(f"request to {address}")

    def accessible(self) -> None:
        """axe-core finds no violation of WCAG 2.1 AA."""
        from axe_playwright_python.sync_playwright import Axe

        rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
        violations = Axe().run(self.page, options=rules).response["violations"]
        assert not violations, [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in violations]

    def reflows(self) -> None:
        """At 400 pixels nothing is cut off: only tables and drawings scroll, within themselves."""
        self.page.set_viewport_size({"width": 400, "height": 800})
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 400, f"{wide} pixels wide"
        self.page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A new page, light or dark as the test requests; console errors and requests to other machines fail the test."""
    scheme = getattr(request, "param", "light")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(15_000)
    visit = Visit(page)
    yield visit
    context.close()
    assert not visit.problems, visit.problems


def opened(visit: Visit, file: Path) -> Any:
    """A report, which is drawn once its data are unpacked."""
    visit.page.goto(file.resolve().as_uri())
    visit.page.locator("main").wait_for(state="attached")
    return visit.page
