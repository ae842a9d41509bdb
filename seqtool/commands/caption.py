"""`seqtool caption`."""

from omegaconf import DictConfig

from seqtool.errors import InputError


def caption(config: DictConfig) -> None:
    raise InputError("seqtool caption comes with the captioning models, which this version does not have yet.")
