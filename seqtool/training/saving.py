"""A run's checkpoints while it trains: saving, resuming, and removing those no longer needed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqtool.runtime import distributed
from seqtool.runtime.files import write_whole
from seqtool.training import checkpoint
from seqtool.training.progress import Progress, of_another_version
from seqtool.training.tensors import weights
from seqtool.training.updates import BASELINE, Updates

AVERAGED = "averaged.txt"  # in the run's directory: the step at which it was averaged
CPU, CUDA = "random.cpu", "random.cuda"  # the states of torch's random generators


@dataclass
class Checkpoints:
    """The checkpoints of one run. `origin`: what each records about the run (arguments of `checkpoint.save`)."""

    run: Path
    updates: Updates
    origin: Mapping[str, Any]
    _saved: float = 0.0  # the time trained when the last one was saved, in seconds

    def is_due(self, progress: Progress, minutes: float | None) -> bool:
        """Whether `minutes` have passed since the last one (the same in all processes), and steps are not skipped."""
        due = minutes is not None and progress.seconds - self._saved >= 60 * minutes
        return due and not progress.skipped_in_a_row

    def save(self, progress: Progress, why: str) -> None:
        """Save the run; if this step was not validated, under a name that says why it was saved."""
        self._saved = progress.seconds
        name = checkpoint.step_name(progress.step)
        path = self.path(name if progress.is_validated else f"{name}-{why}")
        if distributed.from_first(path.exists):  # stopped right after it was saved
            return
        device = self.updates.machine.device
        random = {CPU: torch.get_rng_state()}
        if device.type == "cuda":
            random[CUDA] = torch.cuda.get_rng_state(device)
        tensors, scalars = self.updates.state()
        for process, states in enumerate(distributed.gathered(random)):
            tensors |= {_of_process(name, process): state for name, state in states.items()}
        self._write(path, weights(self.updates.model), tensors, {**asdict(progress), **scalars})
        self._prune(progress, path.name)

    def save_average(self, name: str, mean: Mapping[str, Tensor], progress: Progress) -> None:
        """Keep a mean of weights that is the best of the run."""
        self._write(self.path(name), mean, {}, {**asdict(progress), "last": progress.best})

    def note_averaged(self, progress: Progress) -> None:
        """Note in the run that the last checkpoints have been averaged, even if their average was not kept."""
        if distributed.is_first():
            write_whole(self.run / AVERAGED, f"{progress.step}\n".encode())

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Restore the updates from a checkpoint of this run, whose weights the model already has, as if training had
        not stopped. InputError for one of another version, and various other errors if its state does not fit.
        """
        tensors = found.training_tensors()
        if BASELINE not in tensors:
            raise of_another_version(found)
        self.updates.restore(tensors, found.progress)
        device, process = self.updates.machine.device, distributed.rank()  # a new process keeps its seeded state
        if (state := tensors.get(_of_process(CPU, process))) is not None:
            torch.set_rng_state(state)
        if (state := tensors.get(_of_process(CUDA, process))) is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state, device)

    def go_on(self, found: checkpoint.Checkpoint, progress: Progress) -> None:
        """Remove checkpoints of no use to the resumed run, and forget those in its progress that no longer exist."""
        self._saved = progress.seconds
        self._remove_after(found.path)
        there = distributed.from_first(lambda: {path.name for path in checkpoint.list_checkpoints(self.run)})
        if progress.best.get("checkpoint") not in there:
            progress.best = {}  # it was removed for a better one, which is damaged
        if progress.good not in there:
            progress.good = None
        self._prune(progress, found.path.name)

    def back_to_good(self, progress: Progress) -> Path | None:
        """Make the last good checkpoint, if there is one, the newest, from which the run resumes."""
        if progress.good is None:
            return None
        path = self.path(progress.good)
        self._remove_after(path)
        return path

    def path(self, name: str) -> Path:
        return self.run / "checkpoints" / name

    def _write(
        self, path: Path, weights: Mapping[str, Tensor], training: Mapping[str, Tensor], progress: Mapping[str, Any]
    ) -> None:
        if distributed.is_first():
            checkpoint.save(path, model=weights, training=training, progress=progress, **self.origin)
        distributed.wait_for_all()

    def _prune(self, progress: Progress, newest: str) -> None:
        kept = {newest, progress.best.get("checkpoint"), progress.good, *progress.scheduled}
        for old in checkpoint.list_checkpoints(self.run) if distributed.is_first() else ():
            if old.name not in kept:
                checkpoint.remove(old)

    def _remove_after(self, good: Path) -> None:
        """Remove checkpoints newer than `good`, and averages, which are no longer those of the last checkpoints."""
        if distributed.is_first():
            paths = checkpoint.list_checkpoints(self.run)
            for path in (*paths[paths.index(good) + 1 :], *checkpoint.list_averages(self.run)):
                checkpoint.remove(path)


def _of_process(name: str, process: int) -> str:
    """The name of a process's random state in a checkpoint."""
    return name if process == 0 else f"{name}.{process}"
