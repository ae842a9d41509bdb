"""The training loop: updates, validations and checkpoints, until a limit, patience or a signal ends it."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

from seqtool.data.batches import Batch, Epochs
from seqtool.errors import InputError, is_out_of_memory
from seqtool.models.inputs import Source
from seqtool.runtime import distributed
from seqtool.training import checkpoint, gradient_flow, tensors
from seqtool.training.checkpoint_record import AVERAGE
from seqtool.training.progress import Progress
from seqtool.training.recording import Reporter
from seqtool.training.saving import Checkpoints
from seqtool.training.signals import Stop
from seqtool.training.train_settings import TrainSettings
from seqtool.training.updates import Updates
from seqtool.training.validation import Validating, is_better

HOPELESS = 20  # skipped steps in a row before giving up; fp16 needs some to find its loss scale


@dataclass
class Trainer:
    """One run: `train()` goes on from `progress` to the first limit, or until it is asked to stop.

    `best_by` is the score that decides which validation is the best.
    """

    updates: Updates
    validator: Validating
    checkpoints: Checkpoints
    reporter: Reporter
    settings: TrainSettings
    best_by: str
    seed: int
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.model = self.updates.model
        self.run = self.checkpoints.run

    def resume(self, found: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint of this run, whose weights the model has, exactly as if it had never stopped."""
        self.progress = Progress.of(found)
        try:
            self.checkpoints.restore(found)
            self.reporter.meter.restart(**self.progress.meter)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise InputError(f"Checkpoint {found.path} is damaged: its training state does not fit the run.") from error
        self.checkpoints.go_on(found, self.progress)

    def train(self, stop: Stop) -> bool:
        """Train; returns false if a signal stopped it before its limit."""
        settings, progress = self.settings, self.progress
        started = time.monotonic() - progress.seconds
        batches = self._epoch()
        if not progress.step:
            self._measure_flow()
        with self.reporter.bar(progress.step, expected_steps(batches, settings)), self.updates.ahead:
            while not (stopped := self._stops(stop, started)):
                if progress.validation_is_due(settings.validate_every):
                    self._validate(scheduled=True)
                    continue
                if progress.limits(settings):
                    break
                if self.checkpoints.is_due(progress, settings.save_minutes):
                    self._save("saved")
                self._update(batches)
                if batches.has_ended(progress.position):
                    progress.epoch, progress.position = progress.epoch + 1, 0
                    batches = self._epoch()
                self.reporter.updated(progress, self.updates.optimisation.rate)
            if stopped:
                self._save("stopped")
            elif not progress.is_validated:
                self._validate(scheduled=False)
        if not stopped:
            self._measure_flow()  # even if no validation was due
            if settings.average_last > 1:
                self._average()
                self.checkpoints.note_averaged(progress)
        return not stopped

    def _epoch(self) -> Epochs:
        return epoch_of(self.updates.split, self.settings, seed=self.seed, epoch=self.progress.epoch)

    def _stops(self, stop: Stop, started: float) -> bool:
        """Whether a signal stops the run; makes all processes agree on that and on the time trained."""
        asked, self.progress.seconds = distributed.highest(stop.asked, time.monotonic() - started)
        return bool(asked)

    def _update(self, batches: Epochs) -> None:
        """One step over the next batches, skipped if the loss or its gradient is not finite."""
        progress, optimisation = self.progress, self.updates.optimisation
        group = batches.batches(progress.position, self.settings.accumulate)
        epoch = progress.epoch + batches.share(progress.position)
        progress.step += 1
        progress.position += len(group)
        optimisation.prepare(progress.step - progress.skipped, epoch, progress.plateaus)
        ended = batches.has_ended(progress.position)
        following = [] if ended else batches.batches(progress.position, self.settings.accumulate)
        done = self.updates.update(group, self._too_large, following)
        progress.count(skipped=done is None)
        if done is not None:
            self.reporter.meter.add(done.nll, done.tokens, done.norm)
        if progress.skipped_in_a_row == HOPELESS:
            self._give_up()

    def _validate(self, *, scheduled: bool) -> None:
        """Score the validation set and keep a checkpoint."""
        progress, settings = self.progress, self.settings
        if scheduled:
            self._measure_flow()
        scores = self.validator(self.updates.loss, self.model)
        better = progress.take(scores, by=self.best_by)
        if scheduled:
            kept, plateau = max(settings.keep_last, settings.average_last), self.updates.optimisation.plateau
            progress.take_scheduled(scores, by=self.best_by, plateau=plateau, kept=kept)
            self.reporter.meter.restart()
        self.reporter.validated(scores, progress, better=better, outputs=self.validator.conspicuous())
        if settings.show and distributed.is_first():
            self.reporter.show(self.validator.samples(self.model, settings.show), progress)
        self._save("validated")
        self.reporter.go_on()

    def _save(self, why: str) -> None:
        self.progress.meter = self.reporter.meter.state()
        self.checkpoints.save(self.progress, why)

    def _average(self) -> None:
        """Average the last scheduled checkpoints; an average that scores better is kept as the run's best."""
        progress = self.progress
        names = progress.scheduled[-self.settings.average_last :]
        if not names:
            return
        name = f"{AVERAGE}{len(names)}"
        saved = distributed.from_first(self.checkpoints.path(name).exists)
        mean = checkpoint.average([checkpoint.read(self.checkpoints.path(one)) for one in names])
        trained = {key: tensor.detach().clone() for key, tensor in tensors.weights(self.model).items()}
        tensors.fill(self.model, mean)
        scores = self.validator(self.updates.loss, self.model)
        tensors.fill(self.model, trained)
        better = is_better(scores, progress.best, by=self.best_by)
        self.reporter.averaged(len(names), scores, better=better)
        if better and not saved:
            progress.best = {"checkpoint": name, "step": progress.step, **scores}
            self.checkpoints.save_average(name, mean, progress)

    def _give_up(self) -> None:
        """Raise InputError, which says how to resume."""
        path, good = self.checkpoints.back_to_good(self.progress), "Nothing good was saved before: start again."
        if path is not None:
            good = f"The last good checkpoint is {path}: go on from it with run={self.run.name} train.resume=true."
        raise InputError(
            f"The loss or its gradient was not finite in {HOPELESS} steps in a row, up to step "
            f"{self.progress.step:,}: lower optim.lr or train.clip_norm. {good}"
        )

    def _too_large(self, batch: Batch) -> str:
        """The end of the sentence about a batch that does not fit into memory."""
        longest = f"target of {batch.target.shape[1] - 2:,} tokens"
        if isinstance(batch.source, Source):
            longest = f"source of {int(batch.source.lengths.max()) - 1:,} and longest {longest}"
        if batch.continues is not None:
            return (
                f"at step {self.progress.step:,}, whose batch has {len(batch.indices):,} streams of "
                f"{batch.target.shape[1] - 1:,} tokens: start a run with a lower train.batch_size or train.bptt."
            )
        begin = f" (init_from={self.run} begins with what was learnt)" if checkpoint.list_checkpoints(self.run) else ""
        return (
            f"at step {self.progress.step:,}, whose batch has {len(batch.indices):,} sentences, the longest {longest}: "
            f"start a run with a lower train.batch_size, now {self.settings.batch_size:,}, and a higher "
            f"train.accumulate, or with a lower data.limits.maximum{begin}."
        )

    def _measure_flow(self) -> None:
        if self.settings.gradient_flow and distributed.is_first():
            split, device = self.updates.split, self.updates.machine.device
            gradient_flow.measure(self.run, self.model, split, device, self.progress.step)


def epoch_of(split: Any, settings: TrainSettings, *, seed: int, epoch: int) -> Epochs:
    """The batches of an epoch."""
    size, unit, pool = settings.batch_size, settings.batch_by, settings.pool
    batches: Epochs = split.epoch(size=size, unit=unit, pool=pool, seed=seed, epoch=epoch)
    return batches


def expected_steps(batches: Epochs, settings: TrainSettings) -> int | None:
    """The most steps of the whole run, whose epochs have as many batches; None if no limit counts steps."""
    updates = math.ceil(len(batches) / settings.accumulate)
    limits = [settings.steps, settings.epochs and settings.epochs * updates]
    return min((limit for limit in limits if limit is not None), default=None)
