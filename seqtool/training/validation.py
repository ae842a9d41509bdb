"""Validation during training: the loss by teacher forcing, and scores of the model's own output."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from seqtool.data.batches import Streams
from seqtool.data.cache import Split
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import DecodeSettings, Sources, chunks, decode
from seqtool.decoding.sampling import sample
from seqtool.errors import out_of_memory
from seqtool.metrics.scores import higher_is_better, is_score, metric, score
from seqtool.metrics.words import repeats
from seqtool.models.contract import EncoderDecoder
from seqtool.runtime import distributed
from seqtool.runtime.defaults import defaults
from seqtool.runtime.devices import Machine
from seqtool.runtime.precision import autocast
from seqtool.settings import declarations, names
from seqtool.training.losses import TrainingLoss

BATCH = 128  # sentences or images
SHOWN = 200  # tokens of a text that is shown


class ValidationDecoding(DecodeSettings):
    """How a validation decodes."""

    memory = "validation.beam or validation.max_length"


@dataclass
class ValidationSettings(declarations.Validation):
    """The `validation` settings of configs/train.yaml; scores: names of the user's own, besides the task's. tokenize:
    null until it is chosen by the references.
    """

    def __post_init__(self) -> None:
        self.scores = names(self.scores)

    def check(self) -> None:
        """Raise InputError for a value out of range, or a score that does not exist."""
        for name in self.scores:
            metric(name, setting="validation.scores")
        declarations.check_values(self, "validation.")

    def decoding(self, precision: str) -> DecodeSettings:
        """How to decode: by configs/decoding.yaml, except where these settings differ."""
        own = {"beam": self.beam, "max_length": self.max_length, "batch_size": BATCH, "precision": precision}
        settings = {**defaults("decoding"), **own}
        return ValidationDecoding(**{one.name: settings[one.name] for one in fields(DecodeSettings)})


Scores = dict[str, float]
"""By name (`metrics.scores`): loss in nats per token (not smoothed), and scores of free-running decoding against the
untokenised references. BLEU on 0–100; for captions BLEU-4 with brevity penalty after PTB tokenisation, and CIDEr-D on
0–10.
"""


def is_better(scores: Scores, best: Mapping[str, Any], *, by: str) -> bool:
    """Whether they are better than the best so far, by the score `by`, and of equals by the loss.

    Scores whose loss, or score `by`, is not finite are never better. Any others beat a best that lacks a finite one: a
    resumed run may be compared by another score than before.
    """
    if not _is_finite(scores, by):
        return False
    if by not in best or not _is_finite(best, by):
        return True
    sign = 1 if higher_is_better(by) else -1
    return (sign * scores[by], -scores["loss"]) > (sign * float(best[by]), -float(best["loss"]))


def _is_finite(scores: Mapping[str, Any], by: str) -> bool:
    return math.isfinite(scores["loss"]) and math.isfinite(scores[by])


def format_scores(scores: Mapping[str, Any]) -> list[str]:
    """Every score as text, the loss last; other fields of a record are left out."""
    others = [name for name in scores if is_score(name) and name != "loss"]
    return [score(name).text(scores[name]) for name in (*others, "loss")]


Sample = dict[str, str]  # what the model was given, what was expected, and what it writes


@dataclass
class Validator:
    """Scores a model on one split, each sentence or image decoded once.

    `sources` are decoded, and `score` scores the texts, in the same order; `example` says what the i-th is.
    """

    split: Split
    sources: Sources
    score: Callable[[list[str]], Scores]
    vocabulary: Vocabulary
    _: KW_ONLY
    example: Callable[[int], Sample]
    settings: ValidationSettings
    machine: Machine

    def __post_init__(self) -> None:
        self._decoding = self.settings.decoding(self.machine.precision)
        self._written: list[str] = []
        self._ended: list[bool] = []

    def __call__(self, loss: TrainingLoss, model: EncoderDecoder[Any]) -> Scores:
        with _measuring(loss, self.machine, f", {BATCH} at a time: lower validation.beam or validation.max_length."):
            nats = self._loss(loss)
            most = self._decoding.max_length
            settings = replace(self._decoding, max_length=min(most, model.max_positions or most))
            hypotheses = decode(model, self.sources, settings, device=self.machine.device, keep_attention=False)
            self._written = [self.vocabulary.decode(n_best[0].tokens) for n_best in hypotheses]
            self._ended = [n_best[0].ended for n_best in hypotheses]
        return {"loss": nats, **self.score(self._written)}

    def samples(self, model: EncoderDecoder[Any], count: int) -> list[Sample]:
        """Up to `count` samples of what the model writes now, the same ones each time. Call it after scoring."""
        return [{**self.example(i), "hypothesis": text} for i, text in enumerate(self._written[:count])]

    def conspicuous(self) -> dict[str, float]:
        """The shares of what was decoded that do not end, repeat themselves, and are alike: `alike` is the share of the
        others that are the commonest output, of at least four outputs.
        """
        count = len(self._written)
        if not count:
            return {}
        shares = {
            "unended": self._ended.count(False) / count,
            "repeating": sum(repeats(text) for text in self._written) / count,
        }
        if count >= 4:
            ((_, most),) = Counter(self._written).most_common(1)
            shares["alike"] = (most - 1) / (count - 1)
        return shares

    def _loss(self, loss: TrainingLoss) -> float:
        def measured(rows: Sequence[int]) -> tuple[float, int]:
            batch = self.split.collate(rows)
            return float(loss(batch.to(self.machine.device)).nll), batch.tokens

        order = np.argsort(self.split.lengths()[1], kind="stable").tolist()
        parts = distributed.together(measured, list(chunks(order, self._decoding.sources_per_batch)))
        return sum(nll for nll, _ in parts) / max(sum(tokens for _, tokens in parts), 1)


@dataclass
class StreamValidator:
    """The loss on a text, in parallel streams whose state is carried from chunk to chunk: nats per token, and bits per
    character of the text's `characters`. Every stream but the first begins without the text before it.
    """

    streams: Streams
    vocabulary: Vocabulary
    _: KW_ONLY
    characters: int
    machine: Machine

    def __call__(self, loss: TrainingLoss, model: EncoderDecoder[Any]) -> Scores:
        with _measuring(loss, self.machine, ": lower train.batch_size or train.bptt."):
            total, state = torch.zeros((), dtype=torch.float64), None
            for number in range(len(self.streams)):
                rows = self.streams.chunk(number)[distributed.rank() :: distributed.size()]
                if len(rows):
                    chunk = loss(self.streams.collate(rows).to(self.machine.device), state)
                    total, state = total + chunk.nll.cpu(), chunk.state
            nats = float(distributed.total(total))
        return {"loss": nats / self.streams.tokens, "bits": nats / math.log(2) / self.characters}

    def samples(self, model: EncoderDecoder[Any], count: int) -> list[Sample]:
        """Texts from their beginning, drawn with the same random numbers each time."""
        uniforms = torch.from_numpy(np.random.default_rng(0).random((1, count, SHOWN))).float()
        model.eval()
        with torch.inference_mode(), autocast(self.machine.device, self.machine.precision):
            drawn = sample(
                model.step,
                *model.encode(None),
                uniform_noise=uniforms,
                maximum=[SHOWN],
                minimum=SHOWN + 1,  # a text has no EOS
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                keep_attention=False,
                unknown=False,
            )[0]
        model.train()
        return [{"text": self.vocabulary.decode(hypothesis.tokens)} for hypothesis in drawn]

    def conspicuous(self) -> dict[str, float]:
        return {}


@contextmanager
def _measuring(loss: TrainingLoss, machine: Machine, advice: str) -> Iterator[None]:
    """Without dropout and gradients; if memory runs out, `advice` ends the message."""
    loss.eval()
    with (
        out_of_memory(lambda: f"while validating{advice}", machine.device),
        torch.inference_mode(),
        autocast(machine.device, machine.precision),
    ):
        yield
    loss.train()
