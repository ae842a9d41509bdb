"""Makes the reference from the code.

- ```{settings} COMMAND``` in a page becomes a heading, the command's examples and tables of its settings: names,
  defaults and help from the YAML files in configs/, types and ranges from seqtool/settings/declarations.py.
- ```{other-names}```, ```{verdicts}``` and ```{flags}``` become tables.
- Docstrings of the Python interface are turned into reStructuredText for Sphinx's autodoc.
"""

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from seqtool.cli import COMMANDS
from seqtool.cli.arguments import ConfigFiles, is_preset
from seqtool.evaluation import FLAG_MEANINGS
from seqtool.runtime.files import config_directory
from seqtool.settings import KINDS, alternatives, class_in, declarations
from seqtool.settings.classes import locate_target
from seqtool.settings.declarations import NONE, Setting
from seqtool.training import verdict
from seqtool.training.optimisation import SCHEDULES

CONFIGS = config_directory()
PAGE_TITLES = {"docs/extending.md": "parts of your own", "data/README.md": "data"}  # of the pages that help names
TITLES = {
    "data": "The data",
    "model": "The model",
    "optim": "The optimiser",
    "schedule": "The schedule of the learning rate",
    "experiment": "Presets",
}


class Row(NamedTuple):
    """A setting in a YAML file.

    name: its full name in the file
    yaml: its default as the file has it
    value: its default
    help: the comment on its line
    """

    name: str
    yaml: str
    value: Any
    help: str


def rows(file: Path) -> Iterator[Row | str]:
    """Yield the settings of a YAML file in order, and between them the comments on lines of their own.

    A comment keeps its line ends. The comment on the line of a group of settings is yielded as "`GROUP`: comment".
    """
    text = file.read_text("utf-8")
    lines = text.splitlines()
    root: Any = yaml.compose(text)
    by_line: dict[int, list[tuple[str, Any]]] = {}
    for name, node in _nodes(root):
        by_line.setdefault(node.start_mark.line, []).append((name, node))
    comment: list[str] = []
    for number, line in enumerate([*lines, ""]):
        if line.lstrip().startswith("#") and "@package" not in line:
            comment.append(line.strip().removeprefix("#").removeprefix(" "))
            continue
        if comment:
            yield "\n".join(comment)
            comment = []
        settings = by_line.get(number, [])
        for name, node in settings:
            end = node.end_mark.column if node.end_mark.line == number else 0
            help = re.search(r"(?:^|\s)# ?(.*)$", line[end:]) if (name, node) == settings[-1] else None
            if isinstance(node, yaml.MappingNode):
                if help is not None:
                    yield f"`{name}`: {help[1]}"
                continue
            default = "" if end == 0 else line[node.start_mark.column : end]
            yield Row(name, default, yaml.safe_load(default) if default else None, help[1] if help else "")


def _nodes(mapping: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and the YAML node of each value in a mapping and the mappings within it.

    A mapping that begins below its key, and not on the same line in braces, is yielded too, without its content.
    """
    for key, value in mapping.value if mapping is not None else ():
        name = f"{prefix}{key.value}"
        if name in ("defaults", "_target_"):
            continue
        if isinstance(value, yaml.MappingNode):
            if value.start_mark.line != key.start_mark.line:
                yield name, yaml.MappingNode(value.tag, [], key.start_mark, key.end_mark)
            yield from _nodes(value, f"{name}.")
        else:
            yield name, value


class Declared(NamedTuple):
    """The declaration of a setting: its type hint and its other properties."""

    hint: Any
    setting: Setting


def declared_in(schema: Any, prefix: str = "") -> dict[str, Declared]:
    """The declarations of a dataclass's fields, or of the arguments of a class or function, by full name."""
    try:
        parameters = inspect.signature(schema, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # such as an optimiser of torch, whose hints need not be importable
        return {}
    settings = declarations.declared(schema)
    return {f"{prefix}{name}": Declared(parameters[name].annotation, settings[name]) for name in parameters}


def declared_of(command: str) -> dict[str, Declared]:
    """The declarations of a command's settings, by full name."""
    declared: dict[str, Declared] = {}
    for group, schemas in declarations.COMMANDS[command].items():
        for schema in schemas:
            declared |= declared_in(schema, f"{group}." if group else "")
    return declared


def kind(declared: Declared | None, value: Any, help: str) -> str:
    """The type and range of a setting with this default and help, in words; empty if the help lists its values."""
    setting = NONE if declared is None else declared.setting
    if setting.choices:
        if all(choice in help for choice in setting.choices):
            return ""
        words = ", ".join(f"`{choice}`" for choice in setting.choices)
        return words + (" or a list of them" if setting.several else "")
    hint = None if declared is None else declared.hint
    types = list(alternatives(hint))
    words = [KINDS[part] for part in types if part in KINDS and part is not type(None)]
    if class_in(hint) is not None:
        words = ["or a class of your own, `mine.Class`"]
    elif setting.classes:
        words = ["modules or classes, `a,b`"]
    elif (setting.reads or setting.writes) and not isinstance(value, int):  # built-in corpora have numbers, not files
        words = ["paths, `a,b`" if setting.several else "a path to write to" if setting.writes else "a path"]
    elif any(typing.get_origin(part) is list for part in types):
        words = ["a list"]
    elif not words or (setting.reads or setting.writes):
        words = [KINDS[type(value)]] if type(value) in KINDS and value is not None else []
        words = ["a list"] if isinstance(value, list) else words
    text, limits = " or ".join(dict.fromkeys(words)), _limits(setting)
    if text == "text" and " | " in help:
        return ""
    if limits:
        text = f"{text}, {limits}" if text else limits
    takes_null = type(None) in types or (value is None and text)
    return text + (("," if limits or setting.several else "") + " or null" if takes_null else "")


def _limits(setting: Setting) -> str:
    """The range of a number in words, such as `at least 1`; empty if it has none."""
    number = "{:,.10g}".format
    parts = []
    if setting.at_least is not None and setting.at_most is not None:
        parts = [f"{number(setting.at_least)} to {number(setting.at_most)}"]
    elif setting.at_least is not None:
        parts = [f"at least {number(setting.at_least)}"]
    elif setting.above is not None:
        parts = [f"above {number(setting.above)}"]
    if setting.below is not None:
        parts.append(f"below {number(setting.below)}")
    if setting.at_most is not None and setting.at_least is None:
        parts.append(f"at most {number(setting.at_most)}")
    return " and ".join(parts) + (f" {setting.unit}" if parts and not setting.unit.startswith("or ") else "").rstrip()


def escaped(text: str) -> str:
    """A comment of a YAML file as Markdown: code stays code, and the names of pages become links."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<>\[\]$|])", r"\\\1", part) for part in parts[::2]]
    text = "`".join(parts)
    for page, title in PAGE_TITLES.items():
        text = text.replace(page, f"[{title}](/{page})")
    return text


def default(row: Row) -> str:
    """The default of a setting as Markdown."""
    if row.value == "???":
        return "*required*"
    if reference := re.fullmatch(r"\$\{([\w.]+)\}", str(row.value)):
        return f"that of `{reference[1]}`"
    return f"`{row.yaml}`".replace("|", "\\|") if row.yaml else ""


def table(command: str, settings: list[Row], prefix: str, declared: Mapping[str, Declared]) -> list[str]:
    """A table of settings, in which each has the anchor COMMAND-NAME; empty without settings."""
    if not settings:
        return []
    lines = ["", "| setting | default | what it is |", "|---|---|---|"]
    for row in settings:
        name = f"{prefix}{row.name}"
        values = kind(declared.get(name), row.value, row.help)
        help = "<br>".join(filter(None, [escaped(row.help), f'<span class="values">{values}</span>' if values else ""]))
        lines.append(f'| <span id="{command}-{name}"></span>`{name}` | {default(row)} | {help} |')
    return [*lines, ""]


def tables(
    command: str, file: Path, declared: Mapping[str, Declared], shown: set[str], prefix: str = ""
) -> Iterator[str]:
    """Yield the tables of a YAML file's settings, and the comments between them.

    The setting `name` of an optimiser or schedule is its file's name, so only its help is shown. In a command's file,
    each group of settings, such as `train`, has a heading.

    command: the command, or another beginning of the anchors
    file: the YAML file
    declared: the declarations of the settings, by full name
    shown: the full names of the settings shown so far, which are left out; those of the file are added
    prefix: the beginning of the settings' full names, such as `model.`
    """
    pending: list[Row] = []
    current_group = ""
    for row in rows(file):
        if not isinstance(row, Row):
            if row.startswith(f"seqtool {file.stem}: "):
                continue
            yield from table(command, pending, prefix, declared)
            pending = []
            group = re.match(r"`(.+)`: ", row)
            if group is None:
                yield comment(row)
                continue
            help = row[group.end() :]
            if prefix:
                yield paragraph(f"`{prefix}{group[1]}`: {escaped(help)}")
            else:
                current_group = group[1]
                yield f"\n### `{current_group}.…`\n{paragraph(escaped(help))}"
            continue
        if row.name == "name":
            name = "" if row.value == file.stem else f"`{row.value}`: "
            yield paragraph(f"{name}{escaped(row.help)}") if row.help else ""
        elif f"{prefix}{row.name}" not in shown:
            if not prefix and row.name.rpartition(".")[0] != current_group:
                yield from table(command, pending, prefix, declared)
                pending, current_group = [], row.name.rpartition(".")[0]
                yield f"\n### `{current_group}.…`\n"
            shown.add(f"{prefix}{row.name}")
            pending.append(row)
    yield from table(command, pending, prefix, declared)


def comment(text: str) -> str:
    """A comment on lines of its own as Markdown. Command lines at its beginning, up to a blank line, are code."""
    usage, _, text = text.partition("\n\n") if text.startswith("seqtool ") else ("", "", text)
    code = ""
    if sentence := re.fullmatch(r"(seqtool [^\n]+?): ([a-z].+)", usage, re.DOTALL):  # what a single command line does
        code = paragraph(f"`{sentence[1]}` {escaped(' '.join(sentence[2].split()))}")
    elif usage:
        code = f"\n```text\n{usage}\n```\n"
    return code + (paragraph(escaped(" ".join(text.split()))) if text else "")


def paragraph(text: str) -> str:
    """The text with a capital at its beginning, unless a formula begins it, and with a full stop."""
    first = text[0] if re.match(r"\w+ ·", text) else text[0].upper()
    return f"\n{first}{text[1:]}{'' if text.endswith(('.', ':')) else '.'}\n"


def heading(file: Path) -> list[str]:
    """The lines of a command file's first comment: the summary and the examples."""
    lines = file.read_text("utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines[: lines.index("")]]


def of_group(command: str, files: ConfigFiles, group: str) -> Iterator[str]:
    """Yield the choices of a group and their settings, or a table of presets.

    Settings in a file that several choices include are shown once, after the choices.
    """
    yield f"\n### {TITLES[group]}: `{group}=`\n"
    choices = files.choices(group)
    if is_preset(files.find(f"{group}/{choices[0]}")):
        yield "A preset sets other settings, which the command line may override."
        yield "`seqtool train --help experiment=NAME` shows the values.\n"
        yield "| preset | what it is |\n|---|---|"
        for choice in choices:
            comments = [row for row in rows(files.find(f"{group}/{choice}")) if isinstance(row, str)]
            yield f"| `{choice}` | {escaped(' '.join(comments[0].split()))} |"
        yield ""
        return
    if files.groups[group] is not None:
        yield f"The default is `{files.groups[group]}`.\n"
    shared: dict[Path, tuple[str, list[str]]] = {}
    declared = declared_of(command)
    for choice in choices:
        (file, _), *included = files.included_files(group, choice)
        of_class = declared_in(_target(file), f"{group}.")
        yield f"\n#### `{group}={choice}`\n"
        for included_file, package in included:
            shared.setdefault(included_file, (f"{group}.{package}", []))[1].append(choice)
        yield from tables(command, file, {**of_class, **declared}, set(), f"{group}.")
        if included:
            links = ", ".join(f"[below](#{_slug(included_file, group)})" for included_file, _ in included)
            yield f"The other settings are {links}.\n"
    for file, (prefix, of_choices) in shared.items():
        yield f"\n#### Shared settings of `{group}`: `{file.stem}`\n"
        yield f"For {', '.join(f'`{group}={choice}`' for choice in of_choices)}.\n"
        yield from tables(f"{command}-{file.stem}", file, declared, set(), prefix)


def _slug(file: Path, group: str) -> str:
    """The anchor of the heading of shared settings."""
    return f"shared-settings-of-{group}-{file.stem}"


def _target(file: Path) -> Any:
    """The class whose arguments a choice sets."""
    settings = yaml.safe_load(file.read_text("utf-8"))
    if "_target_" in settings:
        return locate_target(settings, trusted=True)
    return SCHEDULES.get(settings.get("name"), declarations.Optimiser)


def of_command(command: str) -> str:
    """The reference of a command as Markdown."""
    files = ConfigFiles(command, [CONFIGS])
    title, *examples = heading(files.files[0])
    summary = title.partition(": ")[2]
    lines = [f"## `seqtool {command}`", "", f"{summary[0].upper()}{summary[1:]}.", ""]
    lines += ["```text", *(example.strip() for example in examples), "```", ""]
    declared, shown = declared_of(command), set[str]()
    for file in files.files:
        if file.stem in COMMANDS and file.stem != command:
            lines += ["", f"It also takes the settings of [`seqtool {file.stem}`](#seqtool-{file.stem}).", ""]
            return "\n".join(lines)
        lines += tables(command, file, declared, shown)
    for group, choice in files.groups.items():
        if command == "train":
            lines += of_group(command, files, group)
        elif choice is None:
            page = "/docs/reference/training.md"
            lines += ["", f"`{group}=` and its settings are [those of training]({page}#the-{group}-{group})."]
    return "\n".join(lines)


class Settings(SphinxDirective):
    """```{settings} COMMAND```"""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = of_command(self.arguments[0])
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class OtherNames(SphinxDirective):
    """```{other-names}```: the names of settings in other toolkits."""

    def run(self) -> list[nodes.Node]:
        table = "\n".join(
            f"| {', '.join(f'`{name}`' for name in names)} | `{setting}` |"
            for setting, names in declarations.other_names().items()
        )
        return self.parse_text_to_nodes(f"| elsewhere | here |\n|---|---|\n{table}\n")


class Verdicts(SphinxDirective):
    """```{verdicts}```: the findings with which `train` may end, each with its limit."""

    def run(self) -> list[nodes.Node]:
        limits = {rule["name"]: rule["form"].format(rule["threshold"]) for rule in verdict.RULES.values()}
        table = "\n".join(f"| {name} | {limit} |" for name, limit in limits.items())
        return self.parse_text_to_nodes(f"| finding | limit |\n|---|---|\n{table}\n")


class Flags(SphinxDirective):
    """```{flags}```: the flags of sentences in a report."""

    def run(self) -> list[nodes.Node]:
        table = "\n".join(f"| {flag} | {meaning} |" for flag, meaning in FLAG_MEANINGS.items())
        return self.parse_text_to_nodes(f"| flag | what it means |\n|---|---|\n{table}\n")


def fields(_app: Sphinx, what: str, _name: str, thing: Any, _options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText, in place: lines about arguments become fields, and `code` ``code``.

    The arguments are those of Sphinx's event autodoc-process-docstring.
    """
    try:
        names = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        names = set()
    if what == "class":
        names |= set(dir(thing))  # the docstring of a class describes attributes
    field = ":ivar" if what == "class" else ":param"
    text: list[str] = []
    for original in lines:
        line = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", original)
        argument = re.match(r"([\w, ]+): ", line)
        if argument and set(argument[1].split(", ")) <= names:
            text += [] if text and text[-1].startswith(field) else [""]
            text += [f"{field} {name}: {line[argument.end() :]}" for name in argument[1].split(", ")]
            continue
        if text and text[-1].startswith((field, "    ")) and line.startswith(" "):
            line = f"    {line.strip()}"
        text.append(line)
    lines[:] = text


def signature(_app: Sphinx, what: str, _name: str, _thing: Any, _options: Any, arguments: str, returned: Any) -> Any:
    """The signature to show. A class has none, since its objects are made by `seqtool.load`."""
    return ("", None) if what == "class" else (arguments, returned)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings", Settings)
    app.add_directive("other-names", OtherNames)
    app.add_directive("verdicts", Verdicts)
    app.add_directive("flags", Flags)
    app.connect("autodoc-process-docstring", fields)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
