"""Tests of typed settings and of parts built from settings: accepted values, and messages for mistakes."""

import random
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from seqtool import settings as config
from seqtool.errors import InputError
from seqtool.settings import classes


@dataclass
class Limits:
    maximum: int
    ratio: float | None = None


@dataclass
class Settings:
    name: str
    rate: float
    limits: Limits
    other: Limits = field(default_factory=lambda: Limits(maximum=7))
    names: list[str] = field(default_factory=list)
    resume: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class Part:
    def __init__(self, *, size: int, scale: float, kind: str, sizes: list[int], vocabulary: object) -> None:
        self.settings = (size, scale, kind, sizes)
        self.vocabulary = vocabulary


def make_part(size: int, label: str | None = None, **extra: Any) -> tuple[Any, ...]:
    return size, label, extra


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module seqtool.parts, with the class Part, and with names that a checkpoint must not use."""
    module = types.ModuleType("seqtool.parts")
    monkeypatch.setattr(Part, "__module__", "seqtool.parts")
    vars(module).update(Part=Part, make_part=make_part, Path=Path, number=3)
    monkeypatch.setitem(sys.modules, "seqtool.parts", module)


SETTINGS: dict[str, Any] = {"name": "a", "rate": 1, "limits": {"maximum": 3}}
PART: dict[str, Any] = {"_target_": "seqtool.parts.Part", "size": 1, "scale": 2, "kind": "k", "sizes": [3]}


def message(function: Any, *arguments: Any, **keywords: Any) -> str:
    """Return the message of the InputError that a call raises."""
    with pytest.raises(InputError) as error:
        function(*arguments, **keywords)
    return str(error.value)


def test_settings_are_converted_to_the_dataclass() -> None:
    settings = config.typed(Settings, SETTINGS | {"other": {"ratio": 2}, "names": ["x"], "extra": {"a": [1]}})
    expected = Settings("a", 1.0, Limits(3), Limits(7, 2.0), ["x"], extra={"a": [1]})
    assert settings == expected
    assert type(settings.rate) is float and type(settings.other.ratio) is float
    assert type(settings.names) is list and type(settings.extra) is dict


def test_interpolations_are_resolved_once() -> None:
    train = SETTINGS | {"name": r"\${x}", "names": ["${top}"]}
    configuration = OmegaConf.create({"top": "${x}", "x": r"\${y}", "train": train})
    settings = config.typed(Settings, configuration.train)
    assert (settings.name, settings.names) == ("${x}", ["${y}"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"nam": 1}, "Unknown setting 'train.nam'; did you mean 'train.name'?"),
        (
            {"limits": {"maximum": 1, "ration": 1}},
            "Unknown setting 'train.limits.ration'; did you mean 'train.limits.ratio'?",
        ),
        ({"rate": "quick"}, "Setting 'train.rate' must be a number, not 'quick'."),
        ({"rate": None}, "Setting 'train.rate' must be a number, not null."),
        ({"resume": "perhaps"}, "Setting 'train.resume' must be true or false, not 'perhaps'."),
        ({"limits": {"maximum": 1.5}}, "Setting 'train.limits.maximum' must be a whole number, not 1.5."),
        (
            {"limits": {"maximum": 1, "ratio": "x"}},
            "Setting 'train.limits.ratio' must be a number or null, not 'x'.",
        ),
        ({"limits": None}, "Setting 'train.limits' must be a group of settings, not null."),
        ({"limits": {}}, "Missing setting 'train.limits.maximum'."),
        ({"names": "x"}, "Setting 'train.names' must be a list, not 'x'."),
        ({"rate": {"x": 1}}, "Setting 'train.rate' must be a number, not {'x': 1}."),
        ({"name": "???"}, "Missing setting 'train.name'."),
        (
            {"nam": 1, "rate": "x", "name": "???"},
            "Setting 'train.rate' must be a number, not 'x'; "
            "unknown setting 'train.nam' (did you mean 'train.name'?); missing setting 'train.name'.",
        ),
    ],
)
def test_every_mistake_in_settings_is_reported(change: dict[str, Any], expected: str) -> None:
    configuration = OmegaConf.create({"train": SETTINGS | change})
    assert message(config.typed, Settings, configuration.train) == expected


def test_settings_without_a_configuration_have_short_names() -> None:
    error = message(config.typed, Settings, SETTINGS | {"zzz": 1})
    assert error.startswith("Unknown setting 'zzz'; choose from extra, ")


def test_a_broken_interpolation_names_its_setting() -> None:
    error = message(config.plain, OmegaConf.create({"a": {"b": "${nothing}"}}))
    assert error == "Setting 'a.b' cannot be resolved: Interpolation key 'nothing' not found."


def test_build_calls_the_target_with_settings_and_parts(package: None) -> None:
    vocabulary = object()
    for trusted in (True, False):
        part = classes.build(PART, trusted=trusted, vocabulary=vocabulary)
        assert part.settings == (1, 2.0, "k", [3]) and type(part.settings[1]) is float
        assert part.vocabulary is vocabulary


def test_a_trusted_target_may_be_any_function_with_defaults(package: None) -> None:
    settings = OmegaConf.create({"_target_": "seqtool.parts.make_part", "size": 1})
    assert classes.build(settings, trusted=True) == (1, None, {})
    assert classes.build({"_target_": "fractions.Fraction", "numerator": 3}, trusted=True) == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sise": 1}, "Unknown setting 'model.sise'; did you mean 'model.size'?"),
        ({"size": "big"}, "Setting 'model.size' must be a whole number, not 'big'."),
        ({"scale": None}, "Setting 'model.scale' must be a number, not null."),
        ({"sizes": ["a"]}, "Setting 'model.sizes' must be a list of numbers, not ['a']."),
        ({"size": "???", "kind": "???"}, "Missing setting 'model.kind'; missing setting 'model.size'."),
        (
            {"vocabulary": 1},
            "Unknown setting 'model.vocabulary'; choose from model.kind, model.scale, model.size, model.sizes.",
        ),
        (
            {"_target_": "seqtool.parts.Prat"},
            "Unknown target 'seqtool.parts.Prat'; did you mean 'seqtool.parts.Part'?",
        ),
        (
            {"_target_": "seqtool.part.Part"},
            "Unknown target 'seqtool.part.Part': there is no module 'seqtool.part'.",
        ),
        (
            {"_target_": "seqtool.parts.number"},
            "Unknown target 'seqtool.parts.number'; "
            "choose from seqtool.parts.Part, seqtool.parts.Path, seqtool.parts.make_part.",
        ),
        ({"_target_": None}, "Setting 'model._target_' must name a class with its module, such as mine.Model."),
    ],
)
def test_build_reports_every_mistake(change: dict[str, Any], expected: str, package: None) -> None:
    configuration = OmegaConf.create({"model": PART | change})
    assert message(classes.build, configuration.model, trusted=True, vocabulary=None) == expected


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "seqtool.parts.Path",
        "seqtool.parts.make_part",
        "seqtool.settings.classes.build",
        "seqtoolx.Part",
        "torch.Tensor",
    ],
)
def test_a_checkpoint_may_only_name_classes_of_the_package(target: str, package: None) -> None:
    package_name = target.partition(".")[0]
    expected = f"The configuration names '{target}': only classes of seqtool may be built from it"
    if package_name != "seqtool":
        expected += f" (trust={package_name} would allow classes of {package_name}, and run the code of that module)"
    assert message(classes.build, {"_target_": target}, trusted=False) == f"{expected}."


def test_a_target_outside_of_seqtool_is_refused_before_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    message(classes.build, {"_target_": "outside.Class"}, trusted=False)


class Base:
    """The base class that user classes must derive from; `size` may be the name of a Part."""

    def __init__(self, *, size: str | type[Part]) -> None:
        self.size = size


USER_MODULE = """
from os import mkdir
from pathlib import Path

from seqtool.parts import Part
from abc import ABC, abstractmethod
from test_config_base import Base


class Small(Part): ...
class Mine(Base): ...
class Other: ...
class Half(Base, ABC):
    @abstractmethod
    def grow(self): ...
"""


@pytest.fixture
def user_module(package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module `mine` in the current directory, not yet imported."""
    base_module = types.ModuleType("test_config_base")
    vars(base_module).update(Base=Base)
    monkeypatch.setitem(sys.modules, "test_config_base", base_module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(USER_MODULE)
    yield
    sys.modules.pop("mine", None)


USER_SETTINGS = {"_target_": "mine.Mine", "size": "mine.Small"}


@pytest.mark.parametrize("trusted", [True, ["mine"]])
def test_classes_of_a_user_module_are_built(user_module: None, trusted: classes.Trust) -> None:
    """The user names the classes, or trusts the module for a checkpoint that names them; a setting may be a class."""
    model = classes.build(USER_SETTINGS, trusted=trusted, base=Base)
    assert type(model).__name__ == "Mine" and model.size is sys.modules["mine"].Small
    assert classes.build(USER_SETTINGS | {"size": "small"}, trusted=trusted, base=Base).size == "small"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"_target_": "mien.Mine"}, "Unknown target 'mien.Mine': there is no module 'mien'; did you mean 'mine'?"),
        ({"_target_": "mine.Mien"}, "Unknown target 'mine.Mien'; did you mean 'mine.Mine'?"),
        ({"size": "mine.Smal"}, "Unknown target 'mine.Smal'; did you mean 'mine.Small'?"),
        ({"size": "mine."}, "Setting 'model.size' must name a class with its module, such as mine.Model."),
        ({"size": None}, "Setting 'model.size' must be text, not null."),
        (
            {"_target_": "mine.Other"},
            "Setting 'model._target_' names 'mine.Other', which is not a class derived from {base}.",
        ),
        (
            {"_target_": "mine.mkdir"},
            "Setting 'model._target_' names 'mine.mkdir', which is not a class derived from {base}.",
        ),
        ({"_target_": "mine.Half"}, "Setting 'model._target_' names 'mine.Half', which has no grow."),
        (
            {"size": "mine.Other"},
            "Setting 'model.size' names 'mine.Other', which is not a class derived from seqtool.parts.Part.",
        ),
    ],
)
def test_invalid_user_classes_are_refused(change: dict[str, Any], expected: str, user_module: None) -> None:
    configuration = OmegaConf.create({"model": USER_SETTINGS | change})
    error = message(classes.build, configuration.model, trusted=True, base=Base)
    assert error == expected.format(base=f"{Base.__module__}.Base")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"_target_": "mine.os.system"}, "Unknown target 'mine.os.system': there is no module 'mine.os'."),
        (
            {"_target_": "mine.mkdir"},
            "The configuration names 'mine.mkdir': only classes of mine may be built",
        ),
        ({"_target_": "mine.Path"}, "The configuration names 'mine.Path': only classes of mine may be built"),
        (
            {"_target_": "mine.Base"},
            "The configuration names 'mine.Base': only classes of mine may be built",
        ),
        ({"size": "os.system"}, "The configuration names 'os.system': only classes of seqtool may be built from it"),
        ({"size": "mineral.Small"}, "The configuration names 'mineral.Small': only classes of seqtool may"),
    ],
)
def test_trust_is_limited_to_the_named_module(change: dict[str, Any], expected: str, user_module: None) -> None:
    assert message(classes.build, USER_SETTINGS | change, trusted=["mine"], base=Base).startswith(expected)


def test_modules_are_not_imported_without_trust(user_module: None) -> None:
    for trusted in (False, [], ["min"], ["mines"]):
        for settings in (USER_SETTINGS, USER_SETTINGS | {"_target_": "test_config.Base"}):
            message(classes.build, settings, trusted=trusted)
            assert "mine" not in sys.modules


def test_trust_takes_names_of_modules() -> None:
    assert classes.modules(None) == []
    assert classes.modules("mine, other") == classes.modules(["mine", "other"]) == ["mine", "other"]
    expected = "trust=mine.Model is not the name of a module: for mine.parts.Model write trust=mine."
    assert message(classes.modules, "mine.Model") == expected


def test_a_table_of_parts_accepts_names_and_classes() -> None:
    assert classes.chosen("part", {"part": Part}, kind="part") is classes.chosen(Part, {}, kind="part") is Part
    expected = "Unknown part 'mine.Part'; choose from part."
    assert message(classes.chosen, "mine.Part", {"part": Part}, kind="part") == expected


def test_missing_imports_of_a_user_module_are_not_input_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        classes.build({"_target_": "needy.Class"}, trusted=True)


def test_any_text_survives_escaping_and_saving(tmp_path: Path) -> None:
    generator = random.Random(1)
    texts = ["".join(generator.choices("\\\\${}'\"a: ", k=generator.randint(0, 9))) for _ in range(300)]
    assert config.plain(OmegaConf.create({"texts": [config.escape(text) for text in texts]}))["texts"] == texts
    OmegaConf.save(config.resolved({"texts": texts}), tmp_path / "config.yaml")
    assert config.plain(OmegaConf.create(OmegaConf.load(tmp_path / "config.yaml")))["texts"] == texts


def test_names_are_always_a_list() -> None:
    assert config.names(None) == []
    assert config.names("a,b") == ["a,b"]
    assert config.names(OmegaConf.create(["a", "b"])) == ["a", "b"]
