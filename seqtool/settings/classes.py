"""Turns the names of classes in a configuration into classes, seqtool's and the user's own.

A name without dots is looked up in a table by the code that owns the table (`chosen`). Dotted names, such as
`mine.Model`, are imported only here, where it is known whether the configuration may be trusted: a checkpoint that
someone else made must not be able to import, and so run, any code.
"""

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import ListConfig

from seqtool.errors import InputError
from seqtool.settings import Config, checked, class_in, full_name, join, names, plain, sentence, unknown

T = TypeVar("T")

Trust = bool | Collection[str]
"""The classes that a configuration may name.

True, for the user's own configuration: any class or function.
A collection, for a checkpoint's configuration: classes of this package and of the modules listed.
False: only classes of this package.
"""

PACKAGE = "seqtool"


def build(settings: Config, *, trusted: Trust, base: type = object, **parts: Any) -> Any:
    """Call the target, the class or function that `_target_` names, with the other settings and with `parts`.

    settings: the target's name and its arguments; they are checked against its signature, as `typed` checks settings
        against a dataclass. Where a type hint is `str | type[Part]`, a dotted name is replaced by the class that it
        names, which must be derived from Part
    trusted: the classes that the settings may name
    base: the class from which the target must be derived
    parts: further arguments, which are objects that no YAML file can hold
    """
    target = located(settings, trusted=trusted, base=base)
    return target(**_arguments(target, settings, parts, trusted=trusted), **parts)


def check_settings(settings: Config, *, parts: Iterable[str]) -> None:
    """Raise InputError for settings that `build`, given these parts, would refuse before it calls the target."""
    _arguments(located(settings, trusted=True), settings, parts, trusted=True)


def located(settings: Config, *, trusted: Trust, base: type = object) -> Any:
    """The class or function that `_target_` names. Raises InputError if `build` would refuse to call it."""
    return _named(plain(settings).get("_target_"), base, setting=join(full_name(settings), "_target_"), trusted=trusted)


def check_named(settings: Config, *, trusted: Trust, base: type) -> None:
    """Raise InputError if `build` would refuse one of the classes that the settings name."""
    target = located(settings, trusted=trusted, base=base)
    _with_classes(target, plain(settings), full_name(settings), trusted=trusted)


def chosen(name: str | T, table: Mapping[str, T], *, kind: str) -> T:
    """The entry called `name` in the table. A class is returned unchanged: see `imported`, which imports it."""
    if not isinstance(name, str):
        return name
    if name not in table:
        raise InputError(f"Unknown {kind} '{name}'; choose from {', '.join(table)}.")
    return table[name]


def imported(name: str, base: type[T], *, setting: str, trusted: Trust = True) -> str | type[T]:
    """The class derived from `base` that the dotted `name`, the value of `setting`, means; other names unchanged."""
    return cast(type[T], _named(name, base, setting=setting, trusted=trusted)) if "." in name else name


def own_modules(*settings: Config, others: Iterable[str] = ()) -> list[str]:
    """The top-level modules other than seqtool that the classes in these groups of settings, and `others`, are from."""
    class_names: list[str] = []
    for group in settings:
        target, values = located(group, trusted=True), plain(group)
        class_names += [values["_target_"], *(str(values[key]) for key in _bases(target) if key in values)]
    tops = dict.fromkeys(name.partition(".")[0] for name in (*class_names, *others) if "." in name)
    return [top for top in tops if top != PACKAGE]


def modules(trust: str | Sequence[str] | ListConfig | None) -> list[str]:
    """The modules that the setting `trust` lists, whose classes a checkpoint may name."""
    result = [name.strip() for part in names(trust) for name in part.split(",")]
    for name in result:
        if not name.isidentifier():
            raise InputError(f"trust={name} is not the name of a module: of mine.parts.Model it is mine.")
    return result


def _arguments(target: Any, settings: Config, parts: Iterable[str], *, trusted: Trust) -> dict[str, Any]:
    """The arguments of `target` from its settings, with classes in place of dotted names."""
    values, prefix = plain(settings), full_name(settings)
    values.pop("_target_")
    return _with_classes(target, checked(target, values, prefix=prefix, parts=parts), prefix, trusted=trusted)


def _with_classes(target: Any, settings: dict[str, Any], prefix: str, *, trusted: Trust) -> dict[str, Any]:
    """The settings, with classes in place of dotted names wherever `target` takes classes."""
    classes = dict(settings)
    for key, base in _bases(target).items():
        if isinstance(classes.get(key), str):
            classes[key] = imported(classes[key], base, setting=join(prefix, key), trusted=trusted)
    return classes


def _bases(target: Any) -> dict[str, Any]:
    """The base class of each argument of `target` that may be the dotted name of a class."""
    parameters = inspect.signature(target, eval_str=True).parameters.items()
    return {key: base for key, parameter in parameters if (base := class_in(parameter.annotation)) is not None}


def _named(name: Any, base: type, *, setting: str, trusted: Trust) -> Callable[..., Any]:
    """The class or function called `name`. Raises InputError if it is not trusted or not derived from `base`."""
    if not isinstance(name, str) or "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"Setting '{setting}' must name a class with its module, such as mine.Model.")
    top, start = name.partition(".")[0], f"The configuration names '{name}'"
    if trusted is True:
        target, start = _locate(name), f"Setting '{setting}' names '{name}'"
    elif top not in (PACKAGE, *(trusted or ())):
        raise InputError(
            f"{start}: only classes of {PACKAGE} may be built from it (trust={top} would allow those of {top}, and "
            f"runs the code of that module)."
        )
    else:
        target = _locate(name)
        if not (isinstance(target, type) and target.__module__.partition(".")[0] == top):
            raise InputError(f"{start}: only classes of {top} may be built from it.")
        if top == PACKAGE and (inspect.isabstract(target) or not issubclass(target, base)):
            raise InputError(
                f"{start}, which is not a concrete class derived from {base.__module__}.{base.__qualname__}."
            )
    if base is not object and not (isinstance(target, type) and issubclass(target, base)):
        raise InputError(f"{start}, which is not a class derived from {base.__module__}.{base.__qualname__}.")
    if inspect.isabstract(target):
        raise InputError(f"{start}, which has no {' and no '.join(sorted(target.__abstractmethods__))}.")
    return cast(Callable[..., Any], target)


def _locate(name: str) -> Any:
    """Import the class or function called `name`. Raises InputError, with a suggestion, if it does not exist."""
    module_name, _, attribute = name.rpartition(".")
    if name.partition(".")[0] != PACKAGE:
        here = str(Path.cwd())
        # The current directory is first on Python's path, as with `python -m`. It stays there, since the user's modules
        # may import others later, and worker processes inherit the path.
        if sys.path[:1] not in ([here], [""]):
            sys.path.insert(0, here)
        importlib.invalidate_caches()  # so that modules written a moment ago are found
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
        package, _, last = error.name.rpartition(".")
        directories = getattr(sys.modules.get(package), "__path__", []) if package else [str(Path.cwd())]
        similar = difflib.get_close_matches(last, [module.name for module in pkgutil.iter_modules(directories)], n=1)
        advice = f"; did you mean '{join(package, similar[0])}'?" if similar else "."
        raise InputError(f"Unknown target '{name}': there is no module '{error.name}'{advice}") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        targets = [f"{module_name}.{key}" for key, value in vars(module).items() if callable(value)]
        raise InputError(sentence([unknown(name, targets, kind="target")]))
    return target
