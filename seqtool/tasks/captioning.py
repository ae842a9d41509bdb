"""The captioning task: images in, sentences out."""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig

from seqtool.data.cache import ByImage, Cache
from seqtool.data.corpora.corpus import ImageCorpus
from seqtool.data.text.vocabulary import UNKNOWN
from seqtool.errors import InputError
from seqtool.metrics.captions import NAMES, DocumentFrequencies, fitting_tokeniser, tokenize_captions
from seqtool.metrics.scores import System, parse_sum, scorers
from seqtool.settings import declarations, typed
from seqtool.tasks.task import Task, with_vocabulary_of_run

if TYPE_CHECKING:
    from seqtool.data.batches import Examples
    from seqtool.models.backbone import ImageCaptioner
    from seqtool.models.parts import Parts
    from seqtool.runtime.devices import Machine
    from seqtool.training.checkpoint import Checkpoint
    from seqtool.training.saving import TrainSettings
    from seqtool.training.sequences import Rewards
    from seqtool.training.validation import ValidationSettings, Validator


class Captioning(Task):
    """Describes images. Validations score decoded captions by BLEU-4 and CIDEr-D, against all captions of an image."""

    name = "captioning"
    corpus = ImageCorpus
    does = "describes images"
    example = "model=show_tell"
    scores = ("bleu", "cider")
    unit = "captions"
    predictor = "seqtool.predict.captioner:Captioner"
    usage = "seqtool caption checkpoint={checkpoint} images=FILE"
    evaluator = "seqtool.evaluation.captions:CaptionEvaluator"
    outputs = "captions"

    def prepare(self, config: DictConfig, *, needs: Sequence[str] = ()) -> Cache:
        """Prepare captions and images; images become input for the encoder, or annotation vectors if it is frozen."""
        from seqtool.data.images.image_store import prepare_captions  # these three modules import torch
        from seqtool.models.backbone import EncoderSettings, warning
        from seqtool.runtime.devices import choose_device, set_threads

        self.check_model(config)
        if not isinstance(config.model.encoder, DictConfig):
            raise InputError(f"Setting 'model.encoder' is a group of settings, not {config.model.encoder}.")
        encoder = typed(EncoderSettings, config.model.encoder)
        encoder.check()
        if (message := warning(encoder)) is not None:
            print(message, file=sys.stderr)
        device_settings = typed(declarations.Machine, {"device": config.device, "threads": config.threads})
        set_threads(device_settings.threads)
        data = with_vocabulary_of_run(config.data)
        return prepare_captions(data, encoder, device=choose_device(device_settings.device), needs=needs)

    def prepare_again(self, config: DictConfig, checkpoint: "Checkpoint") -> Cache:
        return self.prepare(config)

    def check(self, config: DictConfig, *, pretrained: bool) -> None:
        """Check the settings as for every task, and that default weights for the encoder are available if needed."""
        from seqtool.models.backbone import EncoderSettings, check_default_weights  # imports torch

        super().check(config, pretrained=pretrained)
        if pretrained:
            check_default_weights(typed(EncoderSettings, config.model.encoder))

    def make_model(
        self, config: DictConfig, cache: Cache, *, pretrained: bool, parts: "Parts"
    ) -> "ImageCaptioner[Any]":
        from seqtool.models.backbone import ImageCaptioner  # imports torch
        from seqtool.models.parts import build_model

        arguments = {"target_vocabulary": len(cache.target_vocabulary), "pretrained": pretrained}
        return cast("ImageCaptioner[Any]", build_model(config.model, base=ImageCaptioner, parts=parts, **arguments))

    def parameter_groups(self, model: "ImageCaptioner[Any]", config: DictConfig) -> list[dict[str, Any]]:
        """Group the parameters: a fine-tuned image encoder has its own first step of training and learning rate."""
        encoder = config.model.encoder
        backbone = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
        decoder = [parameter for name, parameter in model.named_parameters() if not name.startswith("backbone.")]
        groups: list[dict[str, Any]] = [{"params": decoder, "from_step": 0}]
        if backbone and encoder.fine_tune_from is not None:
            groups.append({"params": backbone, "lr": encoder.lr, "from_step": encoder.fine_tune_from})
        return groups

    def check_weights(self, model: "ImageCaptioner[Any]", config: DictConfig, cache: Cache, path: Path) -> None:
        """Raise InputError if the stored annotation vectors were computed by a backbone that differs from this frozen
        one: the model would be trained with one backbone and describe images with another.
        """
        if cache.store.fits(model.backbone):
            return
        from seqtool.training.checkpoint import WEIGHTS  # imports torch

        weights = config.model.encoder.weights
        raise InputError(
            f"{path} has another backbone than model.encoder.weights={'null' if weights is None else weights} gives, "
            f"and it is frozen: set model.encoder.weights={path / WEIGHTS}."
        )

    def examples(self, cache: Cache, settings: "TrainSettings") -> "Examples":
        """The captions, or the images with all their captions."""
        split = cache.split("train")
        return ByImage(split) if settings.by_image or settings.objective == "sequence" else split

    def format_size(self, examples: Any) -> str:
        return super().format_size(getattr(examples, "split", examples))

    def check_tokenizer(self, tokenize: str) -> None:
        tokenize_captions([], tokenize)

    def tokenizer(self, cache: Cache) -> tuple[str | None, str]:
        return fitting_tokeniser(chain.from_iterable(cache.split("valid").references()))

    def rewards(self, cache: Cache, settings: "TrainSettings", tokenize: str) -> "Rewards":
        """Rewards by CIDEr-D, or other scores, against all captions of an image. Document frequencies are those of the
        training captions.
        """
        from seqtool.predict.minimum_bayes_risk import CIDER, NO_WORD  # these two modules import torch
        from seqtool.training.sequences import END, Rewards

        split, decode = cache.split("train"), cache.target_vocabulary.decode
        references = [tokenize_captions(captions, tokenize) for captions in split.references()]
        end = f" {END}" if settings.reward_end else ""
        documents = [[caption + end for caption in captions] for captions in references if captions]
        frequencies = DocumentFrequencies.count(documents, tokenize="none", name="train").without_single()
        weights = parse_sum(settings.reward or "cider_d", self.name, setting="train.reward")
        if frequencies.images < 2 and CIDER & weights.keys():
            raise InputError("train.reward: to CIDEr-D all n-grams of a single image have the weight 0. Add images.")
        options: Any = {"tokenize": "none", "rouge": "rouge_l" in weights, "document_frequencies": frequencies}
        scorers_of = partial(scorers, weights, **options)

        def texts(sequences: Sequence[Sequence[int]]) -> list[str]:
            return tokenize_captions([decode(ids).replace(UNKNOWN, NO_WORD) for ids in sequences], tokenize)

        return Rewards(weights, references.__getitem__, texts, scorers_of, settings.reward_end, split.image_of)

    def validator(
        self, cache: Cache, settings: "ValidationSettings", train: "TrainSettings", machine: "Machine"
    ) -> "Validator":
        from seqtool.decoding.batching import Sources  # imports torch
        from seqtool.training.validation import Validator

        split = cache.split("valid")
        references = split.references()[: settings.sentences]
        metrics = scorers(("bleu4", "cider_d", *settings.scores), references, tokenize=settings.tokenize, rouge=False)

        def score(texts: Sequence[str]) -> dict[str, float]:
            values = System(texts, metrics).values
            user_scores = {name: value for name, value in values.items() if name not in NAMES}
            return {"bleu": 100 * values["bleu4"], "cider": values["cider_d"], **user_scores}

        def example(i: int) -> dict[str, str]:
            return {"image": split.files[i], "reference": references[i][0]}

        sources, vocabulary = Sources(range(len(references)), split.pictures), cache.target_vocabulary
        return Validator(split, sources, score, vocabulary, example=example, settings=settings, machine=machine)


TASK = Captioning()
