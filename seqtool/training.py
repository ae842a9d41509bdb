"""The training loop: batches, loss, mixed precision, clipping, validation, patience, checkpoints, resume."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from seqtool import checkpoint, distributed
from seqtool.data.batches import UNITS, Batch, Epoch, Source
from seqtool.devices import autocast, out_of_memory
from seqtool.errors import InputError
from seqtool.gradient_flow import GradientFlow
from seqtool.losses import TrainingLoss
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.optimisation import Schedule
from seqtool.recording import Meter, Recorder
from seqtool.validation import Validator


@dataclass
class TrainSettings:
    """The `train` settings; configs/train.yaml says what each is and holds the defaults."""

    batch_size: int
    batch_by: str
    pool: int
    accumulate: int
    normalise: str
    clip_norm: float | None
    label_smoothing: float
    epochs: int | None
    steps: int | None
    minutes: float | None
    validate_every: int | None
    patience: int | None
    best_by: str
    keep_last: int
    average_last: int
    log_every: int
    resume: bool | str
    gradient_flow: bool
    tensorboard: bool

    def check(self) -> None:
        """Raise one InputError that names every setting that cannot be used."""
        problems = [
            f"Unknown train.{name} '{getattr(self, name)}'; choose from {', '.join(choices)}."
            for name, choices in CHOICES.items()
            if str(getattr(self, name)).lower() not in choices
        ]
        problems += [
            f"train.{name} must be {'above 0' if name in POSITIVE else 'at least 0'}, not {value}."
            for name, value in vars(self).items()
            if not isinstance(value, bool | str | None) and (value < 0 or (name in POSITIVE and value == 0))
        ]
        if self.label_smoothing >= 1:
            problems.append(f"train.label_smoothing must be below 1, not {self.label_smoothing}.")
        if problems:
            raise InputError(" ".join(problems))


CHOICES = {
    "batch_by": UNITS,
    "normalise": ("tokens", "sentences"),
    "best_by": ("bleu", "cider", "loss"),
    "resume": ("true", "false", "auto"),
}
POSITIVE = {
    "batch_size",
    "pool",
    "accumulate",
    "clip_norm",
    "validate_every",
    "patience",
    "keep_last",
    "log_every",
}


HOPELESS = 20  # steps in a row that are skipped; fp16 needs some to find its loss scale


@dataclass
class Progress:
    """How far a run is: everything besides tensors that a resumed run needs.

    `position` counts the batches of this epoch that were used; `seconds` the time trained; `best` names the best
    checkpoint and its scores. Patience and schedule look at scheduled validations alone, whose checkpoints are
    `scheduled` and whose best scores are `yardstick`: `stale` of them were not better, `since_halving` since the rate
    was last halved, which it was `plateaus` times. So a stop at a limit, which validates out of turn, changes nothing.
    Steps whose loss or gradient is not finite are `skipped`, `skipped_in_a_row` of them just now; `good` is the last
    checkpoint with a finite validation loss and no skipped step right before it. `meter` is what the next record of
    the training loss begins with.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    stale: int = 0
    since_halving: int = 0
    plateaus: int = 0
    yardstick: dict[str, Any] = field(default_factory=dict)
    scheduled: list[str] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    skipped: int = 0
    skipped_in_a_row: int = 0
    good: str | None = None
    meter: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, found: checkpoint.Checkpoint) -> "Progress":
        """What a checkpoint says; InputError where another version of seqtool made it otherwise."""
        known = {one.name for one in fields(cls)} | {"optimiser", "scaler"}
        if not {"step", "epoch", "position", "optimiser", "scaler"} <= found.progress.keys() <= known:
            raise _of_another_version(found)
        return cls(**{name: value for name, value in found.progress.items() if name not in ("optimiser", "scaler")})

    def at_limit(self, settings: TrainSettings) -> bool:
        """Whether there is nothing left to train."""
        return (
            (settings.steps is not None and self.step >= settings.steps)
            or (settings.epochs is not None and self.epoch >= settings.epochs)
            or (settings.minutes is not None and self.seconds >= 60 * settings.minutes)
            or (settings.patience is not None and self.stale >= settings.patience)
        )


class Trainer:
    """One run: `train()` goes from where `progress` is to the first limit, or until it is asked to stop."""

    def __init__(
        self,
        model: EncoderDecoder[Any],
        *,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        plateau_patience: int | None,
        train_split: Any,
        validator: Validator,
        settings: TrainSettings,
        precision: str,
        device: torch.device,
        seed: int,
        save: Callable[[Path, dict[str, Tensor], dict[str, Tensor], dict[str, Any]], None],
        recorder: Recorder | None,
        run: Path,
    ) -> None:
        self.model = model
        self.loss = TrainingLoss(model, settings.label_smoothing).to(device)
        self.parallel = distributed.DataParallel(self.loss)
        self.optimiser = optimiser
        self.schedule = schedule
        self.plateau_patience = plateau_patience
        self.data = train_split
        self.validator = validator
        self.settings = settings
        self.precision = precision
        self.device = device
        self.seed = seed
        self.save = save
        self.recorder = recorder
        self.run = run
        self.progress = Progress()
        self.meter = Meter()
        self.flow = GradientFlow(run) if settings.gradient_flow else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.rates = [group["lr"] for group in optimiser.param_groups]

    def train(self, stopped: Sequence[int]) -> bool:
        """Train; returns false where a signal stopped it before its limit: `stopped` is not empty any more."""
        settings, progress = self.settings, self.progress
        started = time.monotonic() - progress.seconds
        batches = self._epoch()
        updates = math.ceil(len(batches) / settings.accumulate)
        limits = [settings.steps, settings.epochs and settings.epochs * updates]
        total = min((limit for limit in limits if limit is not None), default=None)
        bar = tqdm(
            total=total,
            initial=progress.step,
            unit="step",
            desc=self.run.name,
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 30,  # seconds; a log file gets a line now and then
        )
        with bar:
            while not (stop := self._stops(stopped, started)):
                if self._validation_is_due():
                    self._validate(scheduled=True)
                    continue
                if progress.at_limit(settings):
                    break
                self._update(batches)
                bar.update()
                if batches.has_ended(progress.position):
                    progress.epoch, progress.position = progress.epoch + 1, 0
                    batches = self._epoch()
                if progress.step % settings.log_every == 0:
                    rate = self.optimiser.param_groups[0]["lr"]
                    record = self.meter.record(progress.step, progress.epoch, progress.seconds, rate)
                    record["skipped_steps"] = progress.skipped
                    if self.recorder is not None:
                        self.recorder.write(record)
                    bar.set_postfix_str(_postfix(record, progress, settings), refresh=False)
            if stop:
                self._checkpoint()
            elif progress.last.get("step") != progress.step:
                self._validate(scheduled=False)
        if not stop and settings.average_last > 1:
            self._average()
        return not stop

    def _stops(self, stopped: Sequence[int], started: float) -> bool:
        """Whether a signal stops the run; all processes agree on that, and on how long they have trained."""
        stop, self.progress.seconds = distributed.highest(bool(stopped), time.monotonic() - started)
        return bool(stop)

    def resume(self, found: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint of this run, whose weights the model has, exactly as if it had never stopped."""
        progress, tensors = Progress.of(found), found.training_tensors()
        if "loss.baseline" not in tensors:
            raise _of_another_version(found)
        try:
            self._restore(tensors, found.progress["optimiser"], found.progress["scaler"])
            self.meter.restart(**progress.meter)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise InputError(f"Checkpoint {found.path} is damaged: its training state does not fit the run.") from error
        self.progress = progress
        if distributed.is_first():
            checkpoint.remove_all_but_good(self.run, found.path)
        distributed.wait_for_all()
        there = {path.name for path in checkpoint.list_checkpoints(self.run)}
        if progress.best.get("checkpoint") not in there:
            progress.best = {}  # it went when a better one came, which is damaged
        if progress.good not in there:
            progress.good = None
        self._prune(found.path.name)

    def _restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], scaler: Mapping[str, Any]) -> None:
        optimiser: dict[str, Any] = {"state": {}, "param_groups": self.optimiser.state_dict()["param_groups"]}
        for name, value in [*tensors.items(), *scalars.items()]:
            if name.startswith("optimiser."):
                _, index, key = name.split(".", 2)
                optimiser["state"].setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict(optimiser)
        for parameter, state in self.optimiser.state.items():
            for value in state.values():
                if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                    raise ValueError("a moment of another shape than its parameter")
        if scaler:
            self.scaler.load_state_dict(dict(scaler))
        self.loss.baseline.copy_(tensors["loss.baseline"])
        random = {name: tensors.get(_of_process(name, distributed.rank())) for name in ("random.cpu", "random.cuda")}
        if (state := random["random.cpu"]) is not None:
            torch.set_rng_state(state)
        if (state := random["random.cuda"]) is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)

    def _update(self, batches: Epoch) -> None:
        """One optimiser step over the next batches, skipped where the loss or its gradient is not finite."""
        settings, progress = self.settings, self.progress
        group = batches.batches(progress.position, settings.accumulate)
        sentences = sum(len(indices) for indices in group)
        tokens = sentences + sum(int(self.data.lengths(indices)[1].sum()) for indices in group)
        divisor = tokens if settings.normalise == "tokens" else sentences
        epoch = progress.epoch + batches.share(progress.position)
        progress.step += 1
        progress.position += len(group)
        for parameters, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            parameters["lr"] = rate * self.schedule(progress.step, epoch, progress.plateaus)
            for parameter in parameters["params"]:
                parameter.requires_grad_(progress.step > parameters["from_step"])
        self.loss.train()
        self.optimiser.zero_grad(set_to_none=True)
        self.parallel.prepare()
        sums = torch.zeros(3, device=self.device)  # −log p; rewards and how many there are
        for indices in group:
            sums += self._backward(indices, divisor, last=indices is group[-1])
        nll, reward, rewards = distributed.total(sums)
        self.scaler.unscale_(self.optimiser)  # so that the norm is clipped in the gradient's own scale
        norm = nn.utils.get_total_norm([one.grad for one in self.model.parameters() if one.grad is not None])
        length, finite = torch.stack([norm, nll.isfinite()]).tolist()  # waits for a GPU once
        if math.isfinite(length) and finite:
            if settings.clip_norm is not None and length > settings.clip_norm:
                nn.utils.clip_grads_with_norm_(self.model.parameters(), settings.clip_norm, norm)
            self.scaler.step(self.optimiser)
            self.loss.observe(reward / rewards)
            self.meter.add(nll, tokens, norm)
            progress.skipped_in_a_row = 0
        else:
            progress.skipped += 1
            progress.skipped_in_a_row += 1
        self.scaler.update()  # which lowers its scale after an infinite gradient
        if progress.skipped_in_a_row == HOPELESS:
            self._give_up()

    def _backward(self, indices: Any, divisor: int, *, last: bool) -> Tensor:
        """Add the gradient of this process's share of a batch; returns its −log p, and rewards and their number."""
        mine = distributed.share(indices)
        batch = self.data.collate(mine if len(mine) else indices[:1])  # no process is left out of the exchange
        weight = distributed.size() if len(mine) else 0  # the exchange is a mean
        with self.parallel.exchanging(last=last), out_of_memory(self.device, partial(self._too_large, batch)):
            with autocast(self.device, self.precision):
                loss = self.parallel(batch.to(self.device))
            self.scaler.scale(loss.total * weight / divisor).backward()
        if not len(mine):
            return torch.zeros(3, device=self.device)
        reward = torch.full_like(loss.nll, math.nan) if loss.reward is None else loss.reward
        finite = reward.isfinite()
        return torch.stack([loss.nll, reward.where(finite, torch.zeros_like(reward)), finite.to(reward.dtype)])

    def _too_large(self, batch: Batch) -> str:
        """The end of the sentence about a batch that does not fit into memory."""
        longest = f"target of {batch.target.shape[1] - 2:,} tokens"
        if isinstance(batch.source, Source):
            longest = f"source of {int(batch.source.lengths.max()) - 1:,} and longest {longest}"
        begin = f" (init_from={self.run} begins with what was learnt)" if checkpoint.list_checkpoints(self.run) else ""
        return (
            f"at step {self.progress.step:,}, whose batch has {len(batch.indices):,} sentences, the longest {longest}: "
            f"start a run with a lower train.batch_size, now {self.settings.batch_size:,}, and a higher "
            f"train.accumulate, or with a lower data.limits.maximum{begin}."
        )

    def _give_up(self) -> None:
        """Leave the last good checkpoint as the newest, so that a run that goes on goes on from it."""
        progress, good = self.progress, "Nothing good was saved before: start again."
        if progress.good is not None:
            path = self.run / "checkpoints" / progress.good
            if distributed.is_first():
                checkpoint.remove_all_but_good(self.run, path)
            good = f"The last good checkpoint is {path}: go on from it with run={self.run.name} train.resume=true."
        raise InputError(
            f"The loss or its gradient was not finite in {HOPELESS} steps in a row, up to step {progress.step:,}: "
            f"lower optim.lr or train.clip_norm. {good}"
        )

    def _validate(self, *, scheduled: bool) -> None:
        """Score the validation set and keep a checkpoint."""
        progress = self.progress
        if scheduled and self.flow is not None and distributed.is_first():
            self.flow.measure(self.model, self._probe(), progress.step)
        result = self.validator(self.loss, self.model)
        better = result.better_than(progress.best, by=self.settings.best_by)
        if better:
            progress.best = {"checkpoint": _name(progress.step), "step": progress.step, **result.record()}
        if scheduled:
            higher = result.better_than(progress.yardstick, by=self.settings.best_by)
            if higher:
                progress.yardstick = result.record()
            progress.stale = 0 if higher else progress.stale + 1
            progress.since_halving = 0 if higher else progress.since_halving + 1
            if self.plateau_patience is not None and progress.since_halving >= self.plateau_patience:
                progress.plateaus, progress.since_halving = progress.plateaus + 1, 0
            kept = max(self.settings.keep_last, self.settings.average_last)
            progress.scheduled = [*progress.scheduled, _name(progress.step)][-kept:]
            self.meter.restart()
        if math.isfinite(result.loss) and not progress.skipped_in_a_row:
            progress.good = _name(progress.step)
        progress.last = {"step": progress.step, **result.record()}
        if self.recorder is not None:
            place = {"step": progress.step, "epoch": progress.epoch, "seconds": round(progress.seconds, 1)}
            self.recorder.write({**place, **{f"valid_{name}": value for name, value in result.record().items()}})
        tqdm.write(f"{_place(progress)}: {result.text()}{', the best so far' if better else ''}")
        self._checkpoint()
        if self.recorder is not None:
            self.recorder.draw()
        self.meter.since = time.monotonic()

    def _checkpoint(self) -> None:
        validated = self.progress.last.get("step") == self.progress.step
        path = self.run / "checkpoints" / (_name(self.progress.step) + ("" if validated else "-stopped"))
        if path.exists():  # stopped right after it was saved
            return
        self.progress.meter = self.meter.state()
        random = {"random.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["random.cuda"] = torch.cuda.get_rng_state(self.device)
        tensors: dict[str, Tensor] = {"loss.baseline": self.loss.baseline}
        for process, states in enumerate(distributed.gathered(random)):
            tensors |= {_of_process(name, process): state for name, state in states.items()}
        scalars: dict[str, Any] = {}
        for index, state in self.optimiser.state_dict()["state"].items():
            for key, value in state.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"optimiser.{index}.{key}"] = value
        progress = {**asdict(self.progress), "optimiser": scalars, "scaler": self.scaler.state_dict()}
        self.save(path, checkpoint.weights(self.model), tensors, progress)
        self._prune(path.name)

    def _prune(self, newest: str) -> None:
        """Remove the checkpoints that are kept no longer."""
        kept = {newest, self.progress.best.get("checkpoint"), self.progress.good, *self.progress.scheduled}
        for old in checkpoint.list_checkpoints(self.run) if distributed.is_first() else ():
            if old.name not in kept:
                checkpoint.remove(old)

    def _average(self) -> None:
        """Average the last scheduled checkpoints; where that scores better it is kept beside them as the run's best."""
        progress = self.progress
        found = [self.run / "checkpoints" / name for name in progress.scheduled[-self.settings.average_last :]]
        if not found:
            return
        path = self.run / "checkpoints" / f"{checkpoint.AVERAGE}{len(found)}"
        saved = path.exists()
        mean = checkpoint.average([checkpoint.read(path) for path in found])
        trained = {name: tensor.detach().clone() for name, tensor in checkpoint.weights(self.model).items()}
        checkpoint.fill(self.model, mean)
        result = self.validator(self.loss, self.model)
        checkpoint.fill(self.model, trained)
        better = result.better_than(progress.best, by=self.settings.best_by)
        tqdm.write(f"Average of the last {len(found)} checkpoints: {result.text()}{', the best' if better else ''}")
        if better and not saved:
            progress.best = {"checkpoint": path.name, "step": progress.step, **result.record()}
            self.save(path, mean, {}, {**asdict(progress), "last": progress.best})

    def _epoch(self) -> Epoch:
        settings = self.settings
        return Epoch(
            self.data,
            size=settings.batch_size,
            unit=settings.batch_by,
            seed=self.seed,
            epoch=self.progress.epoch,
            pool=settings.pool,
        )

    def _probe(self) -> Batch:
        """Up to 64 rather long training pairs of one source length: what gradient flow is measured on every time."""
        lengths, _ = self.data.lengths(np.arange(len(self.data)))
        length = np.sort(lengths)[int(0.9 * (len(lengths) - 1))]
        return self.data.collate(np.flatnonzero(lengths == length)[:64]).to(self.device)  # type: ignore[no-any-return]

    def _validation_is_due(self) -> bool:
        """At the end of an epoch or every so many steps, once; also after a stop that came in between."""
        progress, every = self.progress, self.settings.validate_every
        due = progress.position == 0 if every is None else progress.step % every == 0
        return due and progress.step > 0 and progress.last.get("step") != progress.step


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted in the list, and the step or validation finished; a second SIGINT stops at once."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not received and distributed.is_first():  # written past Python's buffers, which this may have interrupted
            with suppress(OSError):
                os.write(2, b"\nStopping after this step or validation; Ctrl-C from now on stops at once.\n")
        received.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are not ours to handle
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _of_another_version(found: checkpoint.Checkpoint) -> InputError:
    return InputError(f"{found.path} was made by another version of seqtool ({found.versions}).")


def _of_process(name: str, process: int) -> str:
    """What a process's random state is called in a checkpoint."""
    return name if process == 0 else f"{name}.{process}"


def _name(step: int) -> str:
    return f"step-{step:07d}"


def _place(progress: Progress) -> str:
    return f"epoch {progress.epoch}, step {progress.step:,}, {progress.seconds / 60:.1f} min"


def _postfix(record: dict[str, Any], progress: Progress, settings: TrainSettings) -> str:
    text = (
        f"loss {record['loss']:.3f} nats/token, ppl {record['perplexity']:.2f}, "
        f"{record['tokens_per_second']:,.0f} tok/s, lr {record['learning_rate']:.2g}, "
        f"‖g‖ {record['gradient_norm']:.2f}"
    )
    if progress.skipped:
        text += f", {progress.skipped:,} skipped"
    if settings.minutes is not None:
        text += f", limit in {max(0.0, settings.minutes - progress.seconds / 60):.1f} min"
    return text
