"""A small model whose state grows: like a Transformer's decoder, it attends to all tokens read so far."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from small_models import VOCABULARY
from torch import Tensor, nn

from seqtool.models.contract import EncoderDecoder, Memory, Prefilled, Step
from seqtool.models.inputs import Source

E, CAPACITY = 6, 16  # size of a vector; number of tokens that an allocated state can hold


@dataclass(frozen=True)
class Past:
    """Keys and values of the tokens read so far, N×t×E."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, n: int) -> "Past":
        return cls(torch.zeros(n, 0, E), torch.zeros(n, 0, E))

    def read(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def grown(self, keys: Tensor, values: Tensor) -> "Past":
        return Past(torch.cat([self.keys, keys], 1), torch.cat([self.values, values], 1))


@dataclass(frozen=True)
class Allocated:
    """Keys and values in preallocated tensors, N×CAPACITY×E, of which the first `used` positions are filled."""

    keys: Tensor
    values: Tensor
    used: int

    @classmethod
    def empty(cls, n: int) -> "Allocated":
        return cls(torch.full((n, CAPACITY, E), torch.nan), torch.full((n, CAPACITY, E), torch.nan), 0)

    def read(self) -> tuple[Tensor, Tensor]:
        return self.keys[:, : self.used], self.values[:, : self.used]

    def grown(self, keys: Tensor, values: Tensor) -> "Allocated":
        end = self.used + keys.shape[1]
        self.keys[:, self.used : end] = keys
        self.values[:, self.used : end] = values
        return replace(self, used=end)

    def select(self, rows: Tensor) -> "Allocated":
        """Select rows, and copy only the filled positions."""
        return Allocated.empty(len(rows)).grown(*(tensor[rows] for tensor in self.read()))


class Growing(nn.Module):
    """A decoder whose tokens attend first to all tokens up to their own position, then to the source."""

    def __init__(self, state: type[Past] | type[Allocated], seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.state = state
        self.source, self.target = nn.Embedding(VOCABULARY, E), nn.Embedding(VOCABULARY, E)
        self.position = nn.Embedding(CAPACITY, E)
        self.query, self.key, self.value = (nn.Linear(E, E) for _ in range(3))
        self.output = nn.Linear(E, VOCABULARY)
        self.eval()

    def encode(self, source: Source) -> tuple[Memory, Any]:
        values = self.source(source.tokens)
        return Memory(values, values[..., :0], source.mask), self.state.empty(len(values))

    def forward(self, source: Source, target: Tensor) -> Tensor:
        """Logits B×T×V."""
        return self._read(*self.encode(source), target)[0]

    def prefill(self, memory: Memory, state: Any, tokens: Tensor) -> Prefilled[Any]:
        _, state, alpha = self._read(memory, state, tokens)
        return Prefilled(state, alpha)

    def step(self, memory: Memory, state: Any, token: Tensor) -> Step[Any]:
        logits, state, alpha = self._read(memory, state, token[:, None])
        return Step(logits[:, 0], state, alpha[:, 0])

    def _read(self, memory: Memory, state: Any, tokens: Tensor) -> tuple[Tensor, Any, Tensor]:
        """Read t tokens at once; return logits N×t×V, the state after them and attention N×t×S."""
        past_length, t = state.read()[0].shape[1], tokens.shape[1]
        x = self.target(tokens) + self.position(torch.arange(past_length, past_length + t))
        state = state.grown(self.key(x), self.value(x))
        keys, values = state.read()
        future = torch.ones(t, past_length + t, dtype=torch.bool).triu(past_length + 1)
        x = x + (2 * self.query(x) @ keys.mT).masked_fill(future, -torch.inf).softmax(-1) @ values
        beams = len(x) // len(memory.values)
        source, mask = memory.values.repeat_interleave(beams, 0), memory.mask.repeat_interleave(beams, 0)
        alpha = (x @ source.mT).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        return self.output(3 * torch.tanh(x + alpha @ source)), state, alpha


class Stepping:
    """A model that prefills step by step, by the contract's default `prefill`."""

    prefill = EncoderDecoder.prefill

    def __init__(self, model: Any) -> None:
        self.encode, self.step = model.encode, model.step


STATES: Sequence[type[Past] | type[Allocated]] = (Past, Allocated)
