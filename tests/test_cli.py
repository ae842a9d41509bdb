"""Tests of the command line in front of Hydra: configurations that commands receive, messages, help and completion."""

import copy
import logging
import os
import random
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

import seqtool
from seqtool.cli import arguments
from seqtool.cli import help as help_texts
from seqtool.cli import main as cli
from seqtool.cli.arguments import ConfigFiles
from seqtool.cli.exercises import EXERCISES
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations, plain

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent

LITERAL = {  # settings that hold names and texts: True if they may hold several
    command: {
        name: setting.several
        for name, setting in declarations.command_settings(command).items()
        if setting.is_literal and not setting.classes
    }
    for command in ("train", "eval")
}

CONFIGS = {
    "train.yaml": """# seqtool train: train a model
#   seqtool train -m model=bahdanau,sutskever seed=1,2

# The settings of a run.
defaults: [{model: small}, {data: files}, _self_, {experiment: null}]
run: null  # the name of the run
init_from: null
images: null
embeddings: {source: null, target: null}
train: {batch_size: 4, epochs: 1, resume: false}
""",
    "translate.yaml": """
defaults: [decoding, _self_]
checkpoint: ???
input: ???
prefix: null
references: null
baseline: null
""",
    "generate.yaml": """
checkpoint: ???
prompt: null
stop: null
""",
    "eval.yaml": "defaults: [{data: names}, _self_]\n"
    + "".join(f"{name}: null\n" for name in LITERAL["eval"] if "." not in name),
    "inspect.yaml": "# seqtool inspect: say what it is\n\ncheckpoint: null\nplot: null\n",
    "decoding.yaml": "beam: 5  # 1 is greedy\n",
    "model/small.yaml": "# A small model.\n_target_: seqtool.models.small.Small\nhidden: 8\n",
    "model/large.yaml": "_target_: seqtool.models.large.Large\nhidden: 512\ndeep: {layers: 4}\n",
    "data/files.yaml": "train: null\n",
    "data/names.yaml": """
{directory: null, train: null, valid: null, test: null, cache: null, vocabulary: {reuse: null}, annotations: null,
split_file: null}
""",
    "experiment/paper.yaml": "# @package _global_\ndefaults: [override /model: large]\ntrain: {epochs: 9}\n",
}

HOSTILE_NAMES = [
    "photo (1).jpg",
    "Köln – Straße.jpg",
    "名前.txt",
    "a=b",
    "=",
    "#1",
    "~user",
    "+x",
    "-x",
    "-",
    "10",
    "1e3",
    "0x10",
    "1_000",
    "null ",
    "None",
    "true",
    "nan",
    "???",
    "'quoted'",
    '"quoted"',
    "it's",
    '5" disk',
    "back\\slash",
    "ends\\",
    "ends\\\\",
    "\\'",
    "$HOME",
    "${run}",
    "\\${run}",
    "\\\\${run}\\",
    "${oc.env:HOME}",
    "{a}",
    "{a:1}",
    "]a[",
    "(a)",
    "range(1)",
    " leading",
    "trailing ",
    "a:b",
    "a b\tc",
    "two\nlines",
    "%s%%",
    "@x",
    "*?!&|;<>`",
    ".",
    "../x/./y//",
    "e\u0301\u2028",
    os.fsdecode(b"latin\xff"),
]


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    directory = tmp_path / "con figs, (1)"
    for name, content in CONFIGS.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    return directory


@pytest.fixture
def user_configs(tmp_path: Path) -> Path:
    """A directory of the user's configurations, for --config-dir."""
    directory = tmp_path / "it's mine, (1)"
    for name, content in {
        "experiment/mine.yaml": "# @package _global_\n"
        "defaults: [override /model: tiny, override /hydra/launcher: basic]\ntrain: {epochs: 3}\n",
        "experiment/lost.yaml": "# @package _global_\ndefaults: [override /model: lost]\n",
        "model/tiny.yaml": "# Tiny.\ndefaults: [large, _self_]\nhidden: 2  # units\nsize: 1\n",
        "model/sub/deep.yaml": "hidden: 3\n",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    return directory


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that commands receive, in an empty working directory."""
    configurations: list[Any] = []
    for name in ("prepare", "train", "translate", "caption", "generate", "evaluate", "inspect"):
        replace(name, lambda config: configurations.append(plain(config)), monkeypatch)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return configurations


def replace(name: str, function: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the module of a command by one that contains only `function`."""
    module = types.ModuleType(f"seqtool.cli.{name}")
    setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def leaves(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and the value of each setting; lists become tuples."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", tuple(value) if isinstance(value, list) else value


def replace_train(function: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the command `train` by `function`."""
    replace("train", function, monkeypatch)


def test_help_imports_neither_hydra_nor_torch() -> None:
    code = (
        "import sys; from seqtool.cli.main import config_directory, run; "
        "assert run(['--help'], config_directory()) == 0; "
        "assert not {'torch', 'hydra', 'omegaconf', 'numpy', 'jaxtyping'} & sys.modules.keys()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"  {name} " in result.stdout for name in cli.COMMANDS)


def test_commands_print_help_and_settings_without_importing_torch() -> None:
    code = (
        "import sys; from seqtool import settings; from seqtool.cli import arguments, main, help; "
        "from seqtool.training import runs; "
        "configs = main.config_directory(); "
        "assert main.run(['train', '--help'], configs) == main.run(['train', '--cfg', 'job'], configs) == 0; "
        "assert not {'torch', 'jaxtyping'} & sys.modules.keys()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_garbage_collection_skips_imported_modules() -> None:
    code = (
        "import gc, sys; from seqtool.cli import main, prepare; "
        "prepare.prepare = lambda config: print(gc.isenabled(), gc.get_freeze_count() > 10_000); "
        "sys.argv = ['seqtool', 'prepare']; main.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "True True\n"), result.stderr


@pytest.mark.parametrize("signal_number", cli.ENDING_SIGNALS)
def test_a_signal_while_python_exits_prints_nothing(signal_number: signal.Signals) -> None:
    """SIGTERM still ends the process; other signals are ignored."""
    late_signal = f"lambda: (os.kill(os.getpid(), {int(signal_number)}), time.sleep(0.2))"
    code = (
        f"import atexit, os, signal, sys, time; signal.signal({int(signal_number)}, signal.SIG_DFL); "
        f"atexit.register({late_signal}); sys.argv = ['seqtool', '--version']; from seqtool.cli.main import *; main()"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=20)
    assert (process.returncode, process.stderr) == (-signal_number if signal_number == signal.SIGTERM else 0, "")


def test_the_version_is_printed(capsys: Capture, configs: Path) -> None:
    assert cli.run(["--version"], configs) == 0
    assert capsys.readouterr().out == f"seqtool {seqtool.__version__}\n"


def test_help_is_also_a_command(capsys: Capture, configs: Path) -> None:
    assert cli.run(["help", "train"], configs) == cli.run(["train", "--help"], configs) == 0
    help_command, help_option = capsys.readouterr().out.split("seqtool train: ")[1:]
    assert help_command == help_option
    assert cli.run(["help"], configs) == 0 and "usage" in capsys.readouterr().out.lower()


def test_a_command_receives_its_configuration(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train", "model=large", "train.epochs=2", "+model.extra=[1,2]", "run=first"], configs) == 0
    assert calls[0]["model"] == {
        "_target_": "seqtool.models.large.Large",
        "hidden": 512,
        "deep": {"layers": 4},
        "extra": [1, 2],
    }
    assert calls[0]["train"]["epochs"] == 2
    assert calls[0]["run"] == "first"


def test_a_preset_changes_only_its_settings(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train", "experiment=paper", "train.batch_size=7"], configs) == 0
    assert calls[0]["model"]["hidden"] == 512
    assert calls[0]["train"] == {"batch_size": 7, "epochs": 9, "resume": False}


def test_inspect_receives_paths_of_existing_files(calls: list[Any], configs: Path) -> None:
    assert cli.run(["inspect", "runs/a=(b)"], configs) == 2  # taken for a setting, since no file has this name
    Path("runs").mkdir()
    for name in ("runs/a=(b)", "checkpoint=b", "a,b"):
        Path(name).touch()
    assert cli.run(["inspect", "runs/a=(b)"], configs) == 0
    assert cli.run(["inspect", "checkpoint=runs/a"], configs) == 0
    assert cli.run(["inspect", "checkpoint=b"], configs) == 0
    assert cli.run(["inspect", "a,b", "10", "plot=${x}"], configs) == 0
    assert [call["checkpoint"] for call in calls] == [["runs/a=(b)"], "runs/a", ["checkpoint=b"], ["a,b", "10"]]
    assert calls[-1]["plot"] == "${x}"


def test_inspect_without_a_valid_path_is_refused(capsys: Capture) -> None:
    for options in ([], ["checkpoint="], [""], ["a", "b"], ["plot=c"], ["a", "plot="], ["a", "plot=b", "plot=c"]):
        assert cli.run(["inspect", *options], config_directory()) == 2
        message = "inspect needs one path: seqtool inspect PATH, or runs: seqtool inspect RUN … plot=FOLDER."
        assert capsys.readouterr().err == f"seqtool: {message}\n"
    for command in ("inspect", "report"):
        assert cli.run([command, "runs", "plto=a"], config_directory()) == 2
        assert capsys.readouterr().err == "seqtool: Unknown setting 'plto'; did you mean 'plot'?\n"


def test_sweeps_run_every_job_and_leave_no_files(calls: list[Any], configs: Path, capsys: Capture) -> None:
    sweep = ["train", "model=small,large", "-m", "train.epochs=1,2"]
    assert cli.run([*sweep, "run=it's (a) ${x}", "data.train=a b,c d"], configs) == 0
    jobs = [(call["model"]["hidden"], call["train"]["epochs"]) for call in calls]
    assert jobs == [(8, 1), (8, 2), (512, 1), (512, 2)]
    assert [call["run"] for call in calls] == [f"it's (a) ${{x}}-{number}" for number in range(4)]
    assert all(call["data"]["train"] == ["a b", "c d"] for call in calls)
    assert list(Path().iterdir()) == []
    assert capsys.readouterr().out == ""


def test_the_name_of_a_run_may_refer_to_settings(calls: list[Any], configs: Path) -> None:
    names = {
        "a_${model.hidden}": "a_8",
        "${model.hidden}-${train.epochs}": "8-2",
        "${model.hidden}": "8",
        "${train.resume}": "false",
        "it's \\${train.epochs}, {b}": "it's \\2, {b}",
        "${oc.env:HOME}": "${oc.env:HOME}",
        "$HOME ${ x": "$HOME ${ x",
        "${run} ${x}": "${run} ${x}",
    }
    for name in names:
        assert cli.run(["train", "train.epochs=2", f"run={name}", "init_from=${run}"], configs) == 0
    assert [call["run"] for call in calls] == list(names.values())
    assert {call["init_from"] for call in calls} == {"${run}"}
    assert cli.run(["train", "-m", "train.epochs=1,2", "init_from=runs/a-${train.epochs}"], configs) == 0
    assert [call["init_from"] for call in calls[-2:]] == ["runs/a-1", "runs/a-2"]


def test_a_reference_to_an_unknown_setting_is_refused(calls: list[Any], configs: Path, capsys: Capture) -> None:
    assert cli.run(["train", "run=a_${model.hiden}"], configs) == 2
    expected = "seqtool: Setting 'run' cannot be resolved: Interpolation key 'model.hiden' not found.\n"
    assert (calls, capsys.readouterr().err) == ([], expected)
    assert cli.run(["train", "run=a_${hiden}"], configs) == 2
    expected = "seqtool: Setting 'run' refers to an unknown setting 'hiden'; did you mean 'model.hidden'?\n"
    assert (calls, capsys.readouterr().err) == ([], expected)


@pytest.mark.parametrize("flag", [[], ["-m"]], ids=["once", "sweep"])
def test_a_run_name_that_refers_to_a_group_is_refused(
    flag: list[str], calls: list[Any], configs: Path, capsys: Capture
) -> None:
    for name, group, example in (
        ("a_${model}", "model", ", such as ${model.hidden}"),
        ("${train.epochs}\\${model.deep}", "model.deep", ", such as ${model.deep.layers}"),
        ("${data}", "data", ""),
    ):
        assert cli.run(["train", *flag, "model=large", f"run={name}"], configs) == 2
        expected = f"seqtool: Setting 'run' refers to '{group}', a group of settings: refer to one of them{example}.\n"
        assert (calls, capsys.readouterr().err) == ([], expected)


def test_a_sweep_accepts_settings_that_all_its_choices_have(calls: list[Any], configs: Path, capsys: Capture) -> None:
    """The default choice need not have these settings."""
    (configs / "model/huge.yaml").write_text("_target_: seqtool.models.huge.Huge\ndeep: {layers: 9}\nhidden: 9999\n")
    sweep = ["train", "-m", "model=large,huge"]
    assert cli.run([*sweep, "model.deep.layers=1,2", "model.hidden=3"], configs) == 0
    assert [(call["model"]["deep"]["layers"], call["model"]["hidden"]) for call in calls] == [(1, 3), (2, 3)] * 2
    assert [call["model"]["_target_"].rpartition(".")[2] for call in calls] == ["Large", "Large", "Huge", "Huge"]
    capsys.readouterr()
    assert cli.run([*sweep, "model.deep.layer=1"], configs) == 2
    assert capsys.readouterr().err == (
        "seqtool: Unknown setting 'model.deep.layer'; did you mean 'model.deep.layers'?\n"
    )
    assert cli.run(["train", "-m", "model=large,small", "model.deep.layers=1"], configs) == 2
    assert len(calls) == 4


def test_runs_of_a_sweep_have_different_names(calls: list[Any], configs: Path) -> None:
    """The number of the job is added only where another job has the same name."""
    sweep = ["train", "-m", "model=small,large", "train.epochs=1,2"]
    assert cli.run([*sweep, "run=${model.hidden}_${train.epochs}"], configs) == 0
    assert [call["run"] for call in calls] == ["8_1", "8_2", "512_1", "512_2"]
    calls.clear()
    assert cli.run([*sweep, "run=a_${model.hidden}"], configs) == 0
    assert [call["run"] for call in calls] == ["a_8", "a_8-1", "a_512", "a_512-3"]
    calls.clear()
    assert cli.run([*sweep, "run=${model.hidden}"], configs) == 0
    assert [call["run"] for call in calls] == ["8", "8-1", "512", "512-3"]


def test_a_job_that_fails_does_not_end_the_sweep(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    jobs: list[Any] = []

    def command(config: Any) -> None:
        jobs.append((config.model.hidden, config.train.epochs))
        if config.train.epochs == 2:
            raise InputError(f"hidden={config.model.hidden} is bad.")
        if config.model.hidden == 512:
            raise FileNotFoundError(2, "No such file or directory", "a\nb")

    replace_train(command, monkeypatch)
    arguments = ["train", "-m", "model=small,large", "train.epochs=1,2", "train.batch_size=7", "run=a ${model.hidden}"]
    assert cli.run(arguments, configs) == 2
    assert jobs == [(8, 1), (8, 2), (512, 1), (512, 2)]
    assert capsys.readouterr().err.splitlines() == [
        "seqtool: hidden=8 is bad.",
        "seqtool: 'a\\nb' cannot be used: no such file or directory.",
        "seqtool: hidden=512 is bad.",
        "seqtool: 3 of 4 jobs failed: job 1, model=small train.epochs=2; job 2, model=large train.epochs=1; "
        "job 3, model=large train.epochs=2.",
    ]


class IsolatedLauncher(Launcher):
    """Runs jobs that share no objects, like launchers that send jobs to other processes."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        return [self.job(number, overrides) for number, overrides in enumerate(job_overrides, initial_job_idx)]

    def job(self, number: int, overrides: Sequence[str]) -> Any:
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num, config.hydra.job.id = number, str(number)
        cells = tuple(types.CellType(copy.deepcopy(cell.cell_contents)) for cell in self.task.__closure__)
        return run_job(
            hydra_context=self.context,
            task_function=types.FunctionType(self.task.__code__, self.task.__globals__, closure=cells),
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


@pytest.fixture
def isolated_sweep(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that start a sweep with the isolated launcher."""
    plugins = Plugins.instance()  # loads the installed plugins
    monkeypatch.setattr(IsolatedLauncher, "__module__", "hydra_plugins.isolated")  # Hydra requires this package
    for name in ("hydra_plugins", "hydra_plugins.isolated"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["hydra_plugins.isolated"], "IsolatedLauncher", IsolatedLauncher, raising=False)
    plugins.register(IsolatedLauncher)
    return ["train", "-m", "hydra.launcher._target_=hydra_plugins.isolated.IsolatedLauncher"]


def test_runs_of_isolated_jobs_are_numbered(calls: list[Any], configs: Path, isolated_sweep: list[str]) -> None:
    arguments = [*isolated_sweep, "model=small,large", "train.epochs=1,2"]
    assert cli.run([*arguments, "run=a_${model.hidden}"], configs) == 0
    assert cli.run([*arguments, "run=a"], configs) == 0
    assert cli.run([*isolated_sweep, "train.epochs=0,1", "run=a-${train.epochs}"], configs) == 0
    expected = ["a_8-0", "a_8-1", "a_512-2", "a_512-3", "a-0", "a-1", "a-2", "a-3", "a-0", "a-1"]
    assert [call["run"] for call in calls] == expected


def test_isolated_jobs_share_a_directory(calls: list[Any], configs: Path, isolated_sweep: list[str]) -> None:
    """The directory is not a temporary one, which other machines would not see."""
    assert cli.run([*isolated_sweep, "train.epochs=1,2"], configs) == 0
    assert len(list(Path("multirun").rglob("multirun.yaml"))) == 1


def test_a_failed_isolated_job_fails_the_sweep(
    configs: Path, isolated_sweep: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def command(config: Any) -> None:
        if config.train.epochs == 2:
            raise InputError("epochs=2 is bad.")

    replace_train(command, monkeypatch)
    assert cli.run([*isolated_sweep, "train.epochs=1,2"], configs) == 2
    assert capsys.readouterr().err == "seqtool: epochs=2 is bad.\n"


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, BrokenPipeError, ZeroDivisionError])
def test_interrupts_and_defects_end_a_sweep(
    exception: type[BaseException], configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[int] = []

    def command(config: Any) -> None:
        epochs.append(config.train.epochs)
        raise exception

    replace_train(command, monkeypatch)
    monkeypatch.setattr(cli, "_discard_output", lambda: None)
    arguments = ["train", "-m", "train.epochs=1,2"]
    if exception in (KeyboardInterrupt, BrokenPipeError):
        assert cli.run(arguments, configs) == {KeyboardInterrupt: 130, BrokenPipeError: 1}[exception]
    else:
        with pytest.raises(exception):
            cli.run(arguments, configs)
    assert epochs == [1]


def test_ctrl_c_ends_a_sweep_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops after its step and can be resumed; no other job starts."""
    monkeypatch.chdir(tmp_path)

    def interrupt() -> None:
        while not (tmp_path / "runs" / "a-0").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    data = ["data.train=20", "data.valid=5", "data.test=5", "data.vocabulary.kind=word", "data.processes=1"]
    model = ["model=sutskever", "model.hidden=4", "model.embedding=4", "device=cpu", "threads=1"]
    Thread(target=interrupt, daemon=True).start()
    arguments = ["train", "-m", *data, *model, "train.minutes=0.2", "seed=0,1", "run=a"]
    assert cli.run(arguments, config_directory()) == 130
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a-0"]
    arguments = ["train", "run=a-${seed}", "seed=0", "train.resume=true", "train.steps=1"]
    assert cli.run(arguments, config_directory()) == 0


def test_a_command_leaves_no_files(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train"], configs) == 0
    assert list(Path().iterdir()) == []
    assert len(calls) == 1


@pytest.mark.parametrize("option", ["--cfg", "-c"])
def test_cfg_prints_the_configuration_only(option: str, calls: list[Any], configs: Path, capsys: Capture) -> None:
    assert cli.run(["train", option, "job", "run=a b"], configs) == 0
    printed = capsys.readouterr()
    assert "\nrun: a b\n" in printed.out
    assert (calls, printed.err) == ([], "")


LIST_SETTINGS = {"eval": ("references", "data.train"), "train": ("data.train", "data.valid")}


@pytest.mark.parametrize("command", LITERAL)
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_every_file_name_reaches_the_command_unchanged(
    name: str, command: str, calls: list[Any], configs: Path
) -> None:
    expected = "./???" if name == "???" else name
    keys = sorted(LITERAL[command].keys() - {*LIST_SETTINGS[command]})
    assert len(keys) > 10
    first, second = LIST_SETTINGS[command]
    lists = [f"{first}={name},{name}x,{name}", f"{second}={name},x"]
    assert cli.run([command, "data=names", *(f"++{key}={name}" for key in keys), *lists], configs) == 0
    values, listed = dict(leaves(calls[0])), expected.strip(" ")  # spaces around commas are dropped
    assert values[first] == (listed, f"{name}x".strip(" "), listed)
    assert values[second] == (listed, "x")
    assert {values[key] for key in keys} == {expected}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_every_text_reaches_the_command_unchanged(name: str, calls: list[Any], configs: Path) -> None:
    expected = "./???" if name == "???" else name
    assert cli.run(["generate", f"checkpoint={name}", f"prompt={name}", f"stop={name}"], configs) == 0
    assert {calls[0][key] for key in ("checkpoint", "prompt", "stop")} == {expected}
    assert cli.run(["translate", "checkpoint=a", "input=b", f"prefix={name}"], configs) == 0
    assert calls.pop()["prefix"] == expected
    assert cli.run(["generate", "checkpoint=a", "stop=[',',a]"], configs) == 0
    assert calls[1]["stop"] == [",", "a"]


def test_every_file_name_survives_a_sweep(calls: list[Any], configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # a log handler could not encode all these names
    keys = sorted(key for key, several in LITERAL["eval"].items() if not several)
    for start in range(0, len(HOSTILE_NAMES), len(keys)):
        names = dict(zip(keys, HOSTILE_NAMES[start : start + len(keys)], strict=False))
        settings = [f"++{key}={name}" for key, name in names.items()]
        assert cli.run(["eval", "-m", *settings, f"references={','.join(names.values())}"], configs) == 0
        expected = {key: "./???" if name == "???" else name for key, name in names.items()}
        assert dict(leaves(calls[-1])).items() >= expected.items()
        assert calls[-1]["references"] == [name.strip(" ") for name in expected.values()]


def test_random_names_survive_quoting(calls: list[Any], configs: Path) -> None:
    generator = random.Random(1)
    keys = sorted(key for key, several in LITERAL["eval"].items() if not several)
    letters = "\\\\\\$${}'\"a, =#[]()"
    for _ in range(10):
        names = {key: "".join(generator.choices(letters, k=generator.randint(1, 9))) for key in keys}
        settings = [f"++{key}={name}" for key, name in names.items()]
        assert cli.run(["eval", *settings], configs) == 0
        assert dict(leaves(calls[-1])).items() >= names.items()


def test_lists_of_names_are_parsed(calls: list[Any], configs: Path) -> None:
    Path("a,b").touch()
    Path("[c]").touch()
    cases: dict[str, Any] = {
        "x": "x",
        "x,y": ["x", "y"],
        "a,b": "a,b",
        "a,b,c": ["a", "b", "c"],
        "[x,y]": ["x", "y"],
        "[x, 'y, z',\"10\", 10]": ["x", "y, z", "10", "10"],
        "['it\\'s']": ["it's"],
        "[x]": ["x"],
        "[]": [],
        "[c]": "[c]",
        "null": None,
    }
    for text in cases:
        assert cli.run(["eval", f"references={text}"], configs) == 0
    assert [call["references"] for call in calls] == list(cases.values())


def test_null_is_null_unless_a_file_has_this_name(calls: list[Any], configs: Path) -> None:
    cli.run(["train", "init_from=null", "run=null"], configs)
    Path("null").touch()
    cli.run(["train", "init_from=null"], configs)
    assert [call["init_from"] for call in calls] == [None, "null"]
    assert calls[0]["run"] is None


def test_other_settings_keep_hydras_grammar(configs: Path) -> None:
    for setting in ("train.epochs=1,2", "model=small", "~data", "note=${run}", "data.train", "checkpoint="):
        assert arguments.quote_setting(setting, ConfigFiles("train", [configs])) == setting


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", "Unknown command 'trian'; did you mean 'train'?"),
        ("train train.bach_size=3", "Unknown setting 'train.bach_size'; did you mean 'train.batch_size'?"),
        ("eval metric=bleu", "Unknown setting 'metric'; see seqtool eval --help."),
        (
            "eval zzz=1 metric=bleu",
            "Unknown setting 'zzz' (see seqtool eval --help); unknown setting 'metric' (see seqtool eval --help).",
        ),
        ("train batch_size=3", "Unknown setting 'batch_size'; did you mean 'train.batch_size'?"),
        ("train modl.hidden=3", "Unknown setting 'modl.hidden'; did you mean 'model.hidden'?"),
        ("train modle=large", "Unknown setting 'modle'; did you mean 'model'?"),
        ("train ~train.epoch", "Unknown setting 'train.epoch'; did you mean 'train.epochs'?"),
        (
            "train model=large model.deep.layer=1",
            "Unknown setting 'model.deep.layer'; did you mean 'model.deep.layers'?",
        ),
        ("train model=lagre", "Unknown model 'lagre'; did you mean 'large'?"),
        ("train model=q", "Unknown model 'q'; choose from large, small."),
        ("train -m model=small,lagre", "Unknown model 'lagre'; did you mean 'large'?"),
        ("train experiment=papre", "Unknown experiment 'papre'; did you mean 'paper'?"),
        (
            "train train.bach_size=3 train.epoch=3",
            "Unknown setting 'train.bach_size' (did you mean 'train.batch_size'?); "
            "unknown setting 'train.epoch' (did you mean 'train.epochs'?).",
        ),
        ("train --epochs 3", "Unknown option '--epochs': settings are written key=value, without dashes."),
        ("train epochs", "'epochs' is not a setting: write key=value."),
        ("train run=\ud800", "'run=\\ud800' contains an invalid character (an unpaired surrogate)."),
        ("train --cfg all -m", "Only one of --multirun and --cfg can be given."),
        ("train -p", "Argument --package/-p: expected one argument."),
        ("train --resolve", "--resolve goes with --cfg."),
        ("train -p model", "--package goes with --cfg."),
        (
            "train +epochs=(",
            "Cannot read '+epochs=(': quote the value twice, for the shell and for Hydra: \"key='(value)'\".",
        ),
        (
            "train train.epochs=${nothing}",
            "Setting 'train.epochs' cannot be resolved: Interpolation key 'nothing' not found.",
        ),
        ("translate", "translate needs checkpoint=… and input=… (see seqtool translate --help)."),
        ("translate input=x", "translate needs checkpoint=… (see seqtool translate --help)."),
        ("--completion ksh", "seqtool --completion needs one of bash, zsh, fish."),
    ],
)
def test_every_mistake_has_a_one_line_message(
    line: str, message: str, calls: list[Any], configs: Path, capsys: Capture
) -> None:
    assert cli.run(line.split(" "), configs) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"seqtool: {message}\n")
    assert calls == []


@pytest.mark.parametrize("option", ["--config-dir", "-cd"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "experiment=mine train.epochs=1,2",
            "Setting train.epochs=1,2 has several values: add -m to run a job with each of them "
            "(a list is written train.epochs=[1,2]).",
        ),
        ("experiment=mine modle.hidden=3", "Unknown setting 'modle.hidden'; did you mean 'model.hidden'?"),
        ("model=sub/deep modle.hidden=3", "Unknown setting 'modle.hidden'; did you mean 'model.hidden'?"),
        ("experiment=mien", "Unknown experiment 'mien'; did you mean 'mine'?"),
        ("model.size=3", "Setting 'model.size' of train exists only with model=tiny."),
        ("model.deep=3", "Setting 'model.deep' of train exists only with model=large or tiny."),
        (
            "experiment=lost seed=3",
            "{user_configs}/experiment/lost.yaml: unknown model 'lost'; choose from large, small, tiny.",
        ),
    ],
)
def test_mistakes_with_user_configurations_are_explained(
    line: str,
    message: str,
    option: str,
    user_configs: Path,
    calls: list[Any],
    configs: Path,
    capsys: Capture,
) -> None:
    assert cli.run(["train", *line.split(), option, str(user_configs)], configs) == 2
    assert (calls, capsys.readouterr()) == ([], ("", f"seqtool: {message.format(user_configs=user_configs)}\n"))


def test_user_configurations_are_used(
    user_configs: Path,
    calls: list[Any],
    configs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """A broken configuration file is named, whatever other arguments there are."""
    monkeypatch.chdir(user_configs.parent)
    assert cli.run(["train", f"--config-dir={user_configs.name}", "experiment=mine", "run=${model.size}"], configs) == 0
    assert (calls[0]["model"]["hidden"], calls[0]["train"]["epochs"], calls[0]["run"]) == (2, 3, "1")
    (user_configs / "experiment/broken.yaml").write_text("# @package _global_\ntrain: [\n")
    for options in ([], ["--help"], ["train.epochs=1,2"], ["modle=3"]):
        capsys.readouterr()
        assert cli.run(["train", "--config-dir", user_configs.name, "experiment=broken", *options], configs) == 2
        error = capsys.readouterr().err
        assert "/experiment/broken.yaml is not YAML: while parsing " in error
    assert cli.run(["train", "--config-dir", "nowhere", "experiment=mine"], configs) == 2
    expected = "seqtool: There is no directory 'nowhere': --config-dir must name a directory of YAML files.\n"
    assert (len(calls), capsys.readouterr().err) == (1, expected)


@pytest.mark.parametrize("flag", [[], ["-m"]], ids=["once", "sweep"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("data/a.de has 2 lines but a.en has 1."), "data/a.de has 2 lines but a.en has 1."),
        (
            FileNotFoundError(2, "No such file or directory", "a b"),
            "'a b' cannot be used: no such file or directory.",
        ),
        (OSError("The connection was lost."), "The connection was lost."),
    ],
    ids=["input", "file", "other"],
)
def test_bad_input_of_a_command_is_reported_in_one_line(
    error: Exception,
    message: str,
    flag: list[str],
    configs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def command(config: Any) -> None:
        raise error

    replace_train(command, monkeypatch)
    assert cli.run(["train", *flag], configs) == 2
    assert capsys.readouterr().err == f"seqtool: {message}\n"

    monkeypatch.setenv("SEQTOOL_DEBUG", "1")
    assert cli.run(["train", *flag], configs) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback") and "in command" in printed
    assert printed.endswith(f"seqtool: {message}\n")


def test_a_removed_setting_that_a_command_needs_is_reported(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    replace_train(lambda config: print(config.train.epochs), monkeypatch)
    assert cli.run(["train", "~train.epochs"], configs) == 2
    expected = "seqtool: train needs a setting that ~train.epochs removes: override it with key=value instead.\n"
    assert capsys.readouterr().err == expected


def test_a_defect_keeps_its_traceback(configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def command(config: Any) -> None:
        print(config.train.no_such_key)

    replace_train(command, monkeypatch)
    with pytest.raises(Exception, match="no_such_key") as error:
        cli.run(["train"], configs)
    assert any(entry.name == "command" for entry in error.traceback)
    assert capsys.readouterr().err == ""


def test_an_interrupt_prints_nothing(configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def command(config: Any) -> None:
        raise KeyboardInterrupt

    replace_train(command, monkeypatch)
    assert cli.run(["train"], configs) == 130
    assert capsys.readouterr() == ("", "")


def test_a_closed_pipe_is_not_reported() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m seqtool train --help | (exec <&-; sleep 0.5)"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert result.stderr == ""


def test_help_of_a_command_shows_its_settings_and_choices(configs: Path) -> None:
    text = help_texts.command("train", configs, ["model=large"])
    assert "seqtool train -m model=" in text
    assert "run: null  # the name of the run" in text
    assert "model=large  # choose from large, small" in text
    assert "    deep: {layers: 4}" in text
    assert "defaults" not in text.split("Settings and their defaults")[1]
    assert "beam: 5  # 1 is greedy" in help_texts.command("translate", configs, [])
    assert help_texts.command("caption", config_directory(), []).count("\n  max_length: ") == 1
    assert help_texts.command("inspect", configs, []).startswith("seqtool inspect: ")


def help_output(capsys: Capture, *arguments: str, configs: Path) -> str:
    assert cli.run([*arguments, "--help"], configs) == 0
    return capsys.readouterr().out


def test_help_shows_the_values_of_the_given_settings(configs: Path, capsys: Capture) -> None:
    """Values of presets and arguments are shown with their comments, in the groups that the preset chooses."""
    assert "\n  train: {batch_size: 4, epochs: 1, resume: false}\n" in help_output(capsys, "train", configs=configs)
    text = help_output(
        capsys, "train", "experiment=paper", "run=a b", "model.deep.layers=2", "+model.extra=3", configs=configs
    )
    assert "\n  run: a b  # the name of the run\n" in text
    assert "\n  train: {batch_size: 4, epochs: 9, resume: false}\n" in text
    assert "\n  model=large  # choose from large, small\n" in text
    assert "\n    deep: {layers: 2}\n" in text
    assert "\n  model.extra: 3\n" in text
    assert cli.run(["train", "experiment=none", "--help"], configs) == 2


def test_help_shows_a_built_in_preset(capsys: Capture) -> None:
    text = help_output(capsys, "train", "experiment=scenes_soft", "schedule.warmup=7", configs=config_directory())
    for line in (
        "  data=scenes  # choose from ",
        "    doubly_stochastic: 0.02  # λ on ",
        "    average_last: 3  # at the end, ",
        "    max_length: 40  # tokens of a translation or caption\n",
        "    warmup: 7  # steps over which",
        "    lr: 0.0015  # the learning rate\n",
        "    encoder:\n",
        "      backbone: small  # small (for the built-in images) | ",
        "      minimum_count: 1  # for kind=word, how often a word must occur to be known",
        "    epochs: ${train.epochs}  # epochs over which the rate falls to 0\n",
    ):
        assert f"\n{line}" in text
    config = config_directory()
    text = help_output(capsys, "train", "model=show_tell", "model.encoder.size=32", configs=config)
    assert "\n      size: 32  # pixels" in text
    assert "model.encoder.backbone=" in help_texts.complete("seqtool train model=show_tell model.en", config)


def test_help_shows_user_configurations(user_configs: Path, configs: Path, capsys: Capture) -> None:
    directory = str(user_configs)
    for options in (["experiment=mine", "--config-dir", directory], ["-cd", directory, "experiment=mine"]):
        text = help_output(capsys, "train", *options, configs=configs)
        assert "\n  train: {batch_size: 4, epochs: 3, resume: false}\n" in text
        assert "\n  model=tiny  # choose from large, small, tiny\n" in text
        assert "\n    hidden: 2  # units\n" in text and "\n    deep: {layers: 4}" in text
        assert "\n  experiment=mine  # choose from lost, mine, paper\n" in text


def test_help_shows_values_at_their_own_places_beside_anchors(
    user_configs: Path, configs: Path, capsys: Capture
) -> None:
    text = "hidden: &base {size: 1}\n<<: *base\nfirst: &first 2\nsecond: *first\n"
    (user_configs / "model" / "tiny.yaml").write_text(text)
    shown = help_output(
        capsys, "train", "--config-dir", str(user_configs), "model=tiny", "model.second=7", configs=configs
    )
    assert "\n    first: &first 2\n" in shown


def test_completion_offers_user_configurations(
    user_configs: Path, configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    user_configs.rename("mine")
    assert help_texts.complete("seqtool train --config-dir mi", configs) == ["mine/"]
    assert help_texts.complete("seqtool train --config-dir mine model=", configs) == [
        "model=large ",
        "model=small ",
        "model=tiny ",
    ]
    assert help_texts.complete("seqtool train -cd mine model=tiny model.s", configs) == ["model.size="]


def test_completion_offers_commands_settings_and_paths(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").mkdir()
    (tmp_path / "runs" / "file.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert help_texts.complete("seqtool tra", configs) == ["train ", "translate "]
    assert help_texts.complete("seqtool train mod", configs) == ["model.hidden=", "model="]
    assert help_texts.complete("seqtool train model=large model.", configs) == [
        "model.deep.layers=",
        "model.hidden=",
    ]
    assert help_texts.complete("seqtool train model=", configs) == ["model=large ", "model=small "]
    assert help_texts.complete("seqtool translate b", configs) == ["baseline=", "beam="]
    assert help_texts.complete("seqtool translate checkpoint=ru", configs) == ["checkpoint=runs/"]
    assert help_texts.complete("seqtool inspect runs/f", configs) == ["runs/file.txt", "runs/first/"]
    assert help_texts.complete("seqtool nothing x", configs) == []
    exercises = [f"{name} " for name in sorted(EXERCISES)]
    assert help_texts.complete("seqtool check ", config_directory()) == exercises
    additive = help_texts.complete("seqtool check a", config_directory())
    assert "additive " in additive and additive == [name for name in exercises if name.startswith("a")]
    assert help_texts.complete("seqtool check additive r", config_directory()) == []


def test_completion_works_in_bash(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "seqtool").write_text(f'#!/bin/sh\nexec {sys.executable} -m seqtool "$@"\n')
    (directory / "seqtool").chmod(0o755)
    script = """
        eval "$(seqtool --completion bash)"
        for COMP_LINE in "seqtool tr" "seqtool train optim=ada" "seqtool train optim.l"; do
            COMP_POINT=${#COMP_LINE}; _seqtool; printf '<%s>' "${COMPREPLY[@]}"; echo
        done"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert result.stdout.splitlines() == [
        "<train ><translate >",
        "<adadelta ><adam ><adamw >",
        "<optim.lr=>",
    ]
    assert result.stderr == ""
