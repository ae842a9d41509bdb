"""`seqtool train`: start a new run or resume one."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from omegaconf import DictConfig, OmegaConf

from seqtool import tasks
from seqtool.cli.changed_run import add_new_run_advice
from seqtool.data.cache import REFUSED, Cache
from seqtool.data.directories import versions
from seqtool.errors import counted, out_of_memory
from seqtool.metrics.scores import parse_sum
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, Parts
from seqtool.runtime import distributed
from seqtool.runtime.devices import MODEL_TOO_LARGE, Machine, choose_device, keep_memory, set_threads
from seqtool.runtime.files import write_whole
from seqtool.runtime.log import log
from seqtool.runtime.precision import check_precision, onednn
from seqtool.settings import declarations, plain, resolved, typed
from seqtool.tasks.task import Task
from seqtool.training import checkpoint, gradient_flow, moved_data, resuming, sequences
from seqtool.training.compiling import check_compiling
from seqtool.training.optimisation import check_optimisation, check_warmup, make_optimisation
from seqtool.training.recording import MetricsLog, summary
from seqtool.training.saving import Checkpoints, Progress, TrainSettings
from seqtool.training.trainer import Stop, Trainer, epoch_of, expected_steps, noting_signals
from seqtool.training.validation import ValidationSettings


@dataclass(frozen=True)
class Job:
    """A training job."""

    config: DictConfig  # the whole configuration
    run: declarations.Run  # the settings outside groups
    train: TrainSettings  # the settings of the group `train`
    task: Task  # translation, captioning or language modelling

    @classmethod
    def from_config(cls, config: DictConfig) -> "Job":
        """Make the job that a configuration describes. Raises InputError for invalid settings."""
        top = {str(name): value for name, value in config.items() if name not in resuming.GROUPS}
        job = cls(config, typed(declarations.Run, top), typed(TrainSettings, config.train), tasks.task_of_data(config))
        declarations.check_values(job.run)
        declarations.check_values(job.train, "train.")  # the task checks `best_by`
        check_optimisation(config.optim, config.schedule)
        return job


def train(config: DictConfig) -> Path | Literal[False]:
    """Train a new run, or resume one. Returns its directory, or False if a signal stopped it early."""
    resuming.check_groups(config, "Setting")
    declarations.check_values(typed(TrainSettings, config.train), "train.")
    with distributed.group(), resuming.open_run(config) as handle, add_new_run_advice(handle):
        run, last = handle.run, handle.checkpoint
        if run is None or last is None:
            return _train(Job.from_config(config), handle)
        job = Job.from_config(resuming.resumed_config(config, last))
        if not distributed.from_first(partial(resuming.is_finished, last, job.train)):
            return _train(job, handle)
        limits = "train.epochs, steps, minutes or patience"
        print(f"Run {run} is finished: to continue, raise the limit that ended it ({limits}).")
        best = checkpoint.find(run, purpose="record").progress["best"]
        print("\n".join(summary(run, job.config, Progress.of(last), best, job.task.usage)))
        return run


def _train(job: Job, handle: resuming.RunHandle) -> Path | Literal[False]:
    """Prepare the data, make the objects that the training loop needs, and train."""
    config, last = job.config, handle.checkpoint
    validation = typed(ValidationSettings, config.validation)
    validation.check()
    job.train.check()
    if job.run.compile:
        check_compiling(job.train)
    machine = Machine(choose_device(job.run.device), job.run.precision)
    check_precision(machine.device, machine.precision, training=True)
    set_threads(job.run.threads)
    keep_memory()
    # whether training starts from initial weights (except for the pretrained weights of an image encoder)
    fresh = last is None and job.run.init_from is None
    job.task.check(config, pretrained=fresh)  # before the data are prepared, as far as possible
    if job.train.reward:
        parse_sum(job.train.reward, job.task.name, setting="train.reward")
    if last is None:
        resuming.check_first_weights(config)
        check_warmup(config.schedule, job.train.steps or 0)
        if fresh and job.train.objective == "sequence":
            log.warning("train.objective=sequence without init_from= rewards a model that has learnt nothing yet.")
        prepare = partial(job.task.prepare, config, needs=("train", "valid"))
    else:
        prepare = partial(job.task.prepare_again, config, last)
    cache = distributed.first_on_each_machine(prepare)
    if count := sum(split.get("refused", 0) for split in cache.summary["splits"].values()):
        log.warning("%s cannot be used: %s has the reasons.", counted(count, "image"), cache.directory / REFUSED)
    digests = moved_data.digests(cache)
    if last is not None:
        resuming.check_data(last, digests, config)
    parts = PLAIN if job.run.compile else parts_for(machine.device)
    model = _model(job, cache, handle, parts, fresh=fresh)
    if job.train.gradient_flow:
        gradient_flow.check(model)
    if job.train.objective == "sequence":
        sequences.check(model, job.train)
    with out_of_memory(lambda: MODEL_TOO_LARGE, machine.device):
        model.to(machine.device)
    examples = job.task.examples(cache, job.train)
    optimisation = make_optimisation(config.optim, config.schedule, job.task.parameter_groups(model, config))
    if validation.tokenize is None:
        validation.tokenize, reason = job.task.tokenizer(cache)
        if reason:
            log.info("Validation: %s", reason)
        config.validation.tokenize = validation.tokenize  # so that the run keeps it when it is resumed
    if last is None and config.schedule.get("warmup"):
        steps = expected_steps(epoch_of(examples, job.train, seed=job.run.seed, epoch=0), job.train)
        check_warmup(config.schedule, steps or 0)
    validator = job.task.validator(cache, validation, job.train, machine)
    is_rewarded = job.train.objective == "sequence"
    rewards = job.task.rewards(cache, job.train, str(validation.tokenize)) if is_rewarded else None
    with noting_signals() as stop:
        name = f"{cache.name}-{str(config.model._target_).rpartition('.')[2].lower()}"
        run = handle.make(job.run.run, suggestion=name)
        step = 0 if last is None else Progress.of(last).step
        tokens, unknown = cache.tokens()
        groups = optimisation.optimiser.param_groups
        parameter_count = sum(parameter.numel() for group in groups for parameter in group["params"])
        # The verdict on a run uses the numbers of parameters (trained from the start or later) and of training tokens.
        sizes = {"parameters": parameter_count, "train_tokens": tokens, "train_unknown": unknown}
        metrics = MetricsLog(run, job.train, sizes, step=step)
        if distributed.is_first():
            write_whole(run / "config.yaml", OmegaConf.to_yaml(resolved(config)).encode())
        software = versions(torch=torch.__version__)
        origin = {"task": job.task.name, "config": plain(config), "versions": software, "data": digests}
        checkpoints = Checkpoints(run, origin, cache.vocabulary_files)
        best_by = job.train.best_by or job.task.scores[0]
        trainer = Trainer(
            *(model, examples, optimisation, validator, checkpoints, metrics, job.train, machine, best_by),
            seed=job.run.seed,
            rewards=rewards,
            compiles=job.run.compile,
        )
        if last is not None:
            trainer.resume(last)
        return _run(trainer, stop, job, cache)


def _run(trainer: Trainer, stop: Stop, job: Job, cache: Cache) -> Path | Literal[False]:
    """Log the size of the model and of the data, train, and print how training ended."""
    run, progress, device = trainer.checkpoints.run, trainer.progress, trainer.machine.device
    with onednn() as uses_onednn:
        library = " with oneDNN" if uses_onednn and device.type == "cpu" else ""
        parameter_count = sum(parameter.numel() for parameter in trainer.model.parameters())
        devices, examples = f"{distributed.describe(device)}{library}", job.task.format_size(trainer.examples)
        log.info("%s: %s parameters on %s, %s", run, f"{parameter_count:,}", devices, examples)
        finished = trainer.train(stop)
        if trainer.graphs is not None:
            log.info("%s", trainer.graphs)
        trainer.log.draw(last=True)
    if finished:
        print("\n".join([*summary(run, job.config, progress, progress.best, job.task.usage), *cache.unknown_warning()]))
    else:
        command = resuming.resume_command(run, resuming.trust_option(job.config, resuming=True))
        print(f"Stopped at step {progress.step:,}. Resume with: {command}")
    return finished and run


def _model(job: Job, cache: Cache, handle: resuming.RunHandle, parts: Parts, *, fresh: bool) -> Any:
    """Make the model with the weights that training starts from, and seed the random numbers of training."""
    config, last = job.config, handle.checkpoint
    torch.manual_seed(job.run.seed)
    model = distributed.first_on_each_machine(lambda: job.task.make_model(config, cache, pretrained=fresh, parts=parts))
    job.task.check_lengths(model, cache)
    if fresh:
        resuming.initialise_fresh(model, config, cache)
    else:
        origin = last or resuming.open_initial_checkpoint(model, config)
        description = f"{handle.run} was started with" if last else f"init_from={origin.path} was trained with"
        resuming.load_weights(model, origin, cache, description)
        job.task.check_weights(model, config, cache, origin.path)
    distributed.seed(job.run.seed)
    return model
