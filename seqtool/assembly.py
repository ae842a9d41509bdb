"""The parts of a training run, made from its configuration: model, first weights, what is trained, validation."""

import logging
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from seqtool import checkpoint
from seqtool.config import build
from seqtool.data import vocabulary
from seqtool.data.cache import Cache
from seqtool.data.caption_cache import CaptionCache
from seqtool.data.embeddings import pretrained as pretrained_vectors
from seqtool.data.vocabulary import Vocabulary, load_pair
from seqtool.errors import InputError
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.validation import CaptionValidator, TranslationValidator, ValidationSettings, Validator

log = logging.getLogger("seqtool")


def make_model(config: DictConfig, cache: Cache | CaptionCache, *, pretrained: bool) -> EncoderDecoder[Any]:
    """`pretrained`: the image encoder's weights are wanted, not those of a checkpoint."""
    target = cache.target_vocabulary
    if isinstance(cache, CaptionCache):
        captioner: EncoderDecoder[Any] = build(
            config.model, trusted=True, target_vocabulary=len(target), pretrained=pretrained
        )
        return captioner
    source = cache.source_vocabulary
    if config.model.get("tie") == "all" and source is not target:
        raise InputError("model.tie=all needs one vocabulary for both sides: set data.vocabulary.joint=true.")
    model: EncoderDecoder[Any] = build(
        config.model, trusted=True, source_vocabulary=len(source), target_vocabulary=len(target)
    )
    return model


def parameter_groups(model: EncoderDecoder[Any], config: DictConfig) -> list[dict[str, Any]]:
    """What is trained, in groups: the model, and an image encoder that is fine-tuned, from a step and at a rate of
    its own.
    """
    backbone = getattr(model, "backbone", None)
    apart = [] if backbone is None else list(backbone.parameters())
    known = {id(parameter) for parameter in apart}
    groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if id(p) not in known], "from_step": 0}]
    if apart and config.model.encoder.fine_tune_from is not None:
        encoder = config.model.encoder
        groups.append({"params": apart, "lr": encoder.lr, "from_step": encoder.fine_tune_from})
    return groups


def first_weights(model: EncoderDecoder[Any], config: DictConfig, cache: Cache | CaptionCache) -> None:
    """Those of another run (`init_from`), or fresh ones, with word vectors from files where they are named."""
    vectors = [(config.embeddings.target, model.target_embedding, cache.target_vocabulary)]
    if isinstance(cache, Cache):
        vectors.insert(0, (config.embeddings.source, model.source_embedding, cache.source_vocabulary))
    if config.init_from is not None:
        if any(file is not None for file, _, _ in vectors):
            raise InputError("init_from= brings its own embeddings: leave embeddings.source and embeddings.target out.")
        found = checkpoint.find(config.init_from)
        check_vocabularies(found, cache, f"init_from={found.path} was trained with")
        found.load_weights(model)
        check_backbone(model, config, cache, found.path, going_on=False)
        return
    initialise(model, config.initialisation)
    for file, embedding, known in vectors:
        if file is not None:
            _load_vectors(Path(file), embedding, known)


def _load_vectors(file: Path, embedding: nn.Embedding, known: Vocabulary) -> None:
    rows, vectors = pretrained_vectors(file, known, embedding.embedding_dim)
    with torch.no_grad():
        embedding.weight[torch.from_numpy(rows)] = torch.from_numpy(vectors)
    log.info("%s: vectors for %s of %s pieces", file, f"{len(rows):,}", f"{len(known):,}")


def check_vocabularies(found: checkpoint.Checkpoint, cache: Cache | CaptionCache, what: str) -> None:
    """Raise InputError where the checkpoint's vocabularies are not the cache's; `what` begins the sentence."""
    pairs = [(vocabulary.load(found.path / vocabulary.TARGET), cache.target_vocabulary)]
    if isinstance(cache, Cache):
        pairs = list(zip(load_pair(found.path), (cache.source_vocabulary, cache.target_vocabulary), strict=True))
    if any(theirs.fingerprint != ours.fingerprint for theirs, ours in pairs):
        raise InputError(
            f"{what} another vocabulary than this data has: prepare the data with it, "
            f"data.vocabulary.reuse={found.path}."
        )


def check_backbone(
    model: EncoderDecoder[Any], config: DictConfig, cache: Cache | CaptionCache, path: Path, *, going_on: bool
) -> None:
    """Raise InputError where the weights, loaded from the checkpoint at `path`, have another frozen backbone than the
    one whose annotation vectors are stored: the model would be trained on one and describe images with the other.
    """
    backbone: Any = getattr(model, "backbone", None)
    if isinstance(cache, CaptionCache) and not cache.store.fits(backbone):
        weights = config.model.encoder.weights
        added = "++" if going_on else ""  # a run that goes on is named without its model, which has the setting
        raise InputError(
            f"{path} has another backbone than model.encoder.weights={'null' if weights is None else weights} gives, "
            f"and it is frozen: set {added}model.encoder.weights={path / checkpoint.WEIGHTS}."
        )


def make_validator(
    cache: Cache | CaptionCache, settings: ValidationSettings, device: torch.device, precision: str
) -> Validator:
    """What scores the validation split, for translations or captions."""
    machine: Any = {"settings": settings, "device": device, "precision": precision}
    if isinstance(cache, CaptionCache):
        return CaptionValidator(cache.split("valid"), cache.target_vocabulary, **machine)
    return TranslationValidator(cache.split("valid"), cache.target_vocabulary, **machine)
