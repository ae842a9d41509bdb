"""The tasks, and the functions that choose one. `runtime.task_table` lists the tasks."""

from seqtool.tasks.task import Task, evaluator, task_by_name, task_of_checkpoint, task_of_data

__all__ = ["Task", "evaluator", "task_by_name", "task_of_checkpoint", "task_of_data"]
