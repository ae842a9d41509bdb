"""`seqtool check NAME mine.Class`: an exercise that asks for code, and an answer to it beside ours."""

import inspect
import sys

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
    if not words:
        print("\n".join(map(_call, EXERCISES)))
    elif words[0] not in EXERCISES:
        raise InputError(sentence([unknown(words[0], EXERCISES, kind="exercise")]))
    elif len(words) == 1:
        asked = EXERCISES[words[0]]
        print(f"{_call(words[0])}: {asked.equation}")
        print(f"  arguments: {described(asked.arguments)}\n  returns: {described(asked.results)}")
    elif len(words) > 2:
        raise InputError("check needs one exercise and one answer: seqtool check NAME mine.Class.")
    elif (difference := compare(words[0], _answer(*words))) is not None:
        mistake = difference.mistake or "no known mistake gives these numbers"
        print(f"Difference: {difference.what}.\nLikely mistake: {mistake}.", flush=True)
        raise InputError(f"{words[1]} is not right yet.") from difference.error
    else:
        print(f"Right: {words[1]} gives what {words[0]} asks for.")


def _call(name: str) -> str:
    return f"{name}({', '.join(EXERCISES[name].arguments)})"


def _answer(exercise: str, place: str) -> Answer:
    """The function, or the object of the class, that answers an exercise; InputError if it cannot be called so."""
    module, _, attribute = place.rpartition(".")
    if not module:
        raise InputError(f"'{place}' must name the module and what is in it, as mine.Class does.")
    try:
        target = located({"_target_": place}, trusted=True)
        made = target() if isinstance(target, type) else target
    except InputError as error:
        value = vars(sys.modules.get(module, sys)).get(attribute)
        other = InputError(f"{place} is not a function or class, but {type(value).__name__}.")
        raise (error if value is None or callable(value) else other) from error.__cause__
    except Exception as error:  # somebody's code may raise anything
        raise InputError(f"{place} cannot be imported, or made without arguments: {raised(error).what}.") from error
    if isinstance(made, nn.Module) and (own := [name for name, _ in made.named_parameters()]):
        raise InputError(f"{place} has parameters of its own ({', '.join(own)}): they are arguments of the call.")
    function: Answer = made.forward if isinstance(made, nn.Module) else made
    try:
        inspect.signature(function).bind(**EXERCISES[exercise].arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{place} cannot be called as {_call(exercise)}, with these names: {error}.") from error
    return function
