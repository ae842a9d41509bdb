"""Reads the defaults of settings from configs/, the only place where they are written."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf

from seqtool.runtime.files import config_directory


@cache
def defaults(name: str) -> Mapping[str, Any]:
    """The settings in configs/NAME.yaml and in the files of that directory that it inherits from, without groups."""
    settings: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / f"{name}.yaml"))
    inherited: dict[str, Any] = {}
    for base in settings.pop("defaults", []):
        if isinstance(base, str) and base != "_self_":
            inherited |= defaults(base)
    return MappingProxyType({**inherited, **settings})
