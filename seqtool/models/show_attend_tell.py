"""Show, Attend and Tell: soft and hard attention over an image (Xu et al. 2015).

Letters of the paper: a_i annotation vector, ā their mean, E y embedded word, h and c the LSTM's state, e score, α
attention, s_t the location that hard attention draws, β gate, ẑ context.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqtool.errors import InputError
from seqtool.models.attention import Additive
from seqtool.models.backbone import EncoderSettings
from seqtool.models.captioner import Captioner, Images
from seqtool.models.cells import LSTM, State
from seqtool.models.encoder_decoder import Memory, Output, Penalties, Sampled, Step, check_sizes, check_weights
from seqtool.models.sharing import StepLinear, product

Choice = Callable[[Tensor, Tensor], Tensor]
"""How attention weighs the locations: (α N×S, chance N in [0, 1)) → weights N×S, which sum to 1."""


def expected(alpha: Tensor, chance: Tensor) -> Tensor:
    """Soft attention: the context is its expectation under α."""
    return alpha


def argmax(alpha: Tensor, chance: Tensor) -> Tensor:
    """The likeliest location alone."""
    return F.one_hot(alpha.argmax(-1), alpha.shape[-1]).to(alpha.dtype)


def drawn(alpha: Tensor, chance: Tensor) -> Tensor:
    """s ~ Categorical(α): the location where the cumulative distribution passes the chance."""
    cumulative = alpha.detach().cumsum(-1)
    aimed = chance[:, None].to(alpha.dtype).clamp(max=BELOW_ONE) * cumulative[:, -1:]
    location = torch.searchsorted(cumulative, aimed, right=True).clamp(max=alpha.shape[-1] - 1)
    return torch.zeros_like(cumulative).scatter(-1, location, 1.0)


CHOICES: dict[str, Choice] = {"expected": expected, "argmax": argmax, "sample": drawn}
BELOW_ONE = 1 - 2**-24  # rounding must not make a chance 1: it would pass the last location that has any
BASELINES = ("moving_average", "leave_one_out")
CREDITS = ("caption", "future")


@dataclass(frozen=True)
class View(Memory):
    """A memory with the chance that hard attention draws by: `chances` B×T_max in [0, 1), one a step, or B×0.

    They stay with their image, so what is drawn for it depends on nothing else.
    """

    chances: Tensor


@dataclass(frozen=True)
class Gaze:
    """The LSTM's h and c, N×H, and the number of words read so far, N."""

    lstm: State
    position: Tensor


class Advanced(NamedTuple):
    """One step: the LSTM's state, the gated context ẑ N×D, α N×S, and the weights N×S that made ẑ."""

    lstm: State
    context: Tensor
    alpha: Tensor
    weights: Tensor


class ShowAttendTell(Captioner[Gaze]):
    """An LSTM that looks at the image before every word; its attention is the expectation (soft) or one draw (hard).

    The paper's COCO model: embedding 512, LSTM 1800, alignment 512, dropout 0.5. Hard attention is trained with
    `samples` draws an image, of which a share of `soft_share` of the images take the expectation instead (section 4.1).
    Outside of training its context is the expectation too, unless `step` is told to choose otherwise.
    """

    def __init__(
        self,
        *,
        target_vocabulary: int,
        pretrained: bool,
        encoder: EncoderSettings,
        embedding: int,
        hidden: int,
        alignment: int,
        gate: bool,
        dropout: float,
        embedding_dropout: float,
        tie: str,
        attention: str,
        samples: int,
        soft_share: float,
        doubly_stochastic: float,
        reward: float,
        entropy: float,
        baseline: str,
        decay: float,
        credit: str,
    ) -> None:
        check_sizes(dropout=dropout, embedding=embedding, hidden=hidden, alignment=alignment, samples=samples)
        _check(attention, embedding_dropout, samples, soft_share, baseline, decay, credit)
        check_weights(doubly_stochastic=doubly_stochastic, reward=reward, entropy=entropy)
        super().__init__(
            target_vocabulary=target_vocabulary, pretrained=pretrained, encoder=encoder, embedding=embedding
        )
        D = self.backbone.dimension  # noqa: N806
        self.hard = attention == "hard"
        self.samples = samples
        self.soft_share = soft_share
        self.penalties = Penalties(doubly_stochastic, reward, entropy, baseline, decay, credit)
        self.dropout = nn.Dropout(dropout)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.initial = nn.Linear(D, 2 * hidden)
        self.score = Additive(query=hidden, value=D, size=alignment)
        self.gate = StepLinear(hidden, 1) if gate else None
        self.cell = LSTM(hidden)
        self.cell_word = nn.Linear(embedding, 4 * hidden)
        self.cell_context = StepLinear(D, 4 * hidden, bias=False)
        self.deep_state = nn.Linear(hidden, embedding)
        self.deep_context = nn.Linear(D, embedding, bias=False)
        self.output = nn.Linear(embedding, target_vocabulary)
        self.tie(tie)

    def encode(self, source: Images) -> tuple[View, Gaze]:
        return self._begin(self.annotations(source))

    def _begin(self, a: Tensor) -> tuple[View, Gaze]:
        lstm = torch.tanh(self.initial(a.mean(1))).chunk(2, -1)  # h_0 = tanh(MLP_h(ā)), c_0 = tanh(MLP_c(ā))
        keys = self.score.keys(a)  # W_a a_i, once an image
        mask = torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)
        memory = View(a.to(keys.dtype), keys, mask, chances=a.new_zeros(len(a), 0))
        return memory, Gaze(lstm, torch.zeros(len(a), dtype=torch.int64, device=a.device))

    def step(self, memory: View, state: Gaze, token: Tensor, choice: Choice = expected) -> Step[Gaze]:
        y = self.embedding_dropout(self.target_embedding(token))
        chance = memory.chances.new_zeros(len(y))
        if memory.chances.shape[1]:
            chances = memory.chances.repeat_interleave(len(y) // len(memory.chances), 0)
            chance = chances.gather(1, state.position[:, None]).squeeze(1)
        new = self._advance(memory, state.lstm, self.cell_word(y), lambda alpha: choice(alpha, chance))
        features = self._deep_output(new.lstm[0], y, new.context)
        return Step(self.project(features), Gaze(new.lstm, state.position + 1), new.alpha)

    def forward(self, source: Images, target: Tensor, chances: Tensor | None = None) -> Output:
        """What does not depend on the recurrence, the words' share of the gates and the deep output, is computed for
        all time steps at once.

        Hard attention draws while training, for all images but a share of `soft_share`, which are one row each and take
        the expected context; and for all images where it is given its `chances` (B·M×T, the M samples of an image side
        by side).
        """
        a = self.annotations(source)
        B, T = target.shape  # noqa: N806
        M = self.samples if chances is None else len(chances) // B  # noqa: N806
        draws = chances is not None or (self.hard and self.training)
        expected, image = B, torch.arange(B, device=target.device)
        if draws:
            share = self.soft_share if chances is None else 0.0
            expected = math.floor(share * B + float(torch.rand(1)))  # rounded by chance: right on average
            image = torch.randperm(B, device=target.device) if expected else image
            image = torch.cat([image[:expected], image[expected:].repeat_interleave(M)])
            a, target = a[image], target[image]
            if chances is None:
                chances = torch.rand(len(image) - expected, T, device=target.device)
        memory, state = self._begin(a)
        memory, lstm = memory.shared(), state.lstm
        y = self.embedding_dropout(self.target_embedding(target))
        steps: list[Advanced] = []
        for t, word in enumerate(self.cell_word(y.transpose(0, 1)).unbind(0)):

            def choose(alpha: Tensor, t: int = t) -> Tensor:
                if chances is None:
                    return alpha
                return torch.cat([alpha[:expected], drawn(alpha[expected:], chances[:, t])])

            steps.append(self._advance(memory, lstm, word, choose))
            lstm = steps[-1].lstm
        states = tuple(one.lstm[0] for one in steps)
        features = self._deep_output(torch.stack(states, 1), y, torch.stack([one.context for one in steps], 1))
        alpha = torch.stack([one.alpha for one in steps], 1)
        sampled = None
        if draws:
            weights = torch.stack([one.weights[expected:] for one in steps], 1)
            sampled = Sampled(image, expected, M, *_log_probability_and_entropy(alpha[expected:], weights))
        return Output(features, alpha, (), states, sampled)

    def _advance(self, memory: View, lstm: State, word: Tensor, choose: Callable[[Tensor], Tensor]) -> Advanced:
        """`word` is the embedded word's share of the LSTM's pre-activations, N×4H."""
        h = lstm[0]
        e = self.score(h.view(len(memory.keys), -1, h.shape[-1]), memory.keys)  # f_att(a_i, h_{t−1}), (4)
        alpha = e.flatten(0, 1).softmax(-1, dtype=torch.promote_types(e.dtype, torch.float32))  # (5)
        weights = choose(alpha)
        context = product(weights.to(memory.values.dtype).view_as(e), memory.values)  # φ({a_i}, {α_i}), (6)
        context = context.flatten(0, 1)
        if self.gate is not None:
            context = torch.sigmoid(self.gate(h)) * context  # β_t = σ(f_β(h_{t−1})), section 4.2.1
        return Advanced(self.cell(word + self.cell_context(context), lstm), context, alpha, weights)  # (1)–(3)

    def _deep_output(self, h: Tensor, y: Tensor, context: Tensor) -> Tensor:
        """E y_{t−1} + L_h h_t + L_z ẑ_t of (7), L_o being `output`; tanh and both dropouts are the authors' code's."""
        deep = y + self.deep_state(self.dropout(h)) + self.deep_context(context)
        features: Tensor = self.dropout(torch.tanh(deep))
        return features


def _log_probability_and_entropy(alpha: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """log α of the drawn locations and the entropy of α, for all steps at once."""
    log_alpha = alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log()
    location = weights.argmax(-1, keepdim=True)
    return log_alpha.gather(-1, location).squeeze(-1), -(alpha * log_alpha).sum(-1)


def _check(
    attention: str, embedding_dropout: float, samples: int, soft_share: float, baseline: str, decay: float, credit: str
) -> None:
    problems = []
    if attention not in ("soft", "hard"):
        problems.append(f"Unknown model.attention '{attention}'; choose from soft, hard.")
    if baseline not in BASELINES:
        problems.append(f"Unknown model.baseline '{baseline}'; choose from {', '.join(BASELINES)}.")
    if credit not in CREDITS:
        problems.append(f"Unknown model.credit '{credit}'; choose from {', '.join(CREDITS)}.")
    if credit == "future" and baseline != "leave_one_out":
        problems.append("model.credit=future needs model.baseline=leave_one_out.")
    if attention == "hard" and baseline == "leave_one_out" and samples < 2:
        problems.append(f"model.baseline=leave_one_out needs model.samples of at least 2, not {samples}.")
    if not 0 <= embedding_dropout < 1:
        problems.append(f"model.embedding_dropout must be at least 0 and below 1, not {embedding_dropout}.")
    if not 0 <= soft_share <= 1:
        problems.append(f"model.soft_share must be between 0 and 1, not {soft_share}.")
    if not 0 <= decay < 1:
        problems.append(f"model.decay must be at least 0 and below 1, not {decay}.")
    if problems:
        raise InputError(" ".join(problems))
