"""Tests of the scripts: each can be imported, and names only files that exist."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import walk

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sorted((ROOT / "scripts").rglob("*.py"))
SHELL = sorted((ROOT / "scripts").rglob("*.sh"))


def name(script: Path) -> str:
    return str(script.relative_to(ROOT))


@pytest.mark.parametrize("script", PYTHON, ids=name)
def test_a_script_can_be_imported(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "from playwright" in script.read_text(encoding="utf-8"):
        pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benchmarks"))
    monkeypatch.syspath_prepend(str(script.parent))
    specification = importlib.util.spec_from_file_location(f"script_{script.stem}", script)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, specification.name, module)  # dataclasses look modules up there
    specification.loader.exec_module(module)
    assert module.__doc__


@pytest.mark.parametrize("script", [*PYTHON, *SHELL], ids=name)
def test_a_script_names_files_that_exist(script: Path) -> None:
    paths = re.findall(r"\b(?:python|bash) \"?((?:tests|scripts)/[\w/]+\.\w+)", script.read_text(encoding="utf-8"))
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("script", SHELL, ids=name)
def test_a_shell_script_parses(script: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", script], check=False).returncode == 0


def test_files_and_returns_of_a_walk_are_counted() -> None:
    functions = [
        walk.Function(file, str(number)) for number, file in enumerate(("a.py", "a.py", "b.py", "a.py", "c.py"))
    ]
    assert walk.Counts.from_walk(functions) == walk.Counts(functions=5, files=3, changes=3, returns=1)
    assert walk.Counts.from_walk(functions[:1]) == walk.Counts(functions=1, files=1, changes=0, returns=0)
