"""The defaults of all settings, which stand in the YAML files and nowhere else."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf

from seqtool.runtime.files import config_directory


@cache
def defaults(name: str) -> Mapping[str, Any]:
    """What configs/NAME.yaml says, and what it does not say of the files in the same folder that it builds on."""
    own: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / f"{name}.yaml"))
    inherited: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        if isinstance(base, str) and base != "_self_":  # no group of which one file is chosen
            inherited |= defaults(base)
    return MappingProxyType({**inherited, **own})
