"""Tests that waiting threads sleep soon: OpenMP is set up before torch is imported, however seqtool starts."""

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
def workspace(tmp_path: Path) -> Path:
    """Return a directory with a stand-in for torch, which prints OpenMP's settings and ends the process."""
    (tmp_path / "torch").mkdir()
    printing = f"print(*(os.environ.get(name) for name in {NAMES}), flush=True)"
    (tmp_path / "torch" / "__init__.py").write_text(f"import os\n{printing}\nos._exit(0)\n")
    (tmp_path / "text.en").write_text("a\n")
    return tmp_path


def printed_settings(workspace: Path, *command: str, **user_settings: str) -> str:
    other_variables = {name: value for name, value in os.environ.items() if name not in NAMES}
    path = os.pathsep.join([str(workspace), str(Path(seqtool.__file__).parents[1])])
    environment = {**other_variables, "PYTHONPATH": path, **user_settings}
    program = [sys.executable, *command]
    return subprocess.run(program, capture_output=True, text=True, cwd=workspace, env=environment).stdout.strip()


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
def test_settings_are_made_in_every_way_of_starting(workspace: Path, command: list[str]) -> None:
    count, milliseconds, policy = printed_settings(workspace, *command).split()
    assert 1000 <= int(count) < 300_000, "libgomp's default is 300,000"
    assert 0 < int(milliseconds) < 200, "libomp's default is 200"
    assert policy == "None"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GOMP_SPINCOUNT", "7", r"7 \d+ None"),
        ("KMP_BLOCKTIME", "infinite", r"\d+ infinite None"),
        ("OMP_WAIT_POLICY", "PASSIVE", "None None PASSIVE"),
    ],
)
def test_settings_of_the_user_are_kept(workspace: Path, name: str, value: str, expected: str) -> None:
    assert re.fullmatch(expected, printed_settings(workspace, "-c", LOADING, **{name: value}))


def test_nothing_is_set_after_torch_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="no run or checkpoint"):
        seqtool.load("runs/none")
    assert not set(NAMES) & set(os.environ)
