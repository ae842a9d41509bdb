"""Luong, Pham & Manning 2015: attention with the *new* state, input feeding, and h̃ = tanh(W_c [c; s]).

The order that most code calls Bahdanau's. Here it is its own model, to compare the two.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqtool.data.batches import Source
from seqtool.errors import InputError
from seqtool.models.attention import Attention
from seqtool.models.cells import Recurrence, Stack, State
from seqtool.models.encoder import Encoder
from seqtool.models.encoder_decoder import EncoderDecoder, Memory, Output, Step, check_sizes, tie_embeddings
from seqtool.models.sharing import StepLinear


@dataclass(frozen=True)
class Fed:
    """The stack's states, and the attentional vector h̃ (N×H) that is fed to the next step (their section 3.3)."""

    layers: tuple[State, ...]
    attentional: Tensor


class Luong(EncoderDecoder[Fed]):
    """`layers` × `hidden` in the decoder, an encoder of as many layers, one or both directions."""

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: int,
        cell: str,
        hidden: int,
        layers: int,
        bidirectional: bool,
        score: str,
        alignment: int,
        dropout: float,
        tie: str,
    ) -> None:
        super().__init__()
        check_sizes(
            dropout=dropout,
            embedding=embedding,
            hidden=hidden,
            layers=layers,
            alignment=alignment,
        )
        if bidirectional and hidden % 2:
            raise InputError(f"model.hidden={hidden} must be even: each direction of the encoder has half of it.")
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(
            cell=cell,
            inputs=embedding,
            hidden=hidden // 2 if bidirectional else hidden,
            layers=layers,
            bidirectional=bidirectional,
            dropout=dropout,
        )
        sizes = [embedding + hidden] + [hidden] * (layers - 1)
        self.decoder = Stack(Recurrence(cell, size, hidden) for size in sizes)
        self.attention = Attention(score, query=hidden, value=self.encoder.size, size=alignment)
        self.combine = StepLinear(self.encoder.size + hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, target_vocabulary)
        tie_embeddings(self, tie)

    def encode(self, source: Source) -> tuple[Memory, Fed]:
        memory, state, _ = self._read(source)
        return memory, state

    def step(self, memory: Memory, state: Fed, token: Tensor) -> Step[Fed]:
        state, alpha = self._advance(memory, state, self.dropout(self.target_embedding(token)))
        return Step(self.project(self.dropout(state.attentional)), state, alpha)

    def forward(self, source: Source, target: Tensor) -> Output:
        memory, state, encoder_states = self._read(source)
        memory = memory.shared()
        y = self.dropout(self.target_embedding(target))
        attentional, alphas, states = [], [], []
        for word in y.unbind(1):
            state, alpha = self._advance(memory, state, word)
            attentional.append(state.attentional)
            alphas.append(alpha)
            states.append(state.layers[-1][0])
        features = self.dropout(torch.stack(attentional, 1))
        return Output(features, torch.stack(alphas, 1), encoder_states, tuple(states))

    def _read(self, source: Source) -> tuple[Memory, Fed, tuple[Tensor, ...]]:
        encoding = self.encoder(self.dropout(self.source_embedding(source.tokens)), source.lengths)
        finals = [encoding.forward] + ([encoding.backward] if encoding.backward else [])
        layers = tuple(
            tuple(torch.cat(tensors, -1) for tensors in zip(*states, strict=True))
            for states in zip(*finals, strict=True)
        )
        h = encoding.annotations
        memory = Memory(h, self.attention.score.keys(h), source.mask)
        return memory, Fed(layers, torch.zeros_like(layers[-1][0])), encoding.states

    def _advance(self, memory: Memory, state: Fed, word: Tensor) -> tuple[Fed, Tensor]:
        x = torch.cat([word, state.attentional], -1)
        layers: list[State] = []
        for recurrence, old in zip(self.decoder, state.layers, strict=True):
            layers.append(recurrence.step(x, old))
            x = self.dropout(layers[-1][0])
        context, alpha = self.attention(x, memory)
        return Fed(tuple(layers), torch.tanh(self.combine(torch.cat([context, x], -1)))), alpha
