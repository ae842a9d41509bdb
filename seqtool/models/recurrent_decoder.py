"""What recurrent models share: teacher forcing and stepping, written once over one step of the recurrence."""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from seqtool.models.cells import Layers, Stack
from seqtool.models.contract import EncoderDecoder, Output, Step

S = TypeVar("S")


class Reading(NamedTuple, Generic[S]):
    """The result of encoding: memory, and the decoder's first state."""

    memory: Any
    state: S


class Advanced(NamedTuple, Generic[S]):
    """One step: the new state, the tensors that its features are made from (N×…), and attention N×S or None.

    For all steps: the last state, what each saw (N×T×…), attention N×T×S or None.
    """

    state: S
    seen: tuple[Tensor, ...]
    attention: Tensor | None = None


class RecurrentDecoder(EncoderDecoder[S]):
    """A model whose decoder is one recurrence over embedded words.

    A word's share of the recurrence (`shares`) and the features made from what a step saw lie outside the recurrence:
    in teacher forcing they are computed for all time steps at once, and only `advance` runs step by step.
    """

    dropout: nn.Dropout

    @abstractmethod
    def read(self, source: Any) -> Reading[S]:
        """Read the source."""

    @abstractmethod
    def advance(self, memory: Any, state: S, share: Tensor) -> Advanced[S]:
        """One step of the recurrence, given the word's share, N×…."""

    def features(self, y: Tensor, *seen: Tensor) -> Tensor:
        """Features …×R from embedded words …×E and what the steps after them saw; by default, the one tensor seen."""
        (x,) = seen
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedded words …×E."""
        y: Tensor = self.dropout(self.target_embedding(tokens))
        return y

    def shares(self, memory: Any, y: Tensor) -> Tensor:
        """The embedded words' share of the recurrence, …×N×E → …×N×…."""
        return y

    def encode(self, source: Any) -> tuple[Any, S]:
        return self.read(source)

    def step(self, memory: Any, state: S, token: Tensor) -> Step[S]:
        y = self.embed(token)
        new = self.advance(memory, state, self.shares(memory, y))
        return Step(self.project(self.features(y, *new.seen)), new.state, new.attention)

    def prefill(self, memory: Any, state: S, tokens: Tensor) -> tuple[S, Tensor | None]:
        steps = self.unroll(memory, state, self.shares(memory, self.embed(tokens.t())))
        return steps.state, steps.attention

    def forward(self, source: Any, target: Tensor, state: S | None = None) -> Output:
        memory, first = self.read(source)
        return self.follow(memory, first if state is None else state, target)

    def follow(self, memory: Any, state: S, target: Tensor) -> Output:
        """Teacher forcing from a given memory and state."""
        y = self.embed(target)
        steps = self.unroll(memory, state, self.shares(memory, y.transpose(0, 1)))
        return Output(self.features(y, *steps.seen), steps.attention, steps.state)

    def unroll(self, memory: Any, state: S, shares: Tensor) -> Advanced[S]:
        """The recurrence over the shares of all words, T×N×…."""
        steps: list[Advanced[S]] = []
        for share in shares.unbind(0):
            steps.append(self.advance(memory, state, share))
            state = steps[-1].state
        seen = tuple(torch.stack(tensors, 1) for tensors in zip(*(one.seen for one in steps), strict=True))
        alphas = [one.attention for one in steps if one.attention is not None]
        return Advanced(state, seen, torch.stack(alphas, 1) if alphas else None)


class StackDecoder(RecurrentDecoder[Layers]):
    """A decoder that is a stack of cells over the words' shares, without attention."""

    attends = False
    decoder: Stack

    def advance(self, memory: Any, state: Layers, share: Tensor) -> Advanced[Layers]:
        x, layers = self.decoder.step(share, state.layers, self.dropout)
        return Advanced(Layers(layers), (x,))
