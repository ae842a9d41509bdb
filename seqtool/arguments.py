"""The arguments after the command, made ready for Hydra, and Hydra's complaints, made ready for people.

Hydra's grammar refuses most characters that a file name may hold, and reads commas as sweeps and digits as
numbers. So the values of settings that hold names of files or runs are quoted before Hydra sees them.
"""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from seqtool.config import escape, sentence, unknown
from seqtool.errors import InputError

# The settings that hold the name of a file, directory or run, and those of them that hold several.
LISTS = frozenset({"checkpoint", "references", "images", "data.train", "data.valid", "data.test"})
NAMES = LISTS | {"run", "init_from", "input", "output", "hypotheses", "sources", "baseline", "gold"}
NAMES |= {
    "alignments",
    "plot",
    "data.directory",
    "data.cache",
    "data.vocabulary.reuse",
    "data.annotations",
    "data.split_file",
    "document_frequencies",
    "embeddings.source",
    "embeddings.target",
    "save_document_frequencies",
    "model.encoder.weights",
}

OVERRIDE = re.compile(r"(?P<sign>\+{1,2}|~|)(?P<key>[^=]+?)(?:=(?P<value>.*))?", re.DOTALL)
ELEMENT = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message[0].upper() + message[1:] + ".")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hydra's options and the settings, each in order, wherever they stand on the command line."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--info", "-i", nargs="?", const="all")
    for names in ("--package -p", "--config-dir -cd", "--config-name -cn", "--config-path -cp"):
        parser.add_argument(*names.split())
    for names in ("--run -r", "--multirun -m", "--resolve", "--hydra-help"):
        parser.add_argument(*names.split(), action="store_true")
    parser.add_argument("settings", nargs="*")
    for argument in arguments:
        try:
            os.fsencode(argument)
        except UnicodeEncodeError as error:
            raise InputError(f"{argument!a} holds a character that no text has.") from error
    found, strange = parser.parse_known_intermixed_args(arguments)
    if strange:
        raise InputError(f"Unknown option '{strange[0]}': settings are written key=value, without dashes.")
    values = vars(found)
    settings: list[str] = values.pop("settings")
    for setting in settings:
        if "=" not in setting and not setting.startswith("~"):
            raise InputError(f"'{setting}' is not a setting: write key=value.")
    if sum(bool(values[mode]) for mode in ("run", "multirun", "cfg", "info")) > 1:
        raise InputError("Only one of --run, --multirun, --cfg and --info can be given.")
    if found.resolve and not found.cfg:
        raise InputError("--resolve goes with --cfg.")
    options = []
    for name, value in values.items():
        if value:
            option = "--" + name.replace("_", "-")
            options.append(option if value is True else f"{option}={value}")
    return options, settings


def quoted(setting: str) -> str:
    """`key=value` as Hydra must read it: a name of a file or run is taken as it stands, whatever it holds.

    A list is written `a,b` or `[a,b]`, unless a file has that very name; so null is null unless a file is.
    """
    match = OVERRIDE.fullmatch(setting)
    if match is None or match["key"] not in NAMES or not match["value"]:
        return setting
    start, value = f"{match['sign']}{match['key']}=", match["value"]
    exists = os.path.lexists(value)
    if value == "null" and not exists:
        return setting
    if match["key"] not in LISTS or exists or not re.search(r"^\[.*\]$|,", value, re.DOTALL):
        return start + quote(value)
    bracketed = value.startswith("[") and value.endswith("]")
    elements = list(_elements(value[1:-1])) if bracketed else value.split(",")
    return f"{start}[{','.join(map(quote, elements))}]"


def quote(name: str) -> str:
    """`name` quoted so that Hydra and then OmegaConf read `name` back; ??? means something to them: ./???."""
    text = escape("./???" if name == "???" else name)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)\Z", r"\1\1", text) + "'"


def numbered(setting: str) -> str:
    """A quoted run name with the number of the job in a sweep appended; other settings as they are."""
    return f"{setting[:-1]}-${{hydra:job.num}}'" if re.match(r"\+{0,2}run='", setting) else setting


def explain(error: Exception, settings: Sequence[str], configs: Path, command: str) -> str:
    """What is wrong with settings that Hydra could not compose: an unknown name, otherwise its own words."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import OverrideParseException
    from omegaconf import OmegaConf

    clauses, choices, keys = [], [], []
    known_groups = groups(configs)
    for match in filter(None, map(OVERRIDE.fullmatch, settings)):
        key, value = match["key"], match["value"]
        if key in known_groups and match["sign"] != "~":
            wrong = [one for one in (value or "").split(",") if one not in (*known_groups[key], "null")]
            clauses += [unknown(choice, known_groups[key], kind=key) for choice in wrong]
            if not wrong:
                choices.append(match[0].split(",")[0])
        elif match["sign"] in ("", "~") and "@" not in key and not re.match(r"hydra\b", key):
            keys.append(key)
    if not clauses and keys:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(configs), version_base="1.3"):
            config = OmegaConf.to_container(compose(command, choices))
        known = set(_keys(config)) | known_groups.keys()
        clauses = [unknown(key, known) for key in keys if key not in known]
    if clauses:
        return sentence(clauses)
    if isinstance(error, OverrideParseException):
        return f"Cannot read '{error.override}': quote the value for Hydra too, as in \"key='(value)'\"."
    return f"Cannot compose the configuration: {str(error).strip().splitlines()[0].rstrip('.')}."


def groups(configs: Path) -> dict[str, list[str]]:
    """The config groups and the choices in each."""
    folders = [folder for folder in sorted(configs.iterdir()) if folder.is_dir() and folder.name != "hydra"]
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


def _elements(text: str) -> Iterator[str]:
    """The elements of a Hydra list of names: `a, 'b, c'`."""
    position = 0
    while position < len(text) and (match := ELEMENT.match(text, position)):
        element, position = match[1], match.end()
        if element[:1] in ("'", '"') and element[-1:] == element[:1]:
            element = re.sub(r"\\(['\"\\])", r"\1", element[1:-1])
        yield element


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
