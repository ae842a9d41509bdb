"""Validation while training: the loss by teacher forcing, and BLEU of what the model writes by itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seqtool.data.batches import collate
from seqtool.data.cache import Split
from seqtool.data.vocabulary import Vocabulary
from seqtool.devices import autocast
from seqtool.errors import InputError
from seqtool.losses import TrainingLoss
from seqtool.metrics.translation import corpus_bleu
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.translator import DecodeSettings, decode

BATCH = 128  # sentences


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


@dataclass(frozen=True)
class Validation:
    """loss in nats per token (not smoothed); BLEU of free-running decoding against the untokenised references."""

    loss: float
    bleu: float

    def better_than(self, best: dict[str, Any], *, by: str) -> bool:
        if not best or not math.isfinite(best["loss"]):
            return True
        if by == "loss":
            return self.loss < float(best["loss"])
        return (self.bleu, -self.loss) > (float(best["bleu"]), -float(best["loss"]))

    def text(self) -> str:
        perplexity = math.exp(min(self.loss, 100))
        return f"validation loss {self.loss:.3f} nats/token (perplexity {perplexity:.2f}), BLEU {self.bleu:.2f}"


class Validator:
    """Scores a model on one split, each sentence once."""

    def __init__(
        self,
        split: Split,
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
            batch_size=BATCH,
        )
        self.device = device
        self.precision = precision
        self.references = list(split.texts("target"))[: settings.sentences]

    def __call__(self, loss: TrainingLoss, model: EncoderDecoder[Any]) -> Validation:
        loss.eval()
        with torch.inference_mode(), autocast(self.device, self.precision):
            nats = self._loss(loss)
            written = self._translate(model)
        loss.train()
        return Validation(loss=nats, bleu=corpus_bleu(written, [self.references]))

    def _loss(self, loss: TrainingLoss) -> float:
        nll, tokens = 0.0, 0
        order = np.argsort(self.split.target_lengths, kind="stable")
        for start in range(0, len(order), self.settings.batch_size):
            batch = collate(self.split, order[start : start + self.settings.batch_size])
            nll += float(loss(batch.to(self.device)).nll)
            tokens += batch.tokens
        return nll / max(tokens, 1)

    def _translate(self, model: EncoderDecoder[Any]) -> Sequence[str]:
        """Empty sources have empty translations."""
        rows = range(len(self.references))
        sources = {i: self.split.source(i).tolist()[: self.settings.max_length - 1] for i in rows}
        full = [i for i in rows if sources[i]]
        hypotheses = decode(
            model,
            [sources[i] for i in full],
            self.settings,
            device=self.device,
            draws=None,
            keep_attention=False,
        )
        written = [""] * len(self.references)
        for i, n_best in zip(full, hypotheses, strict=True):
            written[i] = self.vocabulary.decode(n_best[0].tokens)
        return written
