"""Advice to users who try to change a run: the command that starts a new run from its weights."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool import tasks
from seqtool.cli.arguments import ConfigFiles, Group, load, quote
from seqtool.errors import InputError
from seqtool.settings import declarations, leaves, plain
from seqtool.settings.classes import modules
from seqtool.training import resuming
from seqtool.training.checkpoint import WEIGHTS, Checkpoint

# Settings that are left out of the new command: they only concern initial weights, or are chosen anew for a new run.
LEFT_OUT = ("run", "init_from", "trust", "train.resume", "initialisation", "initialisation_gain", "forget_bias")
NEW_WEIGHTS = (*LEFT_OUT, "embeddings", "data.vocabulary")  # if one of these was changed, the weights do not fit
PLAIN_TEXT = re.compile(r"(?!(?:true|false|null|inf|nan)\Z)[a-z_./][\w./-]*", re.IGNORECASE)  # needs no quotes in Hydra


@contextmanager
def add_new_run_advice(handle: resuming.RunHandle) -> Iterator[None]:
    """If a change to the run is refused in this context, add advice to the error.

    The advice is the command that starts a new run, from the old run's weights if they fit.
    """
    try:
        yield
    except resuming.ChangedRunError as error:
        checkpoint = handle.checkpoint
        fits = checkpoint is not None and _fits(checkpoint, error)
        settings = _settings(error, checkpoint) if checkpoint is not None and fits else []
        advice = f" with its weights: seqtool train {shlex.join(settings)}" if settings else "."
        raise InputError(f"{error}, or start a new run{advice}") from error


def _fits(checkpoint: Checkpoint, error: resuming.ChangedRunError) -> bool:
    """Whether the run's weights and vocabularies fit a model with the changed settings."""
    if any(name.startswith(NEW_WEIGHTS) for name in error.names):
        return False
    trusted = replace(checkpoint, trust=modules(error.config.trust))
    if tasks.task_of_data(error.config).name != tasks.task_of_checkpoint(trusted).name:
        return False
    try:
        predictor: Any = resolve_name(tasks.task_of_checkpoint(trusted).predictor)
        predictor.read(replace(trusted, config={**checkpoint.config, "model": plain(error.config.model)}))
    except InputError:
        return False
    return True


def _settings(error: resuming.ChangedRunError, checkpoint: Checkpoint) -> list[str]:
    """The arguments of the command that starts a new run; empty if a group has no choice with the run's class."""
    sources = HydraConfig.get().runtime.config_sources  # Hydra's own YAML files have the schema pkg
    files = ConfigFiles("train", [Path(source.path) for source in sources if source.schema == "file"])
    run, user_folders = checkpoint.path.parents[1], files.folders[1:]
    config, base = plain(error.config), OmegaConf.create(load(files.find("train")))
    if any(name.split(".")[0] == "data" for name in error.names):
        config["data"]["vocabulary"]["reuse"] = str(run)
    old_encoder, encoder = (model.get("encoder") or {} for model in (checkpoint.config["model"], config["model"]))
    if encoder.get("fine_tune_from", 0) is None and old_encoder.get("fine_tune_from") is not None:
        # The new run stores the annotation vectors of its frozen encoder, so it must start with the trained weights.
        encoder["weights"] = str(checkpoint.path / WEIGHTS)
    top_settings = _differences(base, {name: value for name, value in config.items() if name not in resuming.CLASSES})
    choices, settings = [], []
    for group, default in files.groups.items():
        if group not in resuming.CLASSES:
            continue
        differences = {}
        for choice in files.choices(group):
            base[group] = _defaults(group, choice, files)
            if all(base[group].get(kind) == config[group].get(kind) for kind in ("_target_", "name")):
                differences[choice] = _differences(base, {group: config[group]})
        if not differences:
            return []
        choice = min(differences, key=lambda choice: len(differences[choice]))
        if choice != default:
            choices.append(f"{group}={choice}")
        settings += differences[choice]
    options = [f"--config-dir={folder}" for folder in user_folders]
    trust = resuming.trust_option(error.config, resuming=True).split()
    return [*options, f"init_from={run}", *choices, *settings, *top_settings, *trust]


def _defaults(group: str, choice: str, files: ConfigFiles) -> DictConfig:
    """The settings of a choice, from its file and the files that it includes."""
    settings = OmegaConf.create()
    for file, prefix in reversed(files.included_files(group, choice)):
        file_settings = {key: value for key, value in load(file).items() if key != "defaults"}
        settings.merge_with({prefix.rstrip("."): file_settings} if prefix else file_settings)
    return settings


def _differences(base: DictConfig, settings: Mapping[str, Any]) -> list[str]:
    """The settings that differ from those in `base`, as command-line arguments. `base` is updated with them."""
    existing = dict(leaves(cast(Group, OmegaConf.to_container(base))))
    arguments = []
    for key, value in leaves(settings):
        if key not in LEFT_OUT and OmegaConf.select(base, key, default=...) != value:
            OmegaConf.update(base, key, value, force_add=True)  # later settings may refer to it by ${…}
            arguments.append(f"{'' if key in existing else '++'}{key}={_format_value(key, value)}")
    return arguments


def _format_value(key: str, value: Any) -> str:
    """The value of the setting `key` as it is written on the command line."""
    if isinstance(value, list):
        return f"[{','.join(_format_value('', element) for element in value)}]"
    is_literal = declarations.command_settings("train").get(key, declarations.NONE).is_literal
    if isinstance(value, str):
        return value if is_literal or PLAIN_TEXT.fullmatch(value) else quote(value)
    return "null" if value is None else str(value).lower()
