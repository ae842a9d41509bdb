"""From Hydra's configuration to objects: dataclasses for fixed settings, built parts for `_target_` ones."""

import dataclasses
import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from seqtool.errors import InputError

T = TypeVar("T")
Config = DictConfig | Mapping[str, Any]

PACKAGE = "seqtool"
OURS = re.compile(rf"{PACKAGE}(\.[A-Za-z_][A-Za-z0-9_]*)+")
FORMER = {  # modules that had other names in 0.1
    "seqtool.data.translation": "seqtool.data.corpora.parallel",
    "seqtool.data.multi30k": "seqtool.data.corpora.multi30k",
    "seqtool.data.caption_sources": "seqtool.data.corpora.caption_sources",
    "seqtool.data.photos": "seqtool.data.corpora.photos",
    "seqtool.data.scenes": "seqtool.data.corpora.scenes",
}
MISSING = "???"  # OmegaConf's mark of a setting that must be given
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def typed(schema: type[T], config: Config, *, prefix: str = "") -> T:
    """The settings in `config` as the dataclass `schema`, which may hold further dataclasses.

    Unknown settings, missing ones and values of the wrong type raise one InputError that names them all (as
    `train.batch_size`), the unknown ones with the nearest real one. `prefix` begins the names where `config` does not
    know its own place.
    """
    return _typed(schema, plain(config), _full_name(config) or prefix)


def build(settings: Config, *, trusted: bool, base: type | tuple[type, ...] = object, **parts: Any) -> Any:
    """Call what `_target_` names with the other settings, and with `parts`: what no YAML file can hold.

    The settings are checked against the target's signature as `typed` checks them against a schema. Unless
    `trusted` (the user's own configuration, not a checkpoint's) the target must be a class of this package that is
    derived from `base`.
    """
    arguments, prefix = plain(settings), _full_name(settings)
    target = _target(arguments.pop("_target_", None), prefix, trusted=trusted, base=base)
    checked = _typed(_schema(target, arguments, parts), arguments, prefix)
    return target(**{key: getattr(checked, key) for key in arguments}, **parts)


def check_settings(settings: Config, *, parts: Iterable[str]) -> None:
    """Raise InputError on trusted settings that `build` would refuse before it calls the target with these parts."""
    arguments, prefix = plain(settings), _full_name(settings)
    target = _target(arguments.pop("_target_", None), prefix, trusted=True, base=object)
    _typed(_schema(target, arguments, parts), arguments, prefix)


def located(settings: Config, *, trusted: bool, base: type | tuple[type, ...] = object) -> Any:
    """What `_target_` names, which `build` would call. InputError where it would not."""
    return _target(plain(settings).get("_target_"), _full_name(settings), trusted=trusted, base=base)


def call(target: Callable[..., Any], arguments: Mapping[str, Any], *, prefix: str) -> Any:
    """Call `target` with settings checked against its signature, as `typed` does; `prefix` begins their names."""
    checked = _typed(_schema(target, arguments, ()), arguments, prefix)
    return target(**{key: getattr(checked, key) for key in arguments})


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
    return typing.cast(DictConfig, OmegaConf.create(_escaped(plain(config))))


def names(value: str | Sequence[str] | ListConfig | None) -> list[str]:
    """A setting that holds one name, several or null, as a list of names."""
    if value is None:
        return []
    found = [value] if isinstance(value, str) else [str(name) for name in value]
    if "" in found:
        raise InputError("A name is empty: write the name of a file or directory.")
    return found


def unknown(name: str, known: Iterable[str], *, kind: str = "setting") -> str:
    """The clause that says that `name` is none of the `known` names, and which of them is nearest.

    Dotted names are compared by their last part first, so a right name in the wrong place finds its place.
    """
    parent, _, last = name.rpartition(".")

    def likeness(other: str) -> tuple[float, float]:
        other_parent, _, other_last = other.rpartition(".")
        match = difflib.SequenceMatcher(None, last, other_last).ratio()
        return match, match + difflib.SequenceMatcher(None, parent, other_parent).ratio() / 2

    choices = sorted(known)
    best = max(choices, key=lambda other: likeness(other)[1], default=None)
    clause = f"unknown {kind} '{name}'"
    if best is not None and likeness(best)[0] >= 0.6:
        return f"{clause}; did you mean '{best}'?"
    return f"{clause}; choose from {', '.join(choices)}" if 0 < len(choices) <= 12 else clause


def sentence(clauses: Sequence[str]) -> str:
    """One sentence of the given clauses."""
    if len(clauses) > 1:
        clauses = [re.sub(r"; (did you mean .*\?|choose from .*)$", r" (\1)", clause) for clause in clauses]
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def escape(text: str) -> str:
    """`text` written so that OmegaConf reads back `text`, where a bare `${…}` would be an interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _target(name: Any, prefix: str, *, trusted: bool, base: type | tuple[type, ...]) -> Callable[..., Any]:
    name = renamed(name)
    if not isinstance(name, str) or "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"Setting '{_join(prefix, '_target_')}' must name a class, module and all.")
    if not trusted and not OURS.fullmatch(name):
        raise InputError(f"The configuration names '{name}': only classes of {PACKAGE} may be built from it.")
    target = _locate(name)
    if not trusted and not (isinstance(target, type) and target.__module__.split(".")[0] == PACKAGE):
        raise InputError(f"The configuration names '{name}': only classes of {PACKAGE} may be built from it.")
    if inspect.isabstract(target) or (isinstance(target, type) and not (trusted or issubclass(target, base))):
        raise InputError(f"The configuration names '{name}', which is not what is wanted here.")
    return target


def _typed(schema: type[T], values: Mapping[str, Any], prefix: str) -> T:
    target = OmegaConf.structured(schema)
    problems = _fill(target, schema, values, prefix)
    for key in sorted(OmegaConf.missing_keys(target)):
        problems.setdefault(_join(prefix, key), f"missing setting '{_join(prefix, key)}'")
    if problems:
        raise InputError(sentence(list(problems.values())))
    return typing.cast(T, OmegaConf.to_object(target))


def _fill(target: DictConfig, schema: Any, values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Set the values in `target` one by one; returns what is wrong, by the setting's full name."""
    hints = typing.get_type_hints(schema)
    known = {field.name: _join(prefix, field.name) for field in dataclasses.fields(schema)}
    problems = {}
    for key, value in values.items():
        name = _join(prefix, str(key))
        if key not in known:
            problems[name] = unknown(name, known.values())
        elif (inner := _dataclass_in(hints[key])) is not None and isinstance(value, Mapping):
            if OmegaConf.is_missing(target, key) or target[key] is None:
                target[key] = OmegaConf.structured(inner)
            problems |= _fill(target[key], inner, value, name)
        elif _is_beyond(value):
            problems[name] = f"setting '{name}' must be {_kind(hints[key])} that a computer can work with, not {value}"
        elif value != MISSING:
            try:
                target[key] = _escaped(value)
                found = target[key]  # text with ${ is looked at only here
                _ = list(found) if isinstance(found, ListConfig) else found
            except ValidationError:
                shown = "null" if value is None else repr(value)
                problems[name] = f"setting '{name}' must be {_kind(hints[key])}, not {shown}"
                target[key] = MISSING
    return problems


def _is_beyond(value: Any) -> bool:
    """Whether it is a number that no setting means: NaN, or a whole number that float64 and int64 do not hold alike."""
    return isinstance(value, int | float) and (value != value or (isinstance(value, int) and abs(value) > 2**53))


def _schema(target: Callable[..., Any], arguments: Iterable[str], parts: Iterable[str]) -> type[Any]:
    """The settings that `target` takes besides its parts, as a dataclass for `_typed`."""
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(target, eval_str=True).parameters.items():
        if name in parts or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in arguments or parameter.default is parameter.empty:
            fields.append((name, _checkable(parameter.annotation), dataclasses.field()))
        else:  # a default of the target's own: only the name matters here
            fields.append((name, Any, dataclasses.field(default=None)))
    return dataclasses.make_dataclass("Settings", fields, kw_only=True)


def _checkable(hint: Any) -> Any:
    """The type hint where OmegaConf can check it (scalars, lists of them, null, dataclasses), otherwise Any."""
    if hint in KINDS or dataclasses.is_dataclass(hint):
        return hint
    if typing.get_origin(hint) is list and all(argument in KINDS for argument in typing.get_args(hint)):
        return hint
    alternatives = _alternatives(hint)
    if len(alternatives) == 2 and type(None) in alternatives:
        return hint if all(_checkable(one) is one for one in alternatives) else Any
    return Any


def renamed(name: Any) -> Any:
    """What is called so today: configurations of earlier checkpoints have the names of their time."""
    module, _, last = str(name).rpartition(".")
    return f"{FORMER[module]}.{last}" if module in FORMER else name


def _locate(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; something it needs does not
        raise InputError(f"Unknown target '{name}': there is no module '{error.name}'.") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        known = [f"{module_name}.{key}" for key, one in vars(module).items() if callable(one)]
        raise InputError(sentence([unknown(name, known, kind="target")]))
    return typing.cast(Callable[..., Any], target)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _dataclass_in(hint: Any) -> Any:
    return next((one for one in _alternatives(hint) if dataclasses.is_dataclass(one)), None)


def _kind(hint: Any) -> str:
    """The hint in words: `a whole number or null`."""
    words = []
    for one in _alternatives(hint):
        origin = typing.get_origin(one) or one
        words.append(KINDS.get(one, "a list" if origin is list else "a group of settings"))
    return " or ".join(words)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def _full_name(config: Config) -> str:
    return str(config._get_full_key(None)) if isinstance(config, DictConfig) else ""


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
