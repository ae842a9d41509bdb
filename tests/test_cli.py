"""The command line in front of Hydra: what reaches a command, and what its user is told."""

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
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations, plain

ROOT = Path(__file__).parent.parent

LITERAL = {  # the settings that hold names and texts, and whether they may hold several
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

# What a run can be told.
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

HOSTILE = [
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
    folder = tmp_path / "con figs, (1)"
    for name, text in CONFIGS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's own configurations, for --config-dir."""
    folder = tmp_path / "it's mine, (1)"
    for name, text in {
        "experiment/mine.yaml": "# @package _global_\ndefaults: [override /model: tiny]\ntrain: {epochs: 3}\n",
        "experiment/lost.yaml": "# @package _global_\ndefaults: [override /model: lost]\n",
        "model/tiny.yaml": "# Tiny.\ndefaults: [large, _self_]\nhidden: 2  # units\nsize: 1\n",
        "model/sub/deep.yaml": "hidden: 3\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that commands are called with, from an empty working directory."""
    found: list[Any] = []
    for name in ("prepare", "train", "translate", "caption", "generate", "evaluate", "inspect"):
        replace(name, lambda config: found.append(plain(config)), monkeypatch)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return found


def replace(name: str, function: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command's module one that holds `function` alone."""
    module = types.ModuleType(f"seqtool.cli.{name}")
    setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def leaves(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", tuple(value) if isinstance(value, list) else value


def failing(function: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `train` do what `function` does."""
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


def test_nothing_that_runs_before_a_command_imports_torch() -> None:
    code = (
        "import sys; from seqtool import settings; from seqtool.cli import arguments, main, help; "
        "from seqtool.training import runs; "
        "configs = main.config_directory(); "
        "assert main.run(['train', '--help'], configs) == main.run(['train', '--cfg', 'job'], configs) == 0; "
        "assert not {'torch', 'jaxtyping'} & sys.modules.keys()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_command_collects_garbage_but_not_modules() -> None:
    code = (
        "import gc, sys; from seqtool.cli import main, prepare; "
        "prepare.prepare = lambda config: print(gc.isenabled(), gc.get_freeze_count() > 10_000); "
        "sys.argv = ['seqtool', 'prepare']; main.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "True True\n"), result.stderr


@pytest.mark.parametrize("number", cli.ENDING_SIGNALS)
def test_a_signal_while_python_exits_prints_nothing(number: signal.Signals) -> None:
    """SIGTERM ends what would not end; the others come too late."""
    late = f"lambda: (os.kill(os.getpid(), {int(number)}), time.sleep(0.2))"
    code = (
        f"import atexit, os, signal, sys, time; signal.signal({int(number)}, signal.SIG_DFL); atexit.register({late})"
    )
    command = [
        sys.executable,
        "-c",
        f"{code}; sys.argv = ['seqtool', '--version']; from seqtool.cli.main import *; main()",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (-number if number == signal.SIGTERM else 0, "")


def test_version(capsys: pytest.CaptureFixture[str], configs: Path) -> None:
    assert cli.run(["--version"], configs) == 0
    assert capsys.readouterr().out == f"seqtool {seqtool.__version__}\n"


def test_help_before_a_command(capsys: pytest.CaptureFixture[str], configs: Path) -> None:
    assert cli.run(["help", "train"], configs) == cli.run(["train", "--help"], configs) == 0
    first, second = capsys.readouterr().out.split("seqtool train: ")[1:]
    assert first == second
    assert cli.run(["help"], configs) == 0 and "usage" in capsys.readouterr().out.lower()


def test_a_command_gets_its_configuration(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train", "model=large", "train.epochs=2", "+model.extra=[1,2]", "run=first"], configs) == 0
    assert calls[0]["model"] == {
        "_target_": "seqtool.models.large.Large",
        "hidden": 512,
        "deep": {"layers": 4},
        "extra": [1, 2],
    }
    assert calls[0]["train"]["epochs"] == 2
    assert calls[0]["run"] == "first"


def test_a_preset_sets_what_it_names(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train", "experiment=paper", "train.batch_size=7"], configs) == 0
    assert calls[0]["model"]["hidden"] == 512
    assert calls[0]["train"] == {"batch_size": 7, "epochs": 9, "resume": False}


def test_inspect_gets_its_paths(calls: list[Any], configs: Path) -> None:
    assert cli.run(["inspect", "runs/a=(b)"], configs) == 2  # a setting, as long as nothing is called so
    Path("runs").mkdir()
    for name in ("runs/a=(b)", "checkpoint=b", "a,b"):
        Path(name).touch()
    assert cli.run(["inspect", "runs/a=(b)"], configs) == 0
    assert cli.run(["inspect", "checkpoint=runs/a"], configs) == 0
    assert cli.run(["inspect", "checkpoint=b"], configs) == 0
    assert cli.run(["inspect", "a,b", "10", "plot=${x}"], configs) == 0
    assert [call["checkpoint"] for call in calls] == [["runs/a=(b)"], "runs/a", ["checkpoint=b"], ["a,b", "10"]]
    assert calls[-1]["plot"] == "${x}"


def test_what_inspect_needs(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([], ["checkpoint="], [""], ["a", "b"], ["plot=c"], ["a", "plot="], ["a", "plot=b", "plot=c"]):
        assert cli.run(["inspect", *line], config_directory()) == 2
        said = "seqtool: inspect needs one path: seqtool inspect PATH, or runs: seqtool inspect RUN … plot=FOLDER.\n"
        assert capsys.readouterr().err == said
    for command in ("inspect", "report"):
        assert cli.run([command, "runs", "plto=a"], config_directory()) == 2
        assert capsys.readouterr().err == "seqtool: Unknown setting 'plto'; did you mean 'plot'?\n"


def test_sweeps_run_every_job_and_leave_nothing(
    calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "train",
        "model=small,large",
        "-m",
        "train.epochs=1,2",
        "run=it's (a) ${x}",
        "data.train=a b,c d",
    ]
    assert cli.run(arguments, configs) == 0
    assert [(call["model"]["hidden"], call["train"]["epochs"]) for call in calls] == [
        (8, 1),
        (8, 2),
        (512, 1),
        (512, 2),
    ]
    assert [call["run"] for call in calls] == [f"it's (a) ${{x}}-{number}" for number in range(4)]
    assert all(call["data"]["train"] == ["a b", "c d"] for call in calls)
    assert list(Path().iterdir()) == []
    assert capsys.readouterr().out == ""


def test_the_name_of_a_run_may_refer_to_settings(calls: list[Any], configs: Path) -> None:
    names = {
        "a_${model.hidden}": "a_8",
        "${model.hidden}-${train.epochs}": "8-2",
        "it's \\${train.epochs}, {b}": "it's \\2, {b}",
        "${oc.env:HOME}": "${oc.env:HOME}",
        "$HOME ${ x": "$HOME ${ x",
        "${run} ${x}": "${run} ${x}",
    }
    for name in names:
        assert cli.run(["train", "train.epochs=2", f"run={name}", "init_from=${run}"], configs) == 0
    assert [call["run"] for call in calls] == list(names.values())
    assert {call["init_from"] for call in calls} == {"${run}"}


def test_a_reference_to_nothing(calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "run=a_${model.hiden}"], configs) == 2
    expected = "seqtool: Setting 'run' cannot be resolved: Interpolation key 'model.hiden' not found.\n"
    assert (calls, capsys.readouterr().err) == ([], expected)


@pytest.mark.parametrize("flag", [[], ["-m"]], ids=["once", "sweep"])
def test_a_group_is_no_part_of_a_name(
    flag: list[str], calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, group, example in (
        ("a_${model}", "model", ", such as ${model.hidden}"),
        ("${train.epochs}\\${model.deep}", "model.deep", ", such as ${model.deep.layers}"),
        ("${data}", "data", ""),
    ):
        assert cli.run(["train", *flag, "model=large", f"run={name}"], configs) == 2
        said = f"seqtool: Setting 'run' refers to '{group}', a group of settings: refer to one of them{example}.\n"
        assert (calls, capsys.readouterr().err) == ([], said)


def test_a_sweep_takes_the_settings_that_all_its_choices_have(
    calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether or not the default choice has them."""
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


def test_runs_of_a_sweep_have_names_of_their_own(calls: list[Any], configs: Path) -> None:
    """The number of the job is only added where the name would be another job's."""
    sweep = ["train", "-m", "model=small,large", "train.epochs=1,2"]
    assert cli.run([*sweep, "run=${model.hidden}_${train.epochs}"], configs) == 0
    assert [call["run"] for call in calls] == ["8_1", "8_2", "512_1", "512_2"]
    calls.clear()
    assert cli.run([*sweep, "run=a_${model.hidden}"], configs) == 0
    assert [call["run"] for call in calls] == ["a_8", "a_8-1", "a_512", "a_512-3"]
    calls.clear()
    assert cli.run([*sweep, "run=${model.hidden}"], configs) == 0
    assert [str(call["run"]) for call in calls] == ["8", "8-1", "512", "512-3"]


def test_a_job_that_fails_does_not_end_the_sweep(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[Any] = []

    def command(config: Any) -> None:
        done.append((config.model.hidden, config.train.epochs))
        if config.train.epochs == 2:
            raise InputError(f"hidden={config.model.hidden} is bad.")
        if config.model.hidden == 512:
            raise FileNotFoundError(2, "No such file or directory", "a\nb")

    failing(command, monkeypatch)
    arguments = ["train", "-m", "model=small,large", "train.epochs=1,2", "train.batch_size=7", "run=a ${model.hidden}"]
    assert cli.run(arguments, configs) == 2
    assert done == [(8, 1), (8, 2), (512, 1), (512, 2)]
    assert capsys.readouterr().err.splitlines() == [
        "seqtool: hidden=8 is bad.",
        "seqtool: 'a\\nb' cannot be used: no such file or directory.",
        "seqtool: hidden=512 is bad.",
        "seqtool: 3 of 4 jobs failed: job 1, model=small train.epochs=2; job 2, model=large train.epochs=1; "
        "job 3, model=large train.epochs=2.",
    ]


class Apart(Launcher):
    """Jobs that share nothing, as those that other launchers send to other processes."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        return [self.job(number, one) for number, one in enumerate(job_overrides, initial_job_idx)]

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
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line that starts a sweep with such a launcher."""
    plugins = Plugins.instance()  # looks for what is installed
    monkeypatch.setattr(Apart, "__module__", "hydra_plugins.apart")  # Hydra takes no others
    for name in ("hydra_plugins", "hydra_plugins.apart"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["hydra_plugins.apart"], "Apart", Apart, raising=False)
    plugins.register(Apart)
    return ["train", "-m", "hydra.launcher._target_=hydra_plugins.apart.Apart"]


def test_runs_of_jobs_that_share_nothing_are_numbered(calls: list[Any], configs: Path, apart: list[str]) -> None:
    line = [*apart, "model=small,large", "train.epochs=1,2"]
    assert cli.run([*line, "run=a_${model.hidden}"], configs) == 0
    assert cli.run([*line, "run=a"], configs) == 0
    assert cli.run([*apart, "train.epochs=0,1", "run=a-${train.epochs}"], configs) == 0
    expected = ["a_8-0", "a_8-1", "a_512-2", "a_512-3", "a-0", "a-1", "a-2", "a-3", "a-0", "a-1"]
    assert [call["run"] for call in calls] == expected


def test_jobs_that_share_nothing_have_a_directory_here(calls: list[Any], configs: Path, apart: list[str]) -> None:
    """Other machines see no temporary directory of this one."""
    assert cli.run([*apart, "train.epochs=1,2"], configs) == 0
    assert len(list(Path("multirun").rglob("multirun.yaml"))) == 1


def test_a_failure_reaches_a_launcher_of_jobs_that_share_nothing(
    configs: Path, apart: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(config: Any) -> None:
        if config.train.epochs == 2:
            raise InputError("epochs=2 is bad.")

    failing(command, monkeypatch)
    assert cli.run([*apart, "train.epochs=1,2"], configs) == 2
    assert capsys.readouterr().err == "seqtool: epochs=2 is bad.\n"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, BrokenPipeError, ZeroDivisionError])
def test_what_ends_a_sweep(stop: type[BaseException], configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is no bad input of one job."""
    done: list[int] = []

    def command(config: Any) -> None:
        done.append(config.train.epochs)
        raise stop

    failing(command, monkeypatch)
    monkeypatch.setattr(cli, "_discard_output", lambda: None)
    line = ["train", "-m", "train.epochs=1,2"]
    if stop in (KeyboardInterrupt, BrokenPipeError):
        assert cli.run(line, configs) == {KeyboardInterrupt: 130, BrokenPipeError: 1}[stop]
    else:
        with pytest.raises(stop):
            cli.run(line, configs)
    assert done == [1]


def test_ctrl_c_ends_a_sweep_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is stopped after its step and can go on; no other job is begun."""
    monkeypatch.chdir(tmp_path)

    def interrupt() -> None:
        while not (tmp_path / "runs" / "a-0").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    data = ["data.train=20", "data.valid=5", "data.test=5", "data.vocabulary.kind=word", "data.processes=1"]
    model = ["model=sutskever", "model.hidden=4", "model.embedding=4", "device=cpu", "threads=1"]
    Thread(target=interrupt, daemon=True).start()
    line = ["train", "-m", *data, *model, "train.minutes=0.2", "seed=0,1", "run=a"]
    assert cli.run(line, config_directory()) == 130
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a-0"]
    line = ["train", "run=a-${seed}", "seed=0", "train.resume=true", "train.steps=1"]
    assert cli.run(line, config_directory()) == 0


def test_a_run_leaves_nothing(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train"], configs) == 0
    assert list(Path().iterdir()) == []
    assert len(calls) == 1


def test_cfg_prints_the_configuration_only(calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "--cfg", "job", "run=a b"], configs) == 0
    printed = capsys.readouterr()
    assert "\nrun: a b\n" in printed.out
    assert (calls, printed.err) == ([], "")


LISTS = {"eval": ("references", "data.train"), "train": ("data.train", "data.valid")}


@pytest.mark.parametrize("command", LITERAL)
@pytest.mark.parametrize("name", HOSTILE)
def test_any_file_name_is_taken_as_it_stands(name: str, command: str, calls: list[Any], configs: Path) -> None:
    expected = "./???" if name == "???" else name
    keys = sorted(LITERAL[command].keys() - {*LISTS[command]})
    assert len(keys) > 10
    first, second = LISTS[command]
    lists = [f"{first}={name},{name}x,{name}", f"{second}={name},x"]
    assert cli.run([command, "data=names", *(f"++{key}={name}" for key in keys), *lists], configs) == 0
    values, listed = dict(leaves(calls[0])), expected.strip(" ")  # spaces around commas are none of a name's
    assert values[first] == (listed, f"{name}x".strip(" "), listed)
    assert values[second] == (listed, "x")
    assert {values[key] for key in keys} == {expected}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_is_taken_as_it_stands(name: str, calls: list[Any], configs: Path) -> None:
    expected = "./???" if name == "???" else name
    assert cli.run(["generate", f"checkpoint={name}", f"prompt={name}", f"stop={name}"], configs) == 0
    assert {calls[0][key] for key in ("checkpoint", "prompt", "stop")} == {expected}
    assert cli.run(["translate", "checkpoint=a", "input=b", f"prefix={name}"], configs) == 0
    assert calls.pop()["prefix"] == expected
    assert cli.run(["generate", "checkpoint=a", "stop=[',',a]"], configs) == 0
    assert calls[1]["stop"] == [",", "a"]


def test_any_file_name_survives_a_sweep(calls: list[Any], configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # not every one of these names can be sent between processes
    keys = sorted(key for key, several in LITERAL["eval"].items() if not several)
    for start in range(0, len(HOSTILE), len(keys)):
        names = dict(zip(keys, HOSTILE[start : start + len(keys)], strict=False))
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


def test_lists_of_names(calls: list[Any], configs: Path) -> None:
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


def test_null_is_null_unless_a_file_is_called_so(calls: list[Any], configs: Path) -> None:
    cli.run(["train", "init_from=null", "run=null"], configs)
    Path("null").touch()
    cli.run(["train", "init_from=null"], configs)
    assert [call["init_from"] for call in calls] == [None, "null"]
    assert calls[0]["run"] is None


def test_other_settings_keep_hydras_grammar(configs: Path) -> None:
    for setting in ("train.epochs=1,2", "model=small", "~data", "note=${run}", "data.train", "checkpoint="):
        assert arguments.quote_setting(setting, ConfigFiles("train", [configs])) == setting


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("trian", "Unknown command 'trian'; did you mean 'train'?"),
        ("train train.bach_size=3", "Unknown setting 'train.bach_size'; did you mean 'train.batch_size'?"),
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
def test_one_sentence_for_a_mistake(
    line: str, sentence: str, calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(line.split(" "), configs) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"seqtool: {sentence}\n")
    assert calls == []


@pytest.mark.parametrize("option", ["--config-dir", "-cd"])
@pytest.mark.parametrize(
    ("line", "sentence"),
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
            "{own}/experiment/lost.yaml: unknown model 'lost'; choose from large, small, tiny.",
        ),
    ],
)
def test_a_mistake_beside_the_users_own_settings(
    line: str,
    sentence: str,
    option: str,
    own: Path,
    calls: list[Any],
    configs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["train", *line.split(), option, str(own)], configs) == 2
    assert (calls, capsys.readouterr()) == ([], ("", f"seqtool: {sentence.format(own=own)}\n"))


def test_the_users_own_settings(
    own: Path,
    calls: list[Any],
    configs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file of theirs that is broken is named, whatever else is on the line."""
    monkeypatch.chdir(own.parent)
    assert cli.run(["train", f"--config-dir={own.name}", "experiment=mine", "run=${model.size}"], configs) == 0
    assert (calls[0]["model"]["hidden"], calls[0]["train"]["epochs"], calls[0]["run"]) == (2, 3, 1)
    (own / "experiment/broken.yaml").write_text("# @package _global_\ntrain: [\n")
    for more in ([], ["--help"], ["train.epochs=1,2"], ["modle=3"]):
        capsys.readouterr()
        assert cli.run(["train", "--config-dir", own.name, "experiment=broken", *more], configs) == 2
        said = capsys.readouterr().err
        assert "/experiment/broken.yaml is not YAML: while parsing " in said
    assert cli.run(["train", "--config-dir", "nowhere", "experiment=mine"], configs) == 2
    expected = "seqtool: There is no directory 'nowhere': --config-dir must name a directory of YAML files.\n"
    assert (len(calls), capsys.readouterr().err) == (1, expected)


@pytest.mark.parametrize("flag", [[], ["-m"]], ids=["once", "sweep"])
@pytest.mark.parametrize(
    ("error", "sentence"),
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
def test_bad_input_found_by_a_command_is_one_sentence(
    error: Exception,
    sentence: str,
    flag: list[str],
    configs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command(config: Any) -> None:
        raise error

    failing(command, monkeypatch)
    assert cli.run(["train", *flag], configs) == 2
    assert capsys.readouterr().err == f"seqtool: {sentence}\n"

    monkeypatch.setenv("SEQTOOL_DEBUG", "1")
    assert cli.run(["train", *flag], configs) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback") and "in command" in printed
    assert printed.endswith(f"seqtool: {sentence}\n")


def test_a_setting_that_was_taken_out(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(lambda config: print(config.train.epochs), monkeypatch)
    assert cli.run(["train", "~train.epochs"], configs) == 2
    assert (
        capsys.readouterr().err
        == "seqtool: train needs a setting that ~train.epochs removes: override it with key=value instead.\n"
    )


def test_a_defect_keeps_its_traceback(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(config: Any) -> None:
        print(config.train.no_such_key)

    failing(command, monkeypatch)
    with pytest.raises(Exception, match="no_such_key") as found:
        cli.run(["train"], configs)
    assert any(entry.name == "command" for entry in found.traceback)
    assert capsys.readouterr().err == ""


def test_an_interrupt_is_quiet(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(config: Any) -> None:
        raise KeyboardInterrupt

    failing(command, monkeypatch)
    assert cli.run(["train"], configs) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_leaves_is_no_error() -> None:
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


def helped(capsys: pytest.CaptureFixture[str], *arguments: str, configs: Path) -> str:
    assert cli.run([*arguments, "--help"], configs) == 0
    return capsys.readouterr().out


def test_help_shows_what_the_settings_on_the_line_come_to(configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A preset's values and those that are given, beside the comments, in the groups that it chooses."""
    assert "\n  train: {batch_size: 4, epochs: 1, resume: false}\n" in helped(capsys, "train", configs=configs)
    text = helped(
        capsys, "train", "experiment=paper", "run=a b", "model.deep.layers=2", "+model.extra=3", configs=configs
    )
    assert "\n  run: a b  # the name of the run\n" in text
    assert "\n  train: {batch_size: 4, epochs: 9, resume: false}\n" in text
    assert "\n  model=large  # choose from large, small\n" in text
    assert "\n    deep: {layers: 2}\n" in text
    assert "\n  model.extra: 3\n" in text
    assert cli.run(["train", "experiment=none", "--help"], configs) == 2


def test_help_of_a_preset_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "train", "experiment=scenes_soft", "schedule.warmup=7", configs=config_directory())
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
        "    epochs: ${train.epochs}  # over which it falls to 0\n",
    ):
        assert f"\n{line}" in text
    config = config_directory()
    assert "\n      size: 32  # pixels" in helped(
        capsys, "train", "model=show_tell", "model.encoder.size=32", configs=config
    )
    assert "model.encoder.backbone=" in help_texts.complete("seqtool train model=show_tell model.en", config)


def test_help_with_the_users_own_settings(own: Path, configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["experiment=mine", "--config-dir", str(own)], ["-cd", str(own), "experiment=mine"]):
        text = helped(capsys, "train", *line, configs=configs)
        assert "\n  train: {batch_size: 4, epochs: 3, resume: false}\n" in text
        assert "\n  model=tiny  # choose from large, small, tiny\n" in text
        assert "\n    hidden: 2  # units\n" in text and "\n    deep: {layers: 4}" in text
        assert "\n  experiment=mine  # choose from lost, mine, paper\n" in text


def test_completion_with_the_users_own_settings(
    own: Path, configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own.rename("mine")
    assert help_texts.complete("seqtool train --config-dir mi", configs) == ["mine/"]
    assert help_texts.complete("seqtool train --config-dir mine model=", configs) == [
        "model=large ",
        "model=small ",
        "model=tiny ",
    ]
    assert help_texts.complete("seqtool train -cd mine model=tiny model.s", configs) == ["model.size="]


def test_completion(configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_bash_completes(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "seqtool").write_text(f'#!/bin/sh\nexec {sys.executable} -m seqtool "$@"\n')
    (folder / "seqtool").chmod(0o755)
    script = """
        eval "$(seqtool --completion bash)"
        for COMP_LINE in "seqtool tr" "seqtool train optim=ada" "seqtool train optim.l"; do
            COMP_POINT=${#COMP_LINE}; _seqtool; printf '<%s>' "${COMPREPLY[@]}"; echo
        done"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert result.stdout.splitlines() == [
        "<train ><translate >",
        "<adadelta ><adam ><adamw >",
        "<optim.lr=>",
    ]
    assert result.stderr == ""
