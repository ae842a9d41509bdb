"""The tasks, and the only place that decides which one applies. A new task is a line here and a file."""

import importlib
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from seqtool.errors import InputError
from seqtool.runtime.classes import located
from seqtool.tasks.task import Task, said

if TYPE_CHECKING:
    from seqtool.evaluation.evaluator import Evaluator
    from seqtool.training.checkpoint import Checkpoint

TASKS = {"pairs": "translation", "captions": "captioning", "text": "language_modelling"}  # by the kind of data
# By what a model reads, if a checkpoint does not record its task.
EARLIER = {"text": "translation", "images": "captioning", "nothing": "language_modelling"}


def of(config: DictConfig) -> Task:
    """The task that the data are for; unlike a model, data can tell without importing torch (`Task.check_model`)."""
    return _named(TASKS[said(located(config.data, trusted=True), "holds", TASKS, "data")])


def of_checkpoint(found: "Checkpoint") -> Task:
    """The task that a checkpoint was trained for: the one that it records, or else the one for its model's input."""
    if found.task is None:
        return _named(EARLIER[found.reads])
    if found.task not in TASKS.values():
        raise InputError(f"{found.path} is for the task '{found.task}', which this version of seqtool does not know.")
    return _named(found.task)


def evaluator(name: str) -> "type[Evaluator]":
    """The class that evaluates the models of the task with this name."""
    evaluator: type[Evaluator] = resolve_name(_named(name).evaluator)
    return evaluator


def _named(name: str) -> Task:
    task: Task = importlib.import_module(f"{__name__}.{name}").TASK  # imported only when needed, with its dependencies
    return task
