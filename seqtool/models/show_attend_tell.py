"""Show, Attend and Tell: soft and hard attention over an image (Xu et al. 2015).

Letters of the paper: a_i annotation vector, ā their mean, E y embedded word, h and c the LSTM's state, e score, α
attention, s_t the location that hard attention draws, β gate, ẑ (`z`) context.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from seqtool.errors import InputError
from seqtool.models import hard_attention, tree
from seqtool.models.attention import AttentionScore, make_score
from seqtool.models.backbone import EncoderSettings, ImageCaptioner
from seqtool.models.cells import Cell, State, make_cell
from seqtool.models.contract import DropoutRate, Memory, Output, Size, tie_matrices
from seqtool.models.hard_attention import Rows
from seqtool.models.inputs import Images
from seqtool.models.parts import PLAIN, Parts, at_least_single, for_products, single
from seqtool.models.recurrent_decoder import RecurrentDecoder, StepOutput
from seqtool.settings.declarations import Setting, at_least, between, choice


@dataclass(frozen=True)
class ImageMemory(Memory):
    """A memory that also determines how attention chooses locations.

    uniform_noise: a random number in [0, 1) for the draw of each step, B×T_max, or B×0 if none is drawn; each
        image, or in training each caption, has its own row of numbers, so its draws do not depend on others
    choose: the rule that weights the locations
    """

    uniform_noise: Tensor
    choose: hard_attention.Choice = hard_attention.expectation

    def weights(self, alpha: Tensor, position: Tensor) -> Tensor:
        """Return the weights of the locations, N×S, at step `position` of each row, N."""
        noise = alpha.new_zeros(len(alpha))
        if self.uniform_noise.shape[1]:
            row_noise = self.uniform_noise.repeat_interleave(len(alpha) // len(self.uniform_noise), 0)
            noise = row_noise.gather(1, position[:, None]).squeeze(1)
        return self.choose(alpha, noise)


@dataclass(frozen=True)
class ShowAttendTellState:
    """The cell's state, N×H, and the number of words read so far, N."""

    cell: State
    position: Tensor


class ShowAttendTell(ImageCaptioner[ShowAttendTellState], RecurrentDecoder[ShowAttendTellState]):
    """A cell, in the paper an LSTM, that attends to the image before every word. The paper's COCO model: embedding 512,
    LSTM 1800, alignment 512, dropout 0.5.

    The context is the expected annotation vector (soft attention) or that of one drawn location (hard attention). Hard
    attention is trained with `samples` draws per image; a fraction of `soft_share` of the images take the expected
    context instead (section 4.1). Outside training hard attention takes the expected context too, unless the memory has
    another rule (`ImageMemory.choose`).
    """

    attends = True
    location_rules = hard_attention.CHOICES

    def __init__(
        self,
        *,
        target_vocabulary: int,
        pretrained: bool,
        encoder: EncoderSettings,
        embedding: Size,
        hidden: Size,
        alignment: Size,
        gate: bool,
        dropout: DropoutRate,
        embedding_dropout: DropoutRate,
        tie: str,
        attention: Annotated[str, choice("soft", "hard")],
        samples: Size,
        soft_share: Annotated[float, between(0, 1)],
        doubly_stochastic: Annotated[float, at_least(0)],
        reward: Annotated[float, at_least(0)],
        entropy: Annotated[float, at_least(0)],
        baseline: Annotated[str, choice(*hard_attention.BASELINES)],
        decay: Annotated[float, Setting(at_least=0, below=1)],
        credit: Annotated[str, choice(*hard_attention.CREDITS)],
        cell: str | type[Cell],
        score: str | type[AttentionScore],
        parts: Parts = PLAIN,
    ) -> None:
        if credit == "future" and baseline == "moving_average":
            raise InputError("model.credit=future needs model.baseline=leave_one_out or none.")
        if attention == "hard" and baseline == "leave_one_out" and samples < 2:  # a single sample has no others
            raise InputError(f"model.baseline=leave_one_out needs model.samples of at least 2, not {samples}.")
        super().__init__(target_vocabulary, embedding, encoder, pretrained=pretrained, parts=parts)
        D = self.backbone.dimension  # noqa: N806
        self.hard, self.samples, self.soft_share = attention == "hard", samples, soft_share
        self.penalties = hard_attention.Penalties(doubly_stochastic, reward, entropy, baseline, decay, credit)
        self.dropout = parts.dropout(dropout)
        self.embedding_dropout = parts.dropout(embedding_dropout)
        recurrent_cell = make_cell(cell, hidden, parts)
        self.initial = parts.linear(D, recurrent_cell.tensors * hidden)
        self.score = make_score(score, query=hidden, value=D, size=alignment, parts=parts)
        self.gate = parts.linear(hidden, 1) if gate else None
        # after the gate: the order of the parameters determines which random numbers fill each of them
        self.cell = recurrent_cell
        self.cell_word = parts.linear(embedding, self.cell.gates * hidden)
        self.cell_context = parts.linear(D, self.cell.gates * hidden, bias=False)
        self.deep_state = parts.linear(hidden, embedding)
        self.deep_context = parts.linear(D, embedding, bias=False)
        self.output = parts.linear(embedding, target_vocabulary)
        tie_matrices(self, tie)

    def encode(self, source: Images) -> tuple[ImageMemory, ShowAttendTellState]:
        return source.for_captions(*self._memory_and_state(self.image_annotations(source)))

    def forward(
        self, source: Images, target: Tensor, state: ShowAttendTellState | None = None, rows: Rows | None = None
    ) -> Output:
        """Run teacher forcing. In training, hard attention has `samples` rows that draw for each image, except for a
        fraction of `soft_share` of the images, which have one row and take the expected context; `rows` are these rows
        if they are drawn before, as they are for torch.compile, which cannot trace a random number of them.
        """
        if not (self.hard and self.training):
            return super().forward(source, target, state)
        if state is not None:
            raise ValueError("Hard attention is trained from the image's first state: leave out `state`.")
        source = self.annotated(source)  # first: pictures are augmented before locations are drawn
        return self.forward_rows(source, target, self.draw_rows(target) if rows is None else rows)

    def draw_rows(self, target: Tensor) -> Rows:
        """Draw the rows for a batch of captions."""
        return Rows.draw(len(target), target.shape[1], self.samples, self.soft_share, target.device)

    def forward_rows(self, source: Images, target: Tensor, rows: Rows) -> Output:
        """Run teacher forcing for rows that take the expected context or draw their own, each for one caption."""
        a = self.image_annotations(source)
        image = source.each(torch.arange(len(a), device=a.device))[rows.image]
        memory, first_state = tree.map_tensors(lambda x: x[image], self._memory_and_state(a))
        unused_noise = rows.uniform_noise.new_zeros(rows.expected_rows, rows.uniform_noise.shape[1])
        noise = torch.cat([unused_noise, rows.uniform_noise])
        memory = replace(memory, uniform_noise=noise, choose=hard_attention.draw_after(rows.expected_rows))
        output = self.teacher_force(memory, first_state, target[rows.image])
        assert output.attention is not None
        return replace(output, sampled=rows.sample(output.attention))

    def forward_at(self, source: Images, target: Tensor, location: Tensor) -> Output:
        """Run teacher forcing with the context of the given locations, B×T."""
        memory, first_state = self.encode(source)
        memory = replace(memory, uniform_noise=location.to(memory.uniform_noise.dtype), choose=hard_attention.at)
        return self.teacher_force(memory, first_state, target)

    def _memory_and_state(self, a: Tensor) -> tuple[ImageMemory, ShowAttendTellState]:
        """Compute the keys W_a a_i, once per image, and h_0 = tanh(MLP_h(ā)), c_0 = tanh(MLP_c(ā))."""
        first_state = torch.tanh(at_least_single(self.initial(a.mean(1)))).chunk(self.cell.tensors, -1)
        mask = torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)
        memory = ImageMemory(for_products(a), self.score.keys(a), mask, uniform_noise=a.new_zeros(len(a), 0))
        return memory, ShowAttendTellState(first_state, torch.zeros(len(a), dtype=torch.int64, device=a.device))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding_dropout(self.target_embedding(tokens))

    def input_projection(self, memory: ImageMemory, y: Tensor) -> Tensor:
        """Return W E y_{t−1} plus the biases of all gates, …×gates·H."""
        return self.cell_word(y)

    def decoder_step(
        self, memory: ImageMemory, state: ShowAttendTellState, projected: Tensor
    ) -> StepOutput[ShowAttendTellState]:
        h = state.cell[0]
        e = self.score(h.view(len(memory.keys), -1, h.shape[-1]), memory.keys)  # f_att(a_i, h_{t−1}), (4)
        alpha = e.flatten(0, 1).softmax(-1, dtype=single(e.dtype))  # (5)
        weights = memory.weights(alpha, state.position)
        z = self.parts.weighted_sum(weights, memory.values)  # ẑ_t = φ({a_i}, {α_i}), (6)
        if self.gate is not None:
            z = torch.sigmoid(self.gate(h)) * z  # β_t = σ(f_β(h_{t−1})), section 4.2.1
        cell_state = self.cell(projected + self.cell_context(z), state.cell)  # (1)–(3)
        is_chosen = memory.choose is not hard_attention.expectation
        location = weights.argmax(-1) if is_chosen and not self.training else None
        position = state.position + 1 if is_chosen else state.position  # which nothing else asks for
        return StepOutput(ShowAttendTellState(cell_state, position), (cell_state[0], z), alpha, location)

    def features(self, y: Tensor, *feature_inputs: Tensor) -> Tensor:
        """Return E y_{t−1} + L_h h_t + L_z ẑ_t of (7), L_o being `output`; the authors' code adds tanh and dropout."""
        h, z = feature_inputs
        deep = y + self.deep_state(self.dropout(h)) + self.deep_context(z)
        return self.dropout(torch.tanh(deep))
