"""Sequence to sequence with a fixed context (Sutskever, Vinyals & Le 2014).

One deep LSTM reads the source, another writes the target; the final (h, c) of every layer is all that passes between
them. The source is read in reverse, its words and then <eos>, which brings its beginning close to the target's
(their section 3.3: 25.9 → 30.6 BLEU).
"""

from torch import Tensor, nn

from seqtool.data.batches import Source
from seqtool.models.cells import Recurrence, Stack, State, States
from seqtool.models.encoder import Encoder, reversal
from seqtool.models.encoder_decoder import EncoderDecoder, Layers, Memory, Output, Step, check_sizes, tie_embeddings


class Sutskever(EncoderDecoder[Layers]):
    """`layers` × `hidden` cells on both sides. The paper: LSTM, 4 × 1000, embeddings 1000, reversed."""

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: int,
        hidden: int,
        layers: int,
        cell: str,
        reverse: bool,
        dropout: float,
        tie: str,
    ) -> None:
        super().__init__()
        check_sizes(
            dropout=dropout,
            embedding=embedding,
            hidden=hidden,
            layers=layers,
        )
        self.reverse = reverse
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(
            cell=cell, inputs=embedding, hidden=hidden, layers=layers, bidirectional=False, dropout=dropout
        )
        sizes = [embedding] + [hidden] * (layers - 1)
        self.decoder = Stack(Recurrence(cell, size, hidden) for size in sizes)
        self.output = nn.Linear(hidden, target_vocabulary)
        tie_embeddings(self, tie)

    def encode(self, source: Source) -> tuple[Memory, Layers]:
        memory, state, _ = self._read(source)
        return memory, state

    def step(self, memory: Memory, state: Layers, token: Tensor) -> Step[Layers]:
        x = self.dropout(self.target_embedding(token))
        layers: list[State] = []
        for recurrence, old in zip(self.decoder, state.layers, strict=True):
            layers.append(recurrence.step(x, old))
            x = self.dropout(layers[-1][0])
        return Step(self.project(x), Layers(tuple(layers)), None)

    def forward(self, source: Source, target: Tensor) -> Output:
        """Layer by layer over all time steps: no layer waits for the softmax of the step before."""
        _, state, encoder_states = self._read(source)
        x = self.dropout(self.target_embedding(target))
        outputs: tuple[Tensor, ...] = ()
        for recurrence, first in zip(self.decoder, state.layers, strict=True):
            states: States = recurrence(x, first)
            x, outputs = self.dropout(states.h), states.outputs
        return Output(x, None, encoder_states, outputs)

    def _read(self, source: Source) -> tuple[Memory, Layers, tuple[Tensor, ...]]:
        tokens = source.tokens
        if self.reverse:
            tokens = tokens.gather(1, reversal(source.lengths - 1, tokens.shape[1]))  # <eos> stays last
        encoding = self.encoder(self.dropout(self.source_embedding(tokens)), source.lengths)
        nothing = encoding.annotations[:, :, :0]
        return Memory(nothing, nothing, source.mask), Layers(encoding.forward), encoding.states
