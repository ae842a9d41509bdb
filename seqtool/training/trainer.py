"""The training loop: updates, validations and checkpoints, until a limit, patience or a signal ends it."""

import math
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from seqtool.data.batches import Batch, Epoch, Examples, Indices
from seqtool.errors import InputError, is_out_of_memory, out_of_memory
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.rounded_once import rounded_once
from seqtool.models.inputs import Source
from seqtool.runtime import distributed
from seqtool.runtime.devices import Machine
from seqtool.runtime.files import write_whole
from seqtool.runtime.precision import autocast
from seqtool.settings import resolved
from seqtool.training import checkpoint, gradient_flow
from seqtool.training.compiling import Graphs
from seqtool.training.losses import TrainingLoss
from seqtool.training.optimisation import Optimisation
from seqtool.training.prefetching import Prefetcher
from seqtool.training.recording import MetricsLog
from seqtool.training.resuming import resume_command, trust_option
from seqtool.training.saving import AVERAGED, Checkpoints, Progress, TrainingState, TrainSettings
from seqtool.training.sequences import Rewards, SequenceLoss
from seqtool.training.validation import StreamValidator, Validator, is_better

MAX_SKIPPED_IN_A_ROW = 20  # steps; fp16 may skip 16 at first, to halve its loss scale from 2¹⁶ to 1
OPTIMISER_OUT_OF_MEMORY = (
    "in the optimiser's step, which stores moments of every parameter's gradient: start a run with a lower "
    "train.batch_size, with a smaller model (model.*), or with optim=sgd, which stores none."
)


@dataclass
class Stop:
    """Whether a signal has asked the run to stop."""

    requested: bool = False


@dataclass
class Trainer:
    """One run: `train` continues from `progress` until it reaches a limit or is asked to stop."""

    model: EncoderDecoder[Any]
    examples: Examples
    optimisation: Optimisation
    validator: Validator | StreamValidator
    checkpoints: Checkpoints
    log: MetricsLog
    settings: TrainSettings
    machine: Machine
    best_by: str  # the name of the score by which validations are compared
    seed: int
    progress: Progress = field(default_factory=Progress)
    rewards: Rewards | None = None  # the rewards of sequences; None trains by cross-entropy
    compiles: bool = False  # whether losses are computed by compiled `graphs` of a model of plain parts
    graphs: Graphs | None = None

    def __post_init__(self) -> None:
        device, model, settings = self.machine.device, self.model, self.settings
        loss = TrainingLoss(model, settings.label_smoothing, settings.teacher_of(self.seed))
        if self.rewards is not None:
            loss = SequenceLoss(model, settings, self.rewards, self.seed)
        loss.to(device)
        if self.compiles:
            self.graphs = loss.graphs = Graphs(loss)
        scaler = torch.amp.GradScaler(device.type, enabled=self.machine.precision == "fp16")
        self.state = TrainingState(loss, self.optimisation.optimiser, scaler, self.examples.stream_count, device)

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint of this run as if it had never stopped. The model must have its weights already.

        Raises InputError if the checkpoint is damaged or was made by another version of seqtool.
        """
        self.progress = Progress.of(saved)
        try:
            self.state.restore(saved.training_tensors(), saved.progress)
            self.log.restart(**self.progress.meter)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, InputError) or is_out_of_memory(error):
                raise
            raise InputError(f"Checkpoint {saved.path} is damaged: its training state does not fit the run.") from error
        self.checkpoints.resume(saved, self.progress)

    def train(self, stop: Stop) -> bool:
        """Train, and return False if a signal ended it. A step whose loss or gradient is not finite changes nothing."""
        settings, progress, state, device = self.settings, self.progress, self.state, self.machine.device
        optimiser, scaler, collate = state.optimiser, state.scaler, self.examples.collate
        wrapped_loss, parameters = distributed.DistributedLoss(state.loss.train()), list(self.model.parameters())
        epoch, started, processes = self._epoch(), time.monotonic() - progress.seconds, distributed.size()
        if progress.step == 0:
            self._measure_flow()
        with self.log.bar(progress.step, expected_steps(epoch, settings)), Prefetcher(collate, device) as prefetcher:
            while not (stopped := self._is_stopped(stop, started)):
                if progress.validation_is_due(settings.validate_every):
                    self._validate(scheduled=True)
                    continue
                if progress.limits(settings):
                    break
                if self.checkpoints.is_due(progress, settings.save_minutes):
                    self._save("saved")
                batches, following, tokens, divisor = self._begin_update(epoch)
                optimiser.zero_grad(set_to_none=True)
                sums = torch.zeros(3, device=device)
                for number, indices in enumerate(batches, start=1):
                    batch = prefetcher.take(indices, [*batches[number:], *following])
                    weight = processes if distributed.rank() < len(indices) else 0  # undoes the averaging of gradients
                    with wrapped_loss.exchanging(number == len(batches)) as loss_of, self._explaining(batch, stop):
                        with autocast(device, self.machine.precision), self._rounded_once():
                            loss = loss_of(batch.to(device), state.carried if batch.continues else None)
                        scaler.scale(loss.total * weight / divisor).backward()
                    sums += loss.sums() if weight else 0
                    state.carried, loss = loss.state, None  # frees the graph before the next forward pass
                nll, reward, reward_count = distributed.total(sums)
                with out_of_memory(lambda: OPTIMISER_OUT_OF_MEMORY, device):
                    scaler.unscale_(optimiser)  # so that clipping sees the true norm
                    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
                    gradient_norm, loss_is_finite = torch.stack([norm, nll.isfinite()]).tolist()  # one wait for a GPU
                    skipped = not (math.isfinite(gradient_norm) and loss_is_finite)
                    if skipped:
                        state.carried = None  # streams start from a fresh state
                    else:
                        if settings.clip_norm is not None and gradient_norm > settings.clip_norm:
                            nn.utils.clip_grads_with_norm_(parameters, settings.clip_norm, norm)
                        scaler.step(optimiser)
                        state.loss.observe(reward / reward_count)
                        self.log.add(nll, tokens, norm, state.loss.mean_reward)
                scaler.update()  # lowers the scale after an infinite gradient
                progress.skipped += skipped
                progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if skipped else 0
                if progress.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
                    self._give_up()
                if not following:
                    progress.epoch, progress.position = progress.epoch + 1, 0
                    epoch = self._epoch()
                self.log.updated(progress, optimiser.param_groups[0]["lr"])
            if stopped:
                self._save("stopped")
            elif not progress.is_validated:
                self._validate(scheduled=False)
        if not stopped:
            self._finish()
        return not stopped

    @contextmanager
    def _explaining(self, batch: Batch, stop: Stop) -> Iterator[None]:
        """Explain errors in the forward and the backward pass of a batch within the context."""
        compiling = nullcontext() if self.graphs is None else self.graphs.compiling(stop)
        with out_of_memory(partial(self._too_large_message, batch), self.machine.device), compiling:
            yield

    def _rounded_once(self) -> AbstractContextManager[None]:
        """`rounded_once` for the model, unless gradients are exchanged: that begins with the first ones that are known,
        and all of these would come last.
        """
        return rounded_once(self.model) if distributed.size() == 1 else nullcontext()

    def _epoch(self) -> Epoch:
        return epoch_of(self.examples, self.settings, seed=self.seed, epoch=self.progress.epoch)

    def _is_stopped(self, stop: Stop, started: float) -> bool:
        """Whether any process received a signal to stop. All processes adopt the longest time trained by any."""
        requested, self.progress.seconds = distributed.maximum(stop.requested, time.monotonic() - started)
        return bool(requested)

    def _begin_update(self, epoch: Epoch) -> tuple[list[Indices], list[Indices], int, int]:
        """Advance to the next update, set its learning rate, and return its batches, the batches of the update after it
        in this epoch, the number of tokens to predict, and the divisor of the summed losses.
        """
        progress, count = self.progress, self.settings.accumulate
        batches = epoch.batches(progress.position, count)
        epochs = progress.epoch + epoch.fraction_done(progress.position)
        progress.step += 1
        self.state.loss.update = progress.step
        progress.position += len(batches)
        following = epoch.batches(progress.position, count)
        self.optimisation.prepare(progress.step - progress.skipped, epochs, progress.plateaus)
        tokens = sum(map(self.examples.count_labels, batches))
        divisor = tokens if self.settings.normalise == "tokens" else sum(map(self.examples.count_targets, batches))
        return batches, following, tokens, divisor

    def _give_up(self) -> None:
        """Raise InputError with advice on how to resume."""
        checkpoints, step, good = self.checkpoints, self.progress.step, self.progress.good
        advice = "No good checkpoint was saved before: start again."
        if good is not None:
            path = checkpoints.path(good)
            checkpoints.remove_after(path)  # a run resumes from its newest checkpoint
            trust = trust_option(resolved(checkpoints.origin["config"]), resuming=True)
            command = resume_command(checkpoints.run, trust)
            advice = f"The last good checkpoint is {path}: resume from it with {command}."
        raise InputError(
            f"The loss or its gradient was not finite in {MAX_SKIPPED_IN_A_ROW} steps in a row, up to step {step:,}: "
            f"lower optim.lr or train.clip_norm. {advice}"
        )

    def _validate(self, *, scheduled: bool) -> None:
        """Score the validation set; save a checkpoint. Only scheduled validations count for patience and plateaus."""
        progress, settings = self.progress, self.settings
        if scheduled:
            self._measure_flow()
        scores = self.validator(self.state.loss, self.model)
        better = progress.add_scores(scores, by=self.best_by)
        if scheduled:
            kept, plateau = max(settings.keep_last, settings.average_last), self.optimisation.plateau
            progress.add_scheduled(scores, by=self.best_by, plateau=plateau, kept=kept)
            self.log.restart()
        facts = {**self.validator.facts(), **(self.graphs.facts() if self.graphs is not None else {})}
        self.log.validated(scores, progress, better=better, facts=facts)
        samples = self.validator.samples(self.model, settings.show) if settings.show else []
        if settings.show and distributed.is_first():
            self.log.show(samples, progress)
        self._save("validated")
        self.log.draw()
        self.log.since = time.monotonic()  # speed does not include validation and saving

    def _save(self, reason: str) -> None:
        self.progress.meter = {"nll": float(self.log.nll), "tokens": self.log.tokens}
        if self.rewards is not None:
            self.progress.meter |= {"reward": float(self.log.reward), "rewarded": self.log.rewarded}
        self.checkpoints.save(self.state, self.progress, reason)

    def _finish(self) -> None:
        """Measure the gradient flow. With `train.average_last`, average the last scheduled checkpoints too. If the
        average scores better than the best checkpoint, it is saved as the run's best.
        """
        progress, model = self.progress, self.model
        self._measure_flow()  # even if no validation was due
        if self.settings.average_last <= 1:
            return
        if names := progress.scheduled[-self.settings.average_last :]:
            path = self.checkpoints.path(f"{checkpoint.AVERAGE}{len(names)}")
            already_saved = distributed.from_first(path.exists)
            mean_weights = checkpoint.average([checkpoint.read(self.checkpoints.path(name)) for name in names])
            trained_weights = {key: tensor.detach().clone() for key, tensor in checkpoint.weights(model).items()}
            checkpoint.fill(model, mean_weights)
            scores = self.validator(self.state.loss, model)
            checkpoint.fill(model, trained_weights)
            better = is_better(scores, progress.best, by=self.best_by)
            self.log.averaged(len(names), scores, better=better)
            if better and not already_saved:
                progress.best = {"checkpoint": path.name, "step": progress.step, **scores}
                self.checkpoints.write(path, mean_weights, {}, {**asdict(progress), "last": progress.best})
        if distributed.is_first():  # even if the average is not saved
            write_whole(self.checkpoints.run / AVERAGED, f"{progress.step}\n".encode())

    def _too_large_message(self, batch: Batch) -> str:
        """The end of the error message about a batch that does not fit into memory."""
        longest = f"target of {batch.target.shape[1] - 2:,} tokens"
        if isinstance(batch.source, Source):
            longest = f"source of {int(batch.source.lengths.max()) - 1:,} and longest {longest}"
        if batch.continues is not None:
            return (
                f"at step {self.progress.step:,}, whose batch has {len(batch.indices):,} streams of "
                f"{batch.target.shape[1] - 1:,} tokens: start a run with a lower train.batch_size or train.bptt."
            )
        run = self.checkpoints.run
        init_from = shlex.quote(f"init_from={run}")
        advice = f" ({init_from} starts from its weights)" if checkpoint.list_checkpoints(run) else ""
        shorter = ", or with a lower data.limits.maximum" if batch.source is not None else ""  # texts have no limits
        return (
            f"at step {self.progress.step:,}, whose batch has {len(batch.indices):,} sentences, the longest {longest}: "
            f"start a run with a lower train.batch_size, now {self.settings.batch_size:,}, and a higher "
            f"train.accumulate{shorter}{advice}."
        )

    def _measure_flow(self) -> None:
        if self.settings.gradient_flow and distributed.is_first():
            run, device = self.checkpoints.run, self.machine.device
            gradient_flow.measure(run, self.model, self.examples, device, self.progress.step)


def epoch_of(examples: Examples, settings: TrainSettings, *, seed: int, epoch: int) -> Epoch:
    """The batches of the epoch with this number, from 0, under these settings."""
    return examples.epoch(size=settings.batch_size, unit=settings.batch_by, pool=settings.pool, seed=seed, epoch=epoch)


def expected_steps(epoch: Epoch, settings: TrainSettings) -> int | None:
    """The maximum number of steps of the run, if every epoch is as long as this one; None without a limit on steps."""
    updates = math.ceil(len(epoch) / settings.accumulate)
    limits = [settings.steps, settings.epochs and settings.epochs * updates]
    return min((limit for limit in limits if limit is not None), default=None)


@contextmanager
def noting_signals() -> Iterator[Stop]:
    """Record signals that ask the run to stop, within the context; a second SIGINT stops it at once.

    SLURM can send SIGUSR1 before a job's time is up; SIGHUP is sent when the terminal is closed.
    """
    stop = Stop()
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # standard output and error

    def record(number: int, frame: FrameType | None) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        for terminal in terminals if number == signal.SIGHUP else ():
            if not os.isatty(terminal):  # it is closed: writing to it would fail and end the run
                null_device = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null_device, terminal)
                os.close(null_device)
        if not stop.requested and distributed.is_first():  # not by print: Python's buffers may be in use
            with suppress(OSError):
                os.write(2, b"\nStopping after this step or validation; Ctrl-C from now on stops at once.\n")
        stop.requested = True

    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
        signals.append(signal.SIGHUP)
    previous_handlers: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # only the main thread may set handlers
        previous_handlers = {number: signal.signal(number, record) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
