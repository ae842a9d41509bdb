"""A recurrent language model (Mikolov et al. 2010; Graves 2013; Zaremba et al. 2014).

    p(y_1 … y_T) = Π_t p(y_t | y_<t)

A stack of cells reads a text token by token; the output of the top cell predicts the next token. Dropout applies only
to non-recurrent connections (Zaremba et al. 2014, section 3.1). `transformer.py` has the other language model,
`TransformerLanguageModel`.
"""

from typing import Any

from torch import Tensor, nn

from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import DropoutRate, LayerCount, Output, Size, tie_matrices
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.recurrent_decoder import StackDecoder


class LanguageModel(StackDecoder):
    """A stack of `layers` × `hidden` cells over a text. There is no source, so the memory is empty."""

    task = "language_modelling"

    def __init__(
        self,
        *,
        target_vocabulary: int,
        embedding: Size,
        hidden: Size,
        layers: LayerCount,
        cell: str | type[Cell],
        dropout: DropoutRate,
        tie: str,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = parts.dropout(dropout)
        self.decoder = Stack(cell, embedding, hidden, layers, parts)
        self.output = parts.linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def encode(self, source: Any) -> tuple[tuple[()], Layers]:
        """Return an empty memory and the zero state of one row, to be repeated."""
        return (), self.decoder.start(self.target_embedding.weight[:1])

    def forward(self, source: Any, target: Tensor, state: Layers | None = None) -> Output:
        if state is None:
            state = self.decoder.start(self.target_embedding.weight.new_zeros(len(target), 1))
        return self.teacher_force((), state, target)
