"""`seqtool train`: a new run, or going on with one."""

import logging
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch import nn

import seqtool
from seqtool import checkpoint, runs
from seqtool.config import build, escape, plain, resolved, typed
from seqtool.data.cache import Cache
from seqtool.data.embeddings import pretrained
from seqtool.data.preparation import prepare_cache
from seqtool.data.text_files import write_whole
from seqtool.data.vocabulary import Vocabulary, load_pair
from seqtool.devices import check_precision, choose_device, set_threads
from seqtool.errors import InputError
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.optimisation import make_optimiser, make_schedule
from seqtool.recording import Recorder, check_tensorboard
from seqtool.training import Trainer, TrainSettings
from seqtool.validation import ValidationSettings, Validator

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
    for group in GROUPS:
        if not isinstance(config.get(group), DictConfig):
            raise InputError(f"Setting '{group}' is a group of settings, not {config.get(group)}.")
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
    cache = prepare_cache(config.data)
    torch.manual_seed(top.seed)
    model = _model(config, cache)
    if not going_on:
        _first_weights(model, config, cache)
    model.to(device)
    optimiser = make_optimiser(optimiser_settings, model.parameters())
    validator = Validator(
        cache.split("valid"), cache.target_vocabulary, settings=validation, device=device, precision=top.precision
    )
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
            found = checkpoint.newest(run)
            _check_vocabularies(found, cache, f"{run} was started with")
            trainer.resume(found)
        size = sum(parameter.numel() for parameter in model.parameters())
        log.info("%s: %s parameters on %s, %s pairs", run, f"{size:,}", device, f"{len(cache.split('train')):,}")
        finished = trainer.train()
    if not finished:
        step = f"{trainer.progress.step:,}"
        print(f"Stopped at step {step}. Go on with: seqtool train run={shlex.quote(run.name)} train.resume=true")
        return
    best = trainer.progress.best
    print(f"Best: BLEU {best['bleu']:.2f}, loss {best['loss']:.3f} nats/token at step {best['step']:,}")
    path = shlex.quote(str(run))
    print(f"Run: {run} (seqtool translate checkpoint={path}; seqtool eval checkpoint={path})")


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
    stored = OmegaConf.load(run / "config.yaml")
    assert isinstance(stored, DictConfig)
    changed = stored.copy()
    for override in HydraConfig.get().overrides.task:
        key = override.partition("=")[0].lstrip("+~")
        if key == "experiment":  # a preset: the groups it chose
            for group in ("data", "model", "optim", "schedule"):
                OmegaConf.update(changed, group, config[group], merge=False)
        else:
            value = OmegaConf.select(config, key)
            OmegaConf.update(changed, key, escape(value) if isinstance(value, str) else value, merge=False)
    for free in ("data.cache", "data.processes"):
        OmegaConf.update(stored, free, OmegaConf.select(changed, free))
    for key in FIXED:
        before, now = (OmegaConf.select(one, key) for one in (stored, changed))
        if before != now:
            raise InputError(
                f"Run {run} was started with other settings of {key}: a run goes on as it began. "
                "Leave them out, or start a new run, perhaps with init_from=."
            )
    return changed


def _model(config: DictConfig, cache: Cache) -> EncoderDecoder[Any]:
    source, target = cache.source_vocabulary, cache.target_vocabulary
    if config.model.get("tie") == "all" and source is not target:
        raise InputError("model.tie=all needs one vocabulary for both sides: set data.vocabulary.joint=true.")
    model: EncoderDecoder[Any] = build(
        config.model, trusted=True, source_vocabulary=len(source), target_vocabulary=len(target)
    )
    return model


def _first_weights(model: EncoderDecoder[Any], config: DictConfig, cache: Cache) -> None:
    """Those of another run (`init_from`), or fresh ones, with word vectors from files where they are named."""
    vectors = [
        (config.embeddings.source, model.source_embedding, cache.source_vocabulary),
        (config.embeddings.target, model.target_embedding, cache.target_vocabulary),
    ]
    if config.init_from is not None:
        if any(file is not None for file, _, _ in vectors):
            raise InputError("init_from= brings its own embeddings: leave embeddings.source and embeddings.target out.")
        found = checkpoint.find(config.init_from)
        _check_vocabularies(found, cache, f"init_from={found.path} was trained with")
        found.load_weights(model)
        return
    initialise(model, config.initialisation)
    for file, embedding, vocabulary in vectors:
        if file is not None:
            _load_vectors(Path(file), embedding, vocabulary)


def _load_vectors(file: Path, embedding: nn.Embedding, vocabulary: Vocabulary) -> None:
    rows, vectors = pretrained(file, vocabulary, embedding.embedding_dim)
    with torch.no_grad():
        embedding.weight[torch.from_numpy(rows)] = torch.from_numpy(vectors)
    log.info("%s: vectors for %s of %s pieces", file, f"{len(rows):,}", f"{len(vocabulary):,}")


def _check_vocabularies(found: checkpoint.Checkpoint, cache: Cache, what: str) -> None:
    theirs, ours = load_pair(found.path), (cache.source_vocabulary, cache.target_vocabulary)
    if [one.fingerprint for one in theirs] != [one.fingerprint for one in ours]:
        raise InputError(
            f"{what} another vocabulary than this data has: prepare the data with it, "
            f"data.vocabulary.reuse={found.path}."
        )
