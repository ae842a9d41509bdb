"""`seqtool train`: starts a new run or resumes one."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from seqtool import tasks
from seqtool.cli.new_run import advised
from seqtool.data.cache import Cache
from seqtool.data.directories import versions
from seqtool.errors import out_of_memory
from seqtool.models.fast.quicken import quicken
from seqtool.runtime import distributed
from seqtool.runtime.devices import MODEL_TOO_LARGE, Machine, choose_device, keep_memory, set_threads
from seqtool.runtime.files import write_whole
from seqtool.runtime.precision import check_precision, onednn
from seqtool.settings import declarations, plain, resolved, typed
from seqtool.tasks.task import Task
from seqtool.training import checkpoint, first_weights, gradient_flow, moved_data, resuming, signals
from seqtool.training.optimisation import check_optimisation, check_warmup, make_optimisation
from seqtool.training.progress import Progress
from seqtool.training.recording import Recorder, Reporter, closing
from seqtool.training.saving import Checkpoints
from seqtool.training.train_settings import TrainSettings
from seqtool.training.trainer import Trainer, epoch_of, expected_steps
from seqtool.training.updates import Updates
from seqtool.training.validation import ValidationSettings

log = logging.getLogger("seqtool")


@dataclass(frozen=True)
class Job:
    """A training job: the whole configuration, the parts of it that are used here, and the task."""

    config: DictConfig
    run: declarations.Run
    train: TrainSettings
    task: Task

    @classmethod
    def of(cls, config: DictConfig) -> "Job":
        """Raises InputError for settings that cannot be used."""
        top = {str(name): value for name, value in config.items() if name not in resuming.GROUPS}
        job = cls(config, typed(declarations.Run, top), typed(TrainSettings, config.train), tasks.of(config))
        declarations.check_values(job.run)
        job.train.check()
        check_optimisation(config.optim, config.schedule)
        return job


def train(config: DictConfig) -> bool:
    """Train a new run, or resume one. False if a signal stopped it early."""
    resuming.check_groups(config, "Setting")
    typed(TrainSettings, config.train).check()
    with distributed.group(), resuming.place_of(config) as where, advised(where):
        run, found = where.run, where.found
        if run is None or found is None:
            return _train(Job.of(config), where)
        job = Job.of(resuming.resumed(config, run))
        if not distributed.from_first(partial(resuming.is_finished, found, job.train)):
            return _train(job, where)
        print(f"Run {run} is finished: to go on, raise what ended it (train.epochs, steps, minutes or patience).")
        best = checkpoint.find(run).progress["best"]
        print("\n".join(closing(run, job.config, Progress.of(found), best, job.task.use)))
        return True


def _train(job: Job, where: resuming.Place) -> bool:
    validation = typed(ValidationSettings, job.config.validation)
    validation.check()
    job.train.check_packages()
    machine = Machine(choose_device(job.run.device), job.run.precision)
    check_precision(machine.device, machine.precision)
    set_threads(job.run.threads)
    keep_memory()
    cache, data = _data(job, where.found)
    model = _model(job, cache, where)
    if job.train.gradient_flow:
        gradient_flow.check(model)
    with out_of_memory(lambda: MODEL_TOO_LARGE, machine.device):
        quicken(model.to(machine.device), machine.device)
    updates = Updates(
        model,
        job.task.examples(cache, job.train),
        make_optimisation(job.config.optim, job.config.schedule, job.task.parameter_groups(model, job.config)),
        settings=job.train,
        machine=machine,
    )
    if validation.tokenize is None:
        validation.tokenize, said = job.task.tokenizer(cache)
        if said:
            log.info("Validation: %s", said)
        job.config.validation.tokenize = validation.tokenize  # a run keeps it
    if where.found is None and job.config.schedule.get("warmup"):
        steps = expected_steps(epoch_of(updates.split, job.train, seed=job.run.seed, epoch=0), job.train)
        check_warmup(job.config.schedule, steps or 0)
    validator = job.task.validator(cache, validation, job.train, machine)
    with signals.noted() as stop:
        run = where.make(
            job.run.run, suggestion=f"{cache.name}-{str(job.config.model._target_).rpartition('.')[2].lower()}"
        )
        origin = {
            "task": job.task.name,
            "config": plain(job.config),
            "versions": versions(torch=torch.__version__),
            "data": data,
            "vocabularies": cache.vocabulary_files,
        }
        checkpoints = Checkpoints(run, updates, origin)
        reporter = Reporter(run, _recorder(run, job, where.found), job.train, _sizes(updates, cache))
        best_by = job.train.best_by or job.task.scores[0]
        trainer = Trainer(
            updates, validator, checkpoints, reporter, settings=job.train, best_by=best_by, seed=job.run.seed
        )
        if where.found is not None:
            trainer.resume(where.found)
        finished = _run(trainer, stop, task=job.task)
        if finished:
            progress = trainer.progress
            print("\n".join([*closing(run, job.config, progress, progress.best, job.task.use), *cache.unknown()]))
        else:
            command = f"{resuming.resume_command(run)}{resuming.trusting(job.config, resuming=True)}"
            print(f"Stopped at step {trainer.progress.step:,}. Go on with: {command}")
    return finished


def _data(job: Job, found: checkpoint.Checkpoint | None) -> tuple[Cache, dict[str, Any]]:
    """The cache, and its record for checkpoints. All settings that can be checked without it are checked first."""
    job.task.check(job.config, pretrained=_is_new(job, found))
    if found is None:
        first_weights.check_files(job.config)
        check_warmup(job.config.schedule, job.train.steps or 0)
    new = partial(job.task.prepare, needs=("train", "valid"))
    prepare = new if found is None else partial(job.task.prepare_again, found=found)
    cache = distributed.first_here(partial(prepare, job.config))
    data = moved_data.digests(cache)
    if found is not None:
        resuming.check_data(found, data, job.config)
    return cache, data


def _is_new(job: Job, found: checkpoint.Checkpoint | None) -> bool:
    """Whether training starts without weights other than an image encoder's pretrained ones."""
    return found is None and job.run.init_from is None


def _model(job: Job, cache: Cache, where: resuming.Place) -> Any:
    """The model with its first weights; seeds the random numbers of training."""
    config, found = job.config, where.found
    torch.manual_seed(job.run.seed)
    pretrained = _is_new(job, found)
    model = distributed.first_here(lambda: job.task.make_model(config, cache, pretrained=pretrained))
    job.task.check_lengths(model, cache)
    if pretrained:
        first_weights.fresh(model, config, cache)
    else:
        origin = found or first_weights.other_run(model, config)
        what = f"{where.run} was started with" if found else f"init_from={origin.path} was trained with"
        first_weights.load(model, origin, cache, what)
        job.task.check_weights(model, config, cache, origin.path)
    distributed.seed(job.run.seed)
    return model


def _recorder(run: Path, job: Job, found: checkpoint.Checkpoint | None) -> Recorder | None:
    """The recorder in the first process, which also saves the run's settings; None in the others."""
    if not distributed.is_first():
        return None
    recorder = Recorder(run, step=0 if found is None else found.progress["step"], tensorboard=job.train.tensorboard)
    write_whole(run / "config.yaml", OmegaConf.to_yaml(resolved(job.config)).encode())
    return recorder


def _sizes(updates: Updates, cache: Cache) -> dict[str, float]:
    """What the verdict on a run weighs: the parameters that are trained, at first or later, and the tokens."""
    groups = updates.optimisation.optimiser.param_groups
    tokens, unknown = cache.tokens()
    parameters = sum(parameter.numel() for group in groups for parameter in group["params"])
    return {"parameters": parameters, "train_tokens": tokens, "train_unknown": unknown}


def _run(trainer: Trainer, stop: signals.Stop, *, task: Task) -> bool:
    """Log what is trained, and train it."""
    device, size = trainer.updates.machine.device, sum(one.numel() for one in trainer.model.parameters())
    with onednn() as chosen:
        on = f"{distributed.described(device)}{' with oneDNN' if chosen and device.type == 'cpu' else ''}"
        log.info("%s: %s parameters on %s, %s", trainer.run, f"{size:,}", on, task.counted(trainer.updates.split))
        return trainer.train(stop)
