"""Sequence to sequence with a fixed context (Sutskever, Vinyals & Le 2014).

One deep LSTM reads the source, another writes the target; only the final (h, c) of every layer passes between them.
The source words are read in reverse, followed by <eos>, which brings the beginning of the source close to the beginning
of the target (their section 3.3: 25.9 → 30.6 BLEU).

Settings can also turn this into the encoder–decoder usually shown in lectures: a single context vector, which is the
last state or the mean or maximum of all states, and which the decoder receives as its first state or at every step
(Cho et al. 2014).
"""

from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor, nn

from seqtool.models.cells import Cell, Encoder, Layers, reversal
from seqtool.models.contract import DropoutRate, LayerCount, Memory, Size, tie_matrices
from seqtool.models.inputs import Source
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.recurrent_decoder import CONTEXTS, FixedContext
from seqtool.settings.declarations import choice


class Sutskever(FixedContext):
    """An encoder and a decoder of `layers` × `hidden` cells. The paper's model: LSTM, 4 × 1000, embeddings 1000,
    source reversed, and the last states of all layers as the decoder's first states.

    With summary=last, the decoder's first states are the encoder's last ones, and c, if it is fed at every step, is the
    top layer's last output h_S. With mean or max, c is the mean or maximum of all the top layer's outputs, and the
    first states are tanh(W c + b). With context=every_step, they are zero.
    """

    task = "translation"

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: Size,
        hidden: Size,
        layers: LayerCount,
        cell: str | type[Cell],
        reverse: bool,
        dropout: DropoutRate,
        tie: str,
        context: Annotated[str, choice(*CONTEXTS)],
        summary: Annotated[str, choice("last", "mean", "max")],
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.reverse, self.context, self.summary = reverse, context, summary
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = parts.dropout(dropout)
        self.encoder = Encoder(cell, embedding, hidden, layers, bidirectional=False, dropout=dropout, parts=parts)
        learnt = summary != "last" and context != "every_step"
        self.make_decoder(cell, embedding=embedding, size=hidden, hidden=hidden, layers=layers, learnt=learnt)
        self.output = parts.linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def reading_order(self, length: int) -> Int[Tensor, "S"]:
        return reversal(torch.tensor([length - 1]), length)[0] if self.reverse else super().reading_order(length)

    def encode(self, source: Source) -> tuple[Memory, Layers]:
        tokens = source.tokens
        if self.reverse:
            tokens = tokens.gather(1, reversal(source.lengths - 1, tokens.shape[1]))  # <eos> stays last
        x = self.dropout(self.source_embedding(tokens))
        encoding = self.encoder(x, source.lengths)
        if self.summary == "last":
            last_states = encoding.forward
            first_states = None if self.context == "every_step" else Layers(last_states)
            return self.with_context(last_states[-1][0], first_states)
        h, real = encoding.annotations, source.mask[:, :, None]
        if self.summary == "mean":
            return self.with_context((h * real).sum(1) / real.sum(1))
        return self.with_context(h.masked_fill(~real, -torch.inf).amax(1))
