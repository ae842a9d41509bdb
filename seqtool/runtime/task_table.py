"""The tasks by name. The name is the one key for a task everywhere: models and corpora have it as `task`, checkpoints
record it, and `eval` takes it as `task=`. A further task is a file with a `tasks.task.Task`, and a line here.
"""

from typing import NamedTuple


class TaskEntry(NamedTuple):
    """What can be said of a task without importing it.

    where: its `Task`, as module:attribute. model: what one of its models is called. command: the command that uses one.
    """

    where: str
    model: str
    command: str


TASKS = {
    "translation": TaskEntry("seqtool.tasks.translation:TASK", "a translation model", "translate"),
    "captioning": TaskEntry("seqtool.tasks.captioning:TASK", "a captioner", "caption"),
    "language_modelling": TaskEntry("seqtool.tasks.language_modelling:TASK", "a language model", "generate"),
}
