"""The translation task: sentences in, sentences out."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from seqtool.data.cache import Cache
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.preparation import prepare_pairs
from seqtool.data.text.vocabulary import UNKNOWN
from seqtool.errors import InputError
from seqtool.metrics.scores import System, parse_sum, scorers
from seqtool.metrics.translation import fitting_tokeniser, make_bleu
from seqtool.tasks.task import Task, with_vocabulary_of_run

if TYPE_CHECKING:
    from seqtool.models.contract import EncoderDecoder
    from seqtool.models.parts import Parts
    from seqtool.runtime.devices import Machine
    from seqtool.training.saving import TrainSettings
    from seqtool.training.sequences import Rewards
    from seqtool.training.validation import ValidationSettings, Validator


class Translation(Task):
    """Translates sentences. Validations score decoded translations by BLEU, against one reference per sentence."""

    name = "translation"
    corpus = TextCorpus
    does = "translates sentences"
    example = "model=bahdanau"
    scores = ("bleu",)
    unit = "pairs"
    predictor = "seqtool.predict.translator:Translator"
    usage = "seqtool translate checkpoint={checkpoint}"
    evaluator = "seqtool.evaluation.translations:TranslationEvaluator"
    outputs = "translations"

    def prepare(self, config: DictConfig, *, needs: Sequence[str] = ()) -> Cache:
        return prepare_pairs(with_vocabulary_of_run(config.data), needs=needs)

    def make_model(
        self, config: DictConfig, cache: Cache, *, pretrained: bool, parts: "Parts"
    ) -> "EncoderDecoder[Any]":
        if config.model.get("tie") == "all" and cache.source_vocabulary is not cache.target_vocabulary:
            raise InputError("model.tie=all needs one vocabulary for both sides: set data.vocabulary.joint=true.")
        return super().make_model(config, cache, pretrained=pretrained, parts=parts)

    def check(self, config: DictConfig, *, pretrained: bool) -> None:
        super().check(config, pretrained=pretrained)
        if config.train.by_image:
            raise InputError("train.by_image=true is for captions: leave it out.")

    def check_tokenizer(self, tokenize: str) -> None:
        make_bleu(tokenize, lowercase=False)

    def tokenizer(self, cache: Cache) -> tuple[str | None, str]:
        return fitting_tokeniser(cache.split("valid").texts("target"))

    def rewards(self, cache: Cache, settings: "TrainSettings", tokenize: str) -> "Rewards":
        """Rewards by BLEU, or other scores, of the reference as the vocabulary writes it. What the vocabulary does not
        know equals nothing, as in `eval`.
        """
        from seqtool.training.sequences import Rewards  # imports torch

        split, decode = cache.split("train"), cache.target_vocabulary.decode
        weights = parse_sum(settings.reward or "bleu", self.name, setting="train.reward")
        scorers_of = partial(scorers, weights, tokenize=tokenize, lowercase=False)

        def references(index: int) -> list[str]:
            return [decode(split.target(index)).replace(UNKNOWN, "\N{REPLACEMENT CHARACTER}")]

        return Rewards(weights, references, lambda ids: [*map(decode, ids)], scorers_of, settings.reward_end)

    def validator(
        self, cache: Cache, settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validator":
        """Make a validator that does not decode empty sources: their translations are empty."""
        from seqtool.decoding.batching import encoded_sentences, source_length  # imports torch
        from seqtool.models.tokens import END
        from seqtool.training.validation import Validator

        split = cache.split("valid")
        references = split.texts("target")[: settings.sentences]
        source_ids = [split.source(i).tolist()[: source_length(settings) - 1] for i in range(len(references))]
        nonempty_indices = [i for i, source in enumerate(source_ids) if source]
        names, reference_sets = (*self.scores, *settings.scores), [[reference] for reference in references]
        metrics = scorers(names, reference_sets, tokenize=settings.tokenize, lowercase=False)

        def score(texts: Sequence[str]) -> dict[str, float]:
            translations = dict(zip(nonempty_indices, texts, strict=True))
            return System([translations.get(i, "") for i in range(len(references))], metrics).values

        source_texts = split.texts("source") if train.show else []

        def example(i: int) -> dict[str, Any]:
            source, ids = source_texts[nonempty_indices[i]], source_ids[nonempty_indices[i]]
            tokens = [*cache.source_vocabulary.pieces(source)[: len(ids)], END]
            return {"source": source, "reference": references[nonempty_indices[i]], "attention": {"source": tokens}}

        sources = encoded_sentences([source_ids[i] for i in nonempty_indices])
        vocabulary = cache.target_vocabulary
        return Validator(split, sources, score, vocabulary, example=example, settings=settings, machine=machine)


TASK = Translation()
