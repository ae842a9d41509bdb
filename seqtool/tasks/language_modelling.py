"""The language-modelling task: text in, continuations out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from seqtool.data.cache import Cache
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.preparation import prepare_text
from seqtool.errors import InputError
from seqtool.runtime.log import log
from seqtool.tasks.task import Task, with_vocabulary_of_run

if TYPE_CHECKING:
    from seqtool.data.batches import Examples
    from seqtool.runtime.devices import Machine
    from seqtool.training.saving import TrainSettings
    from seqtool.training.validation import StreamValidator, ValidationSettings


class LanguageModelling(Task):
    """Continues text. Trains on parallel streams or on lines (`data.lines`); validations measure bits per character."""

    name = "language_modelling"
    corpus = PlainText
    does = "continues text"
    example = "model=language_model"
    scores = ("bits",)
    unit = "tokens"
    predictor = "seqtool.predict.generator:Generator"
    usage = "seqtool generate checkpoint={checkpoint}"
    evaluator = "seqtool.evaluation.texts:TextEvaluator"
    outputs = "language models"
    streams = True

    def format_size(self, examples: Any) -> str:
        return f"{len(examples):,} lines" if examples.stream_count is None else f"{examples.tokens:,} {self.unit}"

    def prepare(self, config: DictConfig, *, needs: Sequence[str] = ()) -> Cache:
        return prepare_text(with_vocabulary_of_run(config.data), needs=needs)

    def check(self, config: DictConfig, *, pretrained: bool) -> None:
        """Check the settings as for every task, and that training reads at least `model.context` tokens at once."""
        super().check(config, pretrained=pretrained)
        context, bptt = config.model.get("context"), config.train.bptt
        if isinstance(context, int) and isinstance(bptt, int) and context > bptt and not config.data.get("lines"):
            raise InputError(
                f"model.context={context} is more than train.bptt={bptt}, the tokens read at once in training, so "
                f"the later positions of a window would not be trained: set train.bptt={context}."
            )

    def examples(self, cache: Cache, settings: "TrainSettings") -> "Examples":
        return _streams(cache, "train", settings)

    def validator(
        self, cache: Cache, settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "StreamValidator":
        """Make a validator that reads parallel streams or lines, as training does."""
        from seqtool.training.validation import StreamValidator  # imports torch

        examples = _streams(cache, "valid", train)
        epoch = examples.epoch(size=train.batch_size, unit="sentences", pool=train.pool, seed=0, epoch=0)
        characters = cache.summary["splits"]["valid"]["characters"]
        return StreamValidator(examples, epoch, cache.target_vocabulary, characters=characters, machine=machine)


def _streams(cache: Cache, split: str, settings: "TrainSettings") -> "Examples":
    """Read a split as `train.batch_size` streams. With `train.fewer_streams`, read it as fewer streams if they would be
    shorter than `train.bptt` tokens. With `data.lines`, the examples are its lines instead.
    """
    if cache.summary["inputs"]["text"].get("lines"):
        return cache.split(split)
    from seqtool.data.batches import Streams  # imports torch

    tokens, count = cache.split(split).stream, settings.batch_size
    limit = max(1, len(tokens) // settings.bptt) if settings.fewer_streams else count
    if limit < count:
        log.info(
            "The split '%s' has %s tokens and is read in %s: with train.batch_size=%d streams, each would be shorter "
            "than train.bptt=%d.",
            *(split, f"{len(tokens):,}", "one stream" if limit == 1 else f"{limit} streams", count, settings.bptt),
        )
    return Streams(tokens, stream_count=min(count, limit), steps=settings.bptt)


TASK = LanguageModelling()
