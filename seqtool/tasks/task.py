"""The interface of a task: everything that differs between tasks in preparing data and in training and using models.

The kind of data determines the task, and its models must read that kind. This module, `translation.py`
and `language_modelling.py` import torch only when it is needed: preparing text does without it.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from seqtool.data.configuration import HOLDS
from seqtool.errors import InputError
from seqtool.runtime.classes import build, check_settings, located
from seqtool.runtime.defaults import defaults
from seqtool.settings import declarations, escape, names

if TYPE_CHECKING:
    from seqtool.data.cache import Cache
    from seqtool.models.contract import EncoderDecoder
    from seqtool.runtime.devices import Machine
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.train_settings import TrainSettings
    from seqtool.training.validation import Validating, ValidationSettings

PARTS = ("source_vocabulary", "target_vocabulary", "pretrained")  # a model's arguments besides its settings
READERS = {  # by what models read: what they do, their kind of data, and an example
    "text": ("translates sentences", "pairs", "model=bahdanau"),
    "images": ("describes images", "captions", "model=show_tell"),
    "nothing": ("continues text", "text", "model=language_model"),
}


class Task(ABC):
    """One task. name: in checkpoints' records and in `task=`; reads: what its models read.

    scores: of a validation, besides the loss (`metrics.scores`); the first decides which is best unless train.best_by
    does. unit: what a training split is counted in. predictor: `module:Class` of what uses a trained model, since that
    module imports torch; usage: the command line that uses one.
    """

    name: str
    reads: str
    scores: tuple[str, ...]
    unit: str
    predictor: str
    usage: str

    def counted(self, examples: Any) -> str:
        """The size of a training split, in `unit`."""
        return f"{len(examples):,} {self.unit}"

    @abstractmethod
    def prepare(self, config: DictConfig, *, needs: Sequence[str] = ()) -> "Cache":
        """The cache of `config.data`, made if it does not exist. InputError for data that cannot be used, and at once
        for data without the splits that are needed.
        """

    def prepare_again(self, config: DictConfig, found: "Checkpoint") -> "Cache":
        """The same for a run that resumes from a checkpoint."""
        return self.prepare(config)

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
        if self.reads != "text" and config.embeddings.source is not None:
            raise InputError("embeddings.source means nothing without source sentences: use embeddings.target.")
        self._check_given(config)
        check_settings(config.model, parts=PARTS)

    def _check_given(self, config: DictConfig) -> None:
        """Raise InputError for settings of other tasks that are not at their defaults."""
        declared, usual = declarations.of_command("train"), defaults("train")
        others = [
            f"{group}.{name}"
            for group in ("train", "validation")
            for name, default in usual[group].items()
            if config[group][name] != default and self.name not in (declared[f"{group}.{name}"].tasks or [self.name])
        ]
        if not others:
            return
        if declared[others[0]].tasks == declarations.STREAMS.tasks:
            raise InputError(f"{others[0]} is for language models, not for {self.name}: leave it out.")
        raise InputError(f"{', '.join(f'{name}=' for name in others)} means nothing for {self.name}: leave it out.")

    def check_tokenizer(self, tokenize: str) -> None:  # noqa: B027 a text is scored without one
        """Raise InputError for an unknown value of `validation.tokenize`."""

    def tokenizer(self, cache: "Cache") -> tuple[str | None, str]:
        """The tokeniser for scores of the cache's validation set, and what to say about it, which may be nothing."""
        return None, ""

    def check_model(self, config: DictConfig) -> None:
        """Raise InputError unless the model reads this kind of data."""
        model, corpus = located(config.model, trusted=True), located(config.data, trusted=True)
        reads = said(model, "reads", READERS, "model")
        if reads == self.reads:
            return
        does, data, _ = READERS[reads]
        *_, other_model = READERS[self.reads]
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.__name__).lower()
        raise InputError(
            f"model={name} {does}, but data={corpus.name} holds {HOLDS[corpus.holds][0]}: choose another model, such "
            f"as {other_model}, or other data, such as {HOLDS[data][1]}."
        )

    def make_model(self, config: DictConfig, cache: "Cache", *, pretrained: bool) -> "EncoderDecoder[Any]":
        """The model, before `initialisation`. `pretrained`: load an image encoder's pretrained weights; otherwise a
        checkpoint will supply them.
        """
        from seqtool.models.contract import EncoderDecoder  # imports torch

        sizes = {f"{side}_vocabulary": len(known) for side, known in cache.vocabularies.items()}
        model: EncoderDecoder[Any] = build(config.model, trusted=True, base=EncoderDecoder, **sizes)
        return model

    def check_lengths(self, model: "EncoderDecoder[Any]", cache: "Cache") -> None:
        """Raise InputError if a sentence to train on or to validate with is longer than the model can read."""
        if model.longest is None or self.reads == "nothing":
            return
        for name in ("train", "valid"):
            longest = cache.split(name).longest
            if longest > model.longest:
                raise InputError(
                    f"The longest sentence of {name} has {longest:,} tokens with its end, but the model reads at most "
                    f"{model.longest:,}, the number of learnt positions: raise model.longest, or set "
                    "model.positions=sinusoids."
                )

    def parameter_groups(self, model: Any, config: DictConfig) -> list[dict[str, Any]]:
        """The parameters in groups, each trained from its `from_step` on, perhaps with its own optimiser settings."""
        return [{"params": list(model.parameters()), "from_step": 0}]

    def check_weights(  # noqa: B027 most tasks have nothing to check
        self, model: Any, config: DictConfig, cache: "Cache", path: Path
    ) -> None:
        """Raise InputError if the model's weights, from the checkpoint at `path`, do not match the cache."""

    def examples(self, cache: "Cache", settings: "TrainSettings") -> Any:
        """The training examples, with a split's `labels`, `collate` and `epoch`."""
        return cache.split("train")

    @abstractmethod
    def validator(
        self, cache: "Cache", settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validating":
        """The validator that scores the model on the cache's validation set."""

    def load(self, checkpoints: str | Path | Sequence[str | Path], **settings: Any) -> Any:
        """The predictor for a trained model or an ensemble of several; settings as on the command line."""
        return resolve_name(self.predictor).load(checkpoints, **settings)

    def use(self, checkpoint: str) -> str:
        """The command line that uses a trained model."""
        return self.usage.format(checkpoint=checkpoint)


def said(named: Any, attribute: str, known: Collection[str], setting: str) -> str:
    """A class's attribute `reads` (a model's) or `holds` (a corpus's). InputError unless its value is a known one."""
    answer = getattr(named, attribute, None)
    if answer not in known:
        raise InputError(
            f"{setting}._target_ names {named.__name__}, which does not say what it {attribute}: {' or '.join(known)}."
        )
    return str(answer)


def with_vocabulary_found(data: DictConfig) -> DictConfig:
    """The settings; if a run's vocabulary is to be reused, with the run replaced by its best checkpoint."""
    reuse = OmegaConf.select(data, "vocabulary.reuse")
    if not isinstance(reuse, str) or not (Path(reuse) / "checkpoints").is_dir():
        return data
    from seqtool.training import checkpoint  # imports torch

    found: DictConfig = copy.deepcopy(data)
    found.vocabulary.reuse = escape(str(checkpoint.find(reuse).path))
    return found
