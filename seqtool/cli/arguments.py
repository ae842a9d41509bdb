"""Finds the YAML files of a command's settings, and prepares the command line's arguments for Hydra.

Both are checked for errors that Hydra would ignore or misread without a message. Hydra's grammar refuses many of the
characters that a file name may contain, and reads commas as sweeps and digits as numbers. So values of settings that
are declared to hold names or text are quoted before Hydra sees them.
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

from seqtool.cli import COMMANDS
from seqtool.data.corpora.corpus import Corpus
from seqtool.errors import InputError
from seqtool.runtime.files import expanded
from seqtool.settings import MISSING, declarations, escape, escape_all, leaves, plain, sentence, unknown
from seqtool.settings.classes import NON_SETTING_ARGUMENTS, PACKAGE, import_class, locate_target
from seqtool.settings.declarations import Setting, other_name, parameters
from seqtool.training.runs import RUNS

CLASS_GROUPS = set(declarations.declared(declarations.Groups))  # the groups whose choices name a class
# The forms of an override: key=value, +key=value, ++key=value, ~key or ~key=value
OVERRIDE = re.compile(r"(?P<sign>\+{1,2}|~|)(?P<key>[^=]+?)(?:=(?P<value>.*))?", re.DOTALL)
# An element of a list, quoted or not, up to the next comma or the end
ELEMENT = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)
REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")  # ${key}; not ${oc.env:HOME}

DOTTED_NAME = re.compile(r"\w+(\.\w+)+")

PRESET_HEADER = "# @package _global_"
YAML_TYPES = (bool, int, float, str, list, dict, type(None))

Group = dict[str, Any]


class ConfigFiles:
    """The YAML files of a command's settings.

    command: the command's name
    folders: the directories of YAML files, the package's own before the user's; a file hides the files of the same name
        in later directories
    files: the files of the settings outside groups
    groups: the command's groups, each with its default choice
    """

    def __init__(self, command: str, folders: Sequence[Path]) -> None:
        self.command, self.folders = command, folders
        self.files: list[Path] = []
        self.groups: dict[str, str | None] = {}
        self._add(command)

    def _add(self, name: str) -> None:
        """Add a file, the groups in its defaults, and the files that it includes."""
        self.files.append(file := self.find(name))
        for entry in load(file).get("defaults", []):
            if isinstance(entry, Mapping):
                self.groups |= entry
            elif entry != "_self_":
                self._add(entry)

    def find(self, name: str, suffix: str = ".yaml") -> Path:
        """The path of the YAML file called `name`, such as `model/luong`; it may not exist."""
        files = [folder / f"{name}{suffix}" for folder in self.folders]
        return next((file for file in files if file.is_file()), files[0])

    def included_files(self, group: str, choice: str | None) -> list[tuple[Path, str]]:
        """The file of a choice and the files that it includes by `NAME` or `/NAME@PACKAGE`; empty if it has no file.

        Each file comes with the prefix of its settings within the group, such as `encoder.` or an empty string.
        """
        file = self.find(f"{group}/{choice}")
        if not file.is_file():
            return []
        files = [(file, "")]
        for entry in load(file).get("defaults", []):
            if isinstance(entry, str) and "@" in entry:
                name, _, package = entry.lstrip("/").partition("@")
                files.append((self.find(name), "" if package == "_here_" else f"{package}."))
            elif isinstance(entry, str) and entry not in ("_self_", choice):
                files += self.included_files(group, entry)
        return files

    def all_groups(self) -> set[str]:
        """The names of all groups of settings."""
        folders = [folder for directory in self.folders for folder in directory.iterdir() if folder.is_dir()]
        return {folder.name for folder in folders} - {"hydra"}

    def choices(self, group: str, *, user_only: bool = False) -> list[str]:
        """The choices of a group, sorted; with `user_only`, only those in the user's own files."""
        folders = self.folders[1:] if user_only else self.folders
        files = [file for folder in folders for file in (folder / group).glob("*.yaml") if file.is_file()]
        return sorted({file.stem for file in files})

    def choice_settings(self, group: str, choice: str | None) -> set[str]:
        """The full names of the settings that a choice adds. A preset adds none, but sets settings of other groups."""
        files = self.included_files(group, choice)
        if not files or is_preset(files[0][0]):
            return set()
        return {key for file, prefix in files for key in keys(load(file), f"{group}.{prefix}")}

    def outside_groups(self) -> set[str]:
        """The full names of the settings that the command has with all choices, and of its groups."""
        return {key for file in self.files for key in keys(load(file))} | self.groups.keys()

    def settings(self) -> set[str]:
        """The full names of the settings that the command has with at least one choice, and of its groups."""
        settings = self.outside_groups()
        for group in self.groups:
            for choice in self.choices(group):
                with suppress(InputError):  # a file that cannot be read matters only where it is chosen
                    settings |= self.choice_settings(group, choice)
        return settings


def is_preset(file: Path) -> bool:
    """Whether the file of a choice sets settings of other groups, as an experiment does."""
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
    """The content of a YAML file. It is read only once: callers must not change the result."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
    except UnicodeDecodeError as error:
        first_bytes = file.read_bytes()[:2]
        encoding = "UTF-16" if first_bytes in (BOM_UTF16_LE, BOM_UTF16_BE) else "Latin-1 or Windows-1252"
        raise InputError(f"{file} is not UTF-8, but perhaps {encoding}: save it as UTF-8.") from error
    except OSError as error:
        if error.errno is not None:
            raise
        content = None  # OmegaConf reads only settings, and lists
    except YAMLError as error:
        if b"\0" in file.read_bytes():
            raise InputError(f"{file} is not UTF-8, but perhaps UTF-16: save it as UTF-8.") from error
        hint = ": indent with spaces" if "'\\t'" in str(error) else ""
        raise InputError(f"{file} is not YAML: {' '.join(str(error).split())}{hint}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} must hold settings, each written key: value.")
    return cast(Group, content)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message[0].upper() + message[1:] + ".")


def read(arguments: Sequence[str], command: str, configs: Path) -> tuple[argparse.Namespace, list[str], ConfigFiles]:
    """The options of a command line, its settings as overrides for Hydra, and the command's YAML files."""
    options, overrides, paths = split(arguments, command)
    files = config_files(arguments, command, configs)
    check_files(overrides, files)
    return options, hydra_overrides(overrides, paths, files), files


def split(arguments: Sequence[str], command: str) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Split a command line into options, settings and bare paths.

    The three may be mixed on the line, and each keeps its order. Only some commands take bare paths, which are
    arguments without `=` and arguments that name an existing file.
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
            raise InputError(f"{argument!a} contains an invalid character (an unpaired surrogate).") from error
    options, unknown_options = parser.parse_known_intermixed_args(arguments)
    if unknown_options:
        raise InputError(f"Unknown option '{unknown_options[0]}': settings are written key=value, without dashes.")
    takes_paths = positional(command) is not None
    settings: list[str] = []
    paths: list[str] = []
    for argument in options.settings:
        if takes_paths and ("=" not in argument or os.path.lexists(argument)):
            paths.append(argument)
        elif "=" in argument or argument.startswith("~"):
            settings.append(argument)
        else:
            raise InputError(f"'{argument}' is not a setting: write key=value.")
    if options.multirun and options.cfg:
        raise InputError("Only one of --multirun and --cfg can be given.")
    for option in ("resolve", "package"):
        if getattr(options, option) and not options.cfg:
            raise InputError(f"--{option} goes with --cfg.")
    return options, settings, paths


def positional(command: str) -> str | None:
    """The name of the setting whose values a command takes without `key=`, if it has one."""
    return next((name for name, setting in declarations.command_settings(command).items() if setting.positional), None)


def config_files(arguments: Sequence[str], command: str, configs: Path) -> ConfigFiles:
    """A command's YAML files: the package's, and those in the directory that --config-dir names."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c")  # else -c would be short for -cd
    option: str | None = parser.parse_known_args(arguments)[0].config_dir
    if option is None:
        return ConfigFiles(command, [configs])
    user_configs = Path(expanded(option))
    if not user_configs.is_dir():
        raise InputError(f"There is no directory '{option}': --config-dir must name a directory of YAML files.")
    return ConfigFiles(command, [configs, user_configs.absolute()])


def store_classes(settings: Sequence[str], files: ConfigFiles) -> None:
    """Let `data=` and `model=` choose the user's classes by dotted names, without YAML files: Hydra reads the arguments
    of their constructors, and for data the settings of the cache, as if they were the settings of a file.
    """
    for match in filter(None, map(OVERRIDE.fullmatch, settings)):
        group, choices = match["key"], (match["value"] or "").strip("[]").split(",")
        for choice in choices if group in files.groups and group in ("data", "model") else ():
            if not DOTTED_NAME.fullmatch(choice) or _exists(choice) or files.find(f"{group}/{choice}").is_file():
                continue
            from hydra.core.config_store import ConfigStore  # takes long, and help does without it

            target: Any = import_class(choice, Corpus if group == "data" else object, setting=group)
            content: Group = {"_target_": choice}
            for name, parameter in parameters(target).items():
                default = MISSING if parameter.default is parameter.empty else parameter.default
                is_keyword = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
                # the constructor itself has the defaults that no YAML file can hold
                if is_keyword and name not in NON_SETTING_ARGUMENTS and isinstance(default, YAML_TYPES):
                    content[name] = default
            if group == "data":
                shared = "preparation" if "source" in target.sides else "caption_preparation"
                content["defaults"] = ["text" if target.verbatim else f"/{shared}@_here_", "_self_"]
            elif content.pop("encoder", None) is not None:  # of images
                content["defaults"] = ["/encoder@encoder", "_self_"]
            ConfigStore.instance().store(choice, content, group=group)


def check_files(settings: Sequence[str], files: ConfigFiles) -> None:
    """Raise InputError if a setting chooses one of the user's own files that Hydra would ignore or misread."""
    values = {match["key"]: match["value"] or "" for match in filter(None, map(OVERRIDE.fullmatch, settings))}
    for group in files.all_groups() & values.keys():
        for name in values[group].strip("[]").split(","):
            for file, _ in files.included_files(group, name.strip()):
                if load(file) and not file.is_relative_to(files.folders[0]):
                    _check_file(file, group, files)


def _check_file(file: Path, group: str, files: ConfigFiles) -> None:
    """Raise InputError for mistakes in the user's file of a choice:

    - a key that is a full name, as on the command line
    - a group or choice in its defaults, such as `override /model: luong`, that does not exist
    - a preset without the header of presets, or with a group of settings as if it were a setting
    """
    content = load(file)
    for key in map(str, content):
        name, _, value = key.partition("=")
        outer, dot, inner = name.rpartition(".")
        if dot:
            raise InputError(f"{file} has '{key}': in a file it is written {outer}: {{{inner}: {value or '…'}}}.")
    all_groups, defaults = files.all_groups(), content.get("defaults", [])
    for entry in defaults if isinstance(defaults, list) else []:
        for key, choice in entry.items() if isinstance(entry, Mapping) else []:
            other_group = re.sub(r"^(override|optional)? */?|@.*", "", key)
            if other_group not in all_groups and not other_group.startswith("hydra"):
                raise InputError(sentence([f"{file}: {unknown(other_group, all_groups, kind='group')}"]))
            choices = files.choices(other_group)
            if isinstance(choice, str) and choice not in choices and not other_group.startswith("hydra"):
                raise InputError(sentence([f"{file}: {unknown(choice, choices, kind=other_group)}"]))
    if group != "experiment" and (files.folders[0] / group).is_dir():
        return  # the file is not a preset
    groups = {key for settings in files.files for key, value in load(settings).items() if isinstance(value, Mapping)}
    groups |= files.groups.keys()
    header = re.match(r"\s*#\s*@package +(_?\w+)", file.read_text("utf-8-sig"))
    if header is None or (header[1] != "_global_" and header[1] not in groups):
        raise InputError(f"{file} would set nothing: begin it with the line `{PRESET_HEADER}`.")
    for key, value in content.items():
        if header[1] == "_global_" and key in groups and not isinstance(value, Mapping):
            advice = f", or choose one by `defaults: [override /{key}: NAME]`" if key in files.groups else ""
            raise InputError(f"{file}: '{key}' is a group of settings, written {key}: {{name: value}}{advice}.")


def declaration(name: str, files: ConfigFiles) -> Setting:
    """The declaration of a command's setting, which may be an argument of a class that the user's own files name."""
    settings = declarations.command_settings(files.command)
    group, _, argument_name = name.partition(".")
    if name not in settings and group in files.groups:
        for choice in files.choices(group, user_only=True):
            with suppress(InputError, ImportError):  # a file or class that cannot be read matters only where chosen
                target = load(files.find(f"{group}/{choice}")).get("_target_")
                if isinstance(target, str) and target.partition(".")[0] != PACKAGE:
                    arguments = declarations.declared(locate_target({"_target_": target}, trusted=True))
                    argument = arguments.get(argument_name)
                    if argument is not None and argument.is_literal:
                        return argument
    return settings.get(name, declarations.NONE)


def hydra_overrides(settings: Sequence[str], paths: Sequence[str], files: ConfigFiles) -> list[str]:
    """The settings and bare paths as overrides in Hydra's grammar."""
    store_classes(settings, files)
    overrides = [quote_setting(setting, files) for setting in settings]
    if paths:
        name = positional(files.command)
        if any(re.match(rf"\+*{name}=", setting) for setting in settings):
            raise InputError(f"{files.command} got {name}= and also {paths[0]}: give only one of them.")
        overrides.append(f"{name}=[{','.join(map(quote, paths))}]")
    stored_prefixes = tuple(f"{group}." for group in stored_groups(files.command, overrides))
    return [f"++{setting}" if setting.startswith(stored_prefixes) else setting for setting in overrides]


def quote_setting(setting: str, files: ConfigFiles) -> str:
    """Write `key=value` in Hydra's grammar. Names and text are quoted, so that their characters are taken literally.

    - A list of names is written `a,b` or `[a,b]`, unless a file has exactly that name. A list of texts needs brackets.
    - null means null, unless a file has that name.
    - In the name of a run, of a file to be written, and in init_from, ${model.cell} means the value of that setting.
    """
    match = OVERRIDE.fullmatch(setting)
    if match is None or not match["value"]:
        return setting
    properties = declaration(match["key"], files)
    start, value = f"{match['sign']}{match['key']}=", match["value"]
    exists = _exists(value)
    if not properties.is_literal or (value == "null" and not exists):
        return setting
    if properties.writes or match["key"] == "init_from":
        names = files.outside_groups()
        for key in REFERENCE.findall(value):
            clause = "" if key.partition(".")[0] in names else unknown(key, files.settings())
            if "did you mean" in clause:
                raise InputError(sentence([f"setting '{match['key']}' refers to an {clause}"]))
        return start + quote(value, [name for name in names if not declaration(name, files).writes])
    list_pattern = r"^\[.+\]$" if properties.text else r"^\[.*\]$|,"
    if not properties.several or exists or not re.search(list_pattern, value, re.DOTALL):
        return start + quote(value)
    has_brackets = value.startswith("[") and value.endswith("]")
    elements = list(_elements(value[1:-1])) if has_brackets else _split_names(value)
    return f"{start}[{','.join(map(quote, elements))}]"


def expand_names(config: DictConfig, files: ConfigFiles) -> None:
    """Expand ~ and split a,b in settings that hold file names, in place. Convert numbers to text in settings that hold
    text, such as the value of run=${seed}.

    Values from YAML files then have the same meaning as on the command line.
    """
    for key, value in leaves(plain(config)):
        properties = declaration(key, files)
        is_text = properties.text or properties.writes
        if is_text and isinstance(value, int | float):
            OmegaConf.update(config, key, str(value).lower())  # true, as in YAML
        if is_text and isinstance(value, list) and not properties.several:
            raise InputError(f"Setting '{key}' must be text, not {value}.")
        if properties.text or not isinstance(value, str | list):
            continue
        names: Any = value
        if isinstance(value, str) and "," in value and not _exists(value):
            if properties.several:
                names = _split_names(value)
            elif properties.reads and all(map(_exists, _split_names(value.strip("[]")))):
                raise InputError(f"{files.command} takes one file or directory for {key}=, not several: {value}.")
        if isinstance(names, str):
            names = expanded(names)
        else:
            names = [expanded(name) if isinstance(name, str) else name for name in names]
        if names != value:
            OmegaConf.update(config, key, escape_all(names), merge=False)


def _exists(name: str) -> bool:
    return os.path.lexists(expanded(name))


def _split_names(names: str) -> list[str]:
    """The names in `a, b`. Spaces around a name are removed, unless a file has that name with them."""
    return [name if _exists(name) else name.strip(" ") for name in names.split(",")]


def quote(name: str, references: Collection[str] = ()) -> str:
    """Quote a name so that Hydra and OmegaConf read back the same name.

    The name ??? becomes ./???, because OmegaConf takes ??? for a missing value. ${key} is still replaced by the
    setting's value if the key is one of the `references` or inside one.
    """
    if name == "???":
        name = "./???"
    parts = re.split(rf"(\$\{{(?:{'|'.join(references)})(?:\.\w+)*\}})", name) if references else [name]
    parts[::2] = [escape(part) for part in parts[::2]]  # the parts between references
    parts[:-1:2] = [re.sub(r"(\\+)\Z", r"\1\1", part) for part in parts[:-1:2]]  # backslashes before ${ are halved
    text = re.sub(r"(\\*)'", r"\1\1\\'", "".join(parts))
    return "'" + re.sub(r"(\\+)\Z", r"\1\1", text) + "'"


def stored_groups(command: str, settings: Sequence[str], run: object = None) -> set[str]:
    """The groups whose settings override the stored settings of a checkpoint or resumed run.

    train.resume=auto resumes a run that exists; without the name of the `run`, it is assumed to exist.
    """
    values = {match["key"]: match["value"] or "" for match in filter(None, map(OVERRIDE.fullmatch, settings))}
    if "experiment" in values:
        return set()
    if command != "train":
        return {"data"} - values.keys() if command in ("eval", "report") else set()
    resume = values.get("train.resume", "").strip(" '\"").lower()
    resumes = resume == "true" or (resume == "auto" and (run is None or (RUNS / str(run)).is_dir()))
    return CLASS_GROUPS - values.keys() if resumes else set()


def _elements(text: str) -> Iterator[str]:
    """The elements of a list of names in Hydra's grammar, such as `a, 'b, c'`, without their quotes."""
    for element in ELEMENT.findall(text)[:-1]:  # the last match is empty, behind the last element
        if element[:1] in ("'", '"') and element[-1:] == element[:1]:
            element = re.sub(r"\\(['\"\\])", r"\1", element[1:-1])
        yield element


# Checking the composed configuration


def check(config: Mapping[str, Any], data: str | None, files: ConfigFiles) -> None:
    """Raise InputError for two errors that Hydra does not notice.

    - settings of other commands that were added with +
    - file names as the splits of the corpus `data` if its splits are numbers of examples
    """
    existing = files.outside_groups()
    if unexpected_keys := [str(key) for key in config if key not in existing]:
        raise InputError(sentence([unknown_setting(key, existing, {}, files) for key in unexpected_keys]))
    file = files.find(f"data/{data}")
    defaults = load(file) if file.exists() else {}
    for split in ("train", "valid", "test"):
        value = group.get(split) if isinstance(group := config.get("data"), Mapping) else None
        is_number = not isinstance(value, list) and re.match(r"[-+.\d]|\Z", str(value or ""))
        if isinstance(defaults.get(split), int) and not is_number:
            paths = {name: files.find(f"data/{name}") for name in files.choices("data")}
            file_corpora = [name for name, path in paths.items() if load(path).get("train") == "???"]
            advice = f"for files of your own add data={_series(file_corpora, 'or')}"
            raise InputError(f"data.{split} is a number with data={data}, not {value}: {advice}.")


def check_name(config: DictConfig) -> None:
    """Raise InputError if the name of the run refers to a group of settings, whose value is not text."""
    for key in references(config):
        group = OmegaConf.select(config, key)
        if isinstance(group, DictConfig):
            inner_names = [
                name for name, value in plain(group).items() if isinstance(value, str | int) and name != "_target_"
            ]
            example = f", such as ${{{key}.{inner_names[0]}}}" if inner_names else ""
            raise InputError(f"Setting 'run' refers to '{key}', a group of settings: refer to one of them{example}.")


def references(config: DictConfig) -> list[str]:
    """The full names of the settings to which the name of the run refers by `${…}`."""
    name = str(cast(Group, OmegaConf.to_container(config)).get("run"))
    # an odd number of backslashes escapes ${
    return [key for backslashes, key in re.findall(r"(\\*)\$\{([\w.]+)\}", name) if len(backslashes) % 2 == 0]


def unknown_setting(key: str, existing: set[str], choices: dict[str, str | None], files: ConfigFiles) -> str:
    """A clause that says why the setting `key` is not among the `existing` ones. choices: the choice of each group"""
    group = key.partition(".")[0]
    if group in choices and group in existing:
        matching_choices = [name for name in files.choices(group) if key in files.choice_settings(group, name)]
        if matching_choices:
            return f"setting '{key}' of {files.command} exists only with {group}={_series(matching_choices, 'or')}"
    if commands_with(key, files) in ([], [files.command]):
        clause = unknown(key, existing)
        return clause if ";" in clause else f"{clause}; see seqtool {files.command} --help"
    setting = other_name(key, existing)
    return foreign_setting(key, files) + (f"; did you mean '{setting}'?" if setting else "")


def foreign_setting(key: str, files: ConfigFiles) -> str:
    """A clause that says that this command does not have a setting or group, and which commands have it."""
    commands = commands_with(key, files)
    return f"'{key}' is not a setting of {files.command}" + (f", but of {_series(commands, 'and')}" if commands else "")


def commands_with(key: str, files: ConfigFiles) -> list[str]:
    """The commands that have a setting or group, without `report`, which has the settings of `eval`."""
    commands = [name for name in COMMANDS if name != "report" and files.find(name).exists()]
    return [name for name in commands if key in ConfigFiles(name, files.folders).settings()]


def _series(names: Sequence[str], conjunction: str) -> str:
    """The names as a series in a sentence, such as `a, b or c`."""
    return f" {conjunction} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
