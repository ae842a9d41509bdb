"""Checks the shapes in signatures while the tests run (see conftest.py), with beartype."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from beartype import beartype
from beartype.door import is_bearable
from beartype.vale import Is
from jaxtyping import AbstractArray, config

ENOUGH = 50  # checks per test, some 50 µs each: searches of small models take thousands of steps that are all alike
_done = 0


def begin() -> None:
    """Start checking again, for the next test."""
    global _done
    _done = 0
    config.update("jaxtyping_disable", False)


def shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator that the import hook applies to functions. Only tensors are checked; the rest is left to mypy, so
    that tests can use stand-ins.
    """
    hints = {name: checked(hint) for name, hint in function.__annotations__.items()}
    if all(hint is Any for hint in hints.values()):
        return function
    function.__annotations__ = hints
    check = beartype(function)

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        global _done
        _done += 1
        if _done == ENOUGH:
            config.update("jaxtyping_disable", True)
        return check(*arguments, **named)

    return counted


def checked(hint: Any) -> Any:
    """The hint for beartype: a named tuple is checked by its fields, and anything without a shape becomes Any."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return hint
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _by_its_fields(kind)
    return hint if any(checked(part) is not Any for part in get_args(hint)) else Any


@cache
def _by_its_fields(record: type[Any]) -> Any:
    hints = {name: checked(hint) for name, hint in get_type_hints(record).items()}
    shaped = {name: hint for name, hint in hints.items() if hint is not Any}
    if not shaped:
        return Any
    return Annotated[tuple, Is[lambda row: all(is_bearable(getattr(row, name), shaped[name]) for name in shaped)]]
