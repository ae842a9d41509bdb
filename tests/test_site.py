"""The documentation's site: it builds without a warning, needs no network, and its links lead somewhere."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from seqtool.cli import COMMANDS
from seqtool.cli.arguments import ConfigFiles
from seqtool.runtime.files import config_directory

ROOT = Path(__file__).resolve().parent.parent
WITH_EQUATIONS = [page.stem for page in sorted((ROOT / "docs").glob("*.md")) if "$$" in page.read_text("utf-8")]
LOADING = ("script", "img", "iframe", "source", "video", "audio", "embed")  # by src

pytest.importorskip("sphinx", reason="the site is built with pip install 'seqtool[docs]'")


class Page(HTMLParser):
    """A page of the site: the files that it loads, its links, and the anchors to which pages can link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.equations = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids |= {values["id"]} if "id" in values else set()
        self.equations += tag == "math"
        if tag == "link":
            self.loads.append(values.get("href", ""))
        elif tag in LOADING and "src" in values:
            self.loads.append(values["src"])
        elif tag == "a" and "href" in values:
            self.links.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-d", str(folder / "doctrees"), "-c", "docs"]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(folder / "html")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text("utf-8")) for file in site.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        for address in page.loads:
            parts = urlsplit(address)
            assert not parts.scheme or parts.scheme == "data", f"{file.name}: {address}"
            assert not parts.netloc, f"{file.name}: {address}"
            is_file = parts.path and not parts.scheme
            assert not is_file or (file.parent / unquote(parts.path)).exists(), f"{file.name}: {address}"
    for style in site.rglob("*.css"):
        text = style.read_text("utf-8")
        assert "@import" not in text and "url(http" not in text and "url(//" not in text, style.name


def test_every_link_in_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                assert parts.scheme in ("http", "https"), f"{file.name}: {address}"
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.exists(), f"{file.name}: {address}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{file.name}: {address}"


def test_the_top_leads_to_the_front_page(site: Path) -> None:
    assert 'url=docs/index.html"' in (site / "index.html").read_text("utf-8")


def test_equations_are_drawn_by_the_browser(site: Path, pages: dict[Path, Page]) -> None:
    assert len(WITH_EQUATIONS) >= 8
    for name in WITH_EQUATIONS:
        page = site / f"docs/{name}.html"
        text = page.read_text("utf-8")
        assert pages[page].equations > 0, name
        assert "$$" not in text and "MathJax" not in text and "&amp;#x" not in text, name


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "prepare"])
def test_every_setting_is_in_the_reference(command: str, site: Path) -> None:
    page = "training" if command == "train" else "commands"
    text = (site / f"docs/reference/{page}.html").read_text("utf-8")
    files = ConfigFiles(command, [config_directory()])
    groups = set(files.groups) | {name.rpartition(".")[0] for name in files.settings()}
    settings = files.settings() if command == "train" else files.outside_groups()
    for name in settings - groups - {"optim.name", "schedule.name"}:  # which their choices set
        assert name.endswith("_target_") or f'<span class="pre">{name}</span>' in text, name
