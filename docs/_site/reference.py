"""The reference, made from the code: every setting of a command, from the YAML files of configs/ and the declarations
in seqtool/settings/, and the docstrings of the Python interface.

In a page, ```{settings} train``` becomes a heading, the examples and tables of the command's settings.
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
from seqtool.evaluation.evaluation import FLAG_MEANINGS
from seqtool.runtime.files import config_directory
from seqtool.settings import KINDS, _alternatives, class_in, declarations
from seqtool.settings.classes import located
from seqtool.settings.declarations import NONE, Setting
from seqtool.training import verdict
from seqtool.training.optimisation import SCHEDULES

CONFIGS = config_directory()
PAGES = {"docs/extending.md": "parts of your own", "data/README.md": "data"}  # that help names
TITLES = {
    "data": "The data",
    "model": "The model",
    "optim": "The optimiser",
    "schedule": "The schedule of the learning rate",
    "experiment": "Presets",
}
OPTIMISERS = declarations.Optimiser


class Row(NamedTuple):
    """A setting in a YAML file: its full name there, its default as it is written, the value, and its help."""

    name: str
    written: str
    value: Any
    help: str


def rows(file: Path) -> Iterator[Row | str]:
    """The settings of a YAML file in order, and between them the comments that stand on lines of their own."""
    text = file.read_text("utf-8")
    lines = text.splitlines()
    root: Any = yaml.compose(text)
    by_line: dict[int, list[tuple[str, Any]]] = {}
    for name, node in _nodes(root):
        by_line.setdefault(node.start_mark.line, []).append((name, node))
    comment: list[str] = []
    for number, line in enumerate([*lines, ""]):
        if line.lstrip().startswith("#") and "@package" not in line:
            comment.append(line.lstrip("# ").rstrip())
            continue
        if comment:
            yield " ".join(comment)
            comment = []
        settings = by_line.get(number, [])
        for name, node in settings:
            end = node.end_mark.column if node.end_mark.line == number else 0
            said = re.search(r"(?:^|\s)# ?(.*)$", line[end:]) if (name, node) == settings[-1] else None
            if isinstance(node, yaml.MappingNode):
                if said is not None:
                    yield f"`{name}`: {said[1]}"
                continue
            written = "" if end == 0 else line[node.start_mark.column : end]
            yield Row(name, written, yaml.safe_load(written) if written else None, said[1] if said else "")


def _nodes(mapping: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a mapping in YAML with their full names; of a mapping that begins below its key, also its key."""
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
    """What is declared of a setting: its type hint, and the rest."""

    hint: Any
    setting: Setting


def declared_in(schema: Any, prefix: str = "") -> dict[str, Declared]:
    """What the fields of a dataclass, or the arguments of a class or function, declare, by their full names."""
    try:
        parameters = inspect.signature(schema, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # such as an optimiser of torch, whose hints need not be importable
        return {}
    settings = declarations.declared(schema)
    return {f"{prefix}{name}": Declared(parameters[name].annotation, settings[name]) for name in parameters}


def declared_of(command: str) -> dict[str, Declared]:
    found: dict[str, Declared] = {}
    for place, schemas in declarations.COMMANDS[command].items():
        for schema in schemas:
            found |= declared_in(schema, f"{place}." if place else "")
    return found


def kind(declared: Declared | None, value: Any, help: str) -> str:
    """The type and range of a setting with this default and help, in words."""
    setting = NONE if declared is None else declared.setting
    if setting.choices:
        if all(choice in help for choice in setting.choices):
            return ""
        words = ", ".join(f"`{choice}`" for choice in setting.choices)
        return words + (" or a list of them" if setting.several else "")
    hint = None if declared is None else declared.hint
    alternatives = list(_alternatives(hint))
    words = [KINDS[part] for part in alternatives if part in KINDS and part is not type(None)]
    if class_in(hint) is not None:
        words = ["or a class of your own, `mine.Class`"]
    elif setting.classes:
        words = ["modules or classes, `a,b`"]
    elif setting.is_path and not isinstance(value, int):  # built-in data have numbers in the place of files
        words = ["paths, `a,b`" if setting.several else "a path to write to" if setting.writes else "a path"]
    elif any(typing.get_origin(part) is list for part in alternatives):
        words = ["a list"]
    elif not words or setting.is_path:
        words = [KINDS[type(value)]] if type(value) in KINDS and value is not None else []
        words = ["a list"] if isinstance(value, list) else words
    text, limits = " or ".join(dict.fromkeys(words)), _limits(setting)
    if text == "text" and " | " in help:
        return ""  # which lists what it may be
    if limits:
        text = f"{text}, {limits}" if text else limits
    takes_null = type(None) in alternatives or (value is None and text)
    return text + (("," if limits or setting.several else "") + " or null" if takes_null else "")


def _limits(setting: Setting) -> str:
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
    """A text of ours in Markdown: code stays code, and the pages that it names become links."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<>\[\]$|])", r"\\\1", part) for part in parts[::2]]
    text = "`".join(parts)
    for page, title in PAGES.items():
        text = text.replace(page, f"[{title}](/{page})")
    return text


def default(row: Row) -> str:
    if row.value == "???":
        return "*required*"
    if reference := re.fullmatch(r"\$\{([\w.]+)\}", str(row.value)):
        return f"that of `{reference[1]}`"
    return f"`{row.written}`".replace("|", "\\|") if row.written else ""


def table(command: str, settings: list[Row], prefix: str, declared: Mapping[str, Declared]) -> list[str]:
    """A table of settings; each has an anchor, COMMAND-NAME."""
    if not settings:
        return []
    lines = ["", "| setting | default | what it is |", "|---|---|---|"]
    for row in settings:
        name = f"{prefix}{row.name}"
        values = kind(declared.get(name), row.value, row.help)
        said = f"{escaped(row.help)}<br>" if row.help else ""
        cells = [f'<span id="{command}-{name}"></span>`{name}`', default(row)]
        lines.append(f'| {" | ".join(cells)} | {said}<span class="values">{values}</span> |')
    return [*lines, ""]


def tables(
    command: str, file: Path, declared: Mapping[str, Declared], shown: set[str], prefix: str = ""
) -> Iterator[str]:
    """The tables of a YAML file's settings, with the comments between them; settings `shown` before are left out.

    The name of an optimiser or schedule is that of its file: only what is said of it is shown. In a command's file,
    settings such as `train.steps` have a heading for what is before the dot.
    """
    pending: list[Row] = []
    place = ""
    for row in rows(file):
        if not isinstance(row, Row):
            if row.startswith(f"seqtool {file.stem}: "):
                continue
            yield from table(command, pending, prefix, declared)
            pending = []
            group = re.match(r"`(.+)`: ", row)  # a comment on a group of settings
            if group is not None and not prefix:
                place, row = group[1], row[group.end() :]
                yield f"\n### `{place}.…`\n"
            yield paragraph(f"Of {row}" if row.startswith("`") else escaped(row))
            continue
        if row.name == "name":
            yield paragraph(escaped(row.help)) if row.help else ""
        elif f"{prefix}{row.name}" not in shown:
            if not prefix and row.name.rpartition(".")[0] != place:
                yield from table(command, pending, prefix, declared)
                pending, place = [], row.name.rpartition(".")[0]
                yield f"\n### `{place}.…`\n"
            shown.add(f"{prefix}{row.name}")
            pending.append(row)
    yield from table(command, pending, prefix, declared)


def paragraph(text: str) -> str:
    first = text[0] if text.startswith("seqtool ") else text[0].upper()
    return f"\n{first}{text[1:]}{'' if text.endswith(('.', ':')) else '.'}\n"


def heading(file: Path) -> list[str]:
    """The summary and the examples with which a command's file begins."""
    lines = file.read_text("utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines[: lines.index("")]]


def of_group(command: str, files: ConfigFiles, group: str, shown: set[str]) -> Iterator[str]:
    yield f"\n### {TITLES[group]}: `{group}=`\n"
    choices = files.choices(group)
    if is_preset(files.find(f"{group}/{choices[0]}")):
        yield "A preset sets other settings; what else is on the command line overrides it. `seqtool train --help "
        yield "experiment=NAME` shows the values.\n"
        yield "| preset | what it is |\n|---|---|"
        for choice in choices:
            texts = [row for row in rows(files.find(f"{group}/{choice}")) if isinstance(row, str)]
            yield f"| `{choice}` | {escaped(texts[0])} |"
        yield ""
        return
    if files.groups[group] is not None:
        yield f"The default is `{files.groups[group]}`.\n"
    shared: dict[Path, tuple[str, list[str]]] = {}
    declared = declared_of(command)
    for choice in choices:
        (file, _), *others = files.included(group, choice)
        of_class = declared_in(_target(file), f"{group}.")
        yield f"\n#### `{group}={choice}`\n"
        for other, place in others:
            shared.setdefault(other, (f"{group}.{place}", []))[1].append(choice)
        yield from tables(command, file, {**of_class, **declared}, set(), f"{group}.")
        if others:
            links = ", ".join(f"[below](#{_slug(other, group)})" for other, _ in others)
            yield f"The other settings are {links}.\n"
    for file, (prefix, of) in shared.items():
        yield f"\n#### Shared settings of `{group}`: `{file.stem}`\n"
        yield f"For {', '.join(f'`{group}={choice}`' for choice in of)}.\n"
        yield from tables(f"{command}-{file.stem}", file, declared, set(), prefix)


def _slug(file: Path, group: str) -> str:
    return f"shared-settings-of-{group}-{file.stem}"


def _target(file: Path) -> Any:
    settings = yaml.safe_load(file.read_text("utf-8"))
    if "_target_" in settings:
        return located(settings, trusted=True)
    return SCHEDULES.get(settings.get("name"), OPTIMISERS)


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
            lines += of_group(command, files, group, shown)
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
    """```{other-names}```: what other toolkits call the settings."""

    def run(self) -> list[nodes.Node]:
        table = "\n".join(
            f"| {', '.join(f'`{other}`' for other in others)} | `{name}` |"
            for name, others in declarations.other_names().items()
        )
        return self.parse_text_to_nodes(f"| elsewhere | here |\n|---|---|\n{table}\n")


class Verdicts(SphinxDirective):
    """```{verdicts}```: what `train` may find, with the figures and limits."""

    def run(self) -> list[nodes.Node]:
        table = "\n".join(f"| {rule.name} | {rule.form.format(rule.threshold)} |" for rule in verdict.RULES)
        return self.parse_text_to_nodes(f"| finding | limit |\n|---|---|\n{table}\n")


class Flags(SphinxDirective):
    """```{flags}```: the flags of a report's sentences."""

    def run(self) -> list[nodes.Node]:
        table = "\n".join(f"| {flag} | {text} |" for flag, text in FLAG_MEANINGS.items())
        return self.parse_text_to_nodes(f"| flag | what it means |\n|---|---|\n{table}\n")


def fields(_app: Sphinx, what: str, _name: str, thing: Any, _options: Any, lines: list[str]) -> None:
    """Our docstrings as reStructuredText: `name: text` about an argument becomes a field, and code is in ``…``."""
    try:
        names = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        names = set()
    if what == "class":
        names |= set(dir(thing))  # its docstring describes attributes
    text: list[str] = []
    for line in lines:
        written = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
        argument = re.match(r"([\w, ]+): ", written)
        field = ":ivar" if what == "class" else ":param"
        if argument and set(argument[1].split(", ")) <= names:
            text += [] if text and text[-1].startswith(field) else [""]
            said = written[argument.end() :]
            text += [f"{field} {name}: {said}" for name in argument[1].split(", ")]
            continue
        if text and text[-1].startswith((field, "    ")) and line.startswith(" "):
            written = f"    {written.strip()}"
        text.append(written)
    lines[:] = text


def signature(_app: Sphinx, what: str, _name: str, _thing: Any, _options: Any, written: str, returned: Any) -> Any:
    """Classes are made by `seqtool.load`, so their arguments are not shown."""
    return ("", None) if what == "class" else (written, returned)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings", Settings)
    app.add_directive("other-names", OtherNames)
    app.add_directive("verdicts", Verdicts)
    app.add_directive("flags", Flags)
    app.connect("autodoc-process-docstring", fields)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
