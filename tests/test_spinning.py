"""Threads that wait sleep soon: the OpenMP libraries are told before torch is imported, in every way of starting."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seqtool

NAMES = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
LOADING = "import sys, seqtool; seqtool.load('runs/a')"
RUNNING = "import sys; from seqtool.cli.main import main; sys.argv = ['seqtool', 'train']; main()"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a torch that prints what it would be told, and ends."""
    (tmp_path / "torch").mkdir()
    told = f"print(*(os.environ.get(name) for name in {NAMES}), flush=True)"
    (tmp_path / "torch" / "__init__.py").write_text(f"import os\n{told}\nos._exit(0)\n")
    (tmp_path / "text.en").write_text("a\n")
    return tmp_path


def told(place: Path, *command: str, **set_by_user: str) -> str:
    others = {name: value for name, value in os.environ.items() if name not in NAMES}
    path = os.pathsep.join([str(place), str(Path(seqtool.__file__).parents[1])])
    environment = {**others, "PYTHONPATH": path, **set_by_user}
    program = [sys.executable, *command]
    return subprocess.run(program, capture_output=True, text=True, cwd=place, env=environment).stdout.strip()


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "seqtool", "train"],
        ["-m", "seqtool", "train", "-m", "seed=1,2"],
        ["-m", "seqtool", "translate", "checkpoint=runs/a", "input=text.en"],
        ["-c", RUNNING],
        ["-c", LOADING],
    ],
    ids=["module", "sweep", "translate", "script", "load"],
)
def test_every_way_of_starting(place: Path, command: list[str]) -> None:
    count, milliseconds, policy = told(place, *command).split()
    assert 1000 <= int(count) < 300_000, "libgomp's own is 300,000"
    assert 0 < int(milliseconds) < 200, "libomp's own is 200"
    assert policy == "None"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GOMP_SPINCOUNT", "7", r"7 \d+ None"),
        ("KMP_BLOCKTIME", "infinite", r"\d+ infinite None"),
        ("OMP_WAIT_POLICY", "PASSIVE", "None None PASSIVE"),
    ],
)
def test_what_the_user_has_set_stays(place: Path, name: str, value: str, expected: str) -> None:
    assert re.fullmatch(expected, told(place, "-c", LOADING, **{name: value}))


def test_where_torch_is_imported_already_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="no run or checkpoint"):
        seqtool.load("runs/none")
    assert not set(NAMES) & set(os.environ)
