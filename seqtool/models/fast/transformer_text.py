"""A Transformer that writes one text: a step for a single row, in single precision on a CPU.

Keys and values are written into a tensor with room for a whole window instead of being copied at every step, and the
layers' operations follow each other without calls between modules. A character of 4 layers of 256 takes 620 µs instead
of 1,050 (two threads); its products alone take 270.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models.contract import Step
from seqtool.models.fast.quicken import QuickTransformerLanguageModel, WholeProducts
from seqtool.models.transformer import Past, TransformerDecoder, Window
from seqtool.models.transformer_layers import DecoderLayer, FeedForward, Residual, SelfAttention, Words

Map = tuple[Tensor, Tensor]  # the bias and the matrix of a linear map, as `addmv` takes them
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Room:
    """The past of one row, p = `length` tokens, in a tensor with room for the C of a window: queries, keys and values.

    The states of a window share the tensor. `free` holds the place that may be filled next, and nothing while a step
    fills it. A step from a state that has been continued already copies what it needs into a tensor of its own.
    """

    numbers: Float[Tensor, "L C EEE"]
    length: int
    free: list[int]

    @classmethod
    def after(cls, past: Any, context: int) -> "Room":
        """Room for the token after `past`, which may be a `Room` itself; nobody else has its place."""
        if isinstance(past, cls) and past._claim():
            return past
        width = past.layers[0].shape[2] // 2
        numbers = past.layers[0].new_empty(len(past.layers), context, 3 * width)
        for layer, seen in zip(numbers, past.layers, strict=True):
            layer[: past.length, width:] = seen[0]
        return cls(numbers, past.length, [])

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """Keys and values of each layer, 1×p×2E."""
        return self.numbers[:, None, : self.length, self.numbers.shape[2] // 3 :].unbind(0)

    def select(self, rows: Tensor) -> Past:
        return Past(tuple(one.index_select(0, rows) for one in self.layers))

    def views(self, heads: int) -> Iterator[tuple[Tensor, ...]]:
        """For each layer: where the next token's query, key and value are to be written, 3·E, and views that include
        them, q 1×h×1×d, k and v 1×h×(p + 1)×d.
        """
        count, context, row = self.numbers.shape
        width, p = row // 3, self.length
        d = width // heads
        q = self.numbers.as_strided((count, 1, heads, 1, d), (context * row, row, d, row, 1), p * row)
        shape, strides = (2, count, 1, heads, p + 1, d), (width, context * row, row, d, row, 1)
        k, v = self.numbers.as_strided(shape, strides, width).unbind(0)
        return zip(self.numbers.select(1, p).unbind(0), q.unbind(0), k.unbind(0), v.unbind(0), strict=True)

    def filled(self) -> "Room":
        """The past once the next token has been written."""
        self.free.append(self.length + 1)
        return Room(self.numbers, self.length + 1, self.free)

    def _claim(self) -> bool:
        """Take the place after the last token, if it is free. What was made under inference_mode stays so."""
        if self.numbers.is_inference() and not torch.is_inference_mode_enabled():
            return False
        try:
            self.free.remove(self.length)
        except ValueError:
            return False
        return True


class Layer(NamedTuple):
    """The operations of a `DecoderLayer`. What is around a sub-layer: a function of its input, and one of the sum."""

    around_attention: tuple[Function, Function]
    queries_keys_values: Map
    output: Map
    around_feed_forward: tuple[Function, Function]
    inner: Map
    outer: Map


class DecodingTransformerLanguageModel(QuickTransformerLanguageModel):
    """The same step for several rows, and another for one. `parts`: what it may be made of, besides `Packed` maps."""

    parts: ClassVar[set[type[nn.Module]]] = {
        *(QuickTransformerLanguageModel, TransformerDecoder, DecoderLayer, SelfAttention, WholeProducts, FeedForward),
        *(Residual, Words, nn.ModuleList, nn.Embedding, nn.LayerNorm, nn.Identity),
    }
    symbols: Float[Tensor, "V E"]
    positions: Callable[[int, Tensor], Tensor]
    operations: tuple[Layer, ...]
    heads: int
    last: Function
    logits: Map

    @classmethod
    def replace(cls, model: Any) -> None:
        """Have a model step like this. Its linear maps must be `Packed` with `single_rows`."""
        decoder = model.decoder
        model.__class__ = cls
        model.symbols, model.positions = model.target_embedding.weight.detach(), decoder.words.positions
        model.operations = tuple(map(_operations, decoder.layers))
        model.heads = decoder.layers[0].attention.heads
        model.last = _normalisation(decoder.last) if isinstance(decoder.last, nn.LayerNorm) else _nothing
        model.logits = _map(model.output)

    def step(self, memory: Any, state: Window, token: Tensor) -> Step[Window]:
        if len(token) != 1 or torch.is_autocast_enabled("cpu"):
            return super().step(memory, state, token)
        window = self.opened(state)
        room = Room.after(window.past, self.context)
        embedded = F.embedding(token, self.symbols)
        position = self.positions(room.length + 1, embedded)[room.length]
        x = torch.add(position, embedded[0], alpha=self.embedding_scale)
        for layer, (place, q, k, v) in zip(self.operations, room.views(self.heads), strict=True):
            before, after = layer.around_attention
            torch.addmv(*layer.queries_keys_values, before(x), out=place)
            bias, matrix = layer.output
            x = after(torch.addmv(x + bias, matrix, F.scaled_dot_product_attention(q, k, v).view(-1)))
            before, after = layer.around_feed_forward
            hidden = torch.addmv(*layer.inner, before(x)).relu_()
            bias, matrix = layer.outer
            x = after(torch.addmv(x + bias, matrix, hidden))
        logits = torch.addmv(*self.logits, self.last(x))
        tokens = torch.cat([window.tokens, token[:, None]], 1)
        return Step(logits[None], Window(tokens, cast(Past, room.filled())), None)


def _operations(layer: Any) -> Layer:
    attention, feed_forward = layer.attention, layer.feed_forward
    return Layer(
        _around(layer.around_attention),
        _map(attention.queries_keys_values),
        _map(attention.output),
        _around(layer.around_feed_forward),
        _map(feed_forward.inner),
        _map(feed_forward.outer),
    )


def _around(residual: Residual) -> tuple[Function, Function]:
    norm = _normalisation(residual.norm)
    return (norm, _nothing) if residual.first else (_nothing, norm)


def _map(linear: Any) -> Map:
    return linear.bias, linear.ordinary


def _normalisation(norm: nn.LayerNorm) -> Function:
    shape = norm.normalized_shape
    return partial(torch.layer_norm, normalized_shape=shape, weight=norm.weight, bias=norm.bias, eps=norm.eps)


def _nothing(x: Tensor) -> Tensor:
    return x
