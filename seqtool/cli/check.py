"""`seqtool check NAME mine.Class`: an exercise that asks for code, and an answer to it beside ours."""

import inspect
import sys
from typing import Any

from omegaconf import DictConfig
from torch import nn

from seqtool.cli.exercises.comparison import compare, raised
from seqtool.cli.exercises.exercise import EXERCISES, Answer, described
from seqtool.errors import InputError
from seqtool.settings import declarations, names, sentence, typed, unknown
from seqtool.settings.classes import located


def check(config: DictConfig) -> None:
    """Print the exercises, or what one asks for, or that an answer is right; InputError if it is not."""
    words = names(typed(declarations.Check, config).answer)
    if words and words[0] not in EXERCISES:
        raise InputError(sentence([unknown(words[0], EXERCISES, kind="exercise")]))
    if not words:
        print("\n".join(_call(name) for name in EXERCISES))
    elif len(words) == 1:
        exercise = EXERCISES[words[0]]
        print(f"{_call(words[0])}: {exercise.equation}")
        print(f"  arguments: {described(exercise.arguments)}\n  returns: {described(exercise.results)}")
    elif len(words) > 2:
        raise InputError("check needs one exercise and one answer: seqtool check NAME mine.Class.")
    else:
        name, place = words
        difference = compare(name, _answer(name, place))
        if difference is None:
            gradients = " and gradients" if EXERCISES[name].differentiable else ""
            print(f"Right: the results{gradients} of {place} are those of {name}, with and without padding.")
            return
        mistake = difference.mistake or "none of those that are known gives these numbers"
        print(f"Difference: {difference.what}.\nLikely mistake: {mistake}.", flush=True)
        raise InputError(f"{place} is not right yet.") from difference.error


def _call(name: str) -> str:
    return f"{name}({', '.join(EXERCISES[name].arguments)})"


def _answer(exercise: str, place: str) -> Answer:
    """The function, or the object of the class, that answers an exercise; InputError if it cannot be called so."""
    module, _, attribute = place.rpartition(".")
    if not module:
        raise InputError(f"'{place}' must name the module and what is in it, as mine.Class does.")
    try:
        target = located({"_target_": place}, trusted=True)
    except InputError as error:
        value = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        if value is None:
            raise
        raise InputError(f"{place} is not a function or class, but {type(value).__name__}.") from error
    except Exception as error:  # somebody's code may raise anything
        raise InputError(f"{place} cannot be imported: {raised(error).what}.") from error
    if isinstance(target, type):
        target = _made(target, place)
    function = target.forward if isinstance(target, nn.Module) else target
    if not callable(function):
        raise InputError(f"{place} has no method __call__ or forward.")
    try:
        inspect.signature(function).bind(**EXERCISES[exercise].arguments)
    except TypeError as error:
        own = inspect.signature(function)
        raise InputError(f"{place} takes {own}, but must take these arguments by name: {_call(exercise)}.") from error
    return function


def _made(target: type, place: str) -> Any:
    """An object of the class, which is made without arguments and has no parameters."""
    try:
        made = target()
    except Exception as error:  # as above
        reason = raised(error).what
        raise InputError(f"{place}() must need no arguments, as parameters are those of the call: {reason}.") from error
    own = [name for name, _ in made.named_parameters()] if isinstance(made, nn.Module) else []
    if own:
        raise InputError(f"{place} has parameters of its own ({', '.join(own)}): they are arguments of the call.")
    return made
