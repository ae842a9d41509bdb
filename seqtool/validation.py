"""Validation while training: the loss by teacher forcing, and scores of what the model writes by itself."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import torch

from seqtool import distributed
from seqtool.data.cache import Split
from seqtool.data.caption_cache import CaptionSplit
from seqtool.data.vocabulary import Vocabulary
from seqtool.devices import autocast, out_of_memory
from seqtool.errors import InputError
from seqtool.generation import MOST, DecodeSettings, Images, Sentences, Sources, chunks, decode
from seqtool.losses import TrainingLoss
from seqtool.metrics.captioning import ValidationScorer
from seqtool.metrics.translation import corpus_bleu
from seqtool.models.encoder_decoder import EncoderDecoder

BATCH = 128  # sentences or images
ADVICE = "lower validation.beam or validation.max_length."


@dataclass
class ValidationSettings:
    """The `validation` settings of configs/train.yaml."""

    beam: int
    sentences: int | None
    max_length: int

    def check(self) -> None:
        """Raise InputError on a value that is out of range."""
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise InputError(f"validation.{name} must be at least 1, not {value}.")
            if name in MOST and value > MOST[name]:
                raise InputError(f"validation.{name} must be at most {MOST[name]:,}, not {value:,}.")


@dataclass(frozen=True)
class Validation:
    """loss in nats per token (not smoothed); scores of free-running decoding against the untokenised references.

    BLEU on 0–100; for captions BLEU-4 with brevity penalty after PTB tokenisation, and CIDEr-D on 0–10.
    """

    loss: float
    bleu: float
    cider: float | None = None

    def record(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def better_than(self, best: dict[str, Any], *, by: str) -> bool:
        if not best or not math.isfinite(best["loss"]):
            return True
        if by == "loss":
            return self.loss < float(best["loss"])
        return (getattr(self, by), -self.loss) > (float(best[by]), -float(best["loss"]))

    def text(self) -> str:
        perplexity = math.exp(min(self.loss, 100))
        return f"validation loss {self.loss:.3f} nats/token (perplexity {perplexity:.2f}), {self.scores()}"

    def scores(self) -> str:
        return f"BLEU {self.bleu:.2f}" + ("" if self.cider is None else f", CIDEr-D {self.cider:.3f}")


class Validator(ABC):
    """Scores a model on one split, each sentence or image decoded once."""

    def __init__(
        self,
        split: Split | CaptionSplit,
        vocabulary: Vocabulary,
        *,
        settings: ValidationSettings,
        device: torch.device,
        precision: str,
    ) -> None:
        self.split = split
        self.vocabulary = vocabulary
        self.settings = DecodeSettings(
            beam=settings.beam,
            n_best=1,
            length_penalty="average",
            length_alpha=0.0,
            coverage_penalty=0.0,
            sample=False,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            seed=0,
            max_length=settings.max_length,
            min_length=1,
            batch_size=BATCH,
            precision=precision,
        )
        self.device = device
        self.precision = precision

    @abstractmethod
    def written(self, model: EncoderDecoder[Any]) -> list[str]:
        """What the model says about each sentence or image."""

    @abstractmethod
    def validation(self, loss: float, written: Sequence[str]) -> Validation:
        """The result."""

    def __call__(self, loss: TrainingLoss, model: EncoderDecoder[Any]) -> Validation:
        loss.eval()
        with (
            out_of_memory(self.device, lambda: f"while validating, {BATCH} at a time: {ADVICE}"),
            torch.inference_mode(),
            autocast(self.device, self.precision),
        ):
            nats = self._loss(loss)
            written = self.written(model)
        loss.train()
        return self.validation(nats, written)

    def _loss(self, loss: TrainingLoss) -> float:
        def measured(rows: Sequence[int]) -> tuple[float, int]:
            batch = self.split.collate(rows)
            return float(loss(batch.to(self.device)).nll), batch.tokens

        order = np.argsort(self.split.target_lengths, kind="stable").tolist()
        parts = distributed.together(measured, list(chunks(order, self.settings.at_once)))
        return sum(nll for nll, _ in parts) / max(sum(tokens for _, tokens in parts), 1)

    def _decoded(self, model: EncoderDecoder[Any], sources: Sources) -> list[str]:
        hypotheses = decode(model, sources, self.settings, device=self.device, draws=None, keep_attention=False)
        return [self.vocabulary.decode(n_best[0].tokens) for n_best in hypotheses]


@final
class TranslationValidator(Validator):
    """BLEU of translations."""

    def __init__(self, split: Split, vocabulary: Vocabulary, *, settings: ValidationSettings, **machine: Any) -> None:
        super().__init__(split, vocabulary, settings=settings, **machine)
        self.references = list(split.texts("target"))[: settings.sentences]
        limit = settings.max_length - 1
        self.sources = [split.source(i).tolist()[:limit] for i in range(len(self.references))]

    def written(self, model: EncoderDecoder[Any]) -> list[str]:
        """Empty sources have empty translations."""
        full = [i for i, source in enumerate(self.sources) if source]
        written = [""] * len(self.sources)
        for i, text in zip(full, self._decoded(model, Sentences([self.sources[i] for i in full])), strict=True):
            written[i] = text
        return written

    def validation(self, loss: float, written: Sequence[str]) -> Validation:
        return Validation(loss=loss, bleu=corpus_bleu(written, [self.references]))


@final
class CaptionValidator(Validator):
    """BLEU-4 and CIDEr-D of captions, against all references of an image."""

    def __init__(
        self, split: CaptionSplit, vocabulary: Vocabulary, *, settings: ValidationSettings, **machine: Any
    ) -> None:
        super().__init__(split, vocabulary, settings=settings, **machine)
        references = split.references()[: settings.sentences]
        self.images = Images(split, range(len(references)))
        self.scorer = ValidationScorer(references, tokenize="ptb")

    def written(self, model: EncoderDecoder[Any]) -> list[str]:
        return self._decoded(model, self.images)

    def validation(self, loss: float, written: Sequence[str]) -> Validation:
        bleu4, cider = self.scorer.scores(written)
        return Validation(loss=loss, bleu=100 * bleu4, cider=cider)
