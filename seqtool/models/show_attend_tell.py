"""Show, Attend and Tell: soft and hard attention over an image (Xu et al. 2015).

Letters of the paper: a_i annotation vector, ā their mean, E y embedded word, h and c the LSTM's state, e score, α
attention, s_t the location that hard attention draws, β gate, ẑ context.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.attention import SCORES, Score, WeightedSum
from seqtool.models.backbone import EncoderSettings
from seqtool.models.cells import Cell, State, make_cell
from seqtool.models.contract import Memory, Output
from seqtool.models.hard_attention import BASELINES, CHOICES, CREDITS, Choice, Penalties, Rows, drawn_after, expected
from seqtool.models.image_captioner import ImageCaptioner, Images
from seqtool.models.number_types import at_least_single, for_products, single
from seqtool.models.recurrent_decoder import Advanced, Reading, RecurrentDecoder
from seqtool.models.sizes import check_sizes, tie_matrices
from seqtool.runtime.classes import chosen


@dataclass(frozen=True)
class View(Memory):
    """A memory that also says how attention chooses locations, with the uniform random numbers for drawing them:
    `chances` B×T_max in [0, 1), one per step, or B×0. They stay with their image, so its draws depend on nothing else.
    """

    chances: Tensor
    choose: Choice = expected

    def weights(self, alpha: Tensor, position: Tensor) -> Tensor:
        """The weights N×S that make the context of step `position`, N."""
        chance = alpha.new_zeros(len(alpha))
        if self.chances.shape[1]:
            chances = self.chances.repeat_interleave(len(alpha) // len(self.chances), 0)
            chance = chances.gather(1, position[:, None]).squeeze(1)
        return self.choose(alpha, chance)


@dataclass(frozen=True)
class Gaze:
    """The cell's state, N×H, and the number of words read so far, N."""

    cell: State
    position: Tensor

    @property
    def top(self) -> Tensor:
        return self.cell[0]


class ShowAttendTell(ImageCaptioner[Gaze], RecurrentDecoder[Gaze]):
    """A cell, the paper's an LSTM, that looks at the image before every word; its attention is the expectation (soft)
    or one draw (hard).

    The paper's COCO model: embedding 512, LSTM 1800, alignment 512, dropout 0.5. Hard attention is trained with
    `samples` draws per image; a share of `soft_share` of the images take the expectation instead (section 4.1).
    Outside training its context is the expectation too, unless the memory says to choose otherwise (`View`).
    """

    attends = True
    choices = CHOICES

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
        cell: str | type[Cell],
        score: str | type[Score],
    ) -> None:
        check_sizes(dropout=dropout, embedding=embedding, hidden=hidden, alignment=alignment, samples=samples)
        penalties = Penalties(doubly_stochastic, reward, entropy, baseline, decay, credit)
        _check(attention, embedding_dropout, samples, soft_share, penalties)
        super().__init__(target_vocabulary, embedding, encoder, pretrained=pretrained)
        D = self.backbone.dimension  # noqa: N806
        self.hard = attention == "hard"
        self.samples = samples
        self.soft_share = soft_share
        self.penalties = penalties
        self.dropout = nn.Dropout(dropout)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        made = make_cell(cell, hidden)
        self.initial = nn.Linear(D, made.tensors * hidden)
        self.score = chosen(score, SCORES, kind="score")(hidden, D, alignment)
        self.sum = WeightedSum()
        self.gate = nn.Linear(hidden, 1) if gate else None
        self.cell = made
        self.cell_word = nn.Linear(embedding, self.cell.gates * hidden)
        self.cell_context = nn.Linear(D, self.cell.gates * hidden, bias=False)
        self.deep_state = nn.Linear(hidden, embedding)
        self.deep_context = nn.Linear(D, embedding, bias=False)
        self.output = nn.Linear(embedding, target_vocabulary)
        tie_matrices(self, tie)

    def read(self, source: Images) -> Reading[Gaze]:
        return self._look(self.annotations(source))

    def forward(
        self, source: Images, target: Tensor, state: Gaze | None = None, *, chances: Tensor | None = None
    ) -> Output:
        """In training, hard attention draws for all images but a share of `soft_share`, which have one row each and
        take the expected context. Given its `chances` (B·M×T, the M samples of an image adjacent), it draws for all
        images.
        """
        if chances is None and not (self.hard and self.training):
            return super().forward(source, target, state)
        if state is not None:
            raise ValueError("Rows that draw their attention begin with the image's own state.")
        a = self.annotations(source)
        if chances is None:
            rows = Rows.draw(len(a), target.shape[1], self.samples, self.soft_share, target.device)
        else:
            rows = Rows.given(len(a), chances)
        memory, first = self._look(a[rows.image])
        unused = rows.chances.new_zeros(rows.expected, rows.chances.shape[1])
        memory = replace(memory, chances=torch.cat([unused, rows.chances]), choose=drawn_after(rows.expected))
        output = self.follow(memory, first, target[rows.image])
        assert output.attention is not None
        return replace(output, sampled=rows.sampled(output.attention))

    def _look(self, a: Tensor) -> Reading[Gaze]:
        """h_0 = tanh(MLP_h(ā)), c_0 = tanh(MLP_c(ā)); the keys are W_a a_i, made once per image."""
        first = torch.tanh(at_least_single(self.initial(a.mean(1)))).chunk(self.cell.tensors, -1)
        mask = torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)
        memory = View(for_products(a), self.score.keys(a), mask, chances=a.new_zeros(len(a), 0))
        return Reading(memory, Gaze(first, torch.zeros(len(a), dtype=torch.int64, device=a.device)))

    def embed(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.embedding_dropout(self.target_embedding(tokens))
        return y

    def shares(self, memory: View, y: Tensor) -> Tensor:
        """The words' share of the cell's pre-activations, …×gates·H."""
        share: Tensor = self.cell_word(y)
        return share

    def advance(self, memory: View, state: Gaze, share: Tensor) -> Advanced[Gaze]:
        h = state.top
        e = self.score(h.view(len(memory.keys), -1, h.shape[-1]), memory.keys)  # f_att(a_i, h_{t−1}), (4)
        alpha = e.flatten(0, 1).softmax(-1, dtype=single(e.dtype))  # (5)
        context = self.sum(memory.weights(alpha, state.position), memory.values)  # φ({a_i}, {α_i}), (6)
        if self.gate is not None:
            context = torch.sigmoid(self.gate(h)) * context  # β_t = σ(f_β(h_{t−1})), section 4.2.1
        new = self.cell(share + self.cell_context(context), state.cell)  # (1)–(3)
        return Advanced(Gaze(new, state.position + 1), (new[0], context), alpha)

    def features(self, y: Tensor, *seen: Tensor) -> Tensor:
        """E y_{t−1} + L_h h_t + L_z ẑ_t of (7), L_o being `output`; tanh and both dropouts are the authors' code's."""
        h, context = seen
        deep = y + self.deep_state(self.dropout(h)) + self.deep_context(context)
        features: Tensor = self.dropout(torch.tanh(deep))
        return features


def _check(attention: str, embedding_dropout: float, samples: int, soft_share: float, penalties: Penalties) -> None:
    baseline, decay, credit = penalties.baseline, penalties.decay, penalties.credit
    alone = attention == "hard" and baseline == "leave_one_out" and samples < 2  # there is no other sample
    rules = {
        f"Unknown model.attention '{attention}'; choose from soft, hard.": attention in ("soft", "hard"),
        f"Unknown model.baseline '{baseline}'; choose from {', '.join(BASELINES)}.": baseline in BASELINES,
        f"Unknown model.credit '{credit}'; choose from {', '.join(CREDITS)}.": credit in CREDITS,
        "model.credit=future needs model.baseline=leave_one_out or none.": credit != "future"
        or baseline != "moving_average",
        f"model.baseline=leave_one_out needs model.samples of at least 2, not {samples}.": not alone,
        f"model.embedding_dropout must be at least 0 and below 1, not {embedding_dropout}.": 0 <= embedding_dropout < 1,
        f"model.soft_share must be between 0 and 1, not {soft_share}.": 0 <= soft_share <= 1,
        f"model.decay must be at least 0 and below 1, not {decay}.": 0 <= decay < 1,
    }
    for name in ("doubly_stochastic", "reward", "entropy"):
        rules[f"model.{name} must be at least 0, not {getattr(penalties, name)}."] = getattr(penalties, name) >= 0
    if problems := [problem for problem, holds in rules.items() if not holds]:
        raise InputError(" ".join(problems))
