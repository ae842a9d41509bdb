"""YAML files of the user's own: what Hydra would misread or ignore without a word is refused in a sentence."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.plugins.config_source import ConfigSource

from seqtool.cli import config_files
from seqtool.cli.arguments import OVERRIDE
from seqtool.cli.config_files import Folders
from seqtool.errors import InputError
from seqtool.settings import sentence, unknown

HEADER = "# @package _global_"

_header = ConfigSource._get_header_dict  # Hydra does not find it behind a byte order mark
ConfigSource._get_header_dict = staticmethod(lambda text: _header(text.removeprefix("\ufeff")))  # type: ignore[method-assign, assignment]


def check(settings: Sequence[str], configs: Folders, command: str) -> None:
    """Raise InputError for a file that one of the settings chooses, and that cannot be what the user means."""
    matches = filter(None, map(OVERRIDE.fullmatch, settings))
    values = {match["key"]: match["value"] or "" for match in matches}
    files, choices = config_files.parts(command, configs)
    groups = {key for file in files for key, value in config_files.load(file).items() if isinstance(value, Mapping)}
    for group in config_files.groups(configs) & values.keys():
        for name in values[group].strip("[]").split(","):
            for file, _ in config_files.included(group, name.strip(), configs):
                content = config_files.load(file)
                if content and not file.is_relative_to(configs[0]):
                    _check_keys(file, content)
                    _check_defaults(file, content.get("defaults", []), configs)
                    if group == "experiment" or not (configs[0] / group).is_dir():
                        _check_preset(file, content, groups | choices.keys(), choices)


def _check_keys(file: Path, values: Mapping[str, Any]) -> None:
    for key in map(str, values):
        name, _, value = key.partition("=")
        outer, dot, inner = name.rpartition(".")
        if dot:
            raise InputError(f"{file} has '{key}': in a file it is written {outer}: {{{inner}: {value or '…'}}}.")


def _check_defaults(file: Path, defaults: Any, configs: Folders) -> None:
    """Check the groups and choices in the defaults, as in `override /model: luong`."""
    groups = config_files.groups(configs)
    for entry in defaults if isinstance(defaults, list) else []:
        for key, choice in entry.items() if isinstance(entry, Mapping) else []:
            group = re.sub(r"^(override|optional)? */?|@.*", "", key)
            if group not in groups and not group.startswith("hydra"):
                raise InputError(sentence([f"{file}: {unknown(group, groups, kind='group')}"]))
            choices = config_files.choices(configs, group)
            if isinstance(choice, str) and choice not in choices:
                raise InputError(sentence([f"{file}: {unknown(choice, choices, kind=group)}"]))


def _check_preset(file: Path, values: Mapping[str, Any], groups: Collection[str], choices: Collection[str]) -> None:
    """Check a file that sets settings of several groups."""
    header = re.match(r"\s*#\s*@package +(_?\w+)", file.read_text("utf-8-sig"))
    if header is None or header[1] not in ("_global_", *groups):
        raise InputError(f"{file} would set nothing: begin it with the line `{HEADER}`.")
    for key in groups:
        if header[1] == "_global_" and key in values and not isinstance(values[key], Mapping):
            advice = f", or choose one by `defaults: [override /{key}: NAME]`" if key in choices else ""
            raise InputError(f"{file}: '{key}' is a group of settings, written {key}: {{name: value}}{advice}.")
