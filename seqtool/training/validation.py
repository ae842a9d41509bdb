"""Validation during training: the loss by teacher forcing, and scores of the model's own output."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from seqtool.data.batches import Epoch, Examples
from seqtool.data.cache import Split
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import DecodeSettings, Sources, chunks, decode, force_all
from seqtool.decoding.common import Hypothesis
from seqtool.decoding.sampling import sample
from seqtool.errors import out_of_memory
from seqtool.metrics.scores import higher_is_better, is_score, metric, score
from seqtool.metrics.words import repeats
from seqtool.models.contract import EncoderDecoder
from seqtool.models.tokens import END
from seqtool.runtime import distributed
from seqtool.runtime.configs import defaults
from seqtool.runtime.devices import Machine
from seqtool.runtime.precision import autocast
from seqtool.settings import declarations, names
from seqtool.training.losses import TrainingLoss
from seqtool.view.report import rounded_weights

BATCH_SIZE = 128  # the number of sentences or images decoded at once
SAMPLE_TOKENS = 200  # the length of a language model's sample


class ValidationDecoding(DecodeSettings):
    """The settings with which a validation decodes; error messages call them by the names in `validation`."""

    memory = "validation.beam or validation.max_length"


@dataclass
class ValidationSettings(declarations.Validation):
    """The `validation` settings of configs/train.yaml.

    scores: the names of the user's scores, besides the task's.
    tokenize: None until the references determine it.
    """

    def __post_init__(self) -> None:
        self.scores = names(self.scores)

    def check(self) -> None:
        """Raise InputError for a value out of range or an unknown score."""
        for name in self.scores:
            metric(name, setting="validation.scores")
        declarations.check_values(self, "validation.")

    def decoding(self, precision: str) -> DecodeSettings:
        """The decoding settings: the defaults of configs/decoding.yaml, overridden by these settings."""
        overrides = {"beam": self.beam, "max_length": self.max_length, "batch_size": BATCH_SIZE, "precision": precision}
        settings = {**defaults("decoding"), **overrides}
        return ValidationDecoding(**{field.name: settings[field.name] for field in fields(DecodeSettings)})


Scores = dict[str, float]
"""Scores by name (`metrics.scores`): the loss in nats per token, without label smoothing, and scores of decoded text
against the untokenised references. BLEU is on 0–100, for captions BLEU-4 with brevity penalty after PTB tokenisation;
CIDEr-D is on 0–10.
"""


def is_better(scores: Scores, best: Mapping[str, Any], *, by: str) -> bool:
    """Whether scores are better than the best so far: by the score `by`, or by the loss if that is equal.

    Scores whose loss or score `by` is not finite are never better. Finite scores are better than a best without a
    finite score `by`: a resumed run may be compared by another score than before.
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
    """Format every score, the loss last; a record's other fields are left out."""
    other_names = [name for name in scores if is_score(name) and name != "loss"]
    return [score(name).text(scores[name]) for name in (*other_names, "loss")]


Sample = dict[str, Any]
"""The input's name or text, the reference, and the model's output. `attention` has the attention of models that attend:
`weights`, target × source, the tokens of the `target` and of the `source`, or the `grid` of an image's locations and
how the image was made to `fit` (`model.encoder.fit`).
"""


@dataclass
class Validator:
    """Scores a model on one split, decoding each sentence or image once."""

    split: Split
    sources: Sources  # the split's inputs, to decode
    score: Callable[[list[str]], Scores]  # scores the outputs, in the order of the sources
    vocabulary: Vocabulary  # of the target
    _: KW_ONLY
    example: Callable[[int], Sample]  # input and reference of a source and, of a sentence, the tokens of `attention`
    settings: ValidationSettings
    machine: Machine

    def __post_init__(self) -> None:
        self._decoding = self.settings.decoding(self.machine.precision)
        self._hypotheses: list[Hypothesis] = []
        self._outputs: list[str] = []

    def __call__(self, loss: TrainingLoss, model: EncoderDecoder[Any]) -> Scores:
        advice = f", {BATCH_SIZE} at a time: use shorter validation examples, or a smaller model or vocabulary."
        with _evaluation_mode(loss, self.machine, advice):
            nats = self._loss(loss)
            limit = self._decoding.max_length
            settings = replace(self._decoding, max_length=min(limit, model.max_positions or limit))
            started = time.monotonic()
            hypotheses = decode(model, self.sources, settings, device=self.machine.device, keep_attention=False)
            self._tokens_per_second = sum(len(n_best[0].tokens) for n_best in hypotheses) / (time.monotonic() - started)
            self._hypotheses = [n_best[0] for n_best in hypotheses]
            self._outputs = [self.vocabulary.decode(hypothesis.tokens) for hypothesis in self._hypotheses]
        return {"loss": nats, **self.score(self._outputs)}

    def samples(self, model: Any, count: int) -> list[Sample]:
        """The first `count` examples with the outputs of the last validation, and where the model looked. Several
        processes share the work.
        """
        samples: list[Sample] = [{**self.example(i), "hypothesis": x} for i, x in enumerate(self._outputs[:count])]
        sides = [example.pop("attention", None) for example in samples]
        if model.attends:
            end = model.max_positions and model.max_positions - 1  # forced decoding adds EOS, also to unended outputs
            targets = [output.tokens[:end] for output in self._hypotheses[:count]]
            model.eval()
            forced: list[Any] = force_all(model, self.sources, targets, self._decoding, device=self.machine.device)
            model.train()
            for example, side, output, looked in zip(samples, sides, self._hypotheses, forced, strict=False):
                target = [*map(self.vocabulary.piece, output.tokens), *[END] * output.ended]
                source = side or {"grid": [*model.backbone.locations], "fit": model.built_with["encoder"].fit}
                weights = looked.attention[: len(target), : len(source.get("source", ())) or None].float().numpy()
                example["attention"] = {**source, "target": target, "weights": rounded_weights(weights)}
        return samples

    def facts(self) -> dict[str, float]:
        """The tokens that the last validation decoded per second, and the shares of its outputs that are degenerate.

        outputs_unended: outputs without an end-of-sentence token.
        outputs_repeating: outputs that repeat themselves.
        outputs_alike: the share of outputs equal to the most common one, which itself is not counted; only for at least
            four outputs.
        """
        count = len(self._outputs)
        if not count:
            return {}
        facts = {
            "decoded_tokens_per_second": round(self._tokens_per_second, 1),
            "outputs_unended": sum(not hypothesis.ended for hypothesis in self._hypotheses) / count,
            "outputs_repeating": sum(repeats(text) for text in self._outputs) / count,
        }
        if count >= 4:
            ((_, occurrences),) = Counter(self._outputs).most_common(1)
            facts["outputs_alike"] = (occurrences - 1) / (count - 1)
        return facts

    def _loss(self, loss: TrainingLoss) -> float:
        """The loss on the split in nats per token; processes share the batches."""

        def nll_and_tokens(rows: Sequence[int]) -> tuple[float, int]:
            batch = self.split.collate(rows)
            return float(loss(batch.to(self.machine.device)).nll), batch.tokens

        by_length = np.argsort(self.split.lengths()[1], kind="stable").tolist()
        order = range(len(self.split)) if self.split.has_pixels else by_length  # captions of a picture share it
        results = distributed.parallel_map(nll_and_tokens, list(chunks(order, self._decoding.sources_per_batch)))
        return sum(nll for nll, _ in results) / max(sum(tokens for _, tokens in results), 1)


@dataclass
class StreamValidator:
    """Measures the loss on a text: nats per token, and bits for each of the text's `characters`.

    The text is read as parallel streams, whose state is carried from chunk to chunk. Only the first stream begins where
    the text does; the others begin without the text before them. With `data.lines`, its lines are read instead, each by
    itself and with its end.
    """

    examples: Examples
    epoch: Epoch  # one pass over the examples
    vocabulary: Vocabulary
    _: KW_ONLY
    characters: int
    machine: Machine

    def __call__(self, loss: TrainingLoss, model: EncoderDecoder[Any]) -> Scores:
        with _evaluation_mode(loss, self.machine, ": lower train.batch_size or train.bptt."):
            total, state = torch.zeros((), dtype=torch.float64), None
            position = tokens = 0
            while batches := self.epoch.batches(position, 1):
                position, tokens = position + 1, tokens + self.examples.count_labels(batches[0])
                rows = batches[0][distributed.rank() :: distributed.size()]
                if len(rows):
                    chunk = loss(self.examples.collate(rows).to(self.machine.device), state)
                    total, state = total + chunk.nll.cpu(), chunk.state
            nats = float(distributed.total(total))
        return {"loss": nats / tokens, "bits": nats / math.log(2) / self.characters}

    def samples(self, model: EncoderDecoder[Any], count: int) -> list[Sample]:
        """Sample texts from their beginning, with the same random numbers each time."""
        uniform_noise = torch.from_numpy(np.random.default_rng(0).random((1, count, SAMPLE_TOKENS))).float()
        model.eval()
        with torch.inference_mode(), autocast(self.machine.device, self.machine.precision):
            options: Any = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "keep_attention": False, "unknown": False}
            # lines may end at once; the minimum length of a text, which has no EOS, is never reached
            minimum = 1 if self.examples.stream_count is None else SAMPLE_TOKENS + 1
            lengths: Any = {"maximum": [SAMPLE_TOKENS], "minimum": minimum}
            memory, state = model.encode(None)
            (samples,) = sample(model.step, memory, state, uniform_noise=uniform_noise, **lengths, **options)
        model.train()
        return [{"text": self.vocabulary.decode(hypothesis.tokens)} for hypothesis in samples]

    def facts(self) -> dict[str, float]:
        """Return no facts: a validation of a language model decodes nothing."""
        return {}


@contextmanager
def _evaluation_mode(loss: TrainingLoss, machine: Machine, advice: str) -> Iterator[None]:
    """Switch dropout and gradients off within the context; if memory runs out, the error message ends in `advice`."""
    loss.eval()
    with (
        out_of_memory(lambda: f"while validating{advice}", machine.device),
        torch.inference_mode(),
        autocast(machine.device, machine.precision),
    ):
        yield
    loss.train()
