"""How a run begins or resumes.

- Its directory is locked while a process trains it.
- A resumed run keeps the settings that determine its data and model; the other settings may change.
- Its initial weights are random, another run's, or its own when it resumes.
"""

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
from seqtool.data.text.embeddings import read_vectors
from seqtool.data.text.vocabulary import load_all
from seqtool.errors import InputError, full_disk
from seqtool.metrics.scores import Scorer, names_in_sum
from seqtool.models.contract import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.runtime import distributed
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import check_file, expanded, locked
from seqtool.runtime.log import log
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, escape, escape_all, leaves, names, plain, sentence, unknown
from seqtool.settings.classes import check_class_names, import_class, modules, user_modules
from seqtool.training import checkpoint, moved_data, runs
from seqtool.training.checkpoint import Checkpoint
from seqtool.training.optimisation import can_continue
from seqtool.training.saving import AVERAGED, Progress, TrainSettings

# Settings that may name the user's classes, besides the groups `model` and `data`, and the classes' base classes.
OTHER_CLASSES = {
    "optim.name": torch.optim.Optimizer,
    **dict.fromkeys(("train.best_by", "train.reward", "validation.scores"), Scorer),
}
GROUPS = tuple(group for group in declarations.TRAIN if group and "." not in group)  # groups at the top level
SUBGROUPS = tuple(group for group in declarations.TRAIN if "." in group)  # groups inside groups; a run may lack them
CLASSES = tuple(declarations.declared(declarations.Groups))  # the groups that choose a class
FIXED, CHANGEABLE = (  # settings and groups that a resumed run must keep; settings in them that it may change
    [name for name, setting in declarations.command_settings("train").items() if setting.fixed is fixed]
    for fixed in (True, False)
)
# Changes of these settings are not logged: to resume a run, users raise its limits.
UNLOGGED = ("train.resume", "train.epochs", "train.steps", "train.minutes", "train.patience")


class ChangedRunError(InputError):
    """Raised if settings or data are not those that a run was started with. The caller adds the end of the message:
    what the user may do instead.

    names: the full names of the changed settings.
    config: the configuration with the changes.
    """

    def __init__(self, reason: str, names: Sequence[str], config: DictConfig) -> None:
        super().__init__(reason)
        self.names, self.config = names, config


@dataclass
class RunHandle:
    """A run's locked directory and the checkpoint from which it resumes; each is None until it exists."""

    run: Path | None
    _stack: ExitStack  # keeps the run locked
    checkpoint: Checkpoint | None = None

    def make(self, name: str | None, *, suggestion: str) -> Path:
        """Return the run's directory; the first process makes it if it does not exist."""
        if self.run is None:
            self.run = distributed.from_first(lambda: runs.create(name, suggestion=suggestion, root=runs.RUNS))
            self.lock(self.run)
        return self.run

    def lock(self, run: Path) -> None:
        """Lock the run until this process ends, however it ends. Raises InputError if another process has locked it."""

        def refuse() -> None:
            raise InputError(f"Another process is training {run}: wait for it or stop it.")

        if distributed.is_first():
            self._stack.enter_context(locked(run / ".lock", refuse))


@contextmanager
def open_run(config: DictConfig) -> Iterator[RunHandle]:
    """Open the run to resume, or a new one. If it is interrupted or the disk is full, report how to resume it."""
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
                print(f"Stopped at once. {_advice(handle, config)}", file=sys.stderr)
            elif (full := full_disk(error)) is not None:
                raise InputError(f"{full}. {_advice(handle, config)}") from error
            raise


def _existing_run(config: DictConfig, resume: str) -> Path | None:
    """The directory of the run to resume, or with `auto` to start again; None for a new run."""
    if resume == "false":
        if config.run is not None:
            runs.check_new(config.run, root=runs.RUNS)  # now, before the data are prepared
        return None
    if config.run is None:
        raise InputError(f"train.resume={resume} needs run=NAME: the run to resume.")
    if os.sep in config.run and (Path(config.run) / "config.yaml").exists():
        directory = Path(config.run).resolve()
        raise InputError(
            f"run={config.run} is a path: resume a run from the directory it was started in: "
            f"cd {shlex.quote(str(directory.parents[1]))}, then run={directory.name}."
        )
    run = runs.path(config.run, root=runs.RUNS)
    if resume == "auto":
        return run if run.is_dir() else None
    if not (run / "config.yaml").exists():
        raise InputError(
            f"There is no run to resume at {run}: start it without train.resume, or change to the directory it is in."
            f"{runs.nearby(run)}"
        )
    return run


def _newest_checkpoint(run: Path, resume: str) -> Checkpoint | None:
    """The run's newest checkpoint; with `auto` None if none was saved: the run then starts again."""
    checkpoint.remove_unfinished(run)
    if checkpoint.list_checkpoints(run):
        return checkpoint.newest(run)
    if resume != "auto":
        raise InputError(f"Run {run} was stopped before it saved anything: train.resume=auto starts it again.")
    return None


def resume_command(run: Path, trust: str) -> str:
    """The command line that resumes a run; `trust` is its option for user-defined classes (`trust_option`)."""
    return f"seqtool train {shlex.quote(f'run={run.name}')} train.resume=true{trust}"


def _advice(handle: RunHandle, config: DictConfig) -> str:
    """How to resume or repeat a run that was interrupted."""
    run = handle.run
    if run is None:
        return "Nothing was saved yet: give the same command again."
    if saved := checkpoint.list_checkpoints(run):
        trusted = ",".join(modules(config.trust))  # of a resumed run: the stored classes may not be trusted
        trust = f" trust={trusted}" if trusted else ""
        if handle.checkpoint is None:
            trust = trust_option(config, resuming=True)
        return f"The last checkpoint is {saved[-1]}: resume from it with {resume_command(run, trust)}."
    name = shlex.quote(f"run={run.name}")
    return f"Nothing was saved yet: give the same command again with {name} train.resume=auto."


def is_finished(last: Checkpoint, settings: TrainSettings) -> bool:
    """Whether a run with this last checkpoint has nothing left to do under these settings."""
    progress = Progress.of(last)
    run = last.path.parents[1]
    average_is_recorded = (run / AVERAGED).is_file() and (run / AVERAGED).read_bytes() == f"{progress.step}\n".encode()
    averaged = settings.average_last <= 1 or average_is_recorded or bool(checkpoint.list_averages(run))
    return bool(progress.limits(settings)) and progress.is_validated and averaged


def resumed_config(config: DictConfig, last: Checkpoint) -> DictConfig:
    """The configuration of the run's last checkpoint, with this command line's overrides.

    Raises InputError for a setting that must not change.
    """
    stored_config = _stored_config(last, modules(config.trust))
    compiles = stored_config.get("compile", False)  # older runs have no such setting
    OmegaConf.update(stored_config, "compile", compiles, force_add=True)
    changed_config = stored_config.copy()
    overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)  # before interpolation of ${…}
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key == "experiment":  # a preset: take the groups it chose
            for group in CLASSES:
                OmegaConf.update(changed_config, group, config[group], merge=False)
        else:
            value = OmegaConf.select(config, key)
            OmegaConf.update(changed_config, key, escape(value) if isinstance(value, str) else value, merge=False)
    for key in CHANGEABLE:
        old, new = (OmegaConf.select(settings, key, default=...) for settings in (stored_config, changed_config))
        are_files = all(isinstance(value, str | ListConfig) for value in (old, new))
        is_size = key.partition(".")[2] in moved_data.SOURCES and not are_files  # such as data.train=1000
        if old is not ... and new is not ... and not is_size:  # the files and weights are compared later
            OmegaConf.update(stored_config, key, escape(new) if isinstance(new, str) else new)
    differences: list[tuple[str, Any, Any]] = []
    for key in FIXED:
        differences += _differences(key, OmegaConf.select(stored_config, key), OmegaConf.select(changed_config, key))
    if missing := [name for name, *_ in differences if OmegaConf.select(stored_config, name, default=...) is ...]:
        problems = []
        for name in missing:
            group = f"{name.partition('.')[0]}."
            choices = [choice for choice, _ in leaves(plain(stored_config)) if choice.startswith(group)]
            problems.append(unknown(name, choices))
        raise InputError(sentence(problems))
    if not differences and not can_continue(stored_config.optim, changed_config.optim):
        differences = [*_differences("optim", stored_config.optim, changed_config.optim)]
    if differences:
        changes = [f"{name} ({_format_value(old)}, now {_format_value(new)})" for name, old, new in differences]
        raise ChangedRunError(
            f"Run {last.path.parents[1]} was started with other settings of {', '.join(changes)}: a resumed "
            f"run keeps them. Leave {'it' if len(differences) == 1 else 'them'} out",
            [name for name, *_ in differences],
            changed_config,
        )
    for key in ("optim", "schedule", "train", "validation"):
        for name, old, new in _differences(key, stored_config[key], changed_config[key]):
            if name not in UNLOGGED:
                log.info("From now on %s is %s; it was %s.", name, _format_value(new), _format_value(old))
    return changed_config


def trust_option(config: DictConfig, *, resuming: bool) -> str:
    """The `trust=` option that a command needs for the run's user-defined classes; empty if there are none.

    resuming: whether the command resumes the run; otherwise it needs only the classes of the model.
    """
    others = [name for setting in OTHER_CLASSES for name in _names_in(config, setting)]
    trusted = user_modules(config.model, config.data, others=others) if resuming else user_modules(config.model)
    return f" trust={','.join(trusted)}" if trusted else ""


def _differences(key: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the full name and both values of each setting that differs; for groups of two classes, only the classes."""
    if not isinstance(before, DictConfig) or not isinstance(now, DictConfig):
        if before != now:
            yield key, before, now
        return
    if before.get("_target_") != now.get("_target_"):
        old, new = (str(config.get("_target_")).rpartition(".")[2] for config in (before, now))
        yield key, old, new
        return
    for name in map(str, now):
        yield from _differences(f"{key}.{name}", before.get(name), now.get(name))


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stored_config(last: Checkpoint, trust: Sequence[str]) -> DictConfig:
    """The settings with which a run was last trained. Raises InputError if they are not a run's settings, or name
    classes outside this package and the modules in `trust`.
    """
    # the settings in a checkpoint are values without references to other settings
    stored: DictConfig = OmegaConf.create(escape_all(last.config))
    check_groups(stored, f"{last.path} is damaged: setting")
    check_class_names(stored.model, trusted=trust, base=EncoderDecoder)
    check_class_names(stored.data, trusted=trust, base=Corpus)
    for setting, base in OTHER_CLASSES.items():
        value = OmegaConf.select(stored, setting)
        if not isinstance(value, str | ListConfig | None):
            raise InputError(f"{last.path} is damaged: setting '{setting}' is a name or a list of names, not {value}.")
        for name in _names_in(stored, setting):
            import_class(name, base, setting=setting, trusted=trust)
    return stored


def _names_in(config: DictConfig, setting: str) -> list[str]:
    """The names that a setting of `OTHER_CLASSES` has, of classes and others."""
    value = OmegaConf.select(config, setting)
    return names_in_sum(value) if setting == "train.reward" and isinstance(value, str) else names(value)


def check_groups(config: DictConfig, subject: str) -> None:
    """Raise InputError, with a message that begins with `subject`, unless each group of settings is a mapping."""
    for group in (*GROUPS, *SUBGROUPS):
        value = OmegaConf.select(config, group)
        if not isinstance(value, DictConfig) and (group in GROUPS or value is not None):
            raise InputError(f"{subject} '{group}' is a group of settings, not {value}.")


def check_data(last: Checkpoint, data: Mapping[str, Any], config: DictConfig) -> None:
    """Raise InputError unless the digests `data` are those of the files that the run was started with."""
    changed = [name for name, digest in last.data.items() if name != "test" and digest != data.get(name)]
    if last.data.get(moved_data.CONTENT, "") == data.get(moved_data.CONTENT):
        changed = [name for name in changed if name != "images"]  # the images have only moved
    if changed:
        settings = [f"data.{name}={config.data[name]}" if name in config.data else name for name in changed]
        raise ChangedRunError(
            f"The data changed since {last.path} was saved ({', '.join(settings)}): a run resumes with the data it "
            "was started with. Put them back",
            [f"data.{name}" for name in changed],
            config,
        )


def check_first_weights(config: DictConfig) -> None:
    """Raise InputError if the run or word vectors to initialise from do not exist, before any data are prepared."""
    if config.init_from is not None and not Path(expanded(config.init_from)).exists():
        checkpoint.find(config.init_from, purpose="record")  # raises InputError except for RUN/best and RUN/last
    for file in filter(None, config.embeddings.values()):
        check_file(Path(file))


def initialise_fresh(model: EncoderDecoder[Any], config: DictConfig, cache: Cache) -> None:
    """Initialise the model at random, and its embeddings from files of word vectors if the settings name any."""
    initialise(model, config.initialisation, gain=config.initialisation_gain, forget_bias=config.forget_bias)
    for side, vocabulary in cache.vocabularies.items():
        file = config.embeddings[side]
        if file is None:
            continue
        embedding: nn.Embedding = getattr(model, f"{side}_embedding")
        rows, vectors = read_vectors(Path(file), vocabulary, embedding.embedding_dim)
        with torch.no_grad():
            embedding.weight[torch.from_numpy(rows)] = torch.from_numpy(vectors) / model.embedding_scale
        log.info("%s: vectors for %s of %s pieces", file, f"{len(rows):,}", f"{len(vocabulary):,}")


def open_initial_checkpoint(model: EncoderDecoder[Any], config: DictConfig) -> checkpoint.Checkpoint:
    """Open the checkpoint that `init_from` names. Raises InputError if its weights cannot initialise this model."""
    if any(file is not None for file in config.embeddings.values()):
        raise InputError("init_from= brings its own embeddings: leave embeddings.source and embeddings.target out.")
    if any(config[name] != defaults("train")[name] for name in ("initialisation_gain", "forget_bias")):
        raise InputError("init_from= brings its own weights: leave initialisation_gain and forget_bias out.")
    initial = checkpoint.find(config.init_from, trust=modules(config.trust))
    if initial.model_task != model.task:
        stored_model, new_model = TASKS[initial.model_task].model, TASKS[model.task].model
        raise InputError(f"init_from={initial.path} holds {stored_model}, but model= is {new_model}.")
    return initial


def load_weights(model: EncoderDecoder[Any], origin: checkpoint.Checkpoint, cache: Cache, subject: str) -> None:
    """Load the model's weights from a checkpoint.

    Raises InputError, with a message that begins with `subject`, if its vocabularies are not the cache's.
    """
    stored = load_all(origin.path, list(cache.vocabularies))
    if any(stored[side].fingerprint != vocabulary.fingerprint for side, vocabulary in cache.vocabularies.items()):
        raise InputError(
            f"{subject} another vocabulary than this data has: prepare the data with it, "
            f"data.vocabulary.reuse={origin.path}."
        )
    try:
        origin.load_weights(model)
    except InputError as error:
        settings = {name: value for name, value in origin.config["model"].items() if isinstance(value, int | str)}
        listing = " ".join(f"model.{name}={value}" for name, value in settings.items() if not name.startswith("_"))
        raise InputError(f"{error} Its model has {listing}.") from error
