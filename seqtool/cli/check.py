"""`seqtool check NAME mine.Class`: compares an answer to an exercise with the textbook solution."""

from omegaconf import DictConfig
from torch import nn

from seqtool.cli.exercises import EXERCISES, Answer, compare, described, raised
from seqtool.errors import InputError
from seqtool.settings import declarations, names, sentence, typed, unknown
from seqtool.settings.classes import locate_target


def check(config: DictConfig) -> None:
    """Print all exercises, the description of one, or that an answer is right. Raises InputError if it is wrong."""
    arguments = names(typed(declarations.Check, config).answer)
    if not arguments:
        print("\n".join(f"{name}({', '.join(exercise.arguments)})" for name, exercise in EXERCISES.items()))
        return
    name, *answers = arguments
    if name not in EXERCISES:
        raise InputError(sentence([unknown(name, EXERCISES, kind="exercise")]))
    exercise = EXERCISES[name]
    if not answers:
        print(f"{name}({', '.join(exercise.arguments)}): {exercise.equation}")
        print(f"  arguments: {described(exercise.arguments)}\n  returns: {described(exercise.results)}")
    elif len(answers) > 1:
        raise InputError("check needs one exercise and one answer: seqtool check NAME mine.Class.")
    elif (difference := compare(name, _load(answers[0]))) is not None:
        mistake = difference.mistake or "no known mistake gives these numbers"
        print(f"Difference: {difference.what}.\nLikely mistake: {mistake}.", flush=True)
        raise InputError(f"{answers[0]} is not right yet.") from difference.error
    else:
        print(f"Right: {answers[0]} gives what {name} asks for.")


def _load(name: str) -> Answer:
    """Import the function or class called `name`. A class is called without arguments to make the answer."""
    if "." not in name:
        raise InputError(f"'{name}' must name a function or class with its module, such as mine.Class.")
    try:
        target = locate_target({"_target_": name}, trusted=True)
        answer: Answer = target() if isinstance(target, type) else target
    except InputError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"{name} cannot be imported, or made without arguments: {raised(error).what}.") from error
    if not isinstance(answer, nn.Module):
        return answer
    if parameters := [parameter for parameter, _ in answer.named_parameters()]:
        raise InputError(f"{name} has its own parameters ({', '.join(parameters)}): make them arguments of the call.")
    return answer.forward
