"""Translation: sentences in, sentences out."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from seqtool.data.cache import Cache, Split
from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.text.pair_preparation import prepare_pairs
from seqtool.errors import InputError
from seqtool.metrics.translation import Bleu
from seqtool.settings import build
from seqtool.tasks.task import Scorer, Task, with_vocabulary_found

if TYPE_CHECKING:
    from seqtool.decoding.batching import Sources
    from seqtool.models.contract import EncoderDecoder
    from seqtool.predict.translator import Translator
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.validation import ValidationSettings

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
        model: EncoderDecoder[Any] = build(
            config.model, trusted=True, source_vocabulary=len(source), target_vocabulary=len(target)
        )
        return model

    def examination(self, split: Split, settings: "ValidationSettings") -> "tuple[Sources, Scorer]":
        """Empty sources have empty translations."""
        from seqtool.decoding.batching import encoded_sentences  # imports torch

        references = split.texts("target")[: settings.sentences]
        ids = [split.source(i).tolist()[: settings.max_length - 1] for i in range(len(references))]
        full = [i for i, source in enumerate(ids) if source]
        bleu = Bleu([[line] for line in references], tokenize="13a", lowercase=False)

        def score(texts: Sequence[str]) -> dict[str, float]:
            written = dict(zip(full, texts, strict=True))
            return bleu.scores(bleu.statistics([written.get(i, "") for i in range(len(references))]))

        return encoded_sentences([ids[i] for i in full]), score

    def load(self, checkpoints: str | Sequence[str], **settings: Any) -> "Translator":
        from seqtool.predict.translator import Translator  # imports torch

        return Translator.load(checkpoints, **settings)

    def use(self, checkpoint: str) -> str:
        return f"seqtool translate checkpoint={checkpoint}"


TASK = Translation()
