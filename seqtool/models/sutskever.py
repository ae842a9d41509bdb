"""Sequence to sequence with a fixed context (Sutskever, Vinyals & Le 2014).

One deep LSTM reads the source, another writes the target; the final (h, c) of every layer is all that passes between
them. The source is read in reverse, its words and then <eos>, which brings its beginning close to the target's
(their section 3.3: 25.9 → 30.6 BLEU).
"""

from torch import nn

from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import Memory
from seqtool.models.encoder import Encoder, reversal
from seqtool.models.inputs import Source
from seqtool.models.recurrent_decoder import Reading, StackDecoder
from seqtool.models.sizes import check_sizes, tie_matrices


class Sutskever(StackDecoder):
    """`layers` × `hidden` cells on both sides. The paper: LSTM, 4 × 1000, embeddings 1000, reversed."""

    reads = "text"

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: int,
        hidden: int,
        layers: int,
        cell: str | type[Cell],
        reverse: bool,
        dropout: float,
        tie: str,
    ) -> None:
        super().__init__()
        check_sizes(dropout=dropout, embedding=embedding, hidden=hidden, layers=layers)
        self.reverse = reverse
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(cell, embedding, hidden, layers=layers, bidirectional=False, dropout=dropout)
        self.decoder = Stack(cell, embedding, hidden, layers)
        self.output = nn.Linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def read(self, source: Source) -> Reading[Layers]:
        tokens = source.tokens
        if self.reverse:
            tokens = tokens.gather(1, reversal(source.lengths - 1, tokens.shape[1]))  # <eos> stays last
        x = self.dropout(self.source_embedding(tokens))
        encoding = self.encoder(x, source.lengths)
        nothing = encoding.annotations[:, :, :0]
        return Reading(Memory(nothing, nothing, source.mask), Layers(encoding.forward))
