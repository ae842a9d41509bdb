"""Turns dotted names of classes in a configuration, such as `mine.Model`, into classes, and makes objects of them.

Dotted names are imported only here, since this module checks whether the configuration may be trusted: a checkpoint
that someone else made must not be able to import, and so run, any code. Names without dots are looked up in a table by
the code that owns the table (`chosen`). The default values of settings are in configs/*.yaml.
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
from seqtool.settings import Config, check_arguments, class_in, full_name, join, names, plain, sentence, unknown
from seqtool.settings.declarations import parameters

T = TypeVar("T")

Trust = bool | Collection[str]
"""The classes that a configuration may name.

True, for the user's own configuration: any class or function.
A collection of module names, for a checkpoint's configuration: classes of this package and of these modules.
False: only classes of this package.
"""

PACKAGE = "seqtool"
NON_SETTING_ARGUMENTS = ("source_vocabulary", "target_vocabulary", "pretrained", "parts")  # arguments of models


def build(settings: Config, *, trusted: Trust, base: type = object, **parts: Any) -> Any:
    """Call the target, the class or function that `_target_` names, with the other settings and with `parts`.

    settings: the target's name and its arguments, which are checked against its signature. If the type hint of an
        argument is `str | type[Part]`, a dotted name is replaced by its class, which must be derived from Part
    trusted: the classes that the settings may name
    base: the class from which the target must be derived
    parts: further arguments, which are objects that no YAML file can hold
    """
    target = locate_target(settings, trusted=trusted, base=base)
    return target(**_arguments(target, settings, parts, trusted=trusted), **parts)


def check_settings(settings: Config, *, parts: Iterable[str]) -> None:
    """Raise InputError for settings that `build` with these parts would refuse before it calls the target."""
    _arguments(locate_target(settings, trusted=True), settings, parts, trusted=True)


def locate_target(settings: Config, *, trusted: Trust, base: type = object) -> Any:
    """Import the class or function that `_target_` names. Raises InputError if `build` would refuse to call it."""
    setting = join(full_name(settings), "_target_")
    return _import(plain(settings).get("_target_"), base, setting=setting, trusted=trusted)


def check_class_names(settings: Config, *, trusted: Trust, base: type) -> None:
    """Raise InputError if `build` would refuse one of the classes that the settings name."""
    target = locate_target(settings, trusted=trusted, base=base)
    _import_classes(target, plain(settings), full_name(settings), trusted=trusted)


def chosen(name: str | T, table: Mapping[str, T], *, kind: str) -> T:
    """The entry called `name` in the table. A class, which `import_class` has imported, is returned unchanged."""
    if not isinstance(name, str):
        return name
    if name not in table:
        raise InputError(f"Unknown {kind} '{name}'; choose from {', '.join(table)}.")
    return table[name]


def import_class(name: str, base: type[T], *, setting: str, trusted: Trust = True) -> str | type[T]:
    """Import the class with this dotted name, which must be derived from `base`. Names without dots are returned."""
    return cast(type[T], _import(name, base, setting=setting, trusted=trusted)) if "." in name else name


def user_modules(*settings: Config, others: Iterable[str] = ()) -> list[str]:
    """The top-level modules, other than seqtool, of the classes that these groups of settings and `others` name."""
    class_names: list[str] = []
    for group in settings:
        target, values = locate_target(group, trusted=True), plain(group)
        class_names += [values["_target_"], *(str(values[key]) for key in _bases(target) if key in values)]
    packages = dict.fromkeys(name.partition(".")[0] for name in (*class_names, *others) if "." in name)
    return [package for package in packages if package != PACKAGE]


def modules(trust: str | Sequence[str] | ListConfig | None) -> list[str]:
    """The modules that the setting `trust` lists. A checkpoint may name their classes."""
    result = [name.strip() for part in names(trust) for name in part.split(",")]
    for name in result:
        if not name.isidentifier():
            raise InputError(f"trust={name} is not the name of a module: for mine.parts.Model write trust=mine.")
    return result


def _arguments(target: Any, settings: Config, parts: Iterable[str], *, trusted: Trust) -> dict[str, Any]:
    """The arguments of `target` from its settings, with classes in place of dotted names."""
    values, prefix = plain(settings), full_name(settings)
    values.pop("_target_")
    return _import_classes(target, check_arguments(target, values, prefix=prefix, parts=parts), prefix, trusted=trusted)


def _import_classes(target: Any, settings: dict[str, Any], prefix: str, *, trusted: Trust) -> dict[str, Any]:
    """The settings, with classes in place of dotted names wherever `target` takes classes."""
    classes = dict(settings)
    for key, base in _bases(target).items():
        if isinstance(classes.get(key), str):
            classes[key] = import_class(classes[key], base, setting=join(prefix, key), trusted=trusted)
    return classes


def _bases(target: Any) -> dict[str, Any]:
    """The base class of each argument of `target` that may be the dotted name of a class."""
    arguments = parameters(target).items()
    return {key: base for key, parameter in arguments if (base := class_in(parameter.annotation)) is not None}


def _import(name: Any, base: type, *, setting: str, trusted: Trust) -> Callable[..., Any]:
    """Import the class or function `name`. Raises InputError if it is untrusted or not derived from `base`."""
    if not isinstance(name, str) or "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"Setting '{setting}' must name a class with its module, such as mine.Model.")
    package, subject = name.partition(".")[0], f"The configuration names '{name}'"
    base_name = f"{base.__module__}.{base.__qualname__}"
    if trusted is True:
        target, subject = _import_callable(name), f"Setting '{setting}' names '{name}'"
    elif package not in (PACKAGE, *(trusted or ())):
        raise InputError(
            f"{subject}: only classes of {PACKAGE} may be built from it (trust={package} would allow classes of "
            f"{package}, and run the code of that module)."
        )
    else:
        target = _import_callable(name)
        if not (isinstance(target, type) and target.__module__.partition(".")[0] == package):
            raise InputError(f"{subject}: only classes of {package} may be built from it.")
        if package == PACKAGE and (inspect.isabstract(target) or not issubclass(target, base)):
            raise InputError(f"{subject}, which is not a concrete class derived from {base_name}.")
    if base is not object and not (isinstance(target, type) and issubclass(target, base)):
        raise InputError(f"{subject}, which is not a class derived from {base_name}.")
    if inspect.isabstract(target):
        raise InputError(f"{subject}, which has no {' and no '.join(sorted(target.__abstractmethods__))}.")
    return cast(Callable[..., Any], target)


def _import_callable(name: str) -> Any:
    """Import the class or function called `name`. Raises InputError, with a suggestion, if it does not exist."""
    module_name, _, attribute = name.rpartition(".")
    if name.partition(".")[0] != PACKAGE:
        current_directory = str(Path.cwd())
        # Put the current directory first on Python's path, as `python -m` does. It stays there, since the user's
        # modules may import further modules later, and worker processes inherit the path.
        if sys.path[:1] not in ([current_directory], [""]):
            sys.path.insert(0, current_directory)
        importlib.invalidate_caches()  # so that recently written modules are found
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but it imports a module that does not
        package, _, last = error.name.rpartition(".")
        directories = getattr(sys.modules.get(package), "__path__", []) if package else [str(Path.cwd())]
        matches = difflib.get_close_matches(last, [module.name for module in pkgutil.iter_modules(directories)], n=1)
        advice = f"; did you mean '{join(package, matches[0])}'?" if matches else "."
        raise InputError(f"Unknown target '{name}': there is no module '{error.name}'{advice}") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        targets = [f"{module_name}.{key}" for key, value in vars(module).items() if callable(value)]
        raise InputError(sentence([unknown(name, targets, kind="target")]))
    return target
