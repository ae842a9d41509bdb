"""A run's checkpoints while it trains: saved, gone on from, and removed when they are kept no longer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqtool.runtime import distributed
from seqtool.training import checkpoint
from seqtool.training.progress import Progress, of_another_version
from seqtool.training.tensors import weights
from seqtool.training.updates import BASELINE, Updates

CPU, CUDA = "random.cpu", "random.cuda"  # the states of torch's random generators


@dataclass
class Checkpoints:
    """The checkpoints of one run. `origin` is what each of them says of the run (arguments of `checkpoint.save`)."""

    run: Path
    updates: Updates
    origin: Mapping[str, Any]
    _saved: float = 0.0  # the time trained at the last one, in seconds

    def is_due(self, progress: Progress, minutes: float | None) -> bool:
        """So long after the last one, on which all processes agree; but not where steps are being skipped."""
        due = minutes is not None and progress.seconds - self._saved >= 60 * minutes
        return due and not progress.skipped_in_a_row

    def save(self, progress: Progress, why: str) -> None:
        """Save where the run is; where that was not validated, under a name that says why."""
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
        """Keep such a mean, which is the best of the run."""
        self._write(self.path(name), mean, {}, {**asdict(progress), "last": progress.best})

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Have the updates go on as if they had not stopped at a checkpoint of this run, whose weights the model has.
        InputError on one of another version, and one of many other errors where its state does not fit.
        """
        tensors = found.training_tensors()
        if BASELINE not in tensors:
            raise of_another_version(found)
        self.updates.restore(tensors, found.progress)
        device, process = self.updates.machine.device, distributed.rank()  # a new process keeps the numbers of its seed
        if (state := tensors.get(_of_process(CPU, process))) is not None:
            torch.set_rng_state(state)
        if (state := tensors.get(_of_process(CUDA, process))) is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state, device)

    def go_on(self, found: checkpoint.Checkpoint, progress: Progress) -> None:
        """Remove what is of no use now that the run goes on from here, and forget in its progress what is not there."""
        self._saved = progress.seconds
        self._remove_after(found.path)
        there = distributed.from_first(lambda: {path.name for path in checkpoint.list_checkpoints(self.run)})
        if progress.best.get("checkpoint") not in there:
            progress.best = {}  # it went when a better one came, which is damaged
        if progress.good not in there:
            progress.good = None
        self._prune(progress, found.path.name)

    def back_to_good(self, progress: Progress) -> Path | None:
        """Leave the last good checkpoint, if there is one, as the newest, from which a run goes on."""
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
        """Remove damaged checkpoints that are newer, and averages of what will no longer be the last ones."""
        if distributed.is_first():
            paths = checkpoint.list_checkpoints(self.run)
            for path in (*paths[paths.index(good) + 1 :], *checkpoint.list_averages(self.run)):
                checkpoint.remove(path)


def _of_process(name: str, process: int) -> str:
    """What a process's random state is called in a checkpoint."""
    return name if process == 0 else f"{name}.{process}"
