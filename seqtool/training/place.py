"""Where a run is trained: its directory, locked while this process has it, and what it goes on from."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from seqtool.errors import InputError, full_disk
from seqtool.runtime import distributed
from seqtool.training import checkpoint, resuming, runs


class Place:
    """A run's directory and the checkpoint that it goes on from; None each where there is none yet."""

    def __init__(self, run: Path | None, stack: ExitStack) -> None:
        self.run = run
        self.found: checkpoint.Checkpoint | None = None
        self._stack = stack

    def make(self, name: str | None, *, suggestion: str) -> Path:
        """The run's directory, which is made, in the first process, where there is none."""
        if self.run is None:
            self.run = distributed.from_first(lambda: runs.create(name, suggestion=suggestion, root=runs.RUNS))
            self._lock(self.run)
        return self.run

    def go_on(self, config: DictConfig) -> None:
        """Find what a run that is there goes on from."""
        if self.run is None:
            return
        self._lock(self.run)
        if distributed.is_first():
            checkpoint.remove_unfinished(self.run)
        self.found = distributed.from_first(partial(resuming.last, self.run, config))

    def _lock(self, run: Path) -> None:
        if distributed.is_first():
            self._stack.enter_context(runs.locked(run))


@contextmanager
def of_run(config: DictConfig) -> Iterator[Place]:
    """The place of the run that `config` names to go on with, or of a new one. Where that is stopped at once, or by a
    full disk, it is said how to go on.
    """
    run = distributed.from_first(lambda: resuming.existing(config))
    with ExitStack() as stack:
        place = Place(run, stack)
        try:
            place.go_on(config)
            yield place
        except (KeyboardInterrupt, SystemExit, OSError) as error:
            full = full_disk(error) if isinstance(error, OSError) else None
            if isinstance(error, OSError) and full is None:
                raise
            if full is not None:
                raise InputError(f"{full[:-1]}; make room. {_advice(place.run)}") from error
            print(f"Stopped at once. {_advice(place.run)}", file=sys.stderr)
            raise


def command(run: Path) -> str:
    """What goes on with a run."""
    return f"seqtool train {shlex.quote(f'run={run.name}')} train.resume=true"


def _advice(run: Path | None) -> str:
    if run is None:
        return "Nothing was saved yet: give the same command again."
    saved = checkpoint.list_checkpoints(run)
    if saved:
        return f"The last checkpoint is {saved[-1]}: go on from it with {command(run)}."
    return f"Nothing was saved yet: give the same command again with run={run.name} train.resume=auto."
