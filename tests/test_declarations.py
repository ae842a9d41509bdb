"""Each setting is declared once: the YAML files and the declarations agree, and what depends on settings follows."""

import dataclasses
import inspect
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

from seqtool.cli import help as help_texts
from seqtool.cli import main as cli
from seqtool.cli import train as training
from seqtool.cli import translate
from seqtool.cli.arguments import ConfigFiles, load
from seqtool.data.text.vocabulary import KINDS, NORMALIZATIONS, SPECIALS
from seqtool.data.text.words import SPLITS
from seqtool.models.hard_attention import CHOICES
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations, plain, typed
from seqtool.settings.classes import locate_target
from seqtool.settings.declarations import COMMANDS, NewFile, command_settings, declared
from seqtool.training.optimisation import SCHEDULES

CONFIGS = config_directory()
CHOSEN = ("model", "optim", "schedule", "data")  # the classes that are chosen have the other settings there


def run(*arguments: str, configs: Path = CONFIGS) -> int:
    return cli.run(arguments, configs)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_yaml_files_and_the_declarations_name_the_same_settings(command: str) -> None:
    written = {name for name in ConfigFiles(command, [CONFIGS]).settings() if not name.endswith("_target_")}
    groups = {name.rpartition(".")[0] for name in written} | {"experiment"}
    assert command_settings(command).keys() <= written
    others = written - command_settings(command).keys() - groups
    assert {name.partition(".")[0] for name in others} <= {*CHOSEN}
    assert not {name for name in others if name.startswith(("model.encoder.", "data.vocabulary.", "data.limits."))}
    assert set(help_texts.COMMANDS) == COMMANDS.keys()


def test_no_default_stands_in_two_places() -> None:
    """A dataclass has one only where some data leave the setting out, a class none beside its YAML file."""
    files = ConfigFiles("train", [CONFIGS])
    for place, schemas in [pair for places in COMMANDS.values() for pair in places.items()]:
        own = {field.name for schema in schemas for field in dataclasses.fields(schema) if _has_default(field)}
        for name in own:
            assert place in ("data.vocabulary", "data.limits"), name
            without = [
                choice
                for choice in files.choices("data")
                if f"{place}.{name}" not in files.choice_settings("data", choice)
            ]
            assert without, name
    for file in [*CONFIGS.glob("model/*.yaml"), *CONFIGS.glob("data/*.yaml"), *CONFIGS.glob("schedule/*.yaml")]:
        settings = load(file)
        target = SCHEDULES[settings["name"]] if "name" in settings else locate_target(settings, trusted=True)
        for name, parameter in inspect.signature(target).parameters.items():
            assert name not in settings or parameter.default is parameter.empty, f"{file}: {name}"


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)


def test_choices_are_those_of_the_code() -> None:
    train, vocabulary = command_settings("train"), declared(declarations.Vocabulary)
    assert train["train.batch_by"].choices == ("sentences", "tokens")
    assert vocabulary["kind"].choices == KINDS and vocabulary["normalization"].choices == tuple(NORMALIZATIONS)
    assert vocabulary["size"].at_least == len(SPECIALS) + 1
    assert command_settings("translate")["words"].choices == command_settings("eval")["words"].choices == tuple(SPLITS)
    assert command_settings("caption")["hard_attention"].choices == tuple(CHOICES)


@dataclasses.dataclass
class Lexicon:
    """A setting that someone adds to `translate`."""

    lexicon: declarations.File | None
    unused: NewFile | None
    depth: Annotated[int, declarations.between(1, 9)]


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The YAML files and declarations with a line more for each of these settings."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    with (tmp_path / "configs/translate.yaml").open("a") as file:
        file.write("lexicon: null  # a file of word pairs\nunused: null  # a file of those not used\ndepth: 1\n")
    monkeypatch.setitem(COMMANDS, "translate", {"": (*COMMANDS["translate"][""], Lexicon)})  # type: ignore[arg-type]
    command_settings.cache_clear()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/words.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "configs"
    monkeypatch.undo()
    command_settings.cache_clear()


def test_a_setting_that_names_a_file_is_added_by_a_line_and_a_declaration(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(translate, "translate", lambda config: seen.append(plain(config)))
    line = ["translate", "checkpoint=c"]
    assert run("translate", "--help", configs=configs) == 0
    assert "\n  lexicon: null  # a file of word pairs\n" in capsys.readouterr().out
    assert help_texts.complete("seqtool translate lex", configs) == ["lexicon="]
    assert help_texts.complete("seqtool translate lexicon=~/w", configs) == ["lexicon=~/words.txt"]
    for name in ("a, (b)=1", "10", "${beam}"):
        assert run(*line, f"lexicon={name}", configs=configs) == 0
        assert seen[-1]["lexicon"] == name
    assert run(*line, "lexicon=~/words.txt", configs=configs) == 0
    assert seen[-1]["lexicon"] == f"{Path.cwd()}/home/words.txt"
    assert run(*line, "-m", "beam=1,2", "unused=out-${beam}", configs=configs) == 0
    assert [values["unused"] for values in seen[-2:]] == ["out-1", "out-2"]
    assert run(*line, "-m", "beam=1,2", "unused=out", configs=configs) == 2
    assert "unused=out was written by an earlier job of this sweep" in capsys.readouterr().err
    assert run(*line, "lexikon=a", configs=configs) == 2
    assert capsys.readouterr().err == "seqtool: Unknown setting 'lexikon'; did you mean 'lexicon'?\n"
    lexicon = typed(Lexicon, {"lexicon": "a", "unused": None, "depth": 10})
    assert declarations.out_of_range(Lexicon, vars(lexicon)) == ["depth must be at most 9, not 10"]


OWN = """
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.settings.declarations import File, Files

class Pages(TextCorpus):
    name, holds, sides = "pages", "pairs", ("source", "target")
    def __init__(self, *, pages: Files, index: File | None, size: int) -> None: ...
    def splits(self): ...
    def pairs(self, split): ...
    def fingerprint(self, digest): ...
"""


def test_a_setting_of_ones_own_class_that_names_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(training, "train", lambda config: seen.append(plain(config)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("mine/data").mkdir(parents=True)
    Path("bound.py").write_text(OWN)
    settings = {"_target_": "bound.Pages", "pages": None, "index": None, "size": 1}
    Path("mine/data/pages.yaml").write_text(yaml.safe_dump(settings))
    line = ["train", "--config-dir=mine", "data=pages"]
    assert run(*line, "data.pages=a (1),b", "data.index=10", "data.size=10") == 0
    assert seen[-1]["data"] == {**settings, "pages": ["a (1)", "b"], "index": "10", "size": 10}
    sys.modules.pop("bound")
