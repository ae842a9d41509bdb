"""Tests of the wheel: installed in a new environment, it works from any directory and with its configurations."""

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
    """An environment with the wheel, whose dependencies are those of the environment that runs the tests."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    pytest.importorskip("pip", reason="pip installs the wheel")
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory), cwd=ROOT)
    (wheel,) = directory.glob("seqtool-*.whl")
    venv.create(directory / "environment", with_pip=False, symlinks=True)
    python = directory / "environment" / "bin" / "python"
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
        cwd=directory,
    )
    (site,) = (directory / "environment").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "environment"


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


def test_the_configurations_equal_those_of_the_checkout(environment: Path, tmp_path: Path) -> None:
    code = "from seqtool.runtime.files import config_directory; print(config_directory())"
    installed = Path(run(str(environment / "bin" / "python"), "-c", code, cwd=tmp_path).strip())
    assert installed.is_relative_to(environment)

    def read_configurations(directory: Path) -> dict[str, str]:
        return {str(file.relative_to(directory)): file.read_text("utf-8") for file in directory.rglob("*.yaml")}

    assert read_configurations(installed) == read_configurations(ROOT / "configs")


def test_the_wheel_is_marked_as_typed(environment: Path) -> None:
    assert len(list(environment.glob("lib/python*/site-packages/seqtool/py.typed"))) == 1
