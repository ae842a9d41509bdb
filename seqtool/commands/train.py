"""`seqtool train`: a new run, or going on with one."""

import logging
import platform
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import seqtool
from seqtool import checkpoint, runs
from seqtool.config import build, plain, resolved, typed
from seqtool.data.cache import Cache
from seqtool.data.embeddings import pretrained
from seqtool.data.preparation import prepare_cache
from seqtool.data.vocabulary import load_pair
from seqtool.devices import check_precision, choose_device, set_threads
from seqtool.errors import InputError
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.optimisation import make_optimiser, make_schedule
from seqtool.recording import Recorder
from seqtool.training import Trainer, TrainSettings
from seqtool.translator import DecodeSettings
from seqtool.validation import Validator

RUNS = Path("runs")
log = logging.getLogger("seqtool")


def train(config: DictConfig) -> None:
    """Train a new run, or go on with one."""
    going_on = bool(config.train.resume)
    if going_on:
        config = _resumed(config)
    settings = typed(TrainSettings, config.train)
    settings.check()
    device = choose_device(config.device)
    check_precision(device, config.precision)
    set_threads(config.threads)
    cache = prepare_cache(config.data)
    optimiser_settings, schedule_settings = plain(config.optim), plain(config.schedule)
    schedule = make_schedule(schedule_settings)
    torch.manual_seed(config.seed)
    model = _new_model(config, cache).to(device)
    optimiser = make_optimiser(optimiser_settings, model.parameters())
    validator = Validator(
        cache.split("valid"),
        cache.target_vocabulary,
        settings=_validation_settings(config),
        sentences=config.validation.sentences,
        device=device,
        precision=config.precision,
    )
    if going_on:
        run = runs.path(config.run, root=RUNS)
    else:
        model_name = str(config.model._target_).rsplit(".", 1)[-1].lower()
        run = runs.create(config.run, suggestion=f"{cache.name}-{model_name}", root=RUNS)
        (run / "config.yaml").write_text(OmegaConf.to_yaml(resolved(config)), encoding="utf-8")

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

    trainer = Trainer(
        model,
        optimiser=optimiser,
        schedule=schedule,
        plateau_patience=schedule_settings.get("patience"),
        train_split=cache.split("train"),
        validator=validator,
        settings=settings,
        precision=config.precision,
        device=device,
        seed=config.seed,
        save=save,
        recorder=Recorder(run, tensorboard=settings.tensorboard),
        run=run,
    )
    if going_on:
        trainer.resume(checkpoint.newest(run))
    size = sum(parameter.numel() for parameter in model.parameters())
    log.info("%s: %s parameters on %s, %s pairs", run, f"{size:,}", device, f"{len(cache.split('train')):,}")
    finished = trainer.train()
    if not finished:
        print(f"Stopped at step {trainer.progress.step:,}. Go on with: seqtool train run={run.name} train.resume=true")
        return
    best = trainer.progress.best
    print(f"Best: BLEU {best['bleu']:.2f}, loss {best['loss']:.3f} nats/token at step {best['step']:,}")
    print(f"Run: {run} (seqtool translate checkpoint={run}; seqtool eval checkpoint={run})")


def _resumed(config: DictConfig) -> DictConfig:
    """The stored config of the run called `run`, with the settings that this command line names put over it."""
    if config.run is None:
        raise InputError("train.resume=true needs run=NAME: the run to go on with.")
    run = runs.path(config.run, root=RUNS)
    if not (run / "config.yaml").exists():
        raise InputError(f"There is no run at {run} to go on with: start it without train.resume.")
    stored = OmegaConf.load(run / "config.yaml")
    assert isinstance(stored, DictConfig)
    for override in HydraConfig.get().overrides.task:
        key = override.partition("=")[0].lstrip("+~")
        if key in ("experiment", "data", "model", "optim", "schedule"):
            continue  # a preset or choice: what it chose is in the stored config, or refused below
        OmegaConf.update(stored, key, OmegaConf.select(config, key))
    for group in ("model", "optim", "schedule"):
        named = any(o.partition("=")[0] in (group, "experiment") for o in HydraConfig.get().overrides.task)
        if named and plain(config[group]) != plain(stored[group]):
            raise InputError(
                f"Run {run} was started with other settings of {group} ({plain(stored[group])}): "
                "a run goes on as it began; start a new one with run=…, perhaps with init_from=."
            )
    return stored


def _new_model(config: DictConfig, cache: Cache) -> EncoderDecoder[Any]:
    source, target = cache.source_vocabulary, cache.target_vocabulary
    if config.init_from is not None:
        found = checkpoint.find(config.init_from)
        return _fine_tuned(found, config, cache)
    model: EncoderDecoder[Any] = build(
        config.model, trusted=True, source_vocabulary=len(source), target_vocabulary=len(target)
    )
    initialise(model, config.initialisation)
    for file, embedding, vocabulary in (
        (config.embeddings.source, model.source_embedding, source),
        (config.embeddings.target, model.target_embedding, target),
    ):
        if file is not None:
            rows, vectors = pretrained(Path(file), vocabulary, embedding.embedding_dim)
            with torch.no_grad():
                embedding.weight[torch.from_numpy(rows)] = torch.from_numpy(vectors)
            log.info("%s: vectors for %s of %s pieces", file, f"{len(rows):,}", f"{len(vocabulary):,}")
    return model


def _fine_tuned(found: checkpoint.Checkpoint, config: DictConfig, cache: Cache) -> EncoderDecoder[Any]:
    """The checkpoint's weights in a model of this config's (its dropout may differ, its sizes may not)."""
    model: EncoderDecoder[Any] = build(
        config.model,
        trusted=True,
        source_vocabulary=len(cache.source_vocabulary),
        target_vocabulary=len(cache.target_vocabulary),
    )
    theirs = load_pair(found.path)
    if [v.fingerprint for v in theirs] != [
        cache.source_vocabulary.fingerprint,
        cache.target_vocabulary.fingerprint,
    ]:
        raise InputError(
            f"init_from={found.path} was trained with another vocabulary: prepare this data with it, "
            f"data.vocabulary.reuse={found.path}."
        )
    found.load_weights(model)
    return model


def _validation_settings(config: DictConfig) -> DecodeSettings:
    return DecodeSettings(
        beam=config.validation.beam,
        n_best=1,
        length_penalty="average",
        length_alpha=0.0,
        coverage_penalty=0.0,
        sample=False,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        seed=0,
        max_length=config.validation.max_length,
        batch_size=128,
    )


def versions() -> dict[str, str]:
    """What a checkpoint was made with."""
    return {"seqtool": seqtool.__version__, "torch": torch.__version__, "python": platform.python_version()}
