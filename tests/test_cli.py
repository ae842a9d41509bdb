"""The command line in front of Hydra: what reaches a command, and what its user is told."""

import os
import random
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import seqtool
from seqtool import arguments, cli, usage
from seqtool.config import plain
from seqtool.errors import InputError

ROOT = Path(__file__).parent.parent

CONFIGS = {
    "train.yaml": """
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
references: null
baseline: null
""",
    "eval.yaml": """
defaults: [{data: names}, _self_]
checkpoint: ???
references: null
images: null
run: null
init_from: null
input: ???
output: null
hypotheses: null
sources: null
baseline: null
gold: null
alignments: null
plot: null
document_frequencies: null
save_document_frequencies: null
embeddings: {source: null, target: null}
model: {encoder: {weights: null}}
""",
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
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that commands are called with, from an empty working directory."""
    found: list[Any] = []
    for name in ("prepare", "train", "translate", "caption", "evaluate"):
        replace(name, lambda config: found.append(plain(config)), monkeypatch)
    replace("inspect", found.append, monkeypatch)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return found


def replace(name: str, function: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command's module one that holds `function` alone."""
    module = types.ModuleType(f"seqtool.commands.{name}")
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
        "import sys; from seqtool import cli; "
        "assert cli.run(['--help'], cli.config_directory()) == 0; "
        "assert not {'torch', 'hydra', 'omegaconf', 'numpy'} & sys.modules.keys()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"  {name} " in result.stdout for name in cli.COMMANDS)


def test_nothing_that_runs_before_a_command_imports_torch() -> None:
    code = (
        "import sys; from seqtool import arguments, cli, config, runs, usage; "
        "configs = cli.config_directory(); "
        "assert cli.run(['train', '--help'], configs) == cli.run(['train', '--cfg', 'job'], configs) == 0; "
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_command_collects_garbage_but_not_modules() -> None:
    code = (
        "import gc, sys; from seqtool import cli; from seqtool.commands import prepare; "
        "prepare.prepare = lambda config: print(gc.isenabled(), gc.get_freeze_count() > 10_000); "
        "sys.argv = ['seqtool', 'prepare']; cli.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "True True\n"), result.stderr


def test_version(capsys: pytest.CaptureFixture[str], configs: Path) -> None:
    assert cli.run(["--version"], configs) == 0
    assert capsys.readouterr().out == f"seqtool {seqtool.__version__}\n"


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


def test_inspect_gets_its_path(calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["inspect", "runs/a=(b)"], configs) == 0
    assert calls == ["runs/a=(b)"]
    assert cli.run(["inspect"], configs) == 2
    assert capsys.readouterr().err == "seqtool: inspect needs one path: seqtool inspect PATH.\n"


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


def test_a_run_leaves_nothing(calls: list[Any], configs: Path) -> None:
    assert cli.run(["train"], configs) == 0
    assert list(Path().iterdir()) == []
    assert len(calls) == 1


def test_cfg_prints_the_configuration_only(calls: list[Any], configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "--cfg", "job", "run=a b"], configs) == 0
    printed = capsys.readouterr()
    assert "\nrun: a b\n" in printed.out
    assert (calls, printed.err) == ([], "")


@pytest.mark.parametrize("name", HOSTILE)
def test_any_file_name_is_taken_as_it_stands(name: str, calls: list[Any], configs: Path) -> None:
    expected = "./???" if name == "???" else name
    keys = sorted(arguments.NAMES - {"references", "data.train"})
    settings = [f"{key}={name}" for key in keys] + [f"++input={name}"]
    settings += [f"references={name},{name}x,{name}", f"data.train={name},x"]
    assert cli.run(["eval", *settings], configs) == 0
    assert calls[0].pop("references") == [expected, f"{name}x", expected]
    assert calls[0]["data"].pop("train") == [expected, "x"]
    assert {value for _, value in leaves(calls[0])} == {expected}


def test_any_file_name_survives_a_sweep(calls: list[Any], configs: Path) -> None:
    keys = sorted(arguments.NAMES - arguments.LISTS - {"run"})
    for start in range(0, len(HOSTILE), len(keys)):
        names = dict(zip(keys, HOSTILE[start : start + len(keys)], strict=False))
        settings = [f"{key}={name}" for key, name in names.items()]
        settings += [f"{key}=a" for key in ("checkpoint", "input") if key not in names]
        assert cli.run(["eval", "-m", *settings, f"references={','.join(names.values())}"], configs) == 0
        expected = {key: "./???" if name == "???" else name for key, name in names.items()}
        assert dict(leaves(calls[-1])).items() >= expected.items()
        assert calls[-1]["references"] == list(expected.values())


def test_random_names_survive_quoting(calls: list[Any], configs: Path) -> None:
    generator = random.Random(1)
    keys = sorted(arguments.NAMES - arguments.LISTS)
    letters = "\\\\\\$${}'\"a, =#[]()"
    for _ in range(10):
        names = {key: "".join(generator.choices(letters, k=generator.randint(1, 9))) for key in keys}
        settings = [f"{key}={name}" for key, name in names.items()]
        assert cli.run(["eval", "checkpoint=a", *settings], configs) == 0
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
        assert cli.run(["translate", "checkpoint=c", "input=i", f"references={text}"], configs) == 0
    assert [call["references"] for call in calls] == list(cases.values())


def test_null_is_null_unless_a_file_is_called_so(calls: list[Any], configs: Path) -> None:
    cli.run(["train", "init_from=null", "run=null"], configs)
    Path("null").touch()
    cli.run(["train", "init_from=null"], configs)
    assert [call["init_from"] for call in calls] == [None, "null"]
    assert calls[0]["run"] is None


def test_other_settings_keep_hydras_grammar() -> None:
    for setting in ("train.epochs=1,2", "model=small", "~data", "note=${run}", "data.train", "checkpoint="):
        assert arguments.quoted(setting) == setting


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
        ("train run=\ud800", "'run=\\ud800' holds a character that no text has."),
        ("train --cfg all -m", "Only one of --run, --multirun, --cfg and --info can be given."),
        ("train -p", "Argument --package/-p: expected one argument."),
        ("train --resolve", "--resolve goes with --cfg."),
        (
            "train +epochs=(",
            "Cannot read '+epochs=(': quote the value for Hydra too, as in \"key='(value)'\".",
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
    assert capsys.readouterr().err == "seqtool: ~train.epochs takes away what train needs: write key=value.\n"


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
    text = usage.command("train", configs, ["model=large"])
    assert "seqtool train -m model=" in text
    assert "run: null  # the name of the run" in text
    assert "model=large  # choose from large, small" in text
    assert "    deep: {layers: 4}" in text
    assert "defaults" not in text.split("Settings and their defaults")[1]
    assert "beam: 5  # 1 is greedy" in usage.command("translate", configs, [])
    assert usage.command("inspect", configs, []).startswith("seqtool inspect: ")


def test_completion(configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").mkdir()
    (tmp_path / "runs" / "file.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert usage.complete("seqtool tra", configs) == ["train ", "translate "]
    assert usage.complete("seqtool train mod", configs) == ["model.hidden=", "model="]
    assert usage.complete("seqtool train model=large model.", configs) == [
        "model.deep.layers=",
        "model.hidden=",
    ]
    assert usage.complete("seqtool train model=", configs) == ["model=large ", "model=small "]
    assert usage.complete("seqtool translate b", configs) == ["baseline=", "beam="]
    assert usage.complete("seqtool translate checkpoint=ru", configs) == ["checkpoint=runs/"]
    assert usage.complete("seqtool inspect runs/f", configs) == ["runs/file.txt", "runs/first/"]
    assert usage.complete("seqtool nothing x", configs) == []


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
