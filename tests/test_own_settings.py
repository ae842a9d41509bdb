"""Tests of users' YAML files of settings, and of file names in such files and on the command line."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

import seqtool
from seqtool.cli import evaluate, translate
from seqtool.cli import main as cli
from seqtool.cli import train as training
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.settings import plain

HEADER = "# @package _global_\n"


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the list to which commands add the settings they are called with. Nothing is trained."""
    configs: list[dict[str, Any]] = []

    def record(config: DictConfig) -> None:
        configs.append(plain(config))

    for module, name in ((training, "train"), (translate, "translate"), (evaluate, "evaluate")):
        monkeypatch.setattr(module, name, record)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return configs


def write(name: str, text: str, encoding: str = "utf-8") -> None:
    file = Path("mine") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode(encoding))


TRAIN = ("train", "--config-dir=mine", "experiment=own")


def test_directories_and_broken_links_are_not_read(configs: list[dict[str, Any]]) -> None:
    """A user's model has a directory and a broken link, such as an editor's lock, beside it."""
    write("model/own.yaml", "defaults: [bahdanau, _self_]\n")
    Path("mine/model/folder.yaml").mkdir()
    Path("mine/model/.#own.yaml").symlink_to("someone@elsewhere")
    assert run("train", "--config-dir=mine", "model=own", "model.embedding=128") == 0
    assert configs[0]["model"]["embedding"] == 128


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("text", [f"{HEADER}train: {{steps: 3}}\n", f"\n{HEADER}\ntrain:\r\n  steps: 3\r\n"])
def test_a_users_preset_is_read(text: str, encoding: str, configs: list[dict[str, Any]]) -> None:
    """The file may have a byte order mark and any line ends, and another file may be broken."""
    write("experiment/own.yaml", text, encoding)
    write("experiment/broken.yaml", "a: {\n")
    assert run(*TRAIN, "seed=3") == 0
    assert configs[0]["train"]["steps"] == 3 and configs[0]["seed"] == 3
    assert run(*TRAIN, "epochs=3") == 2  # all files are searched for a setting of this name


def test_a_folder_with_the_name_of_a_setting_is_explained(
    configs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("images").mkdir()
    assert run("caption", "--config-dir=.", "checkpoint=runs/a", "images=images") == 2
    folder = Path("images").absolute()
    message = f"seqtool: Hydra takes 'images' for a group of settings because of the directory {folder}: "
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    ("text", "encoding", "message"),
    [
        ("train: {steps: 3}\n", "utf-8", " would set nothing: begin it with the line `# @package _global_`."),
        ("# package _global_\nseed: 3\n", "utf-8-sig", " would set nothing: begin it with the line"),
        (f"# mine\n{HEADER}seed: 3\n", "utf-8", " would set nothing: begin it with the line"),
        (f"{HEADER}# Köln\nseed: 3\n", "latin-1", " is not UTF-8, but perhaps Latin-1 or Windows-1252: save it as "),
        (f"{HEADER}seed: 3 # “\n", "cp1252", " is not UTF-8, but perhaps Latin-1 or Windows-1252: save it as UTF-8."),
        (f"{HEADER}seed: 3\n", "utf-16", " is not UTF-8, but perhaps UTF-16: save it as UTF-8."),
        (f"{HEADER}seed: 3\n", "utf-16-le", " is not UTF-8, but perhaps UTF-16: save it as UTF-8."),
        (f"{HEADER}train:\n\tsteps: 3\n", "utf-8", "line 3, column 1: indent with spaces."),
        (f"{HEADER}train:\n  steps: 3\n  steps: 4\n", "utf-8", "found duplicate key steps in "),
        (f"{HEADER}train: {{steps: '3}}\n", "utf-8", " is not YAML: while scanning a quoted scalar "),
        (f"{HEADER}- seed\n", "utf-8", " must hold settings, each written key: value."),
        ("5\n", "utf-8", " must hold settings, each written key: value."),
        (f"{HEADER}train: [3]\n", "utf-8", ": 'train' is a group of settings, written train: {name: value}."),
        (f"{HEADER}validation:\n  beam 3\n", "utf-8", ": 'validation' is a group of settings, written validation: {"),
        (f"{HEADER}data: toy\n", "utf-8", ", or choose one by `defaults: [override /data: NAME]`."),
        (f"{HEADER}train.steps: 3\n", "utf-8", " has 'train.steps': in a file it is written train: {steps: …}."),
        (f"{HEADER}train.steps=3\n", "utf-8", " has 'train.steps=3': in a file it is written train: {steps: 3}."),
        (f"{HEADER}defaults: [override /modle: luong]\n", "utf-8", ": unknown group 'modle'; did you mean 'model'?"),
        (f"{HEADER}defaults: [override /model: loung]\n", "utf-8", ": unknown model 'loung'; did you mean 'luong'?"),
    ],
)
def test_invalid_files_are_refused(
    text: str, encoding: str, message: str, configs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    write("experiment/own.yaml", text, encoding)
    assert run(*TRAIN) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert str(Path("mine/experiment/own.yaml").absolute()) in error and message in error
    assert not configs


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own.yml", HEADER, "seqtool: The name of {mine}/experiment/own.yml must end in .yaml."),
        ("own.yaml", "defaults: [own]\n" + HEADER, "seqtool: {mine}/experiment/own.yaml would set nothing: begin it"),
        ("own.yaml", HEADER + "defaults: [own]\n", "seqtool: The YAML files include one another in a circle: see "),
    ],
)
def test_misnamed_and_circular_files_are_refused(
    name: str, text: str, message: str, configs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"experiment/{name}", text)
    assert run(*TRAIN) == 2
    assert capsys.readouterr().err.startswith(message.format(mine=Path("mine").absolute()))


NAMES = f"""{HEADER}
defaults: [override /data: parallel]
data: {{train: "~/a.en, ~/a.de", valid: [~/b.en, b.de], test: "c.en,c.de", cache: ~/cache}}
embeddings: {{source: ~/vectors.txt}}
validation: {{scores: "mine.A, mine.B"}}
run: "~"
"""


def test_file_names_in_a_file_mean_the_same_as_on_the_command_line(configs: list[dict[str, Any]]) -> None:
    write("experiment/own.yaml", NAMES)
    assert run(*TRAIN) == 0
    settings = ["data.train=~/a.en, ~/a.de", "data.valid=[~/b.en, b.de]", "data.test=c.en,c.de", "data.cache=~/cache"]
    settings += ["embeddings.source=~/vectors.txt", "validation.scores=mine.A, mine.B", "run=~"]
    assert run("train", "data=parallel", *settings) == 0
    home = Path.cwd() / "home"
    for config in configs:
        data = config["data"]
        assert data["train"] == [f"{home}/a.en", f"{home}/a.de"] and data["valid"] == [f"{home}/b.en", "b.de"]
        assert data["test"] == ["c.en", "c.de"] and data["cache"] == f"{home}/cache"
        assert config["embeddings"]["source"] == f"{home}/vectors.txt"
        assert config["validation"]["scores"] == ["mine.A", "mine.B"]
        assert config["run"] == "~"  # a name, not a path


def test_names_of_existing_files_are_not_expanded(configs: list[dict[str, Any]]) -> None:
    for name in ("a, b", " c", "home/d, e", "~nobody-has-this-name"):
        Path(name).touch()
    assert run("eval", "hypotheses=~nobody-has-this-name", "references=a, b") == 0
    assert run("eval", "hypotheses=~root/x", "references=b, c,d") == 0
    assert run("eval", "hypotheses=~/x", "references=~/d, e") == 0
    assert [config["references"] for config in configs] == ["a, b", ["b", " c", "d"], f"{Path.cwd()}/home/d, e"]
    assert configs[0]["hypotheses"] == "~nobody-has-this-name" and configs[1]["hypotheses"] == "/root/x"


@pytest.mark.parametrize("setting", ["output", "alignments", "input", "plot", "report", "baseline", "gold"])
def test_the_home_directory_is_expanded_in_every_path(setting: str, configs: list[dict[str, Any]]) -> None:
    command = "translate" if setting in ("alignments", "input") else "eval"
    assert run(command, "checkpoint=~/a, ~/b", f"{setting}=~/x y.txt") == 0
    assert configs[0][setting] == f"{Path.cwd()}/home/x y.txt"
    assert configs[0]["checkpoint"] == [f"{Path.cwd()}/home/a", f"{Path.cwd()}/home/b"]


def test_the_home_directory_is_expanded_for_config_files_and_runs(
    configs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine").symlink_to("home")
    write("experiment/own.yaml", f"{HEADER}seed: 5\n")
    assert run("train", "--config-dir=~", "experiment=own") == 0 and configs[0]["seed"] == 5
    home = Path.cwd() / "home"
    for arguments in (["inspect", "~/none"], ["inspect", "~/none", "plot=~/x"], ["report", "~/none"]):
        assert run(*arguments) == 2
        assert f" at {home}/none." in capsys.readouterr().err
    with pytest.raises(InputError, match=f"at {home}/none"):
        seqtool.load("~/none")
    assert not Path("~").exists()


def test_similar_run_names_come_first(configs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(20):
        Path(f"runs/an-{number:02d}/checkpoints").mkdir(parents=True)
    Path("runs/Transformer-big/checkpoints").mkdir(parents=True)
    for path in ("runs/transformer_big", "transformerbig"):
        assert run("inspect", path) == 2
        error = capsys.readouterr().err
        assert f"There is no run or checkpoint at {path}. runs holds Transformer-big, an-" in error
        assert " and 9 more. The current directory is " in error


def test_similar_names_are_listed_when_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/first/checkpoints").mkdir(parents=True)
    assert run("train", "run=frist", "train.resume=true") == 2
    assert capsys.readouterr().err.endswith("or change to the directory it is in. runs holds first.\n")
