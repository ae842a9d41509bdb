"""What recurrent models share: teacher forcing and stepping, written once over one step of the recurrence.

A fixed context is one vector c for the whole source, which a decoder is given in one of these ways:

initial_state   as the first state: s_0 = tanh(W c + b), for each layer and tensor of the state
every_step      beside the word in the lowest layer's input, as W_ih c in its pre-activations, as in Cho et al. 2014,
                whose output layer is given c as well
both            both
"""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import EncoderDecoder, Memory, Output, Prefilled, Step, stacked
from seqtool.models.parts import at_least_single

S = TypeVar("S")

CONTEXTS = ("initial_state", "every_step", "both")


class StepOutput(NamedTuple, Generic[S]):
    """One step of the recurrence, or all steps of a target.

    state: after the step; of all steps, the last
    seen: the tensors that features are made from, N×… or N×T×…
    attention: N×S or N×T×S, None without attention
    location: N or N×T, as in `Step`
    """

    state: S
    seen: tuple[Tensor, ...]
    attention: Tensor | None = None
    location: Tensor | None = None


class RecurrentDecoder(EncoderDecoder[S]):
    """A model whose decoder is one recurrence over embedded words.

    What a word contributes to the recurrence (`input_projection`) and the features made from what a step saw do not
    depend on the state: in teacher forcing they are computed for all time steps at once, and only `decoder_step` runs
    step by step.
    """

    dropout: nn.Dropout

    @abstractmethod
    def decoder_step(self, memory: Any, state: S, projected: Tensor) -> StepOutput[S]:
        """One step of the recurrence, given the word's input projection, N×…."""

    def features(self, y: Tensor, *seen: Tensor) -> Tensor:
        """Features …×R from embedded words …×E and what the steps after them saw; by default, the one tensor seen."""
        (x,) = seen
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedded words …×E."""
        return self.dropout(self.target_embedding(tokens))

    def input_projection(self, memory: Any, y: Tensor) -> Tensor:
        """What embedded words contribute to the recurrence, …×N×E → …×N×…."""
        return y

    def step(self, memory: Any, state: S, token: Tensor) -> Step[S]:
        y = self.embed(token)
        new = self.decoder_step(memory, state, self.input_projection(memory, y))
        return Step(self.project(self.features(y, *new.seen)), new.state, new.attention, new.location)

    def prefill(self, memory: Any, state: S, tokens: Tensor) -> Prefilled[S]:
        steps = self.unroll(memory, state, self.input_projection(memory, self.embed(tokens.t())))
        return Prefilled(steps.state, steps.attention, steps.location)

    def forward(self, source: Any, target: Tensor, state: S | None = None) -> Output:
        memory, first = self.encode(source)
        return self.teacher_force(memory, first if state is None else state, target)

    def teacher_force(self, memory: Any, state: S, target: Tensor) -> Output:
        """`forward` from a given memory and state."""
        y = self.embed(target)
        steps = self.unroll(memory, state, self.input_projection(memory, y.transpose(0, 1)))
        return Output(self.features(y, *steps.seen), steps.attention, steps.state)

    def unroll(self, memory: Any, state: S, projected: Tensor) -> StepOutput[S]:
        """The recurrence over the input projections of all words, T×N×…."""
        whole: StepOutput[S] | None = self.parts.whole_target(self, memory, state, projected)
        if whole is not None:
            return whole
        steps: list[StepOutput[S]] = []
        with self.parts.around_steps():
            for projected_word in projected.unbind(0):
                steps.append(self.decoder_step(memory, state, projected_word))
                state = steps[-1].state
        seen = tuple(torch.stack(tensors, 1) for tensors in zip(*(step.seen for step in steps), strict=True))
        attention, location = stacked([step.attention for step in steps]), stacked([step.location for step in steps])
        return StepOutput(state, seen, attention, location)


class StackDecoder(RecurrentDecoder[Layers]):
    """A decoder that is a stack of cells over the words' input projections, without attention."""

    attends = False
    decoder: Stack

    def decoder_step(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        x, layers = self.decoder.step(projected, state.layers, self.dropout)
        return StepOutput(Layers(layers), (x,))

    def unroll(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        """Layer by layer, each over the whole target: a layer waits for nothing but its own state and the layer below.
        A class with a step of its own runs it step by step.
        """
        if type(self).decoder_step is not StackDecoder.decoder_step or not len(projected):
            return super().unroll(memory, state, projected)
        x, layers = projected.transpose(0, 1), []
        for recurrence, first in zip(self.decoder, state.layers, strict=True):
            states = recurrence(x, first)
            x = self.dropout(states.h)
            layers.append(states.last)
        return StepOutput(Layers(tuple(layers)), (x,))


class FixedContext(StackDecoder):
    """A stack of cells over the words, and c; `context` is one of `CONTEXTS`, or another of a model's own."""

    context: str

    def make_decoder(
        self, cell: str | type[Cell], *, embedding: int, size: int, hidden: int, layers: int, learnt: bool
    ) -> None:
        """The decoder's parts for a c of this `size`; `learnt`: the first state is computed from c."""
        inputs = embedding + size if self._feeds else embedding
        self.decoder = Stack(cell, inputs, hidden, layers, self.parts)
        tensors = sum(recurrence.cell.tensors for recurrence in self.decoder)
        self.initial = self.parts.linear(size, tensors * hidden) if learnt else None

    @property
    def _feeds(self) -> bool:
        return self.context in ("every_step", "both")

    def with_context(self, c: Float[Tensor, "B C"], state: Layers | None = None) -> tuple[Memory, Layers]:
        """The memory of c, and the first state that is computed from it unless `state` is given."""
        values = c[:, None] if self._feeds else c[:, None, :0]
        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=c.device)
        if state is None and self.initial is not None:
            s_0 = torch.tanh(at_least_single(self.initial(c)))
            state = Layers.split(s_0, len(self.decoder), next(iter(self.decoder)).cell.tensors)
        elif state is None:
            state = self.decoder.start(c)
        return Memory(values, values[:, :, :0], mask), state

    def input_projection(self, memory: Memory, y: Tensor) -> Tensor:
        """[y, c], whose product is W y + W_ih c; y alone where c is not seen at every step."""
        if not self._feeds:
            return y
        c = memory.values[:, 0].repeat_interleave(y.shape[-2] // len(memory.values), 0)
        return torch.cat([y, c.expand(*y.shape[:-1], -1).to(y.dtype)], -1)
