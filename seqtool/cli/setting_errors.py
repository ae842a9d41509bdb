"""Composes settings with Hydra, and explains in messages why it cannot compose some of them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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

from seqtool.cli.arguments import OVERRIDE, ConfigFiles, commands_with, foreign_setting, keys, quote, unknown_setting
from seqtool.errors import InputError
from seqtool.settings import sentence, unknown

# Hydra does not recognise the header `# @package …` of a file after a byte order mark.
_read_header = ConfigSource._get_header_dict
ConfigSource._get_header_dict = staticmethod(lambda text: _read_header(text.removeprefix("\ufeff")))  # type: ignore[method-assign, assignment]


def compose(settings: Sequence[str], files: ConfigFiles, *, sweep: bool) -> DictConfig:
    """The configuration of a command, with Hydra's own settings in `hydra`; for a sweep, the first job's configuration.

    The settings are overrides in Hydra's grammar, which may have several values in a sweep. Raises InputError for those
    that Hydra cannot compose.
    """
    with explain_errors(settings, files, sweep=sweep), initialise_hydra(files) as (_, search_path):
        job_settings = [_keep_first_value(setting) for setting in settings] if sweep else settings
        return hydra.compose(files.command, [*search_path, *job_settings], return_hydra_config=True)


@contextmanager
def initialise_hydra(files: ConfigFiles) -> Iterator[tuple[Any, list[str]]]:
    """Initialise Hydra with the package's YAML files, until the context ends.

    Yields Hydra, and a list with the override by which it finds the user's own files; it is empty if there are none.
    """
    package, *user_folders = files.folders
    addresses = ",".join(quote(f"file://{folder}") for folder in user_folders)
    search_path = [f"hydra.searchpath=[{addresses}]"] if user_folders else []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(package), job_name="seqtool", version_base="1.3"):
        yield GlobalHydra.instance().hydra, search_path


@contextmanager
def explain_errors(settings: Sequence[str], files: ConfigFiles, *, sweep: bool) -> Iterator[None]:
    """Within this context, raise InputError in place of Hydra's errors about launchers and about settings that it
    cannot compose.
    """
    try:
        yield
    except Exception as error:
        if (reason := _reason(error, settings, files, sweep=sweep)) is None:
            raise
        raise InputError(reason) from error


def _reason(error: Exception, settings: Sequence[str], files: ConfigFiles, *, sweep: bool) -> str | None:
    """A sentence that says why Hydra could not compose the settings or run the jobs, if need be in Hydra's own words.

    None if the error concerns neither settings nor a launcher.
    """
    # Hydra raises ValueError or TypeError for a group whose value is null, a number, or a list of nulls or numbers.
    composition_errors = (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError)
    if not isinstance(error, composition_errors):
        if not any(setting.startswith("hydra/launcher=") for setting in settings):
            return None
        # a launcher could not start the jobs, or a job failed: the last line of the traceback in the error says why
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = re.sub(r"^[\w.]+: ", "", lines[-1])
        return f"A job failed: {reason}" if len(lines) > 1 else f"The launcher cannot start the jobs: {reason}"
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, RecursionError):
        return "The YAML files include one another in a circle: see their `defaults`."
    if isinstance(error, YAMLError | UnicodeDecodeError):
        return f"A YAML file cannot be read: {' '.join(str(error).split())}."
    try:
        clauses = _clauses(settings, files)
    except composition_errors as file_error:  # the error is in one of the user's own files
        return _reason(file_error, (), files, sweep=sweep)
    for setting in () if sweep else settings:
        if _parse_sweep(setting) is not None:  # the setting has several values, but there is only one job
            key, _, value = setting.partition("=")
            is_list = key not in files.all_groups() and "(" not in value
            advice = f" (a list is written {key}=[{value}])" if is_list else ""
            clauses.append(f"setting {key}={value} has several values: add -m to run a job with each of them{advice}")
    if clauses:
        return sentence(clauses)
    if isinstance(error, OverrideParseException):
        return f"Cannot read '{error.override}': quote the value twice, for the shell and for Hydra: \"key='(value)'\"."
    reason = str(error).strip().splitlines()[0].rstrip(".")
    if (match := re.search(r"Could not find 'hydra/(launcher|sweeper)/(([^\W_]+)\w*)'", reason)) is not None:
        return f"hydra/{match[1]}={match[2]} is not installed: try pip install hydra-{match[3]}-{match[1]}."
    if (match := re.fullmatch(r"Error merging override \W*([^=]+)=(.*)", reason)) is not None:
        # Hydra can only merge lists and groups, so one of the two was expected
        kind = "a list" if match[2].startswith("{") else "a group of settings"
        return f"Setting '{match[1]}' must be {kind}, not {match[2]}."
    return f"Cannot compose the configuration: {reason} (see seqtool {files.command} --help)."


def _clauses(settings: Sequence[str], files: ConfigFiles) -> list[str]:
    """A clause for each wrong name of a setting, group or choice."""
    all_groups = files.all_groups()
    clauses, group_settings, names = [], [], []
    for match in filter(None, map(OVERRIDE.fullmatch, settings)):
        sign, key, value = match["sign"], match["key"], match["value"] or ""
        if key not in all_groups or sign == "~":
            if sign in ("", "~") and "@" not in key and not re.match(r"hydra\b", key):
                names.append(key)
            continue
        if key not in files.groups:
            if key in files.outside_groups():
                folder = next(folder / key for folder in reversed(files.folders) if (folder / key).is_dir())
                clauses.append(
                    f"Hydra takes '{key}' for a group of settings because of the directory {folder}: give --config-dir "
                    "a directory of only YAML files and groups"
                )
            elif not sign or commands_with(key, files):  # otherwise + adds a group of the user's own
                clauses.append(foreign_setting(key, files))
            continue
        if not sign:
            group_settings.append(_keep_first_value(match[0]))
        choices = files.choices(key)
        # a group that has a default cannot be left out
        allowed = [*choices, "null"] if files.groups[key] is None else choices
        file_names = [] if "(" in value else re.sub(r"\A\[(.*)\]\Z", r"\1", value, flags=re.DOTALL).split(",")
        for name in map(str.strip, file_names):  # empty if the value is one of Hydra's functions, such as choice(…)
            if name in allowed or files.find(f"{key}/{name}").exists():
                continue
            misnamed = files.find(f"{key}/{name}", suffix=".yml")
            advice = f"the name of {misnamed} must end in .yaml" if misnamed.exists() else None
            clauses.append(advice or unknown(name, choices, kind=key))
    if clauses or not names:
        return clauses
    values: Any = OmegaConf.to_container(compose(group_settings, files, sweep=False))
    chosen_names = values.pop("hydra")["runtime"]["choices"]
    existing = {*keys(values), *files.groups}
    return [unknown_setting(name, existing, chosen_names, files) for name in names if name not in existing]


def _parse_sweep(setting: str) -> Override | None:
    """The override that Hydra reads from a setting with several values; None for other settings."""
    try:
        override = OverridesParser.create().parse_override(setting)
    except HydraException:
        return None
    return override if override.is_sweep_override() else None


def _keep_first_value(setting: str) -> str:
    """Keep only the first of a setting's values, if it has several."""
    sweep = _parse_sweep(setting)
    return setting if sweep is None else f"{sweep.get_key_element()}={next(iter(sweep.sweep_string_iterator()))}"
