"""The lines at the end of a run: what ended it early, how good it is, and how to use it."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seqtool.settings import typed
from seqtool.training.place import command
from seqtool.training.progress import Progress
from seqtool.training.recording import FIGURES
from seqtool.training.resuming import trusting
from seqtool.training.train_settings import TrainSettings
from seqtool.training.validation import told

LIMITS = {"train.steps": "", "train.epochs": "", "schedule.epochs": ", where the learning rate is 0"}


def closing(
    run: Path, config: DictConfig, progress: Progress, best: Mapping[str, Any], use: Callable[[str], str]
) -> Iterator[str]:
    """Line by line. `best` is recorded of the best checkpoint; `use` gives the command line that uses a checkpoint."""
    settings, trust = typed(TrainSettings, config.train), trusting(config)
    missed = _missed(config) if progress.ended_by_time(settings) else []
    if missed:
        yield (
            f"Ended by train.minutes={settings.minutes:g} at step {progress.step:,}, in epoch {progress.epoch + 1}, "
            f"before {' and '.join(missed)}. Go on with: {command(run)}{trust} train.minutes=null"
        )
    if best:  # a resumed run may have lost its best checkpoint, and found no better one
        yield f"Best: {', '.join(told(best))} at step {best['step']:,}"
    if figures := [str(run / name) for name in FIGURES if (run / name).exists()]:
        yield f"Figures: {', '.join(figures)}"
    path = shlex.quote(str(run))
    yield f"Run: {run} ({use(path)}{trust}; seqtool eval checkpoint={path}{trust})"


def _missed(config: DictConfig) -> list[str]:
    """What a run that train.minutes ended was on its way to."""
    limits = {name: OmegaConf.select(config, name) for name in LIMITS}
    return [f"{name}={value:g}{LIMITS[name]}" for name, value in limits.items() if value is not None]
