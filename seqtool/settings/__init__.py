"""Turns Hydra's configuration into typed settings, and explains in messages which of them are invalid.

`declarations` declares each setting, and `classes` imports the classes that settings name.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from seqtool.errors import InputError
from seqtool.settings.declarations import other_name, parameters

T = TypeVar("T")
Config = DictConfig | Mapping[str, Any]

MAX_LISTED_CHOICES = 12  # choices that a message lists
MIN_SIMILARITY = 0.6  # least similarity of a suggested name, as by default in difflib.get_close_matches
MISSING = "???"  # OmegaConf's mark of a setting that must be given
MAX_WHOLE_NUMBER = 2**53  # float64, and so most readers of JSON, hold every whole number up to here exactly
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def typed(schema: type[T], config: Config, *, prefix: str = "") -> T:
    """The settings in `config` as an instance of the dataclass `schema`, which may contain further dataclasses.

    config: a configuration, or a mapping of settings
    prefix: the group of the settings, such as `train`; only used if `config` is a mapping, which has no such name

    Raises one InputError that names all unknown settings, missing settings and values of the wrong type.
    """
    prefix = full_name(config) or prefix
    target = OmegaConf.structured(schema)
    problems = _fill(target, schema, plain(config), prefix)
    for name in (join(prefix, key) for key in sorted(OmegaConf.missing_keys(target))):
        problems.setdefault(name, f"missing setting '{name}'")
    if problems:
        raise InputError(sentence(list(problems.values())))
    return typing.cast(T, OmegaConf.to_object(target))


def check_arguments(
    target: Callable[..., Any], arguments: Mapping[str, Any], *, prefix: str, parts: Iterable[str] = ()
) -> dict[str, Any]:
    """Convert the arguments of a class or function to their types. Raises InputError like `typed`.

    prefix: the group of these settings, for messages
    parts: the names of arguments of `target` that are not settings
    """
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in parameters(target).items():
        if name in parts or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in arguments or parameter.default is parameter.empty:
            fields.append((name, _checkable_hint(parameter.annotation), dataclasses.field()))
        else:  # the target has a default value, so only the name is needed
            fields.append((name, Any, dataclasses.field(default=None)))
    settings: Any = typed(dataclasses.make_dataclass("Settings", fields, kw_only=True), arguments, prefix=prefix)
    return {key: getattr(settings, key) for key in arguments}


def plain(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts, lists and scalars, with interpolations resolved."""
    if not isinstance(config, DictConfig):
        return dict(config)
    try:
        return typing.cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"Setting '{error.full_key}' cannot be resolved: {reason}.") from error


def resolved(config: Config) -> DictConfig:
    """The configuration with interpolations replaced by their values, so that it can be saved as YAML and reloaded."""
    return typing.cast(DictConfig, OmegaConf.create(escape_all(plain(config))))


def names(value: str | Sequence[str] | ListConfig | None) -> list[str]:
    """The value of a setting that holds one name, several names or null, as a list of names."""
    if value is None:
        return []
    result = [str(value)] if isinstance(value, str | int | float) else [str(name) for name in value]
    if "" in result:
        raise InputError("A name is empty: write one, or null for none.")
    return result


def unknown(name: str, existing: Iterable[str], *, kind: str = "setting") -> str:
    """A clause that says that `name` does not exist, and suggests the most similar of the `existing` names.

    The last parts of dotted names count more than the groups before them, so that a setting written in the wrong group
    is recognised. Names from other toolkits are recognised too.
    """
    parent, _, last = name.rpartition(".")

    def similarity(other: str) -> tuple[float, float]:
        other_parent, _, other_last = other.rpartition(".")
        ratio = difflib.SequenceMatcher(None, last, other_last).ratio()
        # the similarity of the last parts, and of the whole names
        return ratio, ratio + difflib.SequenceMatcher(None, parent, other_parent).ratio() / 2

    choices = sorted(existing)
    nearest = sorted(choices, key=lambda other: -similarity(other)[1])[:MAX_LISTED_CHOICES]
    clause = f"unknown {kind} '{name}'"
    if kind == "setting" and (setting := other_name(name, choices)) is not None:
        return f"{clause}; did you mean '{setting}'?"
    if nearest and similarity(nearest[0])[0] >= MIN_SIMILARITY:
        return f"{clause}; did you mean '{nearest[0]}'?"
    if 0 < len(choices) <= MAX_LISTED_CHOICES:
        return f"{clause}; choose from {', '.join(choices)}"
    if choices and kind != "setting":
        return f"{clause}; choose from {', '.join(sorted(nearest))} and {len(choices) - MAX_LISTED_CHOICES} more"
    return clause


def sentence(clauses: Sequence[str]) -> str:
    """Join clauses, as from `unknown`, into one sentence."""
    if len(clauses) > 1:
        clauses = [
            re.sub(r"; (did you mean .*\?|choose from .*|see seqtool .*)$", r" (\1)", clause) for clause in clauses
        ]
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def escape(text: str) -> str:
    """Escape `${` in a text, so that OmegaConf reads back the same text and no interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _fill(target: DictConfig, schema: Any, values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Set the values in `target`. Returns a clause for each invalid value, by the setting's full name."""
    hints = typing.get_type_hints(schema)
    full_names = {field.name: join(prefix, field.name) for field in dataclasses.fields(schema)}
    problems = {}
    for key, value in values.items():
        name = join(prefix, str(key))
        if key not in full_names:
            problems[name] = unknown(name, full_names.values())
        elif isinstance(value, Mapping) and (schemas := [*filter(dataclasses.is_dataclass, alternatives(hints[key]))]):
            if OmegaConf.is_missing(target, key) or target[key] is None:
                target[key] = OmegaConf.structured(schemas[0])
            problems |= _fill(target[key], schemas[0], value, name)
        elif isinstance(value, float) and math.isnan(value):
            problems[name] = f"setting '{name}' must be {_kind(hints[key])}, not nan"
        elif isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:
            problems[name] = f"setting '{name}' must be {_kind(hints[key])}, between -2^53 and 2^53, not {value}"
        elif value != MISSING:
            try:
                target[key] = escape_all(value)
                assigned = target[key]  # OmegaConf checks text that contains ${ only when it is read
                _ = list(assigned) if isinstance(assigned, ListConfig) else assigned
            except ValidationError:
                value_text = "null" if value is None else repr(value)
                problems[name] = f"setting '{name}' must be {_kind(hints[key])}, not {value_text}"
                target[key] = MISSING
    return problems


def _checkable_hint(hint: Any) -> Any:
    """The type hint if OmegaConf can check it (scalars, lists of them, null, dataclasses), otherwise Any."""
    parts = alternatives(hint)
    if class_in(hint) is not None:
        return str
    if len(parts) == 2 and type(None) in parts:
        return hint if all(_checkable_hint(part) is part for part in parts) else Any
    if len(parts) > 1:
        return Any
    (kind,) = parts
    is_list = typing.get_origin(kind) is list and all(argument in KINDS for argument in typing.get_args(kind))
    return kind if kind in KINDS or dataclasses.is_dataclass(kind) or is_list else Any


def class_in(hint: Any) -> Any:
    """`Part` if the hint is `str | type[Part]`, which means that the setting may be the name of such a class."""
    classes = [part for part in alternatives(hint) if typing.get_origin(part) is type]
    return typing.get_args(classes[0])[0] if classes and str in alternatives(hint) else None


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types in a union, or the type itself if it is not a union. Annotations are removed."""
    if typing.get_origin(hint) is typing.Annotated:
        return alternatives(hint.__origin__)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    return tuple(inner for part in typing.get_args(hint) for inner in alternatives(part))


def _kind(hint: Any) -> str:
    """The type hint in words, such as `a whole number or null`."""
    kinds = []
    for part in alternatives(hint):
        origin = typing.get_origin(part) or part
        list_kind = "a list of numbers" if typing.get_args(part)[:1] in ((int,), (float,)) else "a list"
        other = "a group of settings" if dataclasses.is_dataclass(part) else "another value"
        kinds.append(KINDS.get(part, list_kind if origin is list else other))
    return " or ".join(kinds)


def escape_all(value: Any) -> Any:
    """The value with `${` escaped in all strings that it contains: see `escape`."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: escape_all(inner) for key, inner in value.items()}
    return [escape_all(inner) for inner in value] if isinstance(value, list | tuple) else value


def full_name(config: Config) -> str:
    """The full name of these settings' group, such as `model`; empty for the whole configuration and for mappings."""
    return str(config._get_full_key(None)) if isinstance(config, DictConfig) else ""


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name, such as `group.name`, and the value of each setting."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, join(prefix, str(key)))
        else:
            yield join(prefix, str(key)), value


def join(prefix: str, name: str) -> str:
    """The full name of the setting `name` in the group `prefix`, which may be empty."""
    return f"{prefix}.{name}" if prefix else name
