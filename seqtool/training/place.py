"""Where a run is trained: its directory, locked while this process has it, and what it goes on from."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from seqtool.errors import InputError, full_disk
from seqtool.runtime import distributed
from seqtool.training import checkpoint, resuming, runs


@dataclass
class Place:
    """A run's directory and the checkpoint that it goes on from; None each where there is none yet."""

    run: Path | None
    _stack: ExitStack  # which keeps the run locked
    found: checkpoint.Checkpoint | None = None

    def make(self, name: str | None, *, suggestion: str) -> Path:
        """The run's directory, which is made, in the first process, where there is none."""
        if self.run is None:
            self.run = distributed.from_first(lambda: runs.create(name, suggestion=suggestion, root=runs.RUNS))
            self.lock(self.run)
        return self.run

    def lock(self, run: Path) -> None:
        if distributed.is_first():
            self._stack.enter_context(runs.locked(run))


@contextmanager
def of_run(config: DictConfig) -> Iterator[Place]:
    """The place of the run that `config` names to go on with, or of a new one. If it is stopped at once, or by a full
    disk, a message says how to go on.
    """
    run = distributed.from_first(lambda: resuming.existing(config))
    with ExitStack() as stack:
        place = Place(run, stack)
        try:
            if run is not None:
                place.lock(run)
                if distributed.is_first():
                    checkpoint.remove_unfinished(run)
                place.found = distributed.from_first(partial(resuming.last, run, config))
            yield place
        except (KeyboardInterrupt, SystemExit, OSError) as error:
            if not isinstance(error, OSError):
                print(f"Stopped at once. {_advice(place.run)}", file=sys.stderr)
            elif (full := full_disk(error)) is not None:
                raise InputError(f"{full[:-1]}; make room. {_advice(place.run)}") from error
            raise


def resume_command(run: Path) -> str:
    """The command line that goes on with a run."""
    return f"seqtool train {shlex.quote(f'run={run.name}')} train.resume=true"


def _advice(run: Path | None) -> str:
    if run is None:
        return "Nothing was saved yet: give the same command again."
    saved = checkpoint.list_checkpoints(run)
    if saved:
        return f"The last checkpoint is {saved[-1]}: go on from it with {resume_command(run)}."
    return f"Nothing was saved yet: give the same command again with run={run.name} train.resume=auto."
