"""Show and Tell: the image as a fixed context (Vinyals, Toshev, Bengio & Erhan 2015).

Letters: v the image, one embedded vector, y embedded word, h decoder state.
"""

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings
from seqtool.models.captioner import Captioner, Images
from seqtool.models.cells import Recurrence, Stack, State, States
from seqtool.models.encoder_decoder import Layers, Memory, Output, Step, check_sizes

CONTEXTS = ("first_step", "initial_state", "every_step")


class ShowTell(Captioner[Layers]):
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
        cell: str,
        context: str,
        dropout: float,
        tie: str,
    ) -> None:
        check_sizes(dropout=dropout, embedding=embedding, hidden=hidden, layers=layers)
        if context not in CONTEXTS:
            raise InputError(f"Unknown model.context '{context}'; choose from {', '.join(CONTEXTS)}.")
        super().__init__(
            target_vocabulary=target_vocabulary, pretrained=pretrained, encoder=encoder, embedding=embedding
        )
        self.context = context
        self.image = nn.Linear(self.backbone.dimension, embedding)
        self.dropout = nn.Dropout(dropout)
        sizes = [2 * embedding if context == "every_step" else embedding] + [hidden] * (layers - 1)
        self.decoder = Stack(Recurrence(cell, size, hidden) for size in sizes)
        self.initial = None
        if context == "initial_state":
            self.initial = nn.Linear(embedding, sum(one.cell.tensors for one in self.decoder) * hidden)
        self.output = nn.Linear(hidden, target_vocabulary)
        self.tie(tie)

    def encode(self, source: Images) -> tuple[Memory, Layers]:
        v = self.image(self.annotations(source).mean(1))
        state = self._first_state(v)
        if self.context == "first_step":
            _, state = self._advance(v, state)
        kept = v[:, None] if self.context == "every_step" else v[:, None, :0]
        mask = torch.ones(kept.shape[:2], dtype=torch.bool, device=v.device)
        return Memory(kept, kept[:, :, :0], mask), state

    def step(self, memory: Memory, state: Layers, token: Tensor) -> Step[Layers]:
        y = self.dropout(self.target_embedding(token))
        v = memory.values[:, 0].repeat_interleave(len(y) // len(memory.values), 0)
        top, state = self._advance(torch.cat([y, v], -1), state)
        return Step(self.project(top), state, None)

    def forward(self, source: Images, target: Tensor) -> Output:
        """Layer by layer over all time steps: no layer waits for the softmax of the step before."""
        memory, state = self.encode(source)
        y = self.dropout(self.target_embedding(target))
        x = torch.cat([y, memory.values.expand(-1, y.shape[1], -1)], -1)
        outputs: tuple[Tensor, ...] = ()
        for recurrence, first in zip(self.decoder, state.layers, strict=True):
            states: States = recurrence(x, first)
            x, outputs = self.dropout(states.h), states.outputs
        return Output(x, None, (), outputs)

    def _first_state(self, v: Tensor) -> Layers:
        if self.initial is None:
            return Layers(tuple(recurrence.cell.start(v) for recurrence in self.decoder))
        shares = torch.tanh(self.initial(v)).chunk(len(self.decoder), -1)
        cells = (recurrence.cell for recurrence in self.decoder)
        return Layers(tuple(share.chunk(cell.tensors, -1) for share, cell in zip(shares, cells, strict=True)))

    def _advance(self, x: Tensor, state: Layers) -> tuple[Tensor, Layers]:
        """One step of the whole stack: `x` N×E, or N×2E, [y, v], whose product is W y + W_ih v."""
        layers: list[State] = []
        for recurrence, old in zip(self.decoder, state.layers, strict=True):
            layers.append(recurrence.step(x, old))
            x = self.dropout(layers[-1][0])
        return x, Layers(tuple(layers))
