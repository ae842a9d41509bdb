"""Tests of the documentation: seqtool takes its commands, and its links and file names lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from seqtool.cli import COMMANDS, arguments
from seqtool.cli.arguments import ConfigFiles
from seqtool.data.corpora.corpus import ImageCorpus
from seqtool.runtime.files import config_directory

ROOT = Path(__file__).resolve().parent.parent
DOCS = tuple(
    str(page.relative_to(ROOT))
    for page in sorted((ROOT / "docs").rglob("*.md"))
    # whose commands test_extending.py and test_trained_examples.py run with the files that they need
    if page.name not in ("extending.md", "examples.md")
)
IDEAS = "docs/ideas.md"
PAGES = ("README.md", "data/README.md", "results/README.md", "results/different_numbers.md", *DOCS)
LECTURES = [
    page
    for page in DOCS
    if page.count("/") == 1 and Path(page).stem not in ("index", "README", "reports", "demo", "exercises", "ideas")
]
BEGINNINGS = [page for page in DOCS if page.startswith("docs/beginnings/")]
EVERY_PAGE = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "data/*.md", "docs/**/*.md", "results/*.md")
    for page in ROOT.glob(pattern)
)


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words after each `seqtool` in the indented or fenced lines of a page, in pipes and behind torchrun too.

    Left out are lines with …, which are no whole commands, and those with options such as --help or --config-dir. The
    commands of the table of ideas are in its cells.
    """
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    if page == IDEAS:
        text = "".join(f"    {command}\n" for command in re.findall(r"`(seqtool [^`/]+ [^`]+)`", text))
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not (fenced or line.startswith("    ")) or "seqtool" not in line or "…" in line:
            continue
        for part in line.split(" | "):
            words = shlex.split(part, comments=True)
            if "torchrun" in words:
                words = words[words.index("-m") + 1 :]
            if words[:1] == ["seqtool"] and not any(word.startswith("--") for word in words):
                yield words[1:]


EXAMPLES = [(page, " ".join(words), words) for page in PAGES for words in commands(page)]


def configuration(words: list[str]) -> DictConfig:
    """Return Hydra's configuration of a command line. An unknown setting or choice raises an exception."""
    _, settings, paths = arguments.split(words[1:], words[0])
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        files = ConfigFiles(words[0], [config_directory()])
        return compose(words[0], arguments.hydra_overrides(settings, paths, files))


def test_pages_have_commands() -> None:
    assert sum(page == "README.md" for page, _, _ in EXAMPLES) >= 2
    assert sum(page == "data/README.md" for page, _, _ in EXAMPLES) >= 15
    assert len(LECTURES) == 11
    assert len(BEGINNINGS) == 3
    for page_with_commands in (*LECTURES, *BEGINNINGS):
        assert sum(page == page_with_commands for page, _, _ in EXAMPLES) >= 2, page_with_commands


def test_the_readme_is_a_front_door() -> None:
    """The README is short, and links to every page of the site that a newcomer may want."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 150
    needed = ["LICENSE", "CITATION.cff", "CONTRIBUTING.md", "results/README.md", "docs/README.md", *BEGINNINGS]
    assert not [page for page in needed if f"]({page})" not in text]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    """Links lead to pictures, to other pages and to their headings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert links or page not in DOCS
    for link in links:
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def files() -> list[str]:
    """Return the files of the checkout that pages may name, each after a slash."""
    folders = ("seqtool", "configs", "scripts", "tests", "docs", "examples")
    return [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*")]


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_the_files_named_on_a_page_exist(page: str) -> None:
    """Pages name files in code or in a command by their whole path, or by its end: `beam_search.py`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"`((?:seqtool|tests|scripts|configs|examples)/[\w/.]+)`", text)
    names += re.findall(r"\b(?:python|bash) ((?:tests|scripts|examples)/[\w/.]+)", text)
    assert not [name for name in names if "NAME" not in name and not (ROOT / name).exists()]
    if page != "docs/extending.md":  # it names files that users write
        ends = re.findall(r"`([\w/]+\.(?:py|js|sh))`", text)
        assert not [end for end in ends if not any(file.endswith(f"/{end}") for file in files())]


def test_each_idea_has_a_command_a_file_or_a_reason() -> None:
    """The runs and built-in models that a command reads exist, or are made by a command of a page."""
    text = (ROOT / IDEAS).read_text(encoding="utf-8").split("## Language models")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| idea |")]
    assert len(rows) > 70
    for row in rows:
        idea, answer, remark = (cell.strip() for cell in row.strip("|").split("|"))
        assert idea and (
            re.match(r"`(seqtool|python|tests)[ /]|\[", answer) or (answer == "–" and "not here" in remark)
        )
    made = {word.removeprefix("run=") for _, _, words in EXAMPLES for word in words if word.startswith("run=")}
    assert set(re.findall(r"\bruns/([\w-]+)", text)) <= made
    assert all((ROOT / "seqtool/builtin" / name).is_dir() for name in re.findall(r"\bbuiltin/(\w+)", text))


def test_the_messages_that_troubleshooting_quotes_are_in_the_code() -> None:
    """Quotations are compared piece by piece: … and numbers in a quotation stand for values."""
    page = (ROOT / "docs/howto/troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r'"([^"]+)"', " ".join(re.findall(r"\*\*(.+?)\*\*", page, re.DOTALL)))
    source = " ".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "seqtool").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source).replace("{PACKAGE}", "seqtool")
    assert len(quoted) >= 12
    for message in quoted:
        pieces = [piece.strip(" .;?'=") for piece in re.split(r"…|[\d,]{2,}|'first'|runs/first", message)]
        assert all(piece.lower() in source.lower() for piece in pieces), message


@pytest.mark.parametrize(("page", "line", "words"), EXAMPLES, ids=[f"{page}: {line}" for page, line, _ in EXAMPLES])
def test_a_command_gives_a_complete_configuration(page: str, line: str, words: list[str]) -> None:
    """Every setting, preset and choice exists, no setting is missing, and captioners are used with images."""
    assert words[0] in COMMANDS
    if "-m" in words:  # the first job of a sweep
        words = [re.sub(r"=([\w.]+),.*", r"=\1", word) for word in words if word != "-m" and "$" not in word]
    config = configuration(words)
    assert not OmegaConf.missing_keys(config)
    if words[0] in ("prepare", "train"):
        assert ("encoder" in config.model) == issubclass(get_class(config.data._target_), ImageCorpus)
