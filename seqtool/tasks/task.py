"""The interface of a task: everything that differs between tasks in preparing data, training and using models.

The data determine the task, and the model must be for the same task. The modules of tasks import torch only where it is
needed, since preparing and scoring text do not need it.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, cast

from omegaconf import DictConfig, OmegaConf

from seqtool.data.corpora.corpus import Corpus
from seqtool.errors import InputError
from seqtool.runtime.configs import defaults
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, escape, names
from seqtool.settings.classes import NON_SETTING_ARGUMENTS, Trust, check_settings, import_class, locate_target
from seqtool.training import runs

if TYPE_CHECKING:
    from seqtool.data.batches import Examples
    from seqtool.data.cache import Cache
    from seqtool.evaluation import Evaluator
    from seqtool.models.contract import EncoderDecoder
    from seqtool.models.parts import Parts
    from seqtool.runtime.devices import Machine
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.saving import TrainSettings
    from seqtool.training.sequences import Rewards
    from seqtool.training.validation import StreamValidator, ValidationSettings, Validator


class Task(ABC):
    """The interface of a task. A subclass defines the class variables without a value."""

    name: ClassVar[str]  # the key in `runtime.task_table`; the dotted name of the class if it is not in that table
    corpus: ClassVar[type[Corpus]]  # the base class of the task's data
    does: ClassVar[str]  # what the task's models do, such as "translates sentences"
    example: ClassVar[str]  # an example of a setting that chooses a model, for messages
    scores: ClassVar[tuple[str, ...]]  # of a validation, besides the loss; the first is the default of train.best_by
    unit: ClassVar[str]  # the unit of a training split's size, such as the "pairs" of "29,000 pairs"
    predictor: ClassVar[str]  # the class that uses a trained model, as module:class
    usage: ClassVar[str]  # the format string, with {checkpoint}, of the command that uses a trained model
    evaluator: ClassVar[str]  # the class with which `eval` scores, as module:class
    outputs: ClassVar[str]  # the plural noun for what the models write, such as "translations"
    streams: ClassVar[bool] = False  # whether examples are streams, whose state is carried from batch to batch

    def format_size(self, examples: Any) -> str:
        """Format the size of a training split, with its `unit`."""
        return f"{len(examples):,} {self.unit}"

    @abstractmethod
    def prepare(self, config: DictConfig, *, needs: Sequence[str] = ()) -> "Cache":
        """Return the cache of `config.data`, and make it if it does not exist. Raises InputError for unusable data, and
        before any work if a split in `needs` is missing.
        """

    def prepare_again(self, config: DictConfig, checkpoint: "Checkpoint") -> "Cache":
        """Return the cache for a run that resumes from a checkpoint. If the text's original files are gone, it is the
        cache with which the run was trained.
        """
        from seqtool.training.moved_data import prepare_or_reuse  # imports torch

        return prepare_or_reuse(checkpoint, config.data, self.corpus, partial(self.prepare, config))

    def check(self, config: DictConfig, *, pretrained: bool) -> None:
        """Raise InputError for settings of a run that have no effect for this task or are invalid for its model, before
        any data are prepared; `pretrained`: whether `make_model` will load an image encoder's pretrained weights.
        """
        self.check_model(config)
        choices = (*self.scores, *names(config.validation.get("scores")), "loss")
        if config.train.best_by not in (None, *choices):
            raise InputError(
                f"train.best_by={config.train.best_by} is not a score of {self.name}; choose from {', '.join(choices)}."
            )
        if (tokenize := config.validation.get("tokenize")) is not None:
            self.check_tokenizer(tokenize)
        if "source" not in self.corpus.sides and config.embeddings.source is not None:
            raise InputError("embeddings.source means nothing without source sentences: use embeddings.target.")
        properties, default_values = declarations.command_settings("train"), defaults("train")
        unused = [  # settings that only streams use, or that streams do not use
            f"{group}.{name}"
            for group in ("train", "validation")
            for name, default in default_values[group].items()
            if config[group][name] != default and properties[f"{group}.{name}"].streams is (not self.streams)
        ]
        if unused and self.streams:
            raise InputError(f"{', '.join(f'{name}=' for name in unused)} means nothing for {self.name}: leave it out.")
        if unused:
            raise InputError(f"{unused[0]} is for language models, not for {self.name}: leave it out.")
        check_settings(config.model, parts=NON_SETTING_ARGUMENTS)

    def check_tokenizer(self, tokenize: str) -> None:  # noqa: B027 language models have no tokeniser
        """Raise InputError for an unknown value of `validation.tokenize`."""

    def tokenizer(self, cache: "Cache") -> tuple[str | None, str]:
        """The tokeniser for scores on the cache's validation set, and a message about it, which may be empty."""
        return None, ""

    def check_model(self, config: DictConfig) -> None:
        """Raise InputError unless the model is for this task."""
        from seqtool.models.contract import EncoderDecoder  # imports torch, as does the class of the model

        model = locate_target(config.model, trusted=True, base=EncoderDecoder)
        corpus = locate_target(config.data, trusted=True, base=Corpus)
        task = task_name(model, "model")
        if task == self.name:
            return
        other = task_by_name(task)
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.__name__).lower()
        raise InputError(
            f"model={name} {other.does}, but data={corpus.name} holds {corpus.contents}: choose another model, such as "
            f"{self.example}, or other data, such as {other.corpus.example}."
        )

    def make_model(
        self, config: DictConfig, cache: "Cache", *, pretrained: bool, parts: "Parts"
    ) -> "EncoderDecoder[Any]":
        """Make the model from its settings and parts; its weights are initialised later. If it is not `pretrained`, the
        weights of its image encoder come from a checkpoint too.
        """
        from seqtool.models.contract import EncoderDecoder  # imports torch
        from seqtool.models.parts import build_model

        sizes = {f"{side}_vocabulary": len(vocabulary) for side, vocabulary in cache.vocabularies.items()}
        return cast("EncoderDecoder[Any]", build_model(config.model, base=EncoderDecoder, parts=parts, **sizes))

    def check_lengths(self, model: "EncoderDecoder[Any]", cache: "Cache") -> None:
        """Raise InputError if a training or validation sentence is longer than the model can read."""
        if model.max_positions is None or self.streams:
            return
        for name in ("train", "valid"):
            longest = cache.split(name).max_length
            if longest > model.max_positions:
                raise InputError(
                    f"The longest sentence of {name} has {longest:,} tokens with its end, but the model reads at most "
                    f"{model.max_positions:,}, the number of learnt positions: raise model.longest, or set "
                    "model.positions=sinusoids."
                )

    def parameter_groups(self, model: Any, config: DictConfig) -> list[dict[str, Any]]:
        """Group the parameters. A group is trained after its `from_step`, and may have settings for the optimiser."""
        return [{"params": list(model.parameters()), "from_step": 0}]

    def check_weights(self, model: Any, config: DictConfig, cache: "Cache", path: Path) -> None:  # noqa: B027 optional
        """Raise InputError if the weights that were loaded from the checkpoint at `path` do not match the cache."""

    def examples(self, cache: "Cache", settings: "TrainSettings") -> "Examples":
        """The training examples."""
        return cache.split("train")

    @abstractmethod
    def validator(
        self, cache: "Cache", settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validator | StreamValidator":
        """Make the validator that scores the model on the cache's validation set."""

    def rewards(self, cache: "Cache", settings: "TrainSettings", tokenize: str) -> "Rewards":
        """The rewards of sequences that a model writes for training examples."""
        raise InputError(f"train.objective=sequence is not for {self.name}: it rewards translations and captions.")

    def load(self, checkpoints: Any, **settings: Any) -> Any:
        """Load the predictor for a trained model or, from a list, an ensemble, with settings as on the command line.
        checkpoints: a path or an open checkpoint, or a list of several
        """
        return resolve_name(self.predictor).load(checkpoints, **settings)


def task_name(owner: Any, setting: str) -> str:
    """The name of the task of a model's or corpus's class. Raises InputError if there is no such task."""
    name = getattr(owner, "task", None)
    if name not in TASKS and "." not in str(name):
        raise InputError(
            f"{setting}._target_ names {owner.__name__}, which does not define its task: {' or '.join(TASKS)}."
        )
    return str(name)


def with_vocabulary_of_run(data: DictConfig) -> DictConfig:
    """The settings of the data, with the path of its checkpoint for a run or built-in model in `vocabulary.reuse`."""
    reuse = OmegaConf.select(data, "vocabulary.reuse")
    if not isinstance(reuse, str):
        return data
    is_run, is_built_in = (Path(reuse) / "checkpoints").is_dir(), runs.located(Path(reuse)) != Path(reuse)
    if not (is_run or is_built_in):
        return data
    from seqtool.training import checkpoint  # imports torch

    settings: DictConfig = copy.deepcopy(data)
    settings.vocabulary.reuse = escape(str(checkpoint.find(reuse).path))
    return settings


def task_by_name(name: str, *, trusted: Trust = True) -> Task:
    """The task with this name, which is the dotted name of its class if it is a user's task. Imports its module.
    trusted: the modules whose classes the name may be
    """
    if name in TASKS:
        return cast(Task, resolve_name(TASKS[name].location))
    return cast("type[Task]", import_class(name, Task, setting="task", trusted=trusted))()


def task_of_data(config: DictConfig) -> Task:
    """The task of the data in the settings, which is found without importing torch, unlike the task of a model."""
    return task_by_name(task_name(locate_target(config.data, trusted=True, base=Corpus), "data"))


def task_of_checkpoint(checkpoint: "Checkpoint") -> Task:
    """The task that a checkpoint was trained for. Raises InputError if this version does not have it, or if it is a
    user's task that is not trusted.
    """
    if checkpoint.task not in TASKS and "." not in checkpoint.task:
        task, path = checkpoint.task, checkpoint.path
        raise InputError(f"{path} is for the task '{task}', which this version of seqtool does not have.")
    return task_by_name(checkpoint.task, trusted=checkpoint.trust)


def evaluator(name: str) -> "type[Evaluator]":
    """The class that evaluates models of the task with this name."""
    return cast("type[Evaluator]", resolve_name(task_by_name(name).evaluator))
