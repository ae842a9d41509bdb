"""Training on whole sequences: what the model itself writes is rewarded.

K samples y_k of a source x have rewards r_k. The loss is −Σ_k a_k log p(y_k | x), with the `baseline`

leave_one_out   a_k = (r_k − the mean of the other samples' rewards) / K (Luo 2020, "A better variant of self-critical
                sequence training")
greedy          a_k = (r_k − the greedy output's reward) / K (Rennie et al. 2017, (8))
risk            a_k = α q_k (r_k − Σ_j q_j r_j), where q_k ∝ p(y_k | x)^α over samples that differ; this gives the
                gradient of the risk −Σ_k q_k r_k (Shen et al. 2016, (9) to (11)). The reference may be a sample.

The end of a sequence is a token as any other: it has a gradient, and n-grams that contain it are rewarded. With hard
attention the locations s_k that were drawn are part of a sample: λ_r log p(s_k | x) is added to log p(y_k | x), and q_k
is ∝ p(y_k, s_k | x)^α. The samples of a random share of the images, `model.soft_share`, take the expected context.

Samples are drawn without dropout, but log p(y_k | x) is computed with it, so only without dropout does the gradient
average to that of the expected reward. A picture is cropped, moved or mirrored at random once for both, and for the
share of cross-entropy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from seqtool.data.batches import Batch, Indices, make_target
from seqtool.decoding.common import Hypothesis
from seqtool.decoding.sampling import sample
from seqtool.errors import InputError
from seqtool.metrics.scores import Scorer, weighted_sums
from seqtool.models import tree
from seqtool.models.contract import EncoderDecoder
from seqtool.models.hard_attention import EXPECTED, draw_or_expect
from seqtool.models.inputs import Images
from seqtool.models.tokens import EOS, PAD
from seqtool.runtime.precision import no_gradients
from seqtool.training.losses import Loss, TrainingLoss
from seqtool.training.saving import TrainSettings
from seqtool.training.scheduled_sampling import random_numbers

MAX_LENGTH = 1000  # tokens of a sample
END = "␄"  # the word that stands for the end in the texts that are rewarded
Samples = list[list[Hypothesis]]  # K of each source


@dataclass(frozen=True)
class Rewards:
    """The rewards of sequences: a weighted sum of scores (`scores.weighted_sums`)."""

    weights: Mapping[str, float]  # the weights of the scores, by name
    references: Callable[[int], Sequence[str]]  # the references of the source with this index, of captions tokenised
    texts: Callable[[Sequence[Sequence[int]]], Sequence[str]]  # makes the texts of sequences of ids, as references are
    scorers: Callable[[Sequence[Sequence[str]]], Iterable[Scorer]]  # of sequences with these references
    end: bool = True  # whether the end of a sequence counts as a word
    source_of: NDArray[np.int64] | None = None  # the source of each training example; None: example i has source i

    def sources(self, examples: Indices) -> tuple[Indices, Indices]:
        """The indices of a batch's sources in the order of its inputs, and which of them each example has."""
        if self.source_of is None:
            return examples, np.arange(len(examples))
        return np.unique(self.source_of[examples], return_inverse=True)

    def __call__(self, sources: Indices, samples: Samples) -> Float[Tensor, "B K"]:
        """The rewards of K sequences for each source."""
        sequences = [sequence for row in samples for sequence in row]
        end = f" {END}" if self.end else ""
        texts = self.texts([sequence.tokens for sequence in sequences])
        hypotheses = [text + end * sequence.ended for text, sequence in zip(texts, sequences, strict=True)]
        references = [[text + end for text in self.references(source)] for source in sources.tolist()]
        repeated = [texts for texts, row in zip(references, samples, strict=True) for _ in row]
        rewards = weighted_sums(self.weights, self.scorers(repeated), hypotheses, noun="reward")
        return torch.from_numpy(rewards).float().view(len(samples), -1)


def limit_of(longest: int) -> int:
    """The maximum length of a sample for a source whose longest reference has this length, in tokens with the end."""
    return 2 * longest + 5


def check(model: EncoderDecoder[Any], settings: TrainSettings) -> None:
    """Raise InputError for settings that sequence training of this model has no use for."""
    if not getattr(model, "hard", False):
        return
    if settings.risk_reference:
        raise InputError("train.risk_reference=true is not for hard attention: nobody knows where it looked.")
    if settings.cross_entropy and model.penalties.baseline == "moving_average":
        raise InputError(
            "train.cross_entropy with hard attention needs model.baseline=leave_one_out (with model.samples=2 or more) "
            "or none: while sequences are rewarded, no moving average is kept."
        )


class SequenceLoss(TrainingLoss):
    """The loss of what the model writes for a batch's sources and, in part, cross-entropy. Outside training it is the
    cross-entropy alone.
    """

    def __init__(self, model: EncoderDecoder[Any], settings: TrainSettings, rewards: Rewards, seed: int) -> None:
        super().__init__(model, settings.label_smoothing, settings.teacher_of(seed))
        self.settings, self.rewards, self.seed = settings, rewards, seed
        self.hard: bool = getattr(model, "hard", False)

    def forward(self, batch: Batch, state: Any = None) -> Loss:
        if not self.training:
            return super().forward(batch, state)
        settings, device, source = self.settings, batch.target.device, batch.source
        source = replace(source, rows=None, captions_each=1) if isinstance(source, Images) else source
        source = self.model.augmented(source)
        sources, row = self.rewards.sources(batch.indices)
        counts, longest = np.bincount(row), np.zeros(len(sources), np.int64)
        np.maximum.at(longest, row, (batch.labels != PAD).sum(1).cpu().numpy())
        limits = [min(limit_of(length), self.model.max_positions or MAX_LENGTH) for length in longest.tolist()]
        # An image encoder that rests reads an image once, without dropout; one that is trained reads it once for the
        # samples and once, with dropout, for the losses.
        self.model.eval()
        with no_gradients():
            source = self.model.annotated(source) if self.model.rests else source
            encoded = self.model.encode(source)
            samples = self._write(encoded, sources, limits)
            greedy = self._write(encoded, sources, limits, greedy=True) if settings.baseline == "greedy" else None
        self.model.train()
        if settings.risk_reference:
            for i, ids in dict(zip(row.tolist(), batch.target.tolist(), strict=True)).items():
                samples[i].append(Hypothesis(ids[1 : ids.index(EOS)], 0.0, 0.0, None, ended=True))
        rewards = self.rewards(sources, samples)
        drawn = rewards[:, : settings.samples].to(device)  # without the reference's
        mean_of_others = (rewards.sum(1, keepdim=True) - rewards) / max(1, rewards.shape[1] - 1)
        others = self.rewards(sources, greedy) if greedy else mean_of_others
        source = self.model.annotated(source)
        if isinstance(batch.source, Images):
            captions = {"rows": batch.source.rows, "captions_each": batch.source.captions_each}
            batch = replace(batch, source=replace(source, **captions))
        numbers = rewards, others, torch.from_numpy(counts)
        total, nll = self._loss_of(source, samples, *(tensor.to(device) for tensor in numbers))
        if share := settings.cross_entropy:
            total = (1 - share) * total + share * super().forward(batch).total
        return Loss(total, nll * (batch.labels != PAD).sum(), drawn.sum(), drawn.numel())

    @torch.no_grad()
    def observe(self, reward: Tensor) -> None:
        """Keep the mean reward of the last update, for the log."""
        self.mean_reward = reward

    def _write(self, encoded: Any, sources: Indices, limits: list[int], *, greedy: bool = False) -> Samples:
        """Draw samples for each source, of at most as many tokens as its limit, or take the likeliest tokens.
        encoded: the memory and the first state that the model's `encode` returned for the sources
        """
        count, length, is_drawn = 1 if greedy else self.settings.samples, max(limits), self.hard and not greedy
        draws = range(2 * count if is_drawn else count)  # of words, and then of locations
        numbers = [random_numbers(self.seed, self.update, sources.tolist(), k, length) for k in draws]
        noise, is_soft = torch.stack(numbers, 1), np.zeros(len(limits), bool)
        if is_drawn:
            model: Any = self.model
            share = random_numbers(self.seed, self.update, sources.tolist(), 2 * count, 1)[:, 0]
            is_soft = (share < model.soft_share).numpy()
            noise[is_soft, count:] = EXPECTED
        noise = noise.to(self.baseline.device)
        memory, state = encoded
        if is_drawn:  # each sample has locations of its own, or the expected context
            rows = torch.arange(len(limits), device=noise.device).repeat_interleave(count)
            memory, state = tree.select((memory, state), rows)
            memory = replace(memory, uniform_noise=noise[:, count:].flatten(0, 1), choose=draw_or_expect)
        words = noise[:, :count]
        samples = sample(
            self.model.step,
            memory,
            state,
            uniform_noise=words.flatten(0, 1)[:, None] if is_drawn else words,
            maximum=[limit for limit in limits for _ in range(count)] if is_drawn else limits,
            temperature=0.0 if greedy else 1.0,
            top_k=0,
            top_p=1.0,
            keep_attention=is_drawn,
        )
        flat = [sequence for row in samples for sequence in row]
        samples = [flat[i : i + count] for i in range(0, len(flat), count)]
        for row in (row for row, soft in zip(samples, is_soft, strict=True) if soft):
            row[:] = [sequence._replace(locations=[EXPECTED] * len(sequence.locations or [])) for sequence in row]
        return samples

    def _loss_of(
        self, source: Any, samples: Samples, rewards: Float[Tensor, "B K"], others: Float[Tensor, "B k"], counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of the samples, and their mean −log p of a token. In the loss a source counts as often as it has
        examples (`counts`), so that cross-entropy has the same scale. others: with what the rewards are compared
        """
        sequences, shape, device = [sequence for row in samples for sequence in row], rewards.shape, rewards.device
        if isinstance(source, Images):
            source = replace(source, captions_each=shape[1])
        else:
            source = tree.select(source, torch.arange(shape[0], device=device).repeat_interleave(shape[1]))
        target = make_target([sequence.tokens for sequence in sequences])
        for row, sequence in zip(target, sequences, strict=True):
            row[len(sequence.tokens) + 1] *= sequence.ended  # what was cut off has no end
        target = target[:, : int((target != PAD).sum(1).max())]
        inputs, labels = target[:, :-1].to(device), target[:, 1:].to(device)
        if self.hard:
            lists = [torch.tensor(sequence.locations) for sequence in sequences]
            locations = nn.utils.rnn.pad_sequence(lists, batch_first=True).to(device)
            model: Any = self.model
            output = model.forward_at(source, inputs, locations)
            alpha = output.attention.clamp_min(torch.finfo(output.attention.dtype).tiny)
            log_s = alpha.gather(-1, locations.clamp_min(0)[:, :, None]).squeeze(-1).log()
            log_s = (log_s * ((labels != PAD) & (locations != EXPECTED))).sum(1)
        else:
            output, log_s = self.model(source, inputs), torch.zeros(len(labels), device=device)
        if self.settings.baseline == "risk":
            with no_gradients():
                log_p = log_s - self.model.loss(output.features, labels, 0.0).nll.sum(1)
            advantage = self._risk(samples, rewards, log_p.view(shape))
        else:
            advantage = (rewards - others) / shape[1]
        weights = (advantage * counts[:, None]).flatten()
        total, nll = self.model.loss(output.features, labels, 0.0, weights)
        total = total - self.model.penalties.reward * (weights * log_s).sum()
        return total, nll.sum() / (labels != PAD).sum().clamp_min(1)

    def _risk(self, samples: Samples, rewards: Float[Tensor, "B K"], log_p: Float[Tensor, "B K"]) -> Tensor:
        """α q (r − Σ q r), where q is 0 for all but the first of equal samples."""
        keys = [[(sequence.tokens, sequence.ended, sequence.locations) for sequence in row] for row in samples]
        is_repeated = torch.tensor([[key in row[:k] for k, key in enumerate(row)] for row in keys])
        alpha = self.settings.risk_alpha
        q = (alpha * log_p).masked_fill(is_repeated.to(log_p.device), -torch.inf).softmax(1)
        return alpha * q * (rewards - (q * rewards).sum(1, keepdim=True))
