"""What a task is: everything that differs between them when data are prepared, and models trained and used.

A task is told by what its data hold and its models read, `text` or `images`. Nothing here and in `translation.py`
imports torch before it is needed: preparing text does without.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from seqtool.errors import InputError
from seqtool.runtime.classes import check_settings, located
from seqtool.settings import escape, names

if TYPE_CHECKING:
    from seqtool.data.cache import Cache, Split
    from seqtool.decoding.batching import Sources
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.validation import ValidationSettings

PARTS = ("source_vocabulary", "target_vocabulary", "pretrained")  # what a model is given besides its settings
WORDS = {  # what its models do, what its data hold, and an example of each
    "text": ("translates sentences", "sentence pairs", "model=bahdanau", "data=toy"),
    "images": ("describes images", "images with captions", "model=show_tell", "data=scenes"),
}


class Task(ABC):
    """One task. name: as checkpoints record it and `task=` says it; reads: what its models read and its data hold.

    scores: of a validation, besides the loss (`metrics.scores`); the first says which is the best where train.best_by
    does not. unit: what a training split is counted in.
    """

    name: str
    reads: str
    scores: tuple[str, ...]
    unit: str

    @abstractmethod
    def prepare(self, config: DictConfig) -> "Cache":
        """The cache of `config.data`, made where it is not there. InputError on data that cannot be used."""

    def prepare_again(self, config: DictConfig, found: "Checkpoint") -> "Cache":
        """The same for a run that goes on from a checkpoint."""
        return self.prepare(config)

    def check(self, config: DictConfig, *, pretrained: bool) -> None:
        """Raise InputError on settings of a run that mean nothing for this task or that its model would refuse, before
        any data are prepared. `pretrained` as for `make_model`.
        """
        self.check_model(config)
        choices = (*self.scores, *names(config.validation.get("scores")), "loss")
        if config.train.best_by not in (None, *choices):
            raise InputError(
                f"train.best_by={config.train.best_by} is not a score of {self.name}; choose from {', '.join(choices)}."
            )
        check_settings(config.model, parts=PARTS)

    def check_model(self, config: DictConfig) -> None:
        """Raise InputError unless the model reads what the data hold."""
        model, corpus = located(config.model, trusted=True), located(config.data, trusted=True)
        reads = said(model, "reads", "model")
        if reads == self.reads:
            return
        does, _, _, other_data = WORDS[reads]
        _, holds, other_model, _ = WORDS[self.reads]
        name = model.__module__.rpartition(".")[2]
        raise InputError(
            f"model={name} {does}, but data={corpus.name} holds {holds}: choose another model, such as {other_model}, "
            f"or other data, such as {other_data}."
        )

    @abstractmethod
    def make_model(self, config: DictConfig, cache: "Cache", *, pretrained: bool) -> Any:
        """The model, its weights not yet what `initialisation` says. `pretrained`: an image encoder's weights are
        wanted, not those of a checkpoint.
        """

    def parameter_groups(self, model: Any, config: DictConfig) -> list[dict[str, Any]]:
        """What is trained, in groups, each `from_step` on and with optimiser settings of its own where it has some."""
        return [{"params": list(model.parameters()), "from_step": 0}]

    def check_weights(  # noqa: B027 most tasks have nothing to check
        self, model: Any, config: DictConfig, cache: "Cache", path: Path, *, going_on: bool
    ) -> None:
        """Raise InputError where the weights that the model has from the checkpoint at `path` do not go with the cache;
        `going_on`: with a run, which began with that cache.
        """

    @abstractmethod
    def examination(self, split: "Split", settings: "ValidationSettings") -> "tuple[Sources, Scorer]":
        """What a validation decodes, and how it scores the texts that come of it, in the same order."""

    @abstractmethod
    def load(self, checkpoints: str | Sequence[str], **settings: Any) -> Any:
        """What uses a trained model, or an ensemble of several; settings as on the command line."""

    @abstractmethod
    def use(self, checkpoint: str) -> str:
        """The command line that uses a trained model."""


Scorer = Callable[[Sequence[str]], dict[str, float]]


def said(named: Any, attribute: str, setting: str) -> str:
    """What a class says that its models `reads` or its data `holds`. InputError where that is nothing there is."""
    answer = getattr(named, attribute, None)
    if answer not in WORDS:
        raise InputError(
            f"{setting}._target_ names {named.__name__}, which does not say what it {attribute}: {' or '.join(WORDS)}."
        )
    return str(answer)


def with_vocabulary_found(data: DictConfig) -> DictConfig:
    """The settings, where a run's vocabulary is to be used again with its best checkpoint in the place of the run."""
    reuse = OmegaConf.select(data, "vocabulary.reuse")
    if not isinstance(reuse, str) or not (Path(reuse) / "checkpoints").is_dir():
        return data
    from seqtool.training import checkpoint  # imports torch

    found: DictConfig = copy.deepcopy(data)
    found.vocabulary.reuse = escape(str(checkpoint.find(reuse).path))
    return found
