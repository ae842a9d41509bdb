"""Base classes of recurrent models, which define teacher forcing and stepping by one step of the recurrence.

A fixed context is one vector c for the whole source, which the decoder receives in one of these ways:

initial_state   in the first state: s_0 = tanh(W c + b), for each layer and tensor of the state
every_step      next to the word in the lowest layer's input, so that W_ih c is added to its pre-activations (in Cho
                et al. 2014 the output layer receives c as well)
both            in the first state and at every step
"""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import EncoderDecoder, Memory, Output, Prefilled, Step, stack
from seqtool.models.parts import at_least_single

StateT = TypeVar("StateT")

CONTEXTS = ("initial_state", "every_step", "both")


class StepOutput(NamedTuple, Generic[StateT]):
    """The result of one step of the recurrence, or of all T steps of a target."""

    state: StateT  # the state after the step, or after the last of T steps
    feature_inputs: tuple[Tensor, ...]  # the tensors that features are computed from, N×… or N×T×…
    attention: Tensor | None = None  # α, N×S or N×T×S; None without attention
    location: Tensor | None = None  # as in `contract.Step`, N or N×T


class RecurrentDecoder(EncoderDecoder[StateT]):
    """A model whose decoder is one recurrence over embedded words.

    `input_projection`, what a word contributes to the recurrence, does not depend on the state, and no state depends on
    `features`: in teacher forcing both are computed for all time steps at once, and only `decoder_step` runs step by
    step.
    """

    dropout: nn.Dropout

    @abstractmethod
    def decoder_step(self, memory: Any, state: StateT, projected: Tensor) -> StepOutput[StateT]:
        """Run one step of the recurrence from the word's input projection, N×…."""

    def features(self, y: Tensor, *feature_inputs: Tensor) -> Tensor:
        """Return features …×R of embedded words …×E and `StepOutput.feature_inputs`; by default, its only tensor."""
        (x,) = feature_inputs
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embedded words, …×E, after dropout."""
        return self.dropout(self.target_embedding(tokens))

    def input_projection(self, memory: Any, y: Tensor) -> Tensor:
        """Return what embedded words, …×N×E, contribute to the recurrence, …×N×…; by default, the words."""
        return y

    def step(self, memory: Any, state: StateT, token: Tensor) -> Step[StateT]:
        y = self.embed(token)
        output = self.decoder_step(memory, state, self.input_projection(memory, y))
        logits = self.project(self.features(y, *output.feature_inputs))
        return Step(logits, output.state, output.attention, output.location)

    def prefill(self, memory: Any, state: StateT, tokens: Tensor) -> Prefilled[StateT]:
        steps = self.unroll(memory, state, self.input_projection(memory, self.embed(tokens.t())))
        return Prefilled(steps.state, steps.attention, steps.location)

    def forward(self, source: Any, target: Tensor, state: StateT | None = None) -> Output:
        memory, first_state = self.encode(source)
        return self.teacher_force(memory, first_state if state is None else state, target)

    def teacher_force(self, memory: Any, state: StateT, target: Tensor) -> Output:
        """Run `forward` from the given memory and state."""
        y = self.embed(target)
        steps = self.unroll(memory, state, self.input_projection(memory, y.transpose(0, 1)))
        return Output(self.features(y, *steps.feature_inputs), steps.attention, steps.state)

    def unroll(self, memory: Any, state: StateT, projected: Tensor) -> StepOutput[StateT]:
        """Run the recurrence over the input projections of all words, T×N×…."""
        all_steps: StepOutput[StateT] | None = self.parts.whole_target(self, memory, state, projected)
        if all_steps is not None:
            return all_steps
        steps: list[StepOutput[StateT]] = []
        with self.parts.around_steps():
            for projected_word in projected.unbind(0):
                steps.append(self.decoder_step(memory, state, projected_word))
                state = steps[-1].state
        columns = zip(*(step.feature_inputs for step in steps), strict=True)
        attention, location = stack([step.attention for step in steps]), stack([step.location for step in steps])
        return StepOutput(state, tuple(torch.stack(tensors, 1) for tensors in columns), attention, location)


class StackDecoder(RecurrentDecoder[Layers]):
    """A decoder that is a stack of cells, without attention."""

    attends = False
    decoder: Stack

    def decoder_step(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        x, layers = self.decoder.step(projected, state.layers, self.dropout)
        return StepOutput(Layers(layers), (x,))

    def unroll(self, memory: Any, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        """Run each layer over the whole target in turn: a layer depends only on its own state and the layer below. A
        subclass that overrides `decoder_step` is run step by step.
        """
        if type(self).decoder_step is not StackDecoder.decoder_step or not len(projected):
            return super().unroll(memory, state, projected)
        x, layers = projected.transpose(0, 1), []
        for recurrence, first_state in zip(self.decoder, state.layers, strict=True):
            states = recurrence(x, first_state)
            x = self.dropout(states.h)
            layers.append(states.last)
        return StepOutput(Layers(tuple(layers)), (x,))


class FixedContext(StackDecoder):
    """A stack of cells over the words and a fixed context c; `context` is one of `CONTEXTS` or a subclass's own."""

    context: str

    def make_decoder(
        self, cell: str | type[Cell], *, embedding: int, size: int, hidden: int, layers: int, learnt: bool
    ) -> None:
        """Make the stack for a c of this size and, if `learnt`, the map from c to the first state."""
        inputs = embedding + size if self.beside_words else embedding
        self.decoder = Stack(cell, inputs, hidden, layers, self.parts)
        tensors = sum(recurrence.cell.tensors for recurrence in self.decoder)
        self.initial = self.parts.linear(size, tensors * hidden) if learnt else None

    @property
    def beside_words(self) -> bool:
        """Whether the lowest layer reads c next to words; with `with_start`, of `ShowTell`, next to <bos> only."""
        return self.context in ("every_step", "both", "with_start")

    def with_context(self, c: Float[Tensor, "B C"], state: Layers | None = None) -> tuple[Memory, Layers]:
        """Return a memory that holds c, and the first state: `state` or, if it is None, one made from c, or zeros."""
        values = c[:, None] if self.beside_words else c[:, None, :0]
        mask = torch.ones(values.shape[:2], dtype=torch.bool, device=c.device)
        if state is None and self.initial is not None:
            s_0 = torch.tanh(at_least_single(self.initial(c)))
            state = Layers.split(s_0, len(self.decoder), next(iter(self.decoder)).cell.tensors)
        elif state is None:
            state = self.decoder.start(c)
        return Memory(values, values[:, :, :0], mask), state

    def input_projection(self, memory: Memory, y: Tensor) -> Tensor:
        """Return [y, c], which the lowest layer maps to W y + W_ih c, or only y if c is not fed next to words."""
        if not self.beside_words:
            return y
        c = memory.values[:, 0].repeat_interleave(y.shape[-2] // len(memory.values), 0)
        return torch.cat([y, c.expand(*y.shape[:-1], -1).to(y.dtype)], -1)
