"""Tests of settings' names in other toolkits, of launchers that fail or are missing, and of directories of runs."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from seqtool.cli import main as cli
from seqtool.cli.arguments import ConfigFiles
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        ("translate checkpoint=x beam_size=3", "beam"),
        ("generate checkpoint=x max_new_tokens=3", "max_length"),
        ("translate checkpoint=x lenpen=0.6", "length_alpha"),
        ("eval hyp=a references=b", "hypotheses"),
        ("train lr=0.1", "optim.lr"),
        ("train model=show_attend_tell lr=0.1", "optim.lr"),
        ("train epochs=3", "train.epochs"),
        ("train batch_size=3", "train.batch_size"),
        ("train model=luong hidden_size=3", "model.hidden"),
        ("train model=transformer d_model=3", "model.width"),
        ("train model=luong num_layers=3", "model.layers"),
        ("train max_grad_norm=3", "train.clip_norm"),
        ("train beam=3", "validation.beam"),
        ("prepare vocab_size=3", "data.vocabulary.size"),
    ],
)
def test_names_of_other_toolkits_suggest_the_setting(
    command: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*command.split()) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean '{setting}'?\n")


def test_other_names_belong_to_existing_settings() -> None:
    """No setting has its own name among the other names."""
    settings = {
        name for command in declarations.COMMANDS for name in ConfigFiles(command, [config_directory()]).settings()
    }
    for name, other_names in declarations.other_names().items():
        assert name in settings
        assert name not in other_names


class FailingLauncher(Launcher):
    """A launcher that lacks its scheduler, or whose jobs fail."""

    def __init__(self, message: str) -> None:
        self.message = message

    def setup(self, **parts: Any) -> None: ...

    def launch(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError(self.message)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("There is no srun.", "The launcher cannot start the jobs: There is no srun."),
        ("A trace:\nin job\nseqtool.errors.InputError: Not so.\n", "A job failed: Not so."),
    ],
)
def test_failures_of_a_launcher_are_reported(
    message: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FailingLauncher, "__module__", "hydra_plugins.failing")
    module = types.ModuleType("hydra_plugins.failing")
    module.FailingLauncher = FailingLauncher  # type: ignore[attr-defined]
    package = types.ModuleType("hydra_plugins")
    package.failing = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hydra_plugins", package)
    monkeypatch.setitem(sys.modules, "hydra_plugins.failing", module)
    Plugins.instance().register(FailingLauncher)
    node = {"_target_": "hydra_plugins.failing.FailingLauncher", "message": message}
    ConfigStore.instance().store(group="hydra/launcher", name="failing", node=node)
    assert run("train", "-m", "hydra/launcher=failing", "seed=1,2") == 2
    assert capsys.readouterr().err == f"seqtool: {error}\n"


@pytest.mark.parametrize(
    ("setting", "package"),
    [
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher"),
        ("hydra/sweeper=optuna", "hydra-optuna-sweeper"),
    ],
)
def test_a_missing_plugin_is_reported_with_its_package(
    setting: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("train", "-m", setting, "seed=1,2") == 2
    message = f"seqtool: {setting} is not installed: try pip install {package}.\n"
    assert capsys.readouterr().err == message


def test_a_directory_of_runs_stands_for_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure and a report are made of all the runs in a directory."""
    monkeypatch.chdir(tmp_path)
    for directory in ("runs/a", "runs/b", "other/c", "runs/no-run"):
        Path(directory).mkdir(parents=True)
        if "no-run" not in directory:
            records = [{"step": step, "loss": 3.0 / step, "valid_loss": 3.0} for step in (1, 2)]
            Path(directory, "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("inspect", "runs", "other/c", "plot=figures") == 0
    assert Path("figures/learning_curves.png").is_file()
    assert run("report", "runs", "output=all.html") == 0
    assert "<title>a, b</title>" in Path("all.html").read_text("utf-8")
    assert run("inspect", "runs", "runs/a", "plot=figures") == 2
    assert "runs/a and runs/a are runs with the same name" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["init_from=runs/none", "embeddings.source=none.txt"])
def test_missing_initial_weights_are_reported_at_once(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before any data are prepared."""
    monkeypatch.chdir(tmp_path)
    assert run("train", setting, "device=cpu") == 2
    assert "none" in capsys.readouterr().err and not list(tmp_path.iterdir())
