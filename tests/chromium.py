"""A real browser: Chromium, driven by Playwright. If either is missing, the tests are skipped."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]
LOCAL_PREFIXES = ("http://127.0.0.1:", "file://", "data:", "blob:")
WINDOW = {"width": 1280, "height": 900}  # pixels


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
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
        page.on("request", lambda request: self._check_address(request.url))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message) or dialog.dismiss())

    def _check_address(self, address: str) -> None:
        if not address.startswith(LOCAL_PREFIXES):
            self.problems.append(f"request to {address}")

    def assert_accessible(self) -> None:
        """Assert that axe-core finds no violation of WCAG 2.1 AA."""
        from axe_playwright_python.sync_playwright import Axe

        rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
        violations = Axe().run(self.page, options=rules).response["violations"]
        assert not violations, [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in violations]

    def assert_reflows(self) -> None:
        """Assert that a window 400 pixels wide cuts nothing off: only tables and drawings scroll inside their boxes."""
        self.page.set_viewport_size({"width": 400, "height": 800})
        width = self.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, f"{width} pixels wide"
        self.page.set_viewport_size(WINDOW)


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A new page, light or dark as the test requests; console errors and requests to other machines fail the test."""
    scheme = getattr(request, "param", "light")
    context = browser.new_context(color_scheme=scheme, viewport=WINDOW)
    page = context.new_page()
    page.set_default_timeout(15_000)  # milliseconds
    visit = Visit(page)
    yield visit
    context.close()
    assert not visit.problems, visit.problems


def open_report(visit: Visit, file: Path) -> Any:
    """Open a report, and wait until its data are unpacked and drawn."""
    visit.page.goto(file.resolve().as_uri())
    visit.page.locator("main").wait_for(state="attached")
    return visit.page
