"""Luong, Pham & Manning 2015: attention with the *new* state, input feeding, and h̃ = tanh(W_c [c; s]).

Many implementations attend in this order and call it Bahdanau's attention. Here the two are separate models, which can
be compared.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.attention import Attention, AttentionScore
from seqtool.models.cells import Cell, Encoder, Layers, Stack
from seqtool.models.contract import DropoutRate, LayerCount, Memory, Size, tie_matrices
from seqtool.models.inputs import Source
from seqtool.models.parts import PLAIN, Parts, at_least_single, for_products
from seqtool.models.recurrent_decoder import RecurrentDecoder, StepOutput


@dataclass(frozen=True)
class LuongState(Layers):
    """The states of the stack, and the attentional vector h̃, N×H, that is fed to the next step (their section 3.3)."""

    attentional: Tensor


class Luong(RecurrentDecoder[LuongState]):
    """A decoder of `layers` × `hidden` cells, and an encoder of as many layers in one or both directions."""

    task = "translation"
    attends = True

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: Size,
        cell: str | type[Cell],
        hidden: Size,
        layers: LayerCount,
        bidirectional: bool,
        score: str | type[AttentionScore],
        alignment: Size,
        dropout: DropoutRate,
        tie: str,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        if bidirectional and hidden % 2:
            raise InputError(f"model.hidden={hidden} must be even: each direction of the encoder has half of it.")
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = parts.dropout(dropout)
        encoder_hidden = hidden // 2 if bidirectional else hidden
        self.encoder = Encoder(
            cell, embedding, encoder_hidden, layers, bidirectional=bidirectional, dropout=dropout, parts=parts
        )
        self.decoder = Stack(cell, embedding + hidden, hidden, layers, parts)
        self.attention = Attention(score, query=hidden, value=self.encoder.size, size=alignment, parts=parts)
        self.combine = parts.linear(self.encoder.size + hidden, hidden, bias=False)
        self.output = parts.linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def encode(self, source: Source) -> tuple[Memory, LuongState]:
        x = self.dropout(self.source_embedding(source.tokens))
        encoding = self.encoder(x, source.lengths)
        layers = encoding.forward
        if encoding.backward is not None:
            both = zip(encoding.forward, encoding.backward, strict=True)
            layers = tuple(tuple(torch.cat(pair, -1) for pair in zip(*states, strict=True)) for states in both)
        h = for_products(encoding.annotations)
        memory = Memory(h, self.attention.score.keys(h), source.mask)
        return memory, LuongState(layers, torch.zeros_like(layers[-1][0]))

    def decoder_step(self, memory: Memory, state: LuongState, projected: Tensor) -> StepOutput[LuongState]:
        s, layers = self.decoder.step(torch.cat([projected, state.attentional], -1), state.layers, self.dropout)
        c, alpha = self.attention(s, memory)  # with the new state (their section 3.1)
        attentional = torch.tanh(at_least_single(self.combine(torch.cat([c, s], -1))))  # h̃ (their (5))
        return StepOutput(LuongState(layers, attentional), (attentional,), alpha)

    def features(self, y: Tensor, *feature_inputs: Tensor) -> Tensor:
        return self.dropout(super().features(y, *feature_inputs))  # of h̃
