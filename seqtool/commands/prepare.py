"""`seqtool prepare`: a corpus, tokenised and encoded once; images turned into annotation vectors once."""

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from seqtool.config import typed
from seqtool.data.cache import Cache
from seqtool.data.preparation import prepare_cache

if TYPE_CHECKING:
    from seqtool.data.caption_cache import CaptionCache


def prepare(config: DictConfig) -> None:
    """Make the cache of `config.data`, or find it made, and say what is in it."""
    cache = prepared(config)
    print(cache.describe())
    print(f"Prepared in {cache.directory}")


def prepared(config: DictConfig) -> "Cache | CaptionCache":
    """The cache of `config.data`, for the kind of model that is configured: a captioner has an image encoder."""
    if "encoder" not in config.model:
        return prepare_cache(config.data)
    from seqtool.data.caption_preparation import prepare_captions  # imports torch, which text does without
    from seqtool.devices import MachineSettings, choose_device, set_threads
    from seqtool.models.backbone import EncoderSettings

    encoder = typed(EncoderSettings, config.model.encoder)
    machine = typed(MachineSettings, {"device": config.device, "threads": config.threads})
    set_threads(machine.threads)
    return prepare_captions(config.data, encoder, device=choose_device(machine.device))
