"""Translation: sentences in, sentences out."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from seqtool.data.cache import Cache
from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.text.pair_preparation import prepare_pairs
from seqtool.errors import InputError
from seqtool.metrics.scores import metrics
from seqtool.metrics.translation import Bleu
from seqtool.runtime.classes import build
from seqtool.tasks.task import Task, with_vocabulary_found

if TYPE_CHECKING:
    from seqtool.models.contract import EncoderDecoder
    from seqtool.predict.translator import Translator
    from seqtool.runtime.devices import Machine
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.train_settings import TrainSettings
    from seqtool.training.validation import ValidationSettings, Validator

log = logging.getLogger("seqtool")


class Translation(Task):
    """Sentence pairs; BLEU of what is written against one reference for each sentence."""

    name = "translation"
    reads = "text"
    scores = ("bleu",)
    unit = "pairs"

    def prepare(self, config: DictConfig) -> Cache:
        return prepare_pairs(with_vocabulary_found(config.data))

    def prepare_again(self, config: DictConfig, found: "Checkpoint") -> Cache:
        """Where the sources have gone, the cache that the run was trained from does."""
        from seqtool.training import recorded  # imports torch

        try:
            return self.prepare(config)
        except InputError as error:
            gone = recorded.missing(make_corpus(config.data, TextCorpus, trusted=True))
            if not gone or recorded.is_moved(found, config.data):
                raise
            cache = recorded.trained_on(found, config.data)
            if cache is None:
                raise InputError(f"{error} {recorded.how_to_find(found, config.data, gone)}") from error
            log.info("%s Going on with what was prepared, %s.", error, cache.directory)
            return cache

    def make_model(self, config: DictConfig, cache: Cache, *, pretrained: bool) -> "EncoderDecoder[Any]":
        source, target = cache.source_vocabulary, cache.target_vocabulary
        if config.model.get("tie") == "all" and source is not target:
            raise InputError("model.tie=all needs one vocabulary for both sides: set data.vocabulary.joint=true.")
        from seqtool.models.contract import EncoderDecoder  # imports torch

        sizes = {"source_vocabulary": len(source), "target_vocabulary": len(target)}
        model: EncoderDecoder[Any] = build(config.model, trusted=True, base=EncoderDecoder, **sizes)
        return model

    def validator(
        self, cache: Cache, settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validator":
        """Empty sources have empty translations."""
        from seqtool.decoding.batching import encoded_sentences  # imports torch
        from seqtool.training.validation import Validator

        split = cache.split("valid")
        references = split.texts("target")[: settings.sentences]
        ids = [split.source(i).tolist()[: settings.max_length - 1] for i in range(len(references))]
        full = [i for i, source in enumerate(ids) if source]
        alternatives = [[line] for line in references]
        bleu = Bleu(alternatives, tokenize="13a", lowercase=False)
        found = [bleu, *metrics(settings.scores, alternatives)]

        def score(texts: Sequence[str]) -> dict[str, float]:
            written = dict(zip(full, texts, strict=True))
            lines = [written.get(i, "") for i in range(len(references))]
            return {name: value for one in found for name, value in one.scores(one.statistics(lines)).items()}

        sources = encoded_sentences([ids[i] for i in full])
        return Validator(split, sources, score, cache.target_vocabulary, settings=settings, machine=machine)

    def load(self, checkpoints: str | Sequence[str], **settings: Any) -> "Translator":
        from seqtool.predict.translator import Translator  # imports torch

        return Translator.load(checkpoints, **settings)

    def use(self, checkpoint: str) -> str:
        return f"seqtool translate checkpoint={checkpoint}"


TASK = Translation()
