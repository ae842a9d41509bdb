"""What recurrent models share: teacher forcing and stepping, written once over one step of the recurrence."""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from seqtool.models.cells import Layers, Stack
from seqtool.models.contract import EncoderDecoder, Output, Step


class HasTop(Protocol):
    """A decoder's state: `top` N×H is the output of its highest layer."""

    @property
    def top(self) -> Tensor: ...


S = TypeVar("S", bound=HasTop)


class Reading(NamedTuple, Generic[S]):
    """The result of encoding: memory, the decoder's first state, and the encoder's states by time step (`Output`)."""

    memory: Any
    state: S
    states: tuple[Tensor, ...] = ()


class Advanced(NamedTuple, Generic[S]):
    """One step: the new state, the tensors that its features are made from (N×…), and attention N×S or None.

    For all steps: the last state, what each saw (N×T×…), attention N×T×S or None, and on request the states' `top`.
    """

    state: S
    seen: tuple[Tensor, ...]
    attention: Tensor | None = None
    tops: tuple[Tensor, ...] = ()


class RecurrentDecoder(EncoderDecoder[S]):
    """A model whose decoder is one recurrence over embedded words.

    A word's share of the recurrence (`shares`) and the features made from what a step saw lie outside the recurrence:
    in teacher forcing they are computed for all time steps at once, and only `advance` runs step by step.
    """

    dropout: nn.Dropout

    @abstractmethod
    def read(self, source: Any, *, stepwise: bool = False) -> Reading[S]:
        """Read the source; `stepwise` asks for the encoder's states."""

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
        memory, state, _ = self.read(source)
        return memory, state

    def step(self, memory: Any, state: S, token: Tensor) -> Step[S]:
        y = self.embed(token)
        new = self.advance(memory, state, self.shares(memory, y))
        return Step(self.project(self.features(y, *new.seen)), new.state, new.attention)

    def prefill(self, memory: Any, state: S, tokens: Tensor) -> tuple[S, Tensor | None]:
        steps = self.unroll(memory, state, self.shares(memory, self.embed(tokens.t())))
        return steps.state, steps.attention

    def forward(self, source: Any, target: Tensor, state: S | None = None, *, stepwise: bool = False) -> Output:
        memory, first, read = self.read(source, stepwise=stepwise)
        return self.follow(memory, first if state is None else state, target, read=read, stepwise=stepwise)

    def follow(
        self, memory: Any, state: S, target: Tensor, *, read: tuple[Tensor, ...] = (), stepwise: bool = False
    ) -> Output:
        """Teacher forcing from a given memory and state; `read` are the encoder's states."""
        y = self.embed(target)
        steps = self.unroll(memory, state, self.shares(memory, y.transpose(0, 1)), stepwise=stepwise)
        return Output(self.features(y, *steps.seen), steps.attention, steps.state, read, steps.tops)

    def unroll(self, memory: Any, state: S, shares: Tensor, *, stepwise: bool = False) -> Advanced[S]:
        """The recurrence over the shares of all words, T×N×…; `stepwise` asks for the states' `top`."""
        steps: list[Advanced[S]] = []
        for share in shares.unbind(0):
            steps.append(self.advance(memory, state, share))
            state = steps[-1].state
        seen = tuple(torch.stack(tensors, 1) for tensors in zip(*(one.seen for one in steps), strict=True))
        alphas = [one.attention for one in steps if one.attention is not None]
        tops = tuple(one.state.top for one in steps) if stepwise else ()
        return Advanced(state, seen, torch.stack(alphas, 1) if alphas else None, tops)


class StackDecoder(RecurrentDecoder[Layers]):
    """A decoder that is a stack of cells over the words' shares, without attention."""

    attends = False
    decoder: Stack

    def advance(self, memory: Any, state: Layers, share: Tensor) -> Advanced[Layers]:
        x, layers = self.decoder.step(share, state.layers, self.dropout)
        return Advanced(Layers(layers), (x,))
