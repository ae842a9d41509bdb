"""From names in a configuration to classes, ours and the user's own, and who may name them.

A name in a table is looked up by the table's owner (`chosen`). A dotted name, such as `mine.Model`, is imported only
here, where the origin of the configuration is known, so that no part of a model can be made to import anything.
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
"""Which classes a configuration may name. True: any, and functions too, since it is the user's own configuration.
Otherwise, for one from a checkpoint: only those of this package and of these modules (False: of no module).
"""

PACKAGE = "seqtool"


def build(settings: Config, *, trusted: Trust, base: type = object, **parts: Any) -> Any:
    """Call what `_target_` names, derived from `base`, with the other settings and with `parts`, arguments that no YAML
    file can hold.

    The settings are checked against the target's signature as `typed` checks them against a schema. If a type hint is
    `str | type[Part]`, a dotted name means a class derived from Part, which is passed to the target.
    """
    target = located(settings, trusted=trusted, base=base)
    return target(**_arguments(target, settings, parts, trusted=trusted), **parts)


def check_settings(settings: Config, *, parts: Iterable[str]) -> None:
    """Raise InputError for settings that `build` would refuse before it calls the target with these parts."""
    _arguments(located(settings, trusted=True), settings, parts, trusted=True)


def located(settings: Config, *, trusted: Trust, base: type = object) -> Any:
    """What `_target_` names and `build` would call. InputError if `build` would refuse it."""
    return _named(plain(settings).get("_target_"), base, setting=join(full_name(settings), "_target_"), trusted=trusted)


def check_named(settings: Config, *, trusted: Trust, base: type) -> None:
    """Raise InputError if `build` would refuse one of the classes that the settings name."""
    target = located(settings, trusted=trusted, base=base)
    _with_classes(target, plain(settings), full_name(settings), trusted=trusted)


def chosen(name: str | T, table: Mapping[str, T], *, kind: str) -> T:
    """The entry of that name in the table; a class is returned as it is. Nothing is imported: see `imported`."""
    if not isinstance(name, str):
        return name
    if name not in table:
        raise InputError(f"Unknown {kind} '{name}'; choose from {', '.join(table)}.")
    return table[name]


def imported(name: str, base: type[T], *, setting: str, trusted: Trust = True) -> str | type[T]:
    """The class derived from `base` that a dotted name, the value of `setting`, means; any other name unchanged."""
    return cast(type[T], _named(name, base, setting=setting, trusted=trusted)) if "." in name else name


def own_modules(*settings: Config, others: Iterable[str] = ()) -> list[str]:
    """The user's own modules that these settings of the user, and these `others`, name."""
    named: list[str] = []
    for group in settings:
        target, values = located(group, trusted=True), plain(group)
        named += [values["_target_"], *(str(values[key]) for key in _bases(target) if key in values)]
    tops = dict.fromkeys(name.partition(".")[0] for name in (*named, *others) if "." in name)
    return [top for top in tops if top != PACKAGE]


def modules(trust: str | Sequence[str] | ListConfig | None) -> list[str]:
    """The setting `trust`: the modules from which a checkpoint may name classes."""
    listed = [name.strip() for part in names(trust) for name in part.split(",")]
    for name in listed:
        if not name.isidentifier():
            raise InputError(f"trust={name} is not the name of a module: of mine.parts.Model it is mine.")
    return listed


def _arguments(target: Any, settings: Config, parts: Iterable[str], *, trusted: Trust) -> dict[str, Any]:
    """The settings as `target` takes them, with classes in place of their dotted names."""
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
    """The settings of `target` that may be dotted names, each with the base of its classes."""
    parameters = inspect.signature(target, eval_str=True).parameters.items()
    return {key: base for key, parameter in parameters if (base := class_in(parameter.annotation)) is not None}


def _named(name: Any, base: type, *, setting: str, trusted: Trust) -> Callable[..., Any]:
    if not isinstance(name, str) or "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"Setting '{setting}' must name a class, module and all.")
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
            raise InputError(f"{start}, which is not what is wanted here.")
    if base is not object and not (isinstance(target, type) and issubclass(target, base)):
        raise InputError(f"{start}, which is not a class derived from {base.__module__}.{base.__qualname__}.")
    if inspect.isabstract(target):
        raise InputError(f"{start}, which has no {' and no '.join(sorted(target.__abstractmethods__))}.")
    return cast(Callable[..., Any], target)


def _locate(name: str) -> Any:
    module_name, _, attribute = name.rpartition(".")
    if name.partition(".")[0] != PACKAGE:
        _look_here_first()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; something it needs does not
        clause = f"Unknown target '{name}': there is no module '{error.name}'"
        near = _module_near(error.name)
        raise InputError(f"{clause}; did you mean '{near}'?" if near else f"{clause}.") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        targets = [f"{module_name}.{key}" for key, value in vars(module).items() if callable(value)]
        raise InputError(sentence([unknown(name, targets, kind="target")]))
    return target


def _look_here_first() -> None:
    """Put the current directory first on the path for good, as with `python -m`: the user's modules may import others
    later, and worker processes inherit the path.
    """
    here = str(Path.cwd())
    if sys.path[:1] not in ([here], [""]):
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # to find files written a moment ago


def _module_near(name: str) -> str | None:
    """The module with the name most similar to that of a missing one, in the place where that would be."""
    package, _, last = name.rpartition(".")
    places = getattr(sys.modules.get(package), "__path__", []) if package else [str(Path.cwd())]
    near = difflib.get_close_matches(last, [module.name for module in pkgutil.iter_modules(places)], n=1)
    return join(package, near[0]) if near else None
