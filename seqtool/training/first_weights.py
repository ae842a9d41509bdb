"""The weights that a run begins with: fresh ones, those of another run, or its own from when it was stopped."""

import logging
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from seqtool.data.cache import Cache
from seqtool.data.text.embeddings import pretrained as pretrained_vectors
from seqtool.data.text.vocabulary import load_all
from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.runtime.defaults import defaults
from seqtool.runtime.files import check_file, expanded
from seqtool.runtime.task_table import TASKS
from seqtool.settings.classes import modules
from seqtool.training import checkpoint

log = logging.getLogger("seqtool")


def check_files(config: DictConfig) -> None:
    """Raise InputError if the run or the word vectors to begin with are not there: before any data are prepared."""
    if config.init_from is not None and not Path(expanded(config.init_from)).exists():
        checkpoint.find(config.init_from, purpose="record")  # runs/NAME/best is no path, and any other is refused
    for file in filter(None, config.embeddings.values()):
        check_file(Path(file))


def initialise_fresh(model: EncoderDecoder[Any], config: DictConfig, cache: Cache) -> None:
    """Initialise the model, with word vectors from files if any are named."""
    initialise(model, config.initialisation, gain=config.initialisation_gain, forget_bias=config.forget_bias)
    for side, vocabulary in cache.vocabularies.items():
        file = config.embeddings[side]
        if file is None:
            continue
        embedding: nn.Embedding = getattr(model, f"{side}_embedding")
        rows, vectors = pretrained_vectors(Path(file), vocabulary, embedding.embedding_dim)
        with torch.no_grad():
            embedding.weight[torch.from_numpy(rows)] = torch.from_numpy(vectors) / model.embedding_scale
        log.info("%s: vectors for %s of %s pieces", file, f"{len(rows):,}", f"{len(vocabulary):,}")


def open_other(model: EncoderDecoder[Any], config: DictConfig) -> checkpoint.Checkpoint:
    """The checkpoint that `init_from` names. InputError if its weights do not fit this model."""
    if any(file is not None for file in config.embeddings.values()):
        raise InputError("init_from= brings its own embeddings: leave embeddings.source and embeddings.target out.")
    usual = defaults("train")
    if any(config[name] != usual[name] for name in ("initialisation_gain", "forget_bias")):
        raise InputError("init_from= brings its own weights: leave initialisation_gain and forget_bias out.")
    other = checkpoint.find(config.init_from, trust=modules(config.trust))
    if other.model_task != model.task:
        theirs, ours = TASKS[other.model_task].model, TASKS[model.task].model
        raise InputError(f"init_from={other.path} holds {theirs}, but model= is {ours}.")
    return other


def load(model: EncoderDecoder[Any], origin: checkpoint.Checkpoint, cache: Cache, what: str) -> None:
    """Fill the model from a checkpoint. InputError, beginning with `what`, if its vocabularies are not the cache's."""
    theirs = load_all(origin.path, list(cache.vocabularies))
    if any(theirs[side].fingerprint != ours.fingerprint for side, ours in cache.vocabularies.items()):
        raise InputError(
            f"{what} another vocabulary than this data has: prepare the data with it, "
            f"data.vocabulary.reuse={origin.path}."
        )
    try:
        origin.load_weights(model)
    except InputError as error:
        settings = {name: value for name, value in origin.config["model"].items() if isinstance(value, int | str)}
        written = " ".join(f"model.{name}={value}" for name, value in settings.items() if not name.startswith("_"))
        raise InputError(f"{error} Its model has {written}.") from error
