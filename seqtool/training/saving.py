"""A run's checkpoints while it trains: saved, and removed when they are no longer needed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from seqtool.runtime import distributed
from seqtool.runtime.files import write_whole
from seqtool.training import checkpoint
from seqtool.training.progress import Progress
from seqtool.training.tensors import weights
from seqtool.training.training_state import TrainingState

AVERAGED = "averaged.txt"  # in the run's directory: the step at which it was averaged


@dataclass
class Checkpoints:
    """The checkpoints of one run, in its directory.

    origin: what each records about the run besides its progress. vocabularies: files to copy.
    """

    run: Path
    origin: Mapping[str, Any]
    vocabularies: list[Path]
    _saved: float = 0.0  # the time trained when the last one was saved, in seconds

    def is_due(self, progress: Progress, minutes: float | None) -> bool:
        """Whether `minutes` have passed since the last one (the same in all processes), and steps are not skipped."""
        due = minutes is not None and progress.seconds - self._saved >= 60 * minutes
        return due and not progress.skipped_in_a_row

    def save(self, state: TrainingState, progress: Progress, why: str) -> None:
        """Save the run; if this step was not validated, under a name that says why it was saved."""
        self._saved = progress.seconds
        name = checkpoint.step_name(progress.step)
        path = self.path(name if progress.is_validated else f"{name}-{why}")
        if distributed.from_first(path.exists):  # stopped right after it was saved
            return
        tensors, scalars = state.to_save()
        self._write(path, weights(state.loss.model), tensors, {**asdict(progress), **scalars})
        self._prune(progress, path.name)

    def save_average(self, name: str, mean: Mapping[str, Tensor], progress: Progress) -> None:
        """Keep a mean of weights that is the best of the run."""
        self._write(self.path(name), mean, {}, {**asdict(progress), "last": progress.best})

    def note_averaged(self, progress: Progress) -> None:
        """Note in the run that the last checkpoints have been averaged, even if their average was not kept."""
        if distributed.is_first():
            write_whole(self.run / AVERAGED, f"{progress.step}\n".encode())

    def resume(self, resumed: checkpoint.Checkpoint, progress: Progress) -> None:
        """Remove checkpoints of no use to the resumed run, and forget those in its progress that no longer exist."""
        self._saved = progress.seconds
        self._remove_after(resumed.path)
        existing = distributed.from_first(lambda: {path.name for path in checkpoint.list_checkpoints(self.run)})
        if progress.best.get("checkpoint") not in existing:
            progress.best = {}  # it was removed for a better one, which is damaged
        if progress.good not in existing:
            progress.good = None
        self._prune(progress, resumed.path.name)

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
        self, path: Path, model: Mapping[str, Tensor], training: Mapping[str, Tensor], progress: Mapping[str, Any]
    ) -> None:
        if distributed.is_first():
            record = {**self.origin, "progress": progress}
            checkpoint.save(path, model=model, training=training, record=record, vocabularies=self.vocabularies)
        distributed.wait_for_all()

    def _prune(self, progress: Progress, newest: str) -> None:
        kept = {newest, progress.best.get("checkpoint"), progress.good, *progress.scheduled}
        for path in checkpoint.list_checkpoints(self.run) if distributed.is_first() else ():
            if path.name not in kept:
                checkpoint.remove(path)

    def _remove_after(self, good: Path) -> None:
        """Remove checkpoints newer than `good`, and averages, which are no longer those of the last checkpoints."""
        if distributed.is_first():
            paths = checkpoint.list_checkpoints(self.run)
            for path in (*paths[paths.index(good) + 1 :], *checkpoint.list_averages(self.run)):
                checkpoint.remove(path)
