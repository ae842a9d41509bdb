"""The tasks, and the functions that choose one. `runtime.task_table` lists the tasks."""

from seqtool.tasks.task import Task, evaluator, named, of, of_checkpoint

__all__ = ["Task", "evaluator", "named", "of", "of_checkpoint"]
