"""Going on with a run: which one is meant, what it may not change, and how to tell the user of it."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seqtool import checkpoint, runs
from seqtool.config import check_target, describes_images, escape, plain
from seqtool.data.captioning import ImageCorpus
from seqtool.data.translation import Corpus
from seqtool.errors import InputError, full_disk
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.training import Progress, TrainSettings

RUNS = Path("runs")
MOST_BRACKETS = 1000  # in the settings of a run, which have a few
GROUPS = ("data", "model", "optim", "schedule", "train", "validation", "embeddings")
# What a run cannot change while it goes on: the weights' shapes, the batches and their order.
FIXED = (
    *("model", "data", "seed", "precision", "initialisation", "init_from", "embeddings", "optim.name", "schedule.name"),
    *(f"train.{name}" for name in ("batch_size", "batch_by", "pool", "accumulate", "normalise")),
)


def existing(config: DictConfig) -> Path | None:
    """The directory of the run to go on with, or under `auto` to start anew; None where one is to be made."""
    resume = str(config.train.resume).lower()
    if resume == "false":
        return None
    if config.run is None:
        raise InputError(f"train.resume={resume} needs run=NAME: the run to go on with.")
    run = runs.path(config.run, root=RUNS)
    if resume == "auto":
        return run if run.is_dir() else None
    if not (run / "config.yaml").exists():
        raise InputError(f"There is no run at {run} to go on with: start it without train.resume.")
    return run


def last(run: Path, config: DictConfig) -> checkpoint.Checkpoint | None:
    """The run's newest checkpoint; none under `auto` where nothing was saved yet, and the run starts anew."""
    if checkpoint.list_checkpoints(run):
        return checkpoint.newest(run)
    if config.train.resume != "auto":
        raise InputError(f"Run {run} was stopped before it saved anything: train.resume=auto starts it anew.")
    return None


def is_finished(found: checkpoint.Checkpoint, settings: TrainSettings) -> bool:
    progress = Progress.of(found)
    averaged = settings.average_last <= 1 or any(found.path.parent.glob(f"{checkpoint.AVERAGE}*"))
    return progress.at_limit(settings) and progress.last.get("step") == progress.step and averaged


def resumed(config: DictConfig, run: Path) -> DictConfig:
    """The run's stored config, with the settings that this command line names put over it.

    InputError where one of them would make it another run.
    """
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
        if text.count("[") + text.count("{") > MOST_BRACKETS:
            raise ValueError("brackets, over which YAML takes its time")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):  # type: ignore[no-untyped-call]
            raise ValueError("aliases, of which a few can name a value a billion times")
        stored = OmegaConf.create(text)
        if not isinstance(stored, DictConfig):
            raise TypeError("no settings")
        plain(stored)
        check_groups(stored, f"{file} is damaged: setting")
        check_target(stored.model, EncoderDecoder)
        check_target(stored.data, (Corpus, ImageCorpus))
    except InputError:
        raise
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file} is damaged: it does not hold the settings of a run.") from error
    return stored


def check_groups(config: DictConfig, start: str) -> None:
    """Raise InputError, a sentence that begins with `start`, unless every group of settings is one."""
    for group in GROUPS:
        if not isinstance(config.get(group), DictConfig):
            raise InputError(f"{start} '{group}' is a group of settings, not {config.get(group)}.")


def check_data(found: checkpoint.Checkpoint, data: Mapping[str, Any], config: DictConfig) -> None:
    """Raise InputError where the files that are trained on are no longer those that the run began with."""
    changed = [name for name, digest in found.data.items() if name != "test" and digest != data.get(name)]
    if changed:
        given = [f"data.{name}={config.data[name]}" if name in config.data else name for name in changed]
        raise InputError(
            f"The data changed since {found.path} was saved ({', '.join(given)}): a run goes on with the data it began "
            f"with. Put them back, or start a new run, perhaps with init_from={found.path}."
        )


def command(run: Path) -> str:
    return f"seqtool train {shlex.quote(f'run={run.name}')} train.resume=true"


@contextmanager
def how_to_go_on(begun: list[Path]) -> Iterator[None]:
    """Say it where the run in `begun` is stopped at once, or by a full disk; there is none until it has its place."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, OSError) as error:
        full = full_disk(error) if isinstance(error, OSError) else None
        if isinstance(error, OSError) and full is None:
            raise
        saved = checkpoint.list_checkpoints(begun[0]) if begun else []
        advice = "Nothing was saved yet: give the same command again."
        if saved:
            advice = f"The last checkpoint is {saved[-1]}: go on from it with {command(begun[0])}."
        elif begun:
            advice = f"Nothing was saved yet: give the same command again with run={begun[0].name} train.resume=auto."
        if full is not None:
            raise InputError(f"{full[:-1]}; make room. {advice}") from error
        print(f"Stopped at once. {advice}", file=sys.stderr)
        raise
