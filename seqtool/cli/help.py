"""Generates help and shell completion from the YAML files, so that they are always up to date.

The first comment in a command's file, up to a blank line, is the command's summary and its examples. The help for
settings consists of the lines of the files, comments included, with the defaults replaced by the resulting values.
PyYAML's nodes give the position of each value.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqtool.cli import COMMANDS
from seqtool.errors import InputError
from seqtool.runtime.files import expanded

# The parts of a file that are not shown with its settings: the heading, and lines that only Hydra uses.
HIDDEN = re.compile(
    r"\A# seqtool (?:.+\n)*\n|^# @package.*\n|^defaults:.*\n(?:(?:(?:#.*)?\n)*[ \]-].*\n)*\n*", re.MULTILINE
)
SHELLS = ("bash", "zsh", "fish")


def overview(configs: Path) -> str:
    """The text of `seqtool --help`: overview.txt with the commands and some examples."""
    headings = {name: _heading(configs / f"{name}.yaml") for name in COMMANDS}
    summaries = [f"  {name:<11}{heading[0].partition(': ')[2]}" for name, heading in headings.items() if heading]
    first_examples = (line for name in ("train", "translate", "eval") for line in headings[name][1:2])
    examples = [line.partition("  #")[0].rstrip() for line in first_examples]
    text = Path(__file__).with_name("overview.txt").read_text("utf-8").rstrip("\n")
    return text.format(commands="\n".join(summaries), examples="\n".join(examples))


def command(name: str, configs: Path, arguments: Sequence[str]) -> str:
    """The text of `seqtool COMMAND --help`. Settings among the arguments change the values that it shows."""
    from omegaconf import OmegaConf  # imported here because `seqtool --help` needs neither OmegaConf nor Hydra

    from seqtool.cli.arguments import check_files, config_files, hydra_overrides, is_preset, positional
    from seqtool.cli.setting_errors import compose
    from seqtool.settings import leaves

    overrides = [text for text in arguments if text.startswith("~") or ("=" in text and not text.startswith("-"))]
    files = config_files(arguments, name, configs)
    check_files(overrides, files)
    config: Any = OmegaConf.to_container(compose(hydra_overrides(overrides, [], files), files, sweep=True))
    choices = config.pop("hydra")["runtime"]["choices"]
    values = dict(leaves(config))
    shown_names: set[str] = set()
    title, *examples = _heading(files.files[0]) or [f"seqtool {name}"]
    bare_arguments = "[NAME [mine.Class]] " if name == "check" else "[PATH …] " if positional(name) else ""
    sections = [title, f"Usage: seqtool {name} {bare_arguments}[key=value …]"]
    sections += ["\n".join(["Examples", *examples])] if examples else []
    sections += ["Settings and their defaults"]
    sections += [_body(file, "", values, shown_names, once=True) for file in files.files]
    for group in files.groups:
        choice = choices.get(group)
        lines = [f"  {group}={choice or '…'}  # choose from {', '.join(files.choices(group))}"]
        included = files.included_files(group, choice)
        start = "" if included and is_preset(included[0][0]) else f"{group}."
        for file, prefix in included:
            if prefix:
                lines.append(f"    {prefix.removesuffix('.')}:")
            if body := _body(file, f"{start}{prefix}", values, shown_names, "      " if prefix else "    "):
                lines.append(body)
        sections.append("\n".join(lines))
    extra = [f"  {key}: {_yaml(value)}" for key, value in values.items() if key not in shown_names and value != {}]
    sections += ["\n".join(extra), f"`seqtool {name} --cfg job [key=value …]` prints the resulting configuration."]
    return "\n\n".join(filter(None, sections))


def completion(shell: str) -> str:
    """The script with which `shell` completes seqtool's commands, settings and choices."""
    if shell not in SHELLS:
        raise InputError(f"seqtool --completion needs one of {', '.join(SHELLS)}.")
    return Path(__file__).with_name(f"completion.{shell}").read_text("utf-8").rstrip("\n")


def complete(line: str, configs: Path) -> list[str]:
    """The completions of the last word on a command line. A value without choices is completed as a file name."""
    *words, word = line.split(" ")[1:] or [""]
    if not words:
        return [f"{name} " for name in COMMANDS if name.startswith(word)]
    if words[0] not in COMMANDS:
        return []
    if words[-1] in ("--config-dir", "-cd"):
        return _files(word)
    from seqtool.cli.arguments import config_files, positional
    from seqtool.settings.declarations import NONE, command_settings

    key, equals, value = word.partition("=")
    files = config_files(words, words[0], configs)
    if equals:
        choices = files.choices(key) if key in files.groups else command_settings(words[0]).get(key, NONE).choices
        values = [f"{choice} " for choice in choices if choice.startswith(value)] if choices else _files(value)
        return [f"{key}={completed}" for completed in values]
    if words[0] == "check":  # it takes an exercise, which is completed, and a class, which is not
        exercises = re.findall(r"^(\w+):", Path(__file__).with_name("exercises.yaml").read_text("utf-8"), re.MULTILINE)
        candidates = {*exercises} - {"hints", "changes"} if len(words) == 1 else {}
        return sorted(f"{name} " for name in candidates if name.startswith(word))
    arguments = dict(argument.split("=", 1) for argument in words if "=" in argument)
    settings = files.outside_groups()
    for group, choice in files.groups.items():
        settings |= files.choice_settings(group, arguments.get(group, choice))
    branches = {name.rpartition(".")[0] for name in settings}
    names = {name for name in settings - branches if not name.endswith("_target_")} | files.groups.keys()
    paths = _files(word) if positional(words[0]) else []
    return [*sorted(f"{name}=" for name in names if name.startswith(word)), *paths]


def _files(start: str) -> list[str]:
    """The files and directories whose paths begin with `start`."""
    directory, name_start = os.path.split(start)
    paths = sorted(path for path in Path(expanded(directory) or ".").glob("*") if path.name.startswith(name_start))
    prefix = start.removesuffix(name_start)
    return [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in paths]


def _heading(file: Path) -> list[str]:
    """The lines of a command file's first comment: `seqtool NAME: summary` and the examples. Empty if it has none."""
    lines = file.read_text("utf-8-sig").splitlines() if file.is_file() else []
    if not lines or not lines[0].startswith("# seqtool ") or "" not in lines:
        return []
    return [line.removeprefix("# ") for line in lines[: lines.index("")]]


def _body(
    file: Path, start: str, values: Mapping[str, Any], shown_names: set[str], indent: str = "  ", *, once: bool = False
) -> str:
    """The lines of a YAML file's settings, with comments and with the resulting values.

    start: the beginning of its settings' full names, such as `model.`
    values: the values of all settings of the configuration, by full name
    shown_names: the full names of the settings shown so far, to which those of the file are added
    once: whether to leave out the settings that are in `shown_names` already
    """
    import yaml

    from seqtool.cli.arguments import load
    from seqtool.settings import leaves

    text = HIDDEN.sub("", file.read_text("utf-8-sig") + "\n")
    lines: list[str | None] = [*text.splitlines()]
    defaults = dict(leaves(load(file)))
    root: Any = yaml.compose(text)  # type: ignore[no-untyped-call]
    nodes: dict[int, tuple[str, Any]] = {}
    for name, node in _nodes(root):
        nodes.setdefault(id(node), (name, node))  # an alias has the node of its anchor
    for name, node in reversed(nodes.values()):  # from the end, since a change moves the columns to its right
        begin, end = node.start_mark, node.end_mark
        line = lines[begin.line]
        if line is None or begin.line != end.line or begin.column == end.column:
            continue
        full_name = start + name
        if once and full_name in shown_names:
            lines[begin.line] = None
            continue
        shown_names.add(full_name)
        value, default = values.get(full_name), defaults[name]
        if value != default or type(value) is not type(default):
            lines[begin.line] = f"{line[: begin.column]}{_yaml(value)}{line[end.column :]}"
    content = "\n".join(line for line in lines if line is not None).strip("\n")
    return "\n".join(f"{indent}{line}".rstrip() for line in content.splitlines())


def _nodes(mapping: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The full name and the YAML node of each value in a mapping and the mappings within it."""
    for key, value in mapping.value if mapping is not None else ():
        name = f"{prefix}{key.value}"
        if key.tag.endswith(":merge"):  # of <<: *anchor
            continue
        if value.id == "mapping":
            yield from _nodes(value, f"{name}.")
        else:
            yield name, value


def _yaml(value: Any) -> str:
    """The value as one line of YAML."""
    import yaml

    form = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False, "width": float("inf")}
    text: str = yaml.safe_dump(value, **form)  # type: ignore[no-untyped-call]
    return text.removesuffix("...\n").rstrip("\n")
