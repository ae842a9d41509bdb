"""The YAML files of a command's settings, and the arguments after the command, prepared for Hydra.

Hydra's grammar refuses most characters that a file name may contain, and reads commas as sweeps and digits as
numbers. So the values of settings that hold names or texts, by their declarations, are quoted before Hydra sees them.
"""

import argparse
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from seqtool.errors import InputError
from seqtool.runtime.files import expanded
from seqtool.settings import declarations, escape, escaped, leaves, plain
from seqtool.settings.classes import PACKAGE, located
from seqtool.settings.declarations import Setting
from seqtool.training.runs import RUNS

CHOOSING = set(declarations.declared(declarations.Groups))  # the groups that choose a class
OVERRIDE = re.compile(r"(?P<sign>\+{1,2}|~|)(?P<key>[^=]+?)(?:=(?P<value>.*))?", re.DOTALL)
ELEMENT = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)

Group = dict[str, Any]


class ConfigFiles:
    """The YAML files of a command's settings.

    command: its name.
    folders: the package's configurations, then the user's own: the first with a file wins.
    files: those with the settings of no group.
    groups: the command's groups, with the choice of each.
    """

    def __init__(self, command: str, folders: Sequence[Path]) -> None:
        self.command, self.folders = command, folders
        self.files: list[Path] = []
        self.groups: dict[str, str | None] = {}
        self._add(command)

    def _add(self, name: str) -> None:
        self.files.append(file := self.find(name))
        for entry in load(file).get("defaults", []):
            if isinstance(entry, Mapping):
                self.groups |= entry
            elif entry != "_self_":
                self._add(entry)

    def find(self, name: str, suffix: str = ".yaml") -> Path:
        """The path of the YAML file of that name, such as `model/luong`; it may not exist."""
        files = [folder / f"{name}{suffix}" for folder in self.folders]
        return next((file for file in files if file.is_file()), files[0])

    def included(self, group: str, choice: str | None) -> list[tuple[Path, str]]:
        """A choice's file, if there is one, and those that it includes by NAME or `/NAME@PLACE`, each with its place.

        The place is the prefix of the file's settings in the group: `encoder.`, or nothing.
        """
        file = self.find(f"{group}/{choice}")
        if not file.is_file():
            return []
        files = [(file, "")]
        for entry in load(file).get("defaults", []):
            if isinstance(entry, str) and "@" in entry:
                name, _, place = entry.lstrip("/").partition("@")
                files.append((self.find(name), "" if place == "_here_" else f"{place}."))
            elif isinstance(entry, str) and entry not in ("_self_", choice):
                files += self.included(group, entry)
        return files

    def all_groups(self) -> set[str]:
        """The groups of all commands."""
        folders = [folder for directory in self.folders for folder in directory.iterdir() if folder.is_dir()]
        return {folder.name for folder in folders} - {"hydra"}

    def choices(self, group: str, *, own: bool = False) -> list[str]:
        """The choices of a group; with `own`, only those in the user's own files."""
        folders = self.folders[1:] if own else self.folders
        files = [file for folder in folders for file in (folder / group).glob("*.yaml") if file.is_file()]
        return sorted({file.stem for file in files})

    def of_choice(self, group: str, choice: str | None) -> set[str]:
        """The full names of the settings that a choice adds; a preset adds none of its own."""
        files = self.included(group, choice)
        if not files or is_preset(files[0][0]):
            return set()
        return {key for file, place in files for key in keys(load(file), f"{group}.{place}")}

    def outside_groups(self) -> set[str]:
        """The full names of the settings that the command takes with every choice, and of its groups."""
        return {key for file in self.files for key in keys(load(file))} | self.groups.keys()

    def settings(self) -> set[str]:
        """The full names of the settings that the command takes with any choices, and of its groups."""
        settings = self.outside_groups()
        for group in self.groups:
            for choice in self.choices(group):
                with suppress(InputError):  # a file that cannot be read matters only where it is chosen
                    settings |= self.of_choice(group, choice)
        return settings


def is_preset(file: Path) -> bool:
    """Whether a choice's file sets settings of other groups, as an experiment does."""
    return "@package _global_" in file.read_text("utf-8-sig")


def keys(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The full names of settings and of the groups that contain them."""
    for key, value in settings.items():
        if key == "defaults":
            continue
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from keys(value, f"{prefix}{key}.")


@cache
def load(file: Path) -> Group:
    """A YAML file, read once: callers must not change the result."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
    except UnicodeDecodeError as error:
        start = file.read_bytes()[:2]
        encoding = "UTF-16" if start in (BOM_UTF16_LE, BOM_UTF16_BE) else "Latin-1 or Windows-1252"
        raise InputError(f"{file} is not UTF-8, but perhaps {encoding}: save it as UTF-8.") from error
    except YAMLError as error:
        if b"\0" in file.read_bytes():
            raise InputError(f"{file} is not UTF-8, but perhaps UTF-16: save it as UTF-8.") from error
        hint = ": indent with spaces" if "'\\t'" in str(error) else ""
        raise InputError(f"{file} is not YAML: {' '.join(str(error).split())}{hint}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} does not hold settings, key: value.")
    return cast(Group, content)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message[0].upper() + message[1:] + ".")


def split(arguments: Sequence[str], command: str) -> tuple[argparse.Namespace, list[str], list[str]]:
    """The options, the settings, and the paths of a command that takes them without `key=`; each in order, from
    anywhere on the command line.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--package", "-p")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("settings", nargs="*")
    for argument in arguments:
        try:
            os.fsencode(argument)
        except UnicodeEncodeError as error:
            raise InputError(f"{argument!a} holds a character that no text has.") from error
    options, unparsed = parser.parse_known_intermixed_args(arguments)
    if unparsed:
        raise InputError(f"Unknown option '{unparsed[0]}': settings are written key=value, without dashes.")
    paths = [text for text in options.settings if positional(command) and ("=" not in text or os.path.lexists(text))]
    settings = [setting for setting in options.settings if setting not in paths]
    for setting in settings:
        if "=" not in setting and not setting.startswith("~"):
            raise InputError(f"'{setting}' is not a setting: write key=value.")
    if options.multirun and options.cfg:
        raise InputError("Only one of --multirun and --cfg can be given.")
    if options.resolve and not options.cfg:
        raise InputError("--resolve goes with --cfg.")
    return options, settings, paths


def positional(command: str) -> str | None:
    """The setting whose values a command takes without `key=`, if there is one."""
    return next((name for name, setting in declarations.of_command(command).items() if setting.positional), None)


def config_files(arguments: Sequence[str], command: str, configs: Path) -> ConfigFiles:
    """A command's YAML files: the package's, and those of the directory that --config-dir names."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    named: str | None = parser.parse_known_args(arguments)[0].config_dir
    if named is None:
        return ConfigFiles(command, [configs])
    own = Path(expanded(named))
    if not own.is_dir():
        raise InputError(f"There is no directory '{named}': --config-dir names one of YAML files.")
    return ConfigFiles(command, [configs, own.absolute()])


def declaration(name: str, files: ConfigFiles) -> Setting:
    """What is declared of a command's setting; of one in the user's own files, by the class that `_target_` names."""
    settings = declarations.of_command(files.command)
    group, _, last = name.partition(".")
    if name not in settings and group in files.groups:
        for choice in files.choices(group, own=True):
            with suppress(InputError, ImportError):  # what cannot be read or imported matters only where it is chosen
                target = load(files.find(f"{group}/{choice}")).get("_target_")
                if isinstance(target, str) and target.partition(".")[0] != PACKAGE:
                    argument = declarations.declared(located({"_target_": target}, trusted=True)).get(last)
                    if argument is not None and argument.is_literal:
                        return argument
    return settings.get(name, declarations.NONE)


def prepared(settings: Sequence[str], paths: Sequence[str], files: ConfigFiles) -> list[str]:
    """The settings and paths as Hydra takes them."""
    ready = [quoted(setting, files) for setting in settings]
    if paths:
        ready.append(f"{positional(files.command)}=[{','.join(map(quote, paths))}]")
    stored = tuple(f"{group}." for group in stored_groups(files.command, ready))
    return [f"++{setting}" if setting.startswith(stored) else setting for setting in ready]


def quoted(setting: str, files: ConfigFiles) -> str:
    """`key=value` in Hydra's grammar: a name or a text is taken literally, whatever its characters.

    A list is written `a,b` or `[a,b]`, unless a file has exactly that name; null is null, unless a file is called so.
    A list of texts needs its brackets. In the name of a run or of a file to be written, ${model.cell} stands for the
    value of that setting.
    """
    match = OVERRIDE.fullmatch(setting)
    if match is None or not match["value"]:
        return setting
    declared = declaration(match["key"], files)
    start, value = f"{match['sign']}{match['key']}=", match["value"]
    exists = _exists(value)
    if not declared.is_literal or (value == "null" and not exists):
        return setting
    if declared.writes:
        names = files.outside_groups()
        return start + quote(value, [name for name in names if not declaration(name, files).writes])
    several = r"^\[.+\]$" if declared.text else r"^\[.*\]$|,"
    if not declared.several or exists or not re.search(several, value, re.DOTALL):
        return start + quote(value)
    bracketed = value.startswith("[") and value.endswith("]")
    elements = list(_elements(value[1:-1])) if bracketed else _parts(value)
    return f"{start}[{','.join(map(quote, elements))}]"


def read_names(config: DictConfig, files: ConfigFiles) -> None:
    """Read the names in a configuration, from YAML files too, as on the command line: ~ and ~user begin a path in that
    home directory, and a,b is a list where a setting may hold several.
    """
    for key, value in leaves(plain(config)):
        if not isinstance(value, str | list) or not any("," in part or "~" in part for part in map(str, value)):
            continue
        declared = declaration(key, files)
        if declared.text:
            continue
        names: Any = value
        if isinstance(value, str) and declared.several and "," in value and not _exists(value):
            names = _parts(value)
        if isinstance(names, str):
            names = expanded(names)
        else:
            names = [expanded(name) if isinstance(name, str) else name for name in names]
        if names != value:
            OmegaConf.update(config, key, escaped(names), merge=False)


def _exists(name: str) -> bool:
    return os.path.lexists(expanded(name))


def _parts(names: str) -> list[str]:
    """The names of `a, b`, without the spaces around each unless a file is called so."""
    return [name if _exists(name) else name.strip(" ") for name in names.split(",")]


def quote(name: str, references: Collection[str] = ()) -> str:
    """`name` quoted so that Hydra and then OmegaConf read `name` back; ??? has a meaning to them, so it becomes ./???.

    ${key} in it still stands for the setting's value if the key is one of the `references` or inside one.
    """
    texts = re.split(rf"(\$\{{(?:{'|'.join(references)})(?:\.\w+)*\}})", name) if references else [name]
    texts[::2] = [escape("./???" if text == name == "???" else text) for text in texts[::2]]
    texts[:-1:2] = [re.sub(r"(\\+)\Z", r"\1\1", text) for text in texts[:-1:2]]  # backslashes before ${ are halved
    text = re.sub(r"(\\*)'", r"\1\1\\'", "".join(texts))
    return "'" + re.sub(r"(\\+)\Z", r"\1\1", text) + "'"


def stored_groups(command: str, settings: Sequence[str], run: object = None) -> set[str]:
    """The groups whose settings override those, of any choice, of a checkpoint or of a resumed run.

    train.resume=auto resumes a run that exists; if the name of the `run` is not known yet, it may do so.
    """
    values = {match["key"]: match["value"] or "" for match in filter(None, map(OVERRIDE.fullmatch, settings))}
    if "experiment" in values:
        return set()
    if command != "train":
        return {"data"} - values.keys() if command in ("eval", "report") else set()
    resume = values.get("train.resume", "").strip(" '\"").lower()
    resumes = resume == "true" or (resume == "auto" and (run is None or (RUNS / str(run)).is_dir()))
    return CHOOSING - values.keys() if resumes else set()


def _elements(text: str) -> Iterator[str]:
    """The elements of a Hydra list of names: `a, 'b, c'`."""
    position = 0
    while position < len(text) and (match := ELEMENT.match(text, position)):
        element, position = match[1], match.end()
        if element[:1] in ("'", '"') and element[-1:] == element[:1]:
            element = re.sub(r"\\(['\"\\])", r"\1", element[1:-1])
        yield element
