"""The wheel, installed in an environment of its own, works from another directory with its configurations."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what it depends on is borrowed from the one that runs the tests."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    pytest.importorskip("pip", reason="pip installs the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("seqtool-*.whl")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    python = folder / "environment" / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
        cwd=folder,
    )
    (site,) = (folder / "environment").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "environment"


def run(*command: str, cwd: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_command_runs_from_another_directory(environment: Path, tmp_path: Path) -> None:
    command = str(environment / "bin" / "seqtool")
    assert "seqtool COMMAND [key=value …]" in run(command, "--help", cwd=tmp_path)
    assert "batch_size:" in run(command, "train", "--cfg", "job", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_configurations_are_those_of_the_checkout(environment: Path, tmp_path: Path) -> None:
    code = "from seqtool.runtime.files import config_directory; print(config_directory())"
    installed = Path(run(str(environment / "bin" / "python"), "-c", code, cwd=tmp_path).strip())
    assert installed.is_relative_to(environment)

    def texts(folder: Path) -> dict[str, str]:
        return {str(file.relative_to(folder)): file.read_text("utf-8") for file in folder.rglob("*.yaml")}

    assert texts(installed) == texts(ROOT / "configs")


def test_the_wheel_says_that_it_is_typed(environment: Path) -> None:
    assert len(list(environment.glob("lib/python*/site-packages/seqtool/py.typed"))) == 1
