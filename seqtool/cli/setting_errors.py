"""Readable messages about settings that Hydra cannot compose, or that it composes but that no command uses."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from seqtool.cli import COMMANDS
from seqtool.cli.arguments import OVERRIDE, ConfigFiles, Group, keys, load, quote
from seqtool.errors import InputError
from seqtool.settings import plain, sentence, unknown
from seqtool.settings.declarations import other_name

PRESET_HEADER = "# @package _global_"

# Hydra does not recognise this header after a byte order mark.
_read_header = ConfigSource._get_header_dict
ConfigSource._get_header_dict = staticmethod(lambda text: _read_header(text.removeprefix("\ufeff")))  # type: ignore[method-assign, assignment]


def compose(settings: Sequence[str], files: ConfigFiles, *, sweep: bool) -> DictConfig:
    """The configuration of a command, with Hydra's own settings in `hydra`; for a sweep, the configuration of its first
    job. `settings` are overrides in Hydra's grammar. Raises InputError for settings that Hydra cannot compose.
    """
    with explained(settings, files, sweep=sweep):
        return _compose([_first(setting) for setting in settings] if sweep else settings, files)


def _compose(settings: Sequence[str], files: ConfigFiles) -> DictConfig:
    with hydra_of(files) as (_, search):
        return hydra.compose(files.command, [*search, *settings], return_hydra_config=True)


@contextmanager
def hydra_of(files: ConfigFiles) -> Iterator[tuple[Any, list[str]]]:
    """Within the context, Hydra with the package's YAML files, and the override with which it finds the user's own."""
    package, *user_folders = files.folders
    addresses = ",".join(quote(f"file://{folder}") for folder in user_folders)
    search = [f"hydra.searchpath=[{addresses}]"] if user_folders else []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(package), job_name="seqtool", version_base="1.3"):
        yield GlobalHydra.instance().hydra, search


@contextmanager
def explained(settings: Sequence[str], files: ConfigFiles, *, sweep: bool) -> Iterator[None]:
    """Within the context, turn errors about a launcher, or settings that Hydra cannot compose, into InputErrors."""
    try:
        yield
    except Exception as error:
        if (reason := _reason(error, settings, files, sweep=sweep)) is None:
            raise
        raise InputError(reason) from error


def check_files(settings: Sequence[str], files: ConfigFiles) -> None:
    """Raise InputError if one of the settings chooses a file of the user's own that Hydra would silently misread or
    ignore.
    """
    values = {match["key"]: match["value"] or "" for match in filter(None, map(OVERRIDE.fullmatch, settings))}
    groups = {key for file in files.files for key, value in load(file).items() if isinstance(value, Mapping)}
    package = files.folders[0]
    for group in files.all_groups() & values.keys():
        for name in values[group].strip("[]").split(","):
            for file, _ in files.included(group, name.strip()):
                content = load(file)
                if content and not file.is_relative_to(package):
                    _check_keys(file, content)
                    _check_defaults(file, content.get("defaults", []), files)
                    if group == "experiment" or not (package / group).is_dir():
                        _check_preset(file, content, groups | files.groups.keys(), files.groups)


def _check_keys(file: Path, values: Mapping[str, Any]) -> None:
    """Check that no key of a file is a full name, as on the command line."""
    for key in map(str, values):
        name, _, value = key.partition("=")
        outer, dot, inner = name.rpartition(".")
        if dot:
            raise InputError(f"{file} has '{key}': in a file it is written {outer}: {{{inner}: {value or '…'}}}.")


def _check_defaults(file: Path, defaults: Any, files: ConfigFiles) -> None:
    """Check that the groups and choices in the defaults of a file, such as `override /model: luong`, exist."""
    groups = files.all_groups()
    for entry in defaults if isinstance(defaults, list) else []:
        for key, choice in entry.items() if isinstance(entry, Mapping) else []:
            group = re.sub(r"^(override|optional)? */?|@.*", "", key)
            if group not in groups and not group.startswith("hydra"):
                raise InputError(sentence([f"{file}: {unknown(group, groups, kind='group')}"]))
            choices = files.choices(group)
            if isinstance(choice, str) and choice not in choices:
                raise InputError(sentence([f"{file}: {unknown(choice, choices, kind=group)}"]))


def _check_preset(file: Path, values: Mapping[str, Any], groups: Container[str], choices: Container[str]) -> None:
    """Check the header of a preset, and that it sets no group of settings as if it were a setting."""
    header = re.match(r"\s*#\s*@package +(_?\w+)", file.read_text("utf-8-sig"))
    if header is None or (header[1] != "_global_" and header[1] not in groups):
        raise InputError(f"{file} would set nothing: begin it with the line `{PRESET_HEADER}`.")
    for key, value in values.items():
        if header[1] == "_global_" and key in groups and not isinstance(value, Mapping):
            advice = f", or choose one by `defaults: [override /{key}: NAME]`" if key in choices else ""
            raise InputError(f"{file}: '{key}' is a group of settings, written {key}: {{name: value}}{advice}.")


def _reason(error: Exception, settings: Sequence[str], files: ConfigFiles, *, sweep: bool) -> str | None:
    """A sentence that says why Hydra could not compose the settings: seqtool's own if it can tell, otherwise Hydra's.

    None if the error concerns neither settings nor a launcher.
    """
    # Hydra raises ValueError or TypeError for a group that is null, a number, or a list of these.
    of_settings = (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError)
    if not isinstance(error, of_settings):
        return _failed_launch(error) if any(setting.startswith("hydra/launcher=") for setting in settings) else None
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, RecursionError):
        return "The YAML files include one another in a circle: see their `defaults`."
    if isinstance(error, YAMLError | UnicodeDecodeError):
        return f"A YAML file cannot be read: {' '.join(str(error).split())}."
    try:
        clauses = _clauses(settings, files)
    except of_settings as other_error:  # in one of the user's own files
        return _reason(other_error, (), files, sweep=sweep)
    if clauses := clauses + ([] if sweep else _sweeps(settings, files.all_groups())):
        return sentence(clauses)
    if isinstance(error, OverrideParseException):
        return f"Cannot read '{error.override}': quote the value twice, for the shell and for Hydra: \"key='(value)'\"."
    reason = str(error).strip().splitlines()[0].rstrip(".")
    if (match := re.search(r"Could not find 'hydra/(launcher|sweeper)/(([^\W_]+)\w*)'", reason)) is not None:
        package = f"hydra-{match[3]}-{match[1]}"
        return f"hydra/{match[1]}={match[2]} is not installed: try pip install {package}."
    if (match := re.fullmatch(r"Error merging override \W*([^=]+)=(.*)", reason)) is not None:
        kind = "a list" if match[2].startswith("{") else "a group of settings"  # the only values that Hydra merges
        return f"Setting '{match[1]}' must be {kind}, not {match[2]}."
    return f"Cannot compose the configuration: {reason} (see seqtool {files.command} --help)."


def check(config: Mapping[str, Any], data: str | None, files: ConfigFiles) -> None:
    """Raise InputError for errors that Hydra does not notice: settings of other commands that were added with +, and
    file names as the splits of a corpus, `data`, whose splits are numbers of examples.
    """
    existing = files.outside_groups()
    if unexpected := [str(key) for key in config if key not in existing]:
        raise InputError(sentence([_unknown(key, existing, {}, files) for key in unexpected]))
    file = files.find(f"data/{data}")
    defaults = load(file) if file.exists() else {}
    for split in ("train", "valid", "test"):
        value = group.get(split) if isinstance(group := config.get("data"), Mapping) else None
        is_number = not isinstance(value, list) and re.match(r"[-+.\d]|\Z", str(value or ""))
        if isinstance(defaults.get(split), int) and not is_number:
            paths = {name: files.find(f"data/{name}") for name in files.choices("data")}
            with_files = [name for name, path in paths.items() if load(path).get("train") == "???"]
            raise InputError(
                f"data.{split} is a number with data={data}, not {value}: "
                f"for files of your own add data={_series(with_files, 'or')}."
            )


def check_name(config: DictConfig) -> None:
    """Raise InputError if the name of the run refers to a group of settings, whose value is not text."""
    for key in references(config):
        group = OmegaConf.select(config, key)
        if isinstance(group, DictConfig):
            inner = [
                name for name, value in plain(group).items() if isinstance(value, str | int) and name != "_target_"
            ]
            example = f", such as ${{{key}.{inner[0]}}}" if inner else ""
            raise InputError(f"Setting 'run' refers to '{key}', a group of settings: refer to one of them{example}.")


def references(config: DictConfig) -> list[str]:
    """The settings to which the name of the run refers by `${…}`."""
    name = str(cast(Group, OmegaConf.to_container(config)).get("run"))
    # an odd number of backslashes escapes ${
    return [key for backslashes, key in re.findall(r"(\\*)\$\{([\w.]+)\}", name) if len(backslashes) % 2 == 0]


def _failed_launch(error: Exception) -> str:
    """Why a launcher could not start the jobs, or why a job failed: the last line of the traceback in the error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = re.sub(r"^[\w.]+: ", "", lines[-1])
    return f"A job failed: {reason}" if len(lines) > 1 else f"The launcher cannot start the jobs: {reason}"


def _clauses(settings: Sequence[str], files: ConfigFiles) -> list[str]:
    """Clauses that say what is wrong with the names of settings, groups and choices."""
    all_groups = files.all_groups()
    clauses, chosen, names = [], [], []
    for match in filter(None, map(OVERRIDE.fullmatch, settings)):
        key, value = match["key"], match["value"] or ""
        if key in all_groups and match["sign"] != "~":
            if key not in files.groups:
                if not match["sign"] or _commands_with(key, files):  # otherwise + adds a group of the user's own
                    clauses.append(_of_other_commands(key, files))
                continue
            clauses += _choice_clauses(key, value, files)
            if not match["sign"]:
                chosen.append(_first(match[0]))
        elif match["sign"] in ("", "~") and "@" not in key and not re.match(r"hydra\b", key):
            names.append(key)
    if clauses or not names:
        return clauses
    values: Any = OmegaConf.to_container(_compose(chosen, files))
    choices = values.pop("hydra")["runtime"]["choices"]
    existing = {*keys(values), *files.groups}
    return [_unknown(name, existing, choices, files) for name in names if name not in existing]


def _choice_clauses(group: str, value: str, files: ConfigFiles) -> list[str]:
    """Clauses that say which choices in the value of a group do not exist."""
    if "(" in value:  # one of Hydra's functions, such as choice(…)
        return []
    choices = files.choices(group)
    allowed = [*choices, "null"] if files.groups[group] is None else choices  # the other groups cannot be left out
    clauses = []
    for name in map(str.strip, re.sub(r"\A\[(.*)\]\Z", r"\1", value, flags=re.DOTALL).split(",")):
        if name in allowed or files.find(f"{group}/{name}").exists():
            continue
        misnamed = files.find(f"{group}/{name}", suffix=".yml")
        if misnamed.exists():
            clauses.append(f"the name of {misnamed} must end in .yaml")
        else:
            clauses.append(unknown(name, choices, kind=group))
    return clauses


def _unknown(key: str, existing: set[str], choices: dict[str, str | None], files: ConfigFiles) -> str:
    """A clause about a setting, `key`, that is not among the `existing` ones, with the choice of each group given."""
    group = key.partition(".")[0]
    if group in choices and group in existing:
        with_setting = [name for name in files.choices(group) if key in files.of_choice(group, name)]
        if with_setting:
            return f"setting '{key}' of {files.command} exists only with {group}={_series(with_setting, 'or')}"
    if _commands_with(key, files) in ([], [files.command]):
        return unknown(key, existing)
    setting = other_name(key, existing)
    return _of_other_commands(key, files) + (f"; did you mean '{setting}'?" if setting else "")


def _of_other_commands(key: str, files: ConfigFiles) -> str:
    """A clause about a setting or group that only other commands have, or none."""
    commands = _commands_with(key, files)
    return f"'{key}' is not a setting of {files.command}" + (f", but of {_series(commands, 'and')}" if commands else "")


def _commands_with(key: str, files: ConfigFiles) -> list[str]:
    """The commands that have a setting or group, without `report`, which has the settings of `eval`."""
    commands = [name for name in COMMANDS if name != "report" and files.find(name).exists()]
    return [name for name in commands if key in ConfigFiles(name, files.folders).settings()]


def _sweeps(settings: Sequence[str], groups: Container[str]) -> list[str]:
    """Clauses about settings that have several values although there is only one job."""
    values = [setting.partition("=")[::2] for setting in settings if _sweep(setting) is not None]
    return [
        f"setting {key}={value} has several values: add -m to run a job with each of them"
        + ("" if key in groups or "(" in value else f" (a list is written {key}=[{value}])")
        for key, value in values
    ]


def _sweep(setting: str) -> Override | None:
    """The override that Hydra reads from a setting with several values; None for other settings."""
    try:
        override = OverridesParser.create().parse_override(setting)
    except HydraException:
        return None
    return override if override.is_sweep_override() else None


def _first(setting: str) -> str:
    """The setting with the first of its values, if it has several."""
    sweep = _sweep(setting)
    return setting if sweep is None else f"{sweep.get_key_element()}={next(iter(sweep.sweep_string_iterator()))}"


def _series(names: Sequence[str], conjunction: str) -> str:
    """The names as a series in a sentence, such as `a, b or c`."""
    return f" {conjunction} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
