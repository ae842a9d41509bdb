"""The tasks, and the only place that decides which one applies. `runtime.task_table` lists them."""

from seqtool.tasks.task import Task, evaluator, named, of, of_checkpoint

__all__ = ["Task", "evaluator", "named", "of", "of_checkpoint"]
