"""Tests of declarations: they agree with the YAML files and the code, and a new setting needs only its declaration."""

import dataclasses
import inspect
import shutil
import sys
from collections.abc import Iterator
from fractions import Fraction
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
from seqtool.models.luong import Luong
from seqtool.predict.attribution import METHODS
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations, plain, typed
from seqtool.settings.classes import locate_target
from seqtool.settings.declarations import COMMANDS, NewFile, command_settings, declared
from seqtool.training.optimisation import SCHEDULES

CONFIGS = config_directory()
ENCODER = ("crop", "crop_size", "mirror_unless", "freeze")
NEWER = ("data.strict", "data.clean", *(f"model.encoder.{name}" for name in ENCODER))  # older runs lack them
CLASS_GROUPS = ("model", "optim", "schedule", "data")  # their settings are parameters of classes


def run(*arguments: str, configs: Path = CONFIGS) -> int:
    return cli.run(arguments, configs)


@pytest.mark.parametrize("command", COMMANDS)
def test_yaml_files_and_declarations_name_the_same_settings(command: str) -> None:
    in_yaml = {name for name in ConfigFiles(command, [CONFIGS]).settings() if not name.endswith("_target_")}
    groups = {name.rpartition(".")[0] for name in in_yaml} | {"experiment"}
    assert command_settings(command).keys() <= in_yaml
    undeclared = in_yaml - command_settings(command).keys() - groups
    assert {name.partition(".")[0] for name in undeclared} <= {*CLASS_GROUPS}
    assert not {name for name in undeclared if name.startswith(("model.encoder.", "data.vocabulary.", "data.limits."))}
    assert set(help_texts.COMMANDS) == COMMANDS.keys()


def test_every_default_is_stated_only_once() -> None:
    """Only settings that some data leave out have defaults in dataclasses; classes repeat no defaults of YAML files,
    except of settings that older runs lack.
    """
    files = ConfigFiles("train", [CONFIGS])
    for group, schemas in [pair for groups in COMMANDS.values() for pair in groups.items()]:
        fields = [field for schema in schemas for field in dataclasses.fields(schema)]
        for name in {field.name for field in fields if _has_default(field)}:
            if f"{group}.{name}" in NEWER:
                continue
            assert group in ("data.vocabulary", "data.limits"), name
            choices = [files.choice_settings("data", choice) for choice in files.choices("data")]
            assert any(f"{group}.{name}" not in settings for settings in choices), name
    for file in [*CONFIGS.glob("model/*.yaml"), *CONFIGS.glob("data/*.yaml"), *CONFIGS.glob("schedule/*.yaml")]:
        settings = load(file)
        target = SCHEDULES[settings["name"]] if "name" in settings else locate_target(settings, trusted=True)
        for name, parameter in inspect.signature(target).parameters.items():
            is_new = (file.stem, name) in (("toy", "continuous"), ("text", "lines"))
            assert name not in settings or parameter.default is parameter.empty or is_new, f"{file}: {name}"


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)


def test_parameters_are_those_of_the_constructor() -> None:
    """Also of a class that inherits it, as users' models do, of a function, and of other classes."""

    class Mine(Luong):
        pass

    names = list(declarations.parameters(Mine))
    assert names == list(declarations.parameters(Luong)) and {"embedding", "parts"} <= {*names} and "self" not in names
    assert declarations.parameters(lambda first, second=2: None).keys() == {"first", "second"}
    assert declarations.parameters(declarations.Vocabulary).keys() >= {"kind", "size"}
    assert declarations.parameters(Fraction).keys() >= {"numerator", "denominator"}  # of `__new__` alone


def test_declared_choices_agree_with_the_code() -> None:
    train, vocabulary = command_settings("train"), declared(declarations.Vocabulary)
    assert train["train.batch_by"].choices == ("sentences", "tokens")
    assert vocabulary["kind"].choices == KINDS and vocabulary["normalization"].choices == tuple(NORMALIZATIONS)
    assert vocabulary["size"].at_least == len(SPECIALS) + 1
    assert command_settings("translate")["words"].choices == command_settings("eval")["words"].choices == tuple(SPLITS)
    assert command_settings("score")["attribution"].choices == tuple(METHODS)
    assert command_settings("caption")["hard_attention"].choices == tuple(CHOICES)


@dataclasses.dataclass
class Lexicon:
    """Settings that are added to `translate`."""

    lexicon: declarations.File | None
    unused: NewFile | None
    depth: Annotated[int, declarations.between(1, 9)]


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The YAML files and declarations with a line added for each of these settings."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    with (tmp_path / "configs/translate.yaml").open("a") as file:
        file.write("lexicon: null  # a file of word pairs\nunused: null  # a file for unused pairs\ndepth: 1\n")
    monkeypatch.setitem(COMMANDS, "translate", {"": (*COMMANDS["translate"][""], Lexicon)})  # type: ignore[arg-type]
    command_settings.cache_clear()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/words.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "configs"
    monkeypatch.undo()
    command_settings.cache_clear()


def test_a_file_setting_is_added_by_a_line_and_a_declaration(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(translate, "translate", lambda config: calls.append(plain(config)))
    arguments = ["translate", "checkpoint=c"]
    assert run("translate", "--help", configs=configs) == 0
    assert "\n  lexicon: null  # a file of word pairs\n" in capsys.readouterr().out
    assert help_texts.complete("seqtool translate lex", configs) == ["lexicon="]
    assert help_texts.complete("seqtool translate lexicon=~/w", configs) == ["lexicon=~/words.txt"]
    for name in ("a, (b)=1", "10", "${beam}"):
        assert run(*arguments, f"lexicon={name}", configs=configs) == 0
        assert calls[-1]["lexicon"] == name
    assert run(*arguments, "lexicon=~/words.txt", configs=configs) == 0
    assert calls[-1]["lexicon"] == f"{Path.cwd()}/home/words.txt"
    assert run(*arguments, "-m", "beam=1,2", "unused=out-${beam}", configs=configs) == 0
    assert [values["unused"] for values in calls[-2:]] == ["out-1", "out-2"]
    assert run(*arguments, "-m", "beam=1,2", "unused=out", configs=configs) == 2
    assert "unused=out was written by an earlier job of this sweep" in capsys.readouterr().err
    assert run(*arguments, "lexikon=a", configs=configs) == 2
    assert capsys.readouterr().err == "seqtool: Unknown setting 'lexikon'; did you mean 'lexicon'?\n"
    lexicon = typed(Lexicon, {"lexicon": "a", "unused": None, "depth": 10})
    assert declarations.out_of_range(Lexicon, vars(lexicon)) == ["depth must be at most 9, not 10"]


USER_MODULE = """
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.settings.declarations import File, Files

class Pages(TextCorpus):
    name, holds, sides = "pages", "pairs", ("source", "target")
    def __init__(self, *, pages: Files, index: File | None, size: int) -> None: ...
    def splits(self): ...
    def pairs(self, split): ...
    def fingerprint(self, digest): ...
"""


def test_file_settings_of_a_user_class_keep_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(training, "train", lambda config: calls.append(plain(config)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("mine/data").mkdir(parents=True)
    Path("bound.py").write_text(USER_MODULE)
    settings = {"_target_": "bound.Pages", "pages": None, "index": None, "size": 1}
    Path("mine/data/pages.yaml").write_text(yaml.safe_dump(settings))
    arguments = ["train", "--config-dir=mine", "data=pages"]
    assert run(*arguments, "data.pages=a (1),b", "data.index=10", "data.size=10") == 0
    assert calls[-1]["data"] == {**settings, "pages": ["a (1)", "b"], "index": "10", "size": 10}
    sys.modules.pop("bound")
