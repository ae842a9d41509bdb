"""Show and Tell: the image as a fixed context (Vinyals, Toshev, Bengio & Erhan 2015).

Letters: v embedded image, one vector; y embedded word; h decoder state.
"""

from typing import Annotated

import torch
from torch import Tensor

from seqtool.models.backbone import EncoderSettings, ImageCaptioner
from seqtool.models.cells import Cell, Layers
from seqtool.models.contract import DropoutRate, LayerCount, Memory, Size, tie_matrices
from seqtool.models.inputs import Images
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.recurrent_decoder import CONTEXTS, FixedContext
from seqtool.models.tokens import BOS
from seqtool.settings.declarations import choice


class ShowTell(FixedContext, ImageCaptioner[Layers]):
    """A stack of `layers` × `hidden` cells; the paper's model: LSTM, 1 × 512, embeddings 512, context first_step.

    The image is v = W ā, where ā is the mean or maximum of the annotation vectors (an encoder that ends in a vector has
    only one). With context=first_step, v is read like a word before <bos> (their equations 10–12). With
    context=with_start, W_ih v is added to the pre-activations of the step that reads <bos> and of no other (Karpathy &
    Fei-Fei 2015, equations 13–15). Other contexts are those of `recurrent_decoder.py`, with v as c.
    """

    def __init__(
        self,
        *,
        target_vocabulary: int,
        pretrained: bool,
        encoder: EncoderSettings,
        embedding: Size,
        hidden: Size,
        layers: LayerCount,
        cell: str | type[Cell],
        context: Annotated[str, choice("first_step", "with_start", *CONTEXTS)],
        dropout: DropoutRate,
        tie: str,
        summary: Annotated[str, choice("mean", "max")],
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(target_vocabulary, embedding, encoder, pretrained=pretrained, parts=parts)
        self.context, self.summary = context, summary
        self.image = parts.linear(self.backbone.dimension, embedding)
        self.dropout = parts.dropout(dropout)
        learnt = context in ("initial_state", "both")
        self.make_decoder(cell, embedding=embedding, size=embedding, hidden=hidden, layers=layers, learnt=learnt)
        self.output = parts.linear(hidden, target_vocabulary)
        tie_matrices(self, tie)

    def encode(self, source: Images) -> tuple[Memory, Layers]:
        a = self.image_annotations(source)
        v = self.image(a.mean(1) if self.summary == "mean" else a.amax(1))
        memory, state = source.for_captions(*self.with_context(v))
        if self.context == "first_step":
            state = Layers(self.decoder.step(source.each(v), state.layers, self.dropout)[1])
        return memory, state

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embedded words; with context=with_start, the last column is 1 for <bos> and 0 for other words."""
        y = super().embed(tokens)
        if self.context != "with_start":
            return y
        return torch.cat([y, (tokens == BOS)[..., None].to(y.dtype)], -1)

    def input_projection(self, memory: Memory, y: Tensor) -> Tensor:
        if self.context != "with_start":
            return super().input_projection(memory, y)
        y, is_start = y[..., :-1], y[..., -1:]
        y, v = super().input_projection(memory, y).chunk(2, -1)
        return torch.cat([y, is_start * v], -1)
