"""The interface of a task: everything that differs between tasks in preparing data and in training and using models.

The data determine the task, and the model must be for the same one. The modules of tasks import torch only when it is
needed: preparing and scoring text do without it.
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
from seqtool.runtime.defaults import defaults
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, escape, names
from seqtool.settings.classes import check_settings, located

if TYPE_CHECKING:
    from seqtool.data.batches import Examples
    from seqtool.data.cache import Cache
    from seqtool.evaluation.evaluation import Evaluator
    from seqtool.models.contract import EncoderDecoder
    from seqtool.models.parts import Parts
    from seqtool.runtime.devices import Machine
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.saving import TrainSettings
    from seqtool.training.validation import StreamValidator, ValidationSettings, Validator

PARTS = ("source_vocabulary", "target_vocabulary", "pretrained", "parts")  # a model's arguments besides its settings


class Task(ABC):
    """One task. A subclass says:

    name: its key in `runtime.task_table`
    corpus: the base class of its data
    does: what its models do, as in "translates sentences"
    example: a choice of model, for messages
    scores: of a validation, besides the loss; the first decides which is best, unless train.best_by does
    unit: what a training split is counted in
    predictor: what uses a trained model, as module:class
    usage: the command line that uses a `checkpoint`, a format
    evaluator: what `eval` scores with, as module:class
    outputs: what is scored, as in "a setting for translations"
    streams: whether examples are streams, whose state is carried from batch to batch
    """

    name: ClassVar[str]
    corpus: ClassVar[type[Corpus]]
    does: ClassVar[str]
    example: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    unit: ClassVar[str]
    predictor: ClassVar[str]
    usage: ClassVar[str]
    evaluator: ClassVar[str]
    outputs: ClassVar[str]
    streams: ClassVar[bool] = False

    def counted(self, examples: Any) -> str:
        """The size of a training split, in `unit`."""
        return f"{len(examples):,} {self.unit}"

    @abstractmethod
    def prepare(self, config: DictConfig, *, needs: Sequence[str] = ()) -> "Cache":
        """The cache of `config.data`, made if it does not exist. InputError for data that cannot be used, and at once
        for data without the splits that are needed.
        """

    def prepare_again(self, config: DictConfig, checkpoint: "Checkpoint") -> "Cache":
        """The same for a run that resumes from a checkpoint. If the original files of a text are gone, falls back on
        the cache from which the run was trained.
        """
        from seqtool.training.moved_data import prepared_again  # imports torch

        return prepared_again(checkpoint, config.data, self.corpus, partial(self.prepare, config))

    def check(self, config: DictConfig, *, pretrained: bool) -> None:
        """Raise InputError for settings of a run that mean nothing for this task or that its model would refuse, before
        any data are prepared. `pretrained` as for `make_model`.
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
        declared, usual = declarations.of_command("train"), defaults("train")
        others = [  # what only streams use, or what they do not use
            f"{group}.{name}"
            for group in ("train", "validation")
            for name, default in usual[group].items()
            if config[group][name] != default and declared[f"{group}.{name}"].streams is (not self.streams)
        ]
        if others and self.streams:
            raise InputError(f"{', '.join(f'{name}=' for name in others)} means nothing for {self.name}: leave it out.")
        if others:
            raise InputError(f"{others[0]} is for language models, not for {self.name}: leave it out.")
        check_settings(config.model, parts=PARTS)

    def check_tokenizer(self, tokenize: str) -> None:  # noqa: B027 a text is scored without one
        """Raise InputError for an unknown value of `validation.tokenize`."""

    def tokenizer(self, cache: "Cache") -> tuple[str | None, str]:
        """The tokeniser for scores of the cache's validation set, and what to say about it, which may be nothing."""
        return None, ""

    def check_model(self, config: DictConfig) -> None:
        """Raise InputError unless the model is for this task."""
        from seqtool.models.contract import EncoderDecoder  # imports torch, as does the class of the model

        model = located(config.model, trusted=True, base=EncoderDecoder)
        corpus = located(config.data, trusted=True, base=Corpus)
        task = task_name(model, "model")
        if task == self.name:
            return
        other = named(task)
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.__name__).lower()
        raise InputError(
            f"model={name} {other.does}, but data={corpus.name} holds {corpus.contents}: choose another model, such as "
            f"{self.example}, or other data, such as {other.corpus.example}."
        )

    def make_model(
        self, config: DictConfig, cache: "Cache", *, pretrained: bool, parts: "Parts"
    ) -> "EncoderDecoder[Any]":
        """The model of these parts, before `initialisation`. `pretrained`: load an image encoder's pretrained weights;
        otherwise a checkpoint will supply them.
        """
        from seqtool.models.contract import EncoderDecoder  # imports torch
        from seqtool.models.parts import build_model

        sizes = {f"{side}_vocabulary": len(vocabulary) for side, vocabulary in cache.vocabularies.items()}
        return cast("EncoderDecoder[Any]", build_model(config.model, base=EncoderDecoder, parts=parts, **sizes))

    def check_lengths(self, model: "EncoderDecoder[Any]", cache: "Cache") -> None:
        """Raise InputError if a sentence to train on or to validate with is longer than the model can read."""
        if model.max_positions is None or self.streams:
            return
        for name in ("train", "valid"):
            longest = cache.split(name).longest
            if longest > model.max_positions:
                raise InputError(
                    f"The longest sentence of {name} has {longest:,} tokens with its end, but the model reads at most "
                    f"{model.max_positions:,}, the number of learnt positions: raise model.longest, or set "
                    "model.positions=sinusoids."
                )

    def parameter_groups(self, model: Any, config: DictConfig) -> list[dict[str, Any]]:
        """The parameters in groups, each trained from its `from_step` on, perhaps with its own optimiser settings."""
        return [{"params": list(model.parameters()), "from_step": 0}]

    def check_weights(  # noqa: B027 most tasks have nothing to check
        self, model: Any, config: DictConfig, cache: "Cache", path: Path
    ) -> None:
        """Raise InputError if the model's weights, from the checkpoint at `path`, do not match the cache."""

    def examples(self, cache: "Cache", settings: "TrainSettings") -> "Examples":
        """The training examples."""
        return cache.split("train")

    @abstractmethod
    def validator(
        self, cache: "Cache", settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validator | StreamValidator":
        """The validator that scores the model on the cache's validation set."""

    def load(self, checkpoints: Any, **settings: Any) -> Any:
        """The predictor for a trained model or an ensemble of several: paths or opened checkpoints. Settings are as on
        the command line.
        """
        return resolve_name(self.predictor).load(checkpoints, **settings)

    def decoding_settings(self) -> list[str]:
        """The names of the decoding settings that `eval` takes for a model of this task."""
        return list(defaults("decoding"))


def task_name(owner: Any, setting: str) -> str:
    """The task of a model's or a corpus's class. InputError unless it is a known one."""
    name = getattr(owner, "task", None)
    if name not in TASKS:
        raise InputError(
            f"{setting}._target_ names {owner.__name__}, which does not say its task: {' or '.join(TASKS)}."
        )
    return str(name)


def with_vocabulary_of_run(data: DictConfig) -> DictConfig:
    """The settings; if a run's vocabulary is to be reused, with the run replaced by its best checkpoint."""
    reuse = OmegaConf.select(data, "vocabulary.reuse")
    if not isinstance(reuse, str) or not (Path(reuse) / "checkpoints").is_dir():
        return data
    from seqtool.training import checkpoint  # imports torch

    settings: DictConfig = copy.deepcopy(data)
    settings.vocabulary.reuse = escape(str(checkpoint.find(reuse).path))
    return settings


def named(name: str) -> Task:
    """The task of this name."""
    return cast(Task, resolve_name(TASKS[name].location))  # imported only when needed


def of(config: DictConfig) -> Task:
    """The task that the data are for; unlike a model, data can tell without importing torch (`Task.check_model`)."""
    return named(task_name(located(config.data, trusted=True, base=Corpus), "data"))


def of_checkpoint(checkpoint: "Checkpoint") -> Task:
    """The task that a checkpoint was trained for. InputError if this version does not know it."""
    if checkpoint.task not in TASKS:
        task, path = checkpoint.task, checkpoint.path
        raise InputError(f"{path} is for the task '{task}', which this version of seqtool does not know.")
    return named(checkpoint.task)


def evaluator(name: str) -> "type[Evaluator]":
    """The class that evaluates the models of the task with this name."""
    return cast("type[Evaluator]", resolve_name(named(name).evaluator))
