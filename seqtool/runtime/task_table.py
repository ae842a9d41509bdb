"""The tasks by name.

A task has the same name everywhere: models and corpora have it as `task`, checkpoints record it, and `eval` takes it as
`task=`. To add a task to the package, write a file with a `tasks.task.Task`, and add a line here. A user's task is not
in the table: its name is the dotted name of its class.
"""

from typing import NamedTuple


class TaskEntry(NamedTuple):
    """The description of a task, which does not import the task."""

    location: str  # where its `Task` is, as module:attribute
    model: str  # what messages call a model for the task
    command: str  # the command that uses such a model


class Tasks(dict[str, TaskEntry]):
    """The package's tasks; a dotted name, which is that of a user's task, has an entry without being a key."""

    def __missing__(self, name: str) -> TaskEntry:
        if "." not in name:
            raise KeyError(name)
        return TaskEntry(name, f"a model for {name}", "eval")


TASKS = Tasks(
    translation=TaskEntry("seqtool.tasks.translation:TASK", "a translation model", "translate"),
    captioning=TaskEntry("seqtool.tasks.captioning:TASK", "a captioner", "caption"),
    language_modelling=TaskEntry("seqtool.tasks.language_modelling:TASK", "a language model", "generate"),
)
