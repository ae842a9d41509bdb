"""Which settings and groups a command takes, according to the YAML files."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from seqtool.errors import InputError

COMMANDS = ("prepare", "train", "translate", "caption", "generate", "score", "eval", "inspect", "report", "demo")

Group = dict[str, Any]
Folders = Sequence[Path]  # the package's configurations, then the user's own: the first with a file wins


def find(name: str, configs: Folders, suffix: str = ".yaml") -> Path:
    """The path of the YAML file of that name, such as `model/luong`; it may not exist."""
    files = [folder / f"{name}{suffix}" for folder in configs]
    return next((file for file in files if file.is_file()), files[0])


def parts(command: str, configs: Folders) -> tuple[list[Path], dict[str, str | None]]:
    """The YAML files that a command's settings are written in, and its groups with the choice of each."""
    file = find(command, configs)
    files: list[Path] = []
    groups: dict[str, str | None] = {}
    for entry in load(file).get("defaults", []):
        if isinstance(entry, Mapping):
            groups |= entry
        elif entry != "_self_":
            inherited, more = parts(entry, configs)
            files += inherited
            groups |= more
    return [file, *files], groups


def included(group: str, choice: str | None, configs: Folders) -> list[tuple[Path, str]]:
    """A choice's file, if there is one, and those that it includes by NAME or `/NAME@PLACE`, each with its place.

    The place is the prefix of the file's settings in the group: `encoder.`, or nothing.
    """
    file = find(f"{group}/{choice}", configs)
    if not file.is_file():
        return []
    files = [(file, "")]
    for entry in load(file).get("defaults", []):
        if isinstance(entry, str) and "@" in entry:
            name, _, place = entry.lstrip("/").partition("@")
            files.append((find(name, configs), "" if place == "_here_" else f"{place}."))
        elif isinstance(entry, str) and entry not in ("_self_", choice):
            files += included(group, entry, configs)
    return files


def groups(configs: Folders) -> set[str]:
    return {folder.name for directory in configs for folder in directory.iterdir() if folder.is_dir()} - {"hydra"}


def choices(configs: Folders, group: str) -> list[str]:
    return sorted({file.stem for folder in configs for file in (folder / group).glob("*.yaml") if file.is_file()})


def is_preset(file: Path) -> bool:
    """Whether a choice's file sets settings of other groups, as an experiment does."""
    return "@package _global_" in file.read_text("utf-8-sig")


def of_choice(group: str, choice: str | None, configs: Folders) -> set[str]:
    """The full names of the settings that a choice adds; a preset adds none of its own."""
    files = included(group, choice, configs)
    if not files or is_preset(files[0][0]):
        return set()
    return {key for file, place in files for key in keys(load(file), f"{group}.{place}")}


def outside_groups(command: str, configs: Folders) -> set[str]:
    """The full names of the settings that a command takes with every choice, and of its groups."""
    files, groups = parts(command, configs)
    return {key for file in files for key in keys(load(file))} | groups.keys()


def of_command(command: str, configs: Folders) -> set[str]:
    """The full names of the settings that a command takes with any choices, and of its groups."""
    groups = parts(command, configs)[1]
    settings = outside_groups(command, configs)
    for group in groups:
        for choice in choices(configs, group):
            with suppress(InputError):  # a file that cannot be read matters only where it is chosen
                settings |= of_choice(group, choice, configs)
    return settings


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
    from omegaconf import OmegaConf  # takes 0.06 s, which `seqtool --help` saves
    from yaml import YAMLError

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
