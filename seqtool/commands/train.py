"""`seqtool train`: a new run, or going on with one."""

import logging
import platform
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

import seqtool
from seqtool import checkpoint, distributed, resuming, runs
from seqtool.assembly import (
    check_backbone,
    check_vocabularies,
    first_weights,
    make_model,
    make_validator,
    parameter_groups,
)
from seqtool.commands.prepare import prepared
from seqtool.config import describes_images, plain, resolved, typed
from seqtool.data.text_files import write_whole
from seqtool.devices import check_precision, choose_device, keep_memory, onednn, set_threads
from seqtool.errors import InputError
from seqtool.optimisation import make_optimiser, make_schedule
from seqtool.recording import Recorder, check_tensorboard
from seqtool.training import Trainer, TrainSettings, noted_signals
from seqtool.validation import Validation, ValidationSettings

log = logging.getLogger("seqtool")


@dataclass
class RunSettings:
    """What stands at the top of configs/train.yaml."""

    run: str | None
    init_from: str | None
    initialisation: str
    seed: int
    device: str
    threads: int | None
    precision: str


def train(config: DictConfig) -> None:
    """Train a new run, or go on with one."""
    resuming.check_groups(config, "Setting")
    typed(TrainSettings, config.train).check()
    with distributed.group():
        run, found = distributed.from_first(lambda: resuming.existing(config)), None
        begun = [] if run is None else [run]
        with ExitStack() as stack, resuming.how_to_go_on(begun):
            if run is not None:
                if distributed.is_first():
                    stack.enter_context(runs.locked(run))
                    checkpoint.remove_unfinished(run)
                found = distributed.from_first(partial(resuming.last, run, config))
            _train(config, run, found, stack, begun)


def _train(
    config: DictConfig, run: Path | None, found: checkpoint.Checkpoint | None, stack: ExitStack, begun: list[Path]
) -> None:
    """Train in `run`, which is locked, or in a new one, which is `begun`; on from the checkpoint `found`, if any."""
    if run is not None and found is not None:
        config = resuming.resumed(config, run)
    top = typed(RunSettings, {str(name): value for name, value in config.items() if name not in resuming.GROUPS})
    if top.seed < 0:
        raise InputError(f"seed must be at least 0, not {top.seed}.")
    settings = typed(TrainSettings, config.train)
    settings.check()
    if run is not None and found is not None and settings.resume == "auto" and resuming.is_finished(found, settings):
        print(f"Run {run} is finished: to go on, raise what ended it (train.epochs, steps, minutes or patience).")
        _report(run, checkpoint.find(run).progress["best"], config)
        return
    validation = typed(ValidationSettings, config.validation)
    validation.check()
    device = choose_device(top.device)
    check_precision(device, top.precision)
    set_threads(top.threads)
    keep_memory()
    optimiser_settings, schedule_settings = plain(config.optim), plain(config.schedule)
    schedule = make_schedule(schedule_settings)
    _check_task(config, settings)
    cache = prepared(config)
    inputs = cache.summary["inputs"]
    data = {**inputs["text"], **{name: inputs[name] for name in ("images",) if name in inputs}}
    if found is not None:
        resuming.check_data(found, data, config)
    torch.manual_seed(top.seed)
    model = make_model(config, cache, pretrained=found is None and config.init_from is None)
    if found is None:
        first_weights(model, config, cache)
    distributed.seed(top.seed)
    model.to(device)
    optimiser = make_optimiser(optimiser_settings, parameter_groups(model, config))
    validator = make_validator(cache, validation, device, top.precision)
    if settings.tensorboard:
        check_tensorboard()
    stopped = stack.enter_context(noted_signals())
    if run is None:
        model_name = str(config.model._target_).rsplit(".", 1)[-1].lower()
        suggestion = f"{cache.name}-{model_name}"
        run = distributed.from_first(lambda: runs.create(top.run, suggestion=suggestion, root=resuming.RUNS))
        begun.append(run)
        if distributed.is_first():
            stack.enter_context(runs.locked(run))
    if found is not None:
        check_vocabularies(found, cache, f"{run} was started with")
        found.load_weights(model)
        check_backbone(model, config, cache, found.path, going_on=True)
    stored = plain(config)

    def save(path: Path, weights: Any, training: Any, progress: Any) -> None:
        if distributed.is_first():
            checkpoint.save(
                path,
                model=weights,
                training=training,
                config=stored,
                progress=progress,
                versions=versions(),
                data=data,
                vocabularies=cache.vocabulary_files,
            )
        distributed.wait_for_all()

    recorder = None
    if distributed.is_first():
        recorder = Recorder(run, step=0 if found is None else found.progress["step"], tensorboard=settings.tensorboard)
        write_whole(run / "config.yaml", OmegaConf.to_yaml(resolved(config)).encode())
    trainer = Trainer(
        model,
        optimiser=optimiser,
        schedule=schedule,
        plateau_patience=schedule_settings.get("patience"),
        train_split=cache.split("train"),
        validator=validator,
        settings=settings,
        precision=top.precision,
        device=device,
        seed=top.seed,
        save=save,
        recorder=recorder,
        run=run,
    )
    if found is not None:
        trainer.resume(found)
    size = sum(parameter.numel() for parameter in model.parameters())
    what = f"{len(cache.split('train')):,} {'captions' if describes_images(config.model) else 'pairs'}"
    with onednn() as chosen:
        where = f"{distributed.place(device)}{' with oneDNN' if chosen and device.type == 'cpu' else ''}"
        log.info("%s: %s parameters on %s, %s", run, f"{size:,}", where, what)
        finished = trainer.train(stopped)
    if finished:
        _report(run, trainer.progress.best, config)
    else:
        print(f"Stopped at step {trainer.progress.step:,}. Go on with: {resuming.command(run)}")


def _report(run: Path, best: Mapping[str, Any], config: DictConfig) -> None:
    if best:  # a resumed run may have lost its best checkpoint, and found no better one
        scores = Validation(best["loss"], best["bleu"], best.get("cider")).scores()
        print(f"Best: {scores}, loss {best['loss']:.3f} nats/token at step {best['step']:,}")
    path = shlex.quote(str(run))
    use = f"caption checkpoint={path} images=FILE" if describes_images(config.model) else f"translate checkpoint={path}"
    print(f"Run: {run} (seqtool {use}; seqtool eval checkpoint={path})")


def versions() -> dict[str, str]:
    """What a checkpoint was made with."""
    return {"seqtool": seqtool.__version__, "torch": torch.__version__, "python": platform.python_version()}


def _check_task(config: DictConfig, settings: TrainSettings) -> None:
    """Refuse settings that mean nothing for this kind of model."""
    if not describes_images(config.model):
        if settings.best_by == "cider":
            raise InputError("train.best_by=cider is for captions; choose from bleu, loss.")
        return
    if settings.gradient_flow:
        raise InputError("train.gradient_flow=true is for translation models: an image is not read step by step.")
    if config.embeddings.source is not None:
        raise InputError("embeddings.source means nothing where the source is an image: use embeddings.target.")
