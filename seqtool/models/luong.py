"""Luong, Pham & Manning 2015: attention with the *new* state, input feeding, and h̃ = tanh(W_c [c; s]).

Most code calls this order Bahdanau's; here it is a model of its own, so that the two can be compared.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.attention import Attention, Score
from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import Memory
from seqtool.models.encoder import Encoder
from seqtool.models.inputs import Source
from seqtool.models.number_types import at_least_single, for_products
from seqtool.models.recurrent_decoder import Advanced, Reading, RecurrentDecoder
from seqtool.models.sizes import check_sizes, tie_matrices


@dataclass(frozen=True)
class Fed(Layers):
    """The stack's states, and the attentional vector h̃ (N×H) that is fed to the next step (their section 3.3)."""

    attentional: Tensor


class Luong(RecurrentDecoder[Fed]):
    """`layers` × `hidden` in the decoder, an encoder of as many layers, one or both directions."""

    task = "translation"
    attends = True

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: int,
        cell: str | type[Cell],
        hidden: int,
        layers: int,
        bidirectional: bool,
        score: str | type[Score],
        alignment: int,
        dropout: float,
        tie: str,
    ) -> None:
        super().__init__()
        check_sizes(dropout=dropout, embedding=embedding, hidden=hidden, layers=layers, alignment=alignment)
        if bidirectional and hidden % 2:
            raise InputError(f"model.hidden={hidden} must be even: each direction of the encoder has half of it.")
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        each_way = hidden // 2 if bidirectional else hidden
        self.encoder = Encoder(cell, embedding, each_way, layers=layers, bidirectional=bidirectional, dropout=dropout)
        self.decoder = Stack(cell, embedding + hidden, hidden, layers)
        self.attention = Attention(score, query=hidden, value=self.encoder.size, size=alignment)
        self.combine = nn.Linear(self.encoder.size + hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def read(self, source: Source) -> Reading[Fed]:
        x = self.dropout(self.source_embedding(source.tokens))
        encoding = self.encoder(x, source.lengths)
        finals = [encoding.forward] + ([encoding.backward] if encoding.backward else [])
        layers = tuple(
            tuple(torch.cat(tensors, -1) for tensors in zip(*states, strict=True))
            for states in zip(*finals, strict=True)
        )
        h = for_products(encoding.annotations)
        memory = Memory(h, self.attention.score.keys(h), source.mask)
        return Reading(memory, Fed(layers, torch.zeros_like(layers[-1][0])))

    def advance(self, memory: Memory, state: Fed, share: Tensor) -> Advanced[Fed]:
        s, layers = self.decoder.step(torch.cat([share, state.attentional], -1), state.layers, self.dropout)
        context, alpha = self.attention(s, memory)
        attentional = torch.tanh(at_least_single(self.combine(torch.cat([context, s], -1))))
        return Advanced(Fed(layers, attentional), (attentional,), alpha)

    def features(self, y: Tensor, *seen: Tensor) -> Tensor:
        (attentional,) = seen
        features: Tensor = self.dropout(attentional)
        return features
