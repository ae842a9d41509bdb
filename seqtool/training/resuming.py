"""How a run begins or resumes: its directory, locked while a process trains it; which settings of a resumed run may not
change; and its first weights, which are fresh, those of another run, or its own from when it was stopped.
"""

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import nn

from seqtool.data.cache import Cache
from seqtool.data.corpora.corpus import Corpus
from seqtool.data.text.embeddings import pretrained as pretrained_vectors
from seqtool.data.text.vocabulary import load_all
from seqtool.errors import InputError, full_disk
from seqtool.metrics.scores import Scorer
from seqtool.models.contract import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.runtime import distributed
from seqtool.runtime.defaults import defaults
from seqtool.runtime.files import check_file, expanded, locked
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, escape, leaves, names, plain, resolved, sentence, unknown
from seqtool.settings.classes import check_named, imported, modules, own_modules
from seqtool.training import checkpoint, moved_data, runs
from seqtool.training.checkpoint import Checkpoint
from seqtool.training.saving import AVERAGED, Progress, TrainSettings

log = logging.getLogger("seqtool")
OTHER_CLASSES = {"optim.name": torch.optim.Optimizer, "train.best_by": Scorer, "validation.scores": Scorer}
GROUPS = tuple(place for place in declarations.TRAIN if place and "." not in place)
CLASSES = tuple(declarations.declared(declarations.Groups))  # the groups that choose a class
FIXED, CHANGEABLE = (  # settings and groups that a resumed run must keep, and settings in them that it need not
    [name for name, setting in declarations.of_command("train").items() if setting.fixed is fixed]
    for fixed in (True, False)
)
UNTOLD = ("train.resume", "train.epochs", "train.steps", "train.minutes", "train.patience")  # changes not logged


class ChangedRunError(InputError):
    """Settings or data that a run began with have changed: their full names, and the configuration now. The sentence
    lacks its end, what the user may do instead.
    """

    def __init__(self, reason: str, names: Sequence[str], config: DictConfig) -> None:
        super().__init__(reason)
        self.names, self.config = names, config


@dataclass
class RunHandle:
    """A run's directory, locked, and the checkpoint from which it resumes; None for what does not exist yet."""

    run: Path | None
    _stack: ExitStack  # keeps the run locked
    checkpoint: Checkpoint | None = None

    def make(self, name: str | None, *, suggestion: str) -> Path:
        """The run's directory; if it has none, the first process makes it."""
        if self.run is None:
            self.run = distributed.from_first(lambda: runs.create(name, suggestion=suggestion, root=runs.RUNS))
            self.lock(self.run)
        return self.run

    def lock(self, run: Path) -> None:
        """InputError if another process has locked it. The lock ends with this process, however that ends."""

        def refuse() -> None:
            raise InputError(f"Another process is training {run}: wait for it or stop it.")

        if distributed.is_first():
            self._stack.enter_context(locked(run / ".lock", refuse))


@contextmanager
def open_run(config: DictConfig) -> Iterator[RunHandle]:
    """The run that `config` asks to resume, or a new one. If it is stopped at once, or by a full disk, a message says
    how to resume it.
    """
    resume = str(config.train.resume).lower()
    run = distributed.from_first(partial(_existing_run, config, resume))
    with ExitStack() as stack:
        handle = RunHandle(run, stack)
        try:
            if run is not None:
                handle.lock(run)
                handle.checkpoint = distributed.from_first(partial(_newest_checkpoint, run, resume))
            yield handle
        except (KeyboardInterrupt, SystemExit, OSError) as error:
            if not isinstance(error, OSError):
                print(f"Stopped at once. {_advice(handle.run)}", file=sys.stderr)
            elif (full := full_disk(error)) is not None:
                raise InputError(f"{full}. {_advice(handle.run)}") from error
            raise


def _existing_run(config: DictConfig, resume: str) -> Path | None:
    """The directory of the run to resume, or with `auto` to start again; None if a new one is to be made."""
    if resume == "false":
        if config.run is not None:
            runs.check_new(config.run, root=runs.RUNS)  # before the data are prepared
        return None
    if config.run is None:
        raise InputError(f"train.resume={resume} needs run=NAME: the run to go on with.")
    if os.sep in config.run and (Path(config.run) / "config.yaml").exists():
        directory = Path(config.run).resolve()
        raise InputError(
            f"run={config.run} is a path: a run goes on in the directory that it was started in, "
            f"cd {shlex.quote(str(directory.parents[1]))}, with run={directory.name}."
        )
    run = runs.path(config.run, root=runs.RUNS)
    if resume == "auto":
        return run if run.is_dir() else None
    if not (run / "config.yaml").exists():
        raise InputError(
            f"There is no run at {run} to go on with: start it without train.resume, or go to where it is."
            f"{runs.nearby(run)}"
        )
    return run


def _newest_checkpoint(run: Path, resume: str) -> Checkpoint | None:
    """The run's newest checkpoint; None with `auto` if nothing was saved yet: the run then starts again."""
    checkpoint.remove_unfinished(run)
    if checkpoint.list_checkpoints(run):
        return checkpoint.newest(run)
    if resume != "auto":
        raise InputError(f"Run {run} was stopped before it saved anything: train.resume=auto starts it anew.")
    return None


def resume_command(run: Path) -> str:
    """The command line that resumes a run."""
    return f"seqtool train {shlex.quote(f'run={run.name}')} train.resume=true"


def _advice(run: Path | None) -> str:
    if run is None:
        return "Nothing was saved yet: give the same command again."
    saved = checkpoint.list_checkpoints(run)
    if saved:
        return f"The last checkpoint is {saved[-1]}: go on from it with {resume_command(run)}."
    return f"Nothing was saved yet: give the same command again with run={run.name} train.resume=auto."


def is_finished(last: Checkpoint, settings: TrainSettings) -> bool:
    """Whether the run whose last checkpoint this is has nothing left to do."""
    progress = Progress.of(last)
    run = last.path.parents[1]
    noted = (run / AVERAGED).is_file() and (run / AVERAGED).read_bytes() == f"{progress.step}\n".encode()
    averaged = settings.average_last <= 1 or noted or bool(checkpoint.list_averages(run))
    return bool(progress.limits(settings)) and progress.is_validated and averaged


def resumed(config: DictConfig, last: Checkpoint) -> DictConfig:
    """The config of the run's last checkpoint, overridden by this command line; InputError for a setting that must not
    change.
    """
    stored = _stored(last, modules(config.trust))
    changed = stored.copy()
    overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)  # as written, ${…} in a run's name too
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key == "experiment":  # a preset: the groups it chose
            for group in CLASSES:
                OmegaConf.update(changed, group, config[group], merge=False)
        else:
            value = OmegaConf.select(config, key)
            OmegaConf.update(changed, key, escape(value) if isinstance(value, str) else value, merge=False)
    both = stored, changed
    for key in CHANGEABLE:
        before, now = (OmegaConf.select(config, key, default=...) for config in both)
        are_files = all(isinstance(value, str | ListConfig) for value in (before, now))
        is_size = key.partition(".")[2] in moved_data.SOURCES and not are_files  # as of the built-in data
        if before is not ... and now is not ... and not is_size:  # later checks compare the files and the weights
            OmegaConf.update(stored, key, now)
    differences = [
        difference
        for key in FIXED
        for difference in _differences(key, *(OmegaConf.select(config, key) for config in both))
    ]
    known = [name for name, _ in leaves(plain(stored))]
    missing = [name for name, *_ in differences if OmegaConf.select(stored, name, default=...) is ...]
    if missing:
        groups = {name: f"{name.partition('.')[0]}." for name in missing}
        others = {name: [other for other in known if other.startswith(group)] for name, group in groups.items()}
        raise InputError(sentence([unknown(name, others[name]) for name in missing]))
    if differences:
        shown = ", ".join(f"{name} ({_shown(old)}, now {_shown(new)})" for name, old, new in differences)
        raise ChangedRunError(
            f"Run {last.path.parents[1]} was started with other settings of {shown}: a run goes on as it began. "
            f"Leave {'it' if len(differences) == 1 else 'them'} out",
            [name for name, *_ in differences],
            changed,
        )
    for key in ("optim", "schedule", "train", "validation"):
        for name, old, new in _differences(key, stored[key], changed[key]):
            if name not in UNTOLD:
                log.info("From here on %s is %s, which was %s.", name, _shown(new), _shown(old))
    return changed


def trusting(config: DictConfig, *, resuming: bool) -> str:
    """The option that lets a command use the run's user-defined classes, or only those of its model if it does not
    resume the run; empty if there are none.
    """
    named = [name for setting in OTHER_CLASSES for name in names(OmegaConf.select(config, setting))]
    own = own_modules(config.model, config.data, others=named) if resuming else own_modules(config.model)
    return f" trust={','.join(own)}" if own else ""


def _differences(key: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each setting that differs, under its full name, with both values; of a group of another class only the class."""
    if not isinstance(before, DictConfig) or not isinstance(now, DictConfig):
        if before != now:
            yield key, before, now
        return
    if before.get("_target_") != now.get("_target_"):
        old, new = (str(one.get("_target_")).rpartition(".")[2] for one in (before, now))
        yield key, old, new
        return
    for name in map(str, now):
        yield from _differences(f"{key}.{name}", before.get(name), now.get(name))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _stored(last: Checkpoint, trust: Sequence[str]) -> DictConfig:
    """The settings with which a run was last trained, which may name classes of the modules in `trust`. InputError if
    they name others, or are not those of a run.
    """
    stored = resolved(last.config)
    check_groups(stored, f"{last.path} is damaged: setting")
    check_named(stored.model, trusted=trust, base=EncoderDecoder)
    check_named(stored.data, trusted=trust, base=Corpus)
    for setting, base in OTHER_CLASSES.items():
        value = OmegaConf.select(stored, setting)
        for name in names(value) if isinstance(value, str | ListConfig) else ():
            imported(name, base, setting=setting, trusted=trust)
    return stored


def check_groups(config: DictConfig, start: str) -> None:
    """Raise InputError, a sentence that begins with `start`, unless each group of settings is a mapping."""
    for group in GROUPS:
        if not isinstance(config.get(group), DictConfig):
            raise InputError(f"{start} '{group}' is a group of settings, not {config.get(group)}.")


def check_data(last: Checkpoint, data: Mapping[str, Any], config: DictConfig) -> None:
    """Raise InputError if the training files, whose digests are `data`, are no longer those that the run began with."""
    changed = [name for name, digest in last.data.items() if name != "test" and digest != data.get(name)]
    if last.data.get(moved_data.CONTENT, "") == data.get(moved_data.CONTENT):
        changed = [name for name in changed if name != "images"]  # the images have only moved
    if changed:
        settings = [f"data.{name}={config.data[name]}" if name in config.data else name for name in changed]
        raise ChangedRunError(
            f"The data changed since {last.path} was saved ({', '.join(settings)}): a run goes on with the data it "
            "began with. Put them back",
            [f"data.{name}" for name in changed],
            config,
        )


def check_first_weights(config: DictConfig) -> None:
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


def load_weights(model: EncoderDecoder[Any], origin: checkpoint.Checkpoint, cache: Cache, what: str) -> None:
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
