"""What a task is: everything that differs between them when data are prepared, and models trained and used.

A task is told by what its data hold, and its models must be those that read that. Nothing here, in `translation.py`
and in `language_modelling.py` imports torch before it is needed: preparing text does without.
"""

import copy
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
from seqtool.settings import escape, names

if TYPE_CHECKING:
    from seqtool.data.cache import Cache
    from seqtool.models.contract import EncoderDecoder
    from seqtool.runtime.devices import Machine
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.train_settings import TrainSettings
    from seqtool.training.validation import Validating, ValidationSettings

PARTS = ("source_vocabulary", "target_vocabulary", "pretrained")  # what a model is given besides its settings
READERS = {  # by what models read: what they do, the data that they are for, and an example of them
    "text": ("translates sentences", "pairs", "model=bahdanau"),
    "images": ("describes images", "captions", "model=show_tell"),
    "nothing": ("continues text", "text", "model=language_model"),
}


class Task(ABC):
    """One task. name: as checkpoints record it and `task=` says it; reads: what its models read.

    scores: of a validation, besides the loss (`metrics.scores`); the first says which is the best where train.best_by
    does not. unit: what a training split is counted in. predictor: the class of what uses a trained model, by its name,
    since its module imports torch; usage: the command line that uses one.
    """

    name: str
    reads: str
    scores: tuple[str, ...]
    unit: str
    predictor: str
    usage: str

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
        if self.reads != "text":
            if config.train.gradient_flow:
                raise InputError(f"train.gradient_flow=true is for translation, not for {self.name}.")
            if config.embeddings.source is not None:
                raise InputError("embeddings.source means nothing without source sentences: use embeddings.target.")
        if self.reads != "nothing" and config.train.bptt != defaults("train")["train"]["bptt"]:
            raise InputError(f"train.bptt is for language models, not for {self.name}: leave it out.")
        check_settings(config.model, parts=PARTS)

    def check_model(self, config: DictConfig) -> None:
        """Raise InputError unless the model reads what the data hold."""
        model, corpus = located(config.model, trusted=True), located(config.data, trusted=True)
        reads = said(model, "reads", READERS, "model")
        if reads == self.reads:
            return
        does, data, _ = READERS[reads]
        *_, other_model = READERS[self.reads]
        name = model.__module__.rpartition(".")[2]
        raise InputError(
            f"model={name} {does}, but data={corpus.name} holds {HOLDS[corpus.holds][0]}: choose another model, such "
            f"as {other_model}, or other data, such as {HOLDS[data][1]}."
        )

    def make_model(self, config: DictConfig, cache: "Cache", *, pretrained: bool) -> "EncoderDecoder[Any]":
        """The model, its weights not yet what `initialisation` says. `pretrained`: an image encoder's weights are
        wanted, not those of a checkpoint.
        """
        from seqtool.models.contract import EncoderDecoder  # imports torch

        sizes = {f"{side}_vocabulary": len(known) for side, known in cache.vocabularies.items()}
        model: EncoderDecoder[Any] = build(config.model, trusted=True, base=EncoderDecoder, **sizes)
        return model

    def parameter_groups(self, model: Any, config: DictConfig) -> list[dict[str, Any]]:
        """What is trained, in groups, each `from_step` on and with optimiser settings of its own where it has some."""
        return [{"params": list(model.parameters()), "from_step": 0}]

    def check_weights(  # noqa: B027 most tasks have nothing to check
        self, model: Any, config: DictConfig, cache: "Cache", path: Path, *, going_on: bool
    ) -> None:
        """Raise InputError where the weights that the model has from the checkpoint at `path` do not go with the cache;
        `going_on`: with a run, which began with that cache.
        """

    def examples(self, cache: "Cache", settings: "TrainSettings") -> Any:
        """What is trained on: `labels`, `collate` and `epoch`, as a split has them."""
        return cache.split("train")

    @abstractmethod
    def validator(
        self, cache: "Cache", settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validating":
        """What scores the model on the cache's validation set."""

    def load(self, checkpoints: str | Sequence[str], **settings: Any) -> Any:
        """What uses a trained model, or an ensemble of several; settings as on the command line."""
        return resolve_name(self.predictor).load(checkpoints, **settings)

    def use(self, checkpoint: str) -> str:
        """The command line that uses a trained model."""
        return self.usage.format(checkpoint=checkpoint)


def said(named: Any, attribute: str, known: Collection[str], setting: str) -> str:
    """What a class says that its models `reads` or its data `holds`. InputError where that is none of the known."""
    answer = getattr(named, attribute, None)
    if answer not in known:
        raise InputError(
            f"{setting}._target_ names {named.__name__}, which does not say what it {attribute}: {' or '.join(known)}."
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
