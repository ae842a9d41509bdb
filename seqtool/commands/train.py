"""`seqtool train`: a new run, or going on with one."""

import logging
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import seqtool
from seqtool import checkpoint, runs
from seqtool.assembly import (
    check_backbone,
    check_vocabularies,
    first_weights,
    make_model,
    make_validator,
    parameter_groups,
)
from seqtool.commands.prepare import prepared
from seqtool.config import check_target, describes_images, escape, plain, resolved, typed
from seqtool.data.captioning import ImageCorpus
from seqtool.data.text_files import write_whole
from seqtool.data.translation import Corpus
from seqtool.devices import check_precision, choose_device, set_threads
from seqtool.errors import InputError
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.optimisation import make_optimiser, make_schedule
from seqtool.recording import Recorder, check_tensorboard
from seqtool.training import Trainer, TrainSettings
from seqtool.validation import Validation, ValidationSettings

RUNS = Path("runs")
GROUPS = ("data", "model", "optim", "schedule", "train", "validation", "embeddings")
# What a run cannot change while it goes on: the weights' shapes, the batches and their order.
FIXED = (
    *("model", "data", "seed", "precision", "initialisation", "init_from", "embeddings", "optim.name", "schedule.name"),
    *(f"train.{name}" for name in ("batch_size", "batch_by", "pool", "accumulate", "normalise")),
)
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
    _check_groups(config, "Setting")
    going_on = bool(config.train.resume)
    if going_on:
        config = _resumed(config)
    top = typed(RunSettings, {str(name): value for name, value in config.items() if name not in GROUPS})
    if top.seed < 0:
        raise InputError(f"seed must be at least 0, not {top.seed}.")
    settings = typed(TrainSettings, config.train)
    settings.check()
    validation = typed(ValidationSettings, config.validation)
    validation.check()
    device = choose_device(top.device)
    check_precision(device, top.precision)
    set_threads(top.threads)
    optimiser_settings, schedule_settings = plain(config.optim), plain(config.schedule)
    schedule = make_schedule(schedule_settings)
    _check_task(config, settings)
    cache = prepared(config)
    torch.manual_seed(top.seed)
    model = make_model(config, cache, pretrained=not going_on and config.init_from is None)
    if not going_on:
        first_weights(model, config, cache)
    model.to(device)
    optimiser = make_optimiser(optimiser_settings, parameter_groups(model, config))
    validator = make_validator(cache, validation, device, top.precision)
    if settings.tensorboard:
        check_tensorboard()
    if going_on:
        run = runs.path(str(top.run), root=RUNS)
    else:
        model_name = str(config.model._target_).rsplit(".", 1)[-1].lower()
        run = runs.create(top.run, suggestion=f"{cache.name}-{model_name}", root=RUNS)
    stored = plain(config)

    def save(path: Path, weights: Any, training: Any, progress: Any) -> None:
        checkpoint.save(
            path,
            model=weights,
            training=training,
            config=stored,
            progress=progress,
            versions=versions(),
            vocabularies=cache.vocabulary_files,
        )

    with runs.locked(run):
        if going_on:
            found = checkpoint.newest(run)
            check_vocabularies(found, cache, f"{run} was started with")
            found.load_weights(model)
            check_backbone(model, config, cache, found.path, going_on=True)
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
            recorder=Recorder(run, tensorboard=settings.tensorboard),
            run=run,
        )
        if going_on:
            trainer.resume(found)
        size = sum(parameter.numel() for parameter in model.parameters())
        what = f"{len(cache.split('train')):,} {'captions' if describes_images(config.model) else 'pairs'}"
        log.info("%s: %s parameters on %s, %s", run, f"{size:,}", device, what)
        finished = trainer.train()
    if not finished:
        step = f"{trainer.progress.step:,}"
        print(f"Stopped at step {step}. Go on with: seqtool train run={shlex.quote(run.name)} train.resume=true")
        return
    best = trainer.progress.best
    scores = Validation(best["loss"], best["bleu"], best.get("cider")).scores()
    print(f"Best: {scores}, loss {best['loss']:.3f} nats/token at step {best['step']:,}")
    path = shlex.quote(str(run))
    use = f"caption checkpoint={path} images=FILE" if describes_images(config.model) else f"translate checkpoint={path}"
    print(f"Run: {run} (seqtool {use}; seqtool eval checkpoint={path})")


def versions() -> dict[str, str]:
    """What a checkpoint was made with."""
    return {"seqtool": seqtool.__version__, "torch": torch.__version__, "python": platform.python_version()}


def _resumed(config: DictConfig) -> DictConfig:
    """The stored config of the run called `run`, with the settings that this command line names put over it.

    InputError where one of them would make it another run.
    """
    if config.run is None:
        raise InputError("train.resume=true needs run=NAME: the run to go on with.")
    run = runs.path(config.run, root=RUNS)
    if not (run / "config.yaml").exists():
        raise InputError(f"There is no run at {run} to go on with: start it without train.resume.")
    stored = _stored(run / "config.yaml")
    changed = stored.copy()
    for override in HydraConfig.get().overrides.task:
        key = override.partition("=")[0].lstrip("+~")
        if key == "experiment":  # a preset: the groups it chose
            for group in ("data", "model", "optim", "schedule"):
                OmegaConf.update(changed, group, config[group], merge=False)
        else:
            value = OmegaConf.select(config, key)
            OmegaConf.update(changed, key, escape(value) if isinstance(value, str) else value, merge=False)
    free_settings = ["data.cache", "data.processes"]
    if describes_images(stored.model) and describes_images(changed.model):
        free_settings.append("model.encoder.weights")  # which must give the backbone that the checkpoint has
    for free in free_settings:
        OmegaConf.update(stored, free, OmegaConf.select(changed, free))
    for key in FIXED:
        before, now = (OmegaConf.select(one, key) for one in (stored, changed))
        if before != now:
            raise InputError(
                f"Run {run} was started with other settings of {key}: a run goes on as it began. "
                "Leave them out, or start a new run, perhaps with init_from=."
            )
    return changed


def _stored(file: Path) -> DictConfig:
    """The settings that a run was started with. InputError where the file is not as it was written."""
    try:
        text = file.read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):  # type: ignore[no-untyped-call]
            raise ValueError("aliases, of which a few can name a value a billion times")
        stored = OmegaConf.create(text)
        if not isinstance(stored, DictConfig):
            raise TypeError("no settings")
        plain(stored)
        _check_groups(stored, f"{file} is damaged: setting")
        check_target(stored.model, EncoderDecoder)
        check_target(stored.data, (Corpus, ImageCorpus))
    except InputError:
        raise
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file} is damaged: it does not hold the settings of a run.") from error
    return stored


def _check_groups(config: DictConfig, start: str) -> None:
    for group in GROUPS:
        if not isinstance(config.get(group), DictConfig):
            raise InputError(f"{start} '{group}' is a group of settings, not {config.get(group)}.")


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
