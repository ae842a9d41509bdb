"""What recurrent models share: teacher forcing and stepping, written once over one step of the recurrence."""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from seqtool.models.cells import Layers, Stack
from seqtool.models.contract import EncoderDecoder, Output, Prefilled, Step, stacked

S = TypeVar("S")


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
