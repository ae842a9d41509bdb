"""The tasks, and the only place that decides which one applies. `runtime.task_table` lists them."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from seqtool.data.corpora.corpus import Corpus
from seqtool.errors import InputError
from seqtool.runtime.task_table import TASKS
from seqtool.settings.classes import located
from seqtool.tasks.task import Task, task_name

if TYPE_CHECKING:
    from seqtool.evaluation.evaluation import Evaluator
    from seqtool.training.checkpoint import Checkpoint


def named(name: str) -> Task:
    """The task of this name."""
    task: Task = resolve_name(TASKS[name].where)  # imported only when needed
    return task


def of(config: DictConfig) -> Task:
    """The task that the data are for; unlike a model, data can tell without importing torch (`Task.check_model`)."""
    return named(task_name(located(config.data, trusted=True, base=Corpus), "data"))


def of_checkpoint(checkpoint: "Checkpoint") -> Task:
    """The task that a checkpoint was trained for. InputError if this version does not know it."""
    if checkpoint.task not in TASKS:
        task, path = checkpoint.task, checkpoint.path
        raise InputError(f"{path} is for the task '{task}', which this version of seqtool does not know.")
    return named(checkpoint.task)


def evaluator(name: str) -> "type[Evaluator]":
    """The class that evaluates the models of the task with this name."""
    evaluator: type[Evaluator] = resolve_name(named(name).evaluator)
    return evaluator
