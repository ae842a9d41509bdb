"""Check the shapes in signatures with beartype while the tests run (see conftest.py)."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from beartype import beartype
from beartype.door import is_bearable
from beartype.vale import Is
from jaxtyping import AbstractArray, config

MAX_CHECKS = 50  # per test; each takes about 50 µs, and searches of small models take thousands of equal steps
_check_count = 0


def begin() -> None:
    """Start checking again, for the next test."""
    global _check_count
    _check_count = 0
    config.update("jaxtyping_disable", False)


def shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the shapes in a function's signature: the decorator that the import hook applies to functions.

    Only tensors are checked. Other types are left to mypy, so that tests can use stand-ins.
    """
    hints = {name: checked_hint(hint) for name, hint in function.__annotations__.items()}
    if all(hint is Any for hint in hints.values()):
        return function
    function.__annotations__ = hints
    checking_function = beartype(function)

    @wraps(function)
    def counting_function(*args: Any, **kwargs: Any) -> Any:
        global _check_count
        _check_count += 1
        if _check_count == MAX_CHECKS:
            config.update("jaxtyping_disable", True)
        return checking_function(*args, **kwargs)

    return counting_function


def checked_hint(hint: Any) -> Any:
    """Return the hint for beartype: named tuples are checked field by field, and hints without shapes become Any."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return hint
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _record_hint(kind)
    return hint if any(checked_hint(part) is not Any for part in get_args(hint)) else Any


@cache
def _record_hint(record: type[Any]) -> Any:
    """Return a hint that checks the fields of a named tuple that have shapes."""
    hints = {name: checked_hint(hint) for name, hint in get_type_hints(record).items()}
    shaped = {name: hint for name, hint in hints.items() if hint is not Any}
    if not shaped:
        return Any

    def fits(row: Any) -> bool:
        return all(is_bearable(getattr(row, name), hint) for name, hint in shaped.items())

    return Annotated[tuple, Is[fits]]
