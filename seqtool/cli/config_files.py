"""Which settings and groups a command takes, according to the YAML files."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from seqtool.errors import InputError

COMMANDS = (
    *("prepare", "train", "translate", "caption", "generate", "score", "eval"),
    *("inspect", "report", "export", "demo"),
)

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

    def choices(self, group: str) -> list[str]:
        files = [file for folder in self.folders for file in (folder / group).glob("*.yaml") if file.is_file()]
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
