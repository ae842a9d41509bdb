"""From Hydra's configuration to typed settings, and messages about those that cannot be used. `declarations` says what
there is to know of each.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from seqtool.errors import InputError
from seqtool.settings.declarations import other_name

T = TypeVar("T")
Config = DictConfig | Mapping[str, Any]

SHOWN = 12  # choices in a message
MISSING = "???"  # OmegaConf's mark of a setting that must be given
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def typed(schema: type[T], config: Config, *, prefix: str = "") -> T:
    """The settings in `config` as the dataclass `schema`, which may hold further dataclasses.

    Unknown settings, missing ones and values of the wrong type raise one InputError that names them all (as
    `train.batch_size`), the unknown ones with the nearest real one. `prefix` begins the names if `config` does not
    know its own place.
    """
    prefix = full_name(config) or prefix
    target = OmegaConf.structured(schema)
    problems = _fill(target, schema, plain(config), prefix)
    for name in (join(prefix, key) for key in sorted(OmegaConf.missing_keys(target))):
        problems.setdefault(name, f"missing setting '{name}'")
    if problems:
        raise InputError(sentence(list(problems.values())))
    return typing.cast(T, OmegaConf.to_object(target))


def checked(
    target: Callable[..., Any], arguments: Mapping[str, Any], *, prefix: str, parts: Iterable[str] = ()
) -> dict[str, Any]:
    """The settings as arguments of `target` besides its `parts`; InputError as for `typed`."""
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(target, eval_str=True).parameters.items():
        if name in parts or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in arguments or parameter.default is parameter.empty:
            fields.append((name, _checkable(parameter.annotation), dataclasses.field()))
        else:  # the target has its own default: only the name matters here
            fields.append((name, Any, dataclasses.field(default=None)))
    settings: Any = typed(dataclasses.make_dataclass("Settings", fields, kw_only=True), arguments, prefix=prefix)
    return {key: getattr(settings, key) for key in arguments}


def plain(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts, lists and scalars, interpolations resolved."""
    if not isinstance(config, DictConfig):
        return dict(config)
    try:
        return typing.cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"Setting '{error.full_key}' cannot be resolved: {reason}.") from error


def resolved(config: Config) -> DictConfig:
    """The configuration with interpolations resolved for good: it can be saved as YAML and loaded again."""
    return typing.cast(DictConfig, OmegaConf.create(escaped(plain(config))))


def names(value: str | Sequence[str] | ListConfig | None) -> list[str]:
    """A setting that holds one name, several or null, as a list of names."""
    if value is None:
        return []
    listed = [value] if isinstance(value, str) else [str(name) for name in value]
    if "" in listed:
        raise InputError("A name is empty: write the name of a file or directory.")
    return listed


def unknown(name: str, existing: Iterable[str], *, kind: str = "setting") -> str:
    """The clause that says that `name` is not among the `existing` names, and which of them is nearest.

    Dotted names are compared by their last part first, so a right name in the wrong place is recognised. A setting may
    also have the name that it has elsewhere.
    """
    parent, _, last = name.rpartition(".")

    def likeness(other: str) -> tuple[float, float]:
        other_parent, _, other_last = other.rpartition(".")
        match = difflib.SequenceMatcher(None, last, other_last).ratio()
        return match, match + difflib.SequenceMatcher(None, parent, other_parent).ratio() / 2

    choices = sorted(existing)
    best = max(choices, key=lambda other: likeness(other)[1], default=None)
    clause = f"unknown {kind} '{name}'"
    if kind == "setting" and (here := other_name(name, choices)) is not None:
        return f"{clause}; did you mean '{here}'?"
    if best is not None and likeness(best)[0] >= 0.6:
        return f"{clause}; did you mean '{best}'?"
    if len(choices) > SHOWN and kind != "setting":
        nearest = sorted(choices, key=lambda other: -likeness(other)[1])[:SHOWN]
        return f"{clause}; choose from {', '.join(nearest)} and {len(choices) - SHOWN} more"
    return f"{clause}; choose from {', '.join(choices)}" if 0 < len(choices) <= SHOWN else clause


def sentence(clauses: Sequence[str]) -> str:
    """One sentence made of the given clauses."""
    if len(clauses) > 1:
        clauses = [re.sub(r"; (did you mean .*\?|choose from .*)$", r" (\1)", clause) for clause in clauses]
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def escape(text: str) -> str:
    """`text` written so that OmegaConf reads back `text`, where a bare `${…}` would be an interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _fill(target: DictConfig, schema: Any, values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Set the values in `target` one by one; returns the problems by the settings' full names."""
    hints = typing.get_type_hints(schema)
    full_names = {field.name: join(prefix, field.name) for field in dataclasses.fields(schema)}
    problems = {}
    for key, value in values.items():
        name = join(prefix, str(key))
        if key not in full_names:
            problems[name] = unknown(name, full_names.values())
        elif (inner := _dataclass_in(hints[key])) is not None and isinstance(value, Mapping):
            if OmegaConf.is_missing(target, key) or target[key] is None:
                target[key] = OmegaConf.structured(inner)
            problems |= _fill(target[key], inner, value, name)
        elif _is_beyond(value):
            problems[name] = f"setting '{name}' must be {_kind(hints[key])} that a computer can work with, not {value}"
        elif value != MISSING:
            try:
                target[key] = escaped(value)
                assigned = target[key]  # text with ${ is checked only here
                _ = list(assigned) if isinstance(assigned, ListConfig) else assigned
            except ValidationError:
                shown = "null" if value is None else repr(value)
                problems[name] = f"setting '{name}' must be {_kind(hints[key])}, not {shown}"
                target[key] = MISSING
    return problems


def _is_beyond(value: Any) -> bool:
    """Whether it is a number no setting can use: NaN, or a whole number larger than float64 holds exactly."""
    return isinstance(value, int | float) and (value != value or (isinstance(value, int) and abs(value) > 2**53))


def _checkable(hint: Any) -> Any:
    """The type hint if OmegaConf can check it (scalars, lists of them, null, dataclasses), otherwise Any."""
    first, *others = alternatives = _alternatives(hint)
    if class_in(hint) is not None:
        return str
    if len(alternatives) == 2 and type(None) in alternatives:
        return hint if all(_checkable(part) is part for part in alternatives) else Any
    is_list = typing.get_origin(first) is list and all(argument in KINDS for argument in typing.get_args(first))
    return first if not others and (first in KINDS or dataclasses.is_dataclass(first) or is_list) else Any


def class_in(hint: Any) -> Any:
    """`Part` of the hint `str | type[Part]`: a setting that is the name of such a class."""
    classes = [part for part in _alternatives(hint) if typing.get_origin(part) is type]
    return typing.get_args(classes[0])[0] if classes and str in _alternatives(hint) else None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types in a union, or the only one, without annotations."""
    if typing.get_origin(hint) is typing.Annotated:
        return _alternatives(hint.__origin__)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    return tuple(inner for part in typing.get_args(hint) for inner in _alternatives(part))


def _dataclass_in(hint: Any) -> Any:
    return next((part for part in _alternatives(hint) if dataclasses.is_dataclass(part)), None)


def _kind(hint: Any) -> str:
    """The hint in words: `a whole number or null`."""
    words = []
    for part in _alternatives(hint):
        origin = typing.get_origin(part) or part
        words.append(KINDS.get(part, "a list" if origin is list else "a group of settings"))
    return " or ".join(words)


def escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: escaped(inner) for key, inner in value.items()}
    return [escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def full_name(config: Config) -> str:
    """The settings' place in the whole configuration, if they know it: `model`, or nothing."""
    return str(config._get_full_key(None)) if isinstance(config, DictConfig) else ""


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings under their full names, those of groups as `group.name`."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, join(prefix, str(key)))
        else:
            yield join(prefix, str(key)), value


def join(prefix: str, name: str) -> str:
    """The full name of a setting."""
    return f"{prefix}.{name}" if prefix else name
