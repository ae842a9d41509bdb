"""Show and Tell: the image as a fixed context (Vinyals, Toshev, Bengio & Erhan 2015).

Letters: v the image, one embedded vector, y embedded word, h decoder state.
"""

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings
from seqtool.models.cells import Cell, Layers, Stack
from seqtool.models.contract import Memory
from seqtool.models.image_captioner import ImageCaptioner, Images
from seqtool.models.number_types import at_least_single
from seqtool.models.recurrent_decoder import Reading, StackDecoder
from seqtool.models.sizes import check_sizes, tie_matrices

CONTEXTS = ("first_step", "initial_state", "every_step")


class ShowTell(StackDecoder, ImageCaptioner[Layers]):
    """`layers` × `hidden` cells that see the image, v = W ā, ā the mean annotation vector, in one of three ways.

    `first_step`: as the first word, before <bos> (their equations 10–12; the paper: LSTM, 1 × 512, embeddings 512);
    `initial_state`: as the first state, tanh(W v); `every_step`: as W_ih v in the lowest layer's pre-activations of
    every step.
    """

    def __init__(
        self,
        *,
        target_vocabulary: int,
        pretrained: bool,
        encoder: EncoderSettings,
        embedding: int,
        hidden: int,
        layers: int,
        cell: str | type[Cell],
        context: str,
        dropout: float,
        tie: str,
    ) -> None:
        check_sizes(dropout=dropout, embedding=embedding, hidden=hidden, layers=layers)
        if context not in CONTEXTS:
            raise InputError(f"Unknown model.context '{context}'; choose from {', '.join(CONTEXTS)}.")
        super().__init__(target_vocabulary, embedding, encoder, pretrained=pretrained)
        self.context = context
        self.image = nn.Linear(self.backbone.dimension, embedding)
        self.dropout = nn.Dropout(dropout)
        self.decoder = Stack(cell, 2 * embedding if context == "every_step" else embedding, hidden, layers)
        self.initial = None
        if context == "initial_state":
            self.initial = nn.Linear(embedding, sum(one.cell.tensors for one in self.decoder) * hidden)
        self.output = nn.Linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def read(self, source: Images) -> Reading[Layers]:
        v = self.image(self.annotations(source).mean(1))
        state = self._first_state(v)
        if self.context == "first_step":
            state = Layers(self.decoder.step(v, state.layers, self.dropout)[1])
        kept = v[:, None] if self.context == "every_step" else v[:, None, :0]
        mask = torch.ones(kept.shape[:2], dtype=torch.bool, device=v.device)
        return Reading(Memory(kept, kept[:, :, :0], mask), state)

    def shares(self, memory: Memory, y: Tensor) -> Tensor:
        """[y, v], whose product is W y + W_ih v; y alone where v is not seen at every step."""
        v = memory.values[:, 0].repeat_interleave(y.shape[-2] // len(memory.values), 0)
        return torch.cat([y, v.expand(*y.shape[:-1], -1)], -1)

    def _first_state(self, v: Tensor) -> Layers:
        if self.initial is None:
            return Layers(tuple(recurrence.cell.start(v) for recurrence in self.decoder))
        shares = torch.tanh(at_least_single(self.initial(v))).chunk(len(self.decoder), -1)
        cells = (recurrence.cell for recurrence in self.decoder)
        return Layers(tuple(share.chunk(cell.tensors, -1) for share, cell in zip(shares, cells, strict=True)))
