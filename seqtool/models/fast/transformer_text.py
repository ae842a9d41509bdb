"""A Transformer that writes one text: a step for a single row, in single precision on a CPU.

Keys and values go into a tensor with room for a whole window instead of being copied at every step, and the layers'
operations follow each other without calls between modules. A character of 4 layers of 256 takes 580 µs instead of
1,000 (two threads), of which its products alone take 270.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models.contract import Step
from seqtool.models.fast.quicken import QuickTransformerLanguageModel
from seqtool.models.transformer import Past, Window
from seqtool.models.transformer_layers import Residual, sinusoids_up_to

Map = tuple[Tensor, Tensor]  # the bias and the matrix of a linear map, as `addmv` takes them


@dataclass(frozen=True)
class Room:
    """What `Past` holds for one row, p = `length`, with room for the C tokens of a window: queries, keys and values.

    A state and those that follow it share the tensor. `written` says for all of them up to where; a step that does not
    begin there follows an earlier state once more, and gets a tensor of its own.
    """

    numbers: Float[Tensor, "L C EEE"]
    length: int
    written: list[int]

    @classmethod
    def after(cls, past: Any, context: int) -> "Room":
        """Room for the next token after `past`, which may be a `Room` itself."""
        if isinstance(past, cls) and past.written == [past.length]:
            return past
        before = torch.cat(past.layers)
        width = before.shape[2] // 2
        numbers = before.new_empty(len(before), context, 3 * width)
        numbers[:, : past.length, width:] = before
        return cls(numbers, past.length, [past.length])

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """Keys and values, each 1×p×2E."""
        return self.numbers[:, None, : self.length, self.numbers.shape[2] // 3 :].unbind(0)

    def select(self, rows: Tensor) -> Past:
        return Past(tuple(one.index_select(0, rows) for one in self.layers))

    def next(self, heads: int) -> Iterator[tuple[Tensor, ...]]:
        """For each layer the place for what the next token's are, 3·E, and q, k and v, 1×h×1×d and 1×h×(p + 1)×d, as
        they will be once it is filled.
        """
        count, context, row = self.numbers.shape
        width, p = row // 3, self.length
        d = width // heads
        q = self.numbers.as_strided((count, 1, heads, 1, d), (context * row, row, d, row, 1), p * row)
        shape, strides = (2, count, 1, heads, p + 1, d), (width, context * row, row, d, row, 1)
        k, v = self.numbers.as_strided(shape, strides, width).unbind(0)
        places = self.numbers.select(1, p)
        return zip(places.unbind(0), q.unbind(0), k.unbind(0), v.unbind(0), strict=True)

    def filled(self) -> "Room":
        self.written[0] = self.length + 1
        return Room(self.numbers, self.length + 1, self.written)


class Around(NamedTuple):
    """What a sub-layer's input and its sum with it go through: normalisation, or nothing."""

    before: Callable[[Tensor], Tensor]
    after: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, residual: Residual) -> "Around":
        norm = _normalisation(residual.norm)
        return cls(norm, _nothing) if residual.first else cls(_nothing, norm)


class Layer(NamedTuple):
    around_attention: Around
    queries_keys_values: Map
    output: Map
    around_feed_forward: Around
    inner: Map
    outer: Map


class DecodingTransformerLanguageModel(QuickTransformerLanguageModel):
    """The same step for several rows, and another for one."""

    straight: tuple[Layer, ...]
    heads: int
    finish: Callable[[Tensor], Tensor]
    positions: Float[Tensor, "C E"]

    @classmethod
    def replace(cls, model: Any) -> None:
        """Have a Transformer language model step like this. Its linear maps have an `ordinary` matrix (`Packed`)."""
        words, width = model.decoder.words, model.target_embedding.embedding_dim
        learnt = words.position_embedding
        weight = model.target_embedding.weight
        table = sinusoids_up_to(model.context, width, weight.dtype, weight.device) if learnt is None else learnt.weight
        model.__class__ = cls
        model.positions = table.detach()
        model.straight = tuple(map(_straight, model.decoder.layers))
        model.heads = model.decoder.layers[0].attention.heads
        last = model.decoder.last
        model.finish = _normalisation(last) if isinstance(last, nn.LayerNorm) else _nothing

    def step(self, memory: Any, state: Window, token: Tensor) -> Step[Window]:
        if len(token) != 1:
            return super().step(memory, state, token)
        window = self.opened(state)
        room = Room.after(window.past, self.context)
        embedded = F.embedding(token, self.target_embedding.weight.detach())
        x = torch.add(self.positions[room.length], embedded[0], alpha=self.embedding_scale)
        for layer, (place, q, k, v) in zip(self.straight, room.next(self.heads), strict=True):
            before, after = layer.around_attention
            torch.addmv(*layer.queries_keys_values, before(x), out=place)
            bias, matrix = layer.output
            x = after(torch.addmv(x + bias, matrix, F.scaled_dot_product_attention(q, k, v).view(-1)))
            before, after = layer.around_feed_forward
            hidden = torch.addmv(*layer.inner, before(x)).relu_()
            bias, matrix = layer.outer
            x = after(torch.addmv(x + bias, matrix, hidden))
        logits = torch.addmv(*_map(self.output), self.finish(x))
        read = Window(torch.cat([window.tokens, token[:, None]], 1), cast(Past, room.filled()))
        return Step(logits[None], read, None)


def _straight(layer: Any) -> Layer:
    attention, feed_forward = layer.attention, layer.feed_forward
    return Layer(
        Around.of(layer.around_attention),
        _map(attention.queries_keys_values),
        _map(attention.output),
        Around.of(layer.around_feed_forward),
        _map(feed_forward.inner),
        _map(feed_forward.outer),
    )


def _map(linear: Any) -> Map:
    return linear.bias, linear.ordinary


def _normalisation(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    weight, bias = norm.weight.detach(), norm.bias.detach()
    return partial(torch.layer_norm, normalized_shape=norm.normalized_shape, weight=weight, bias=bias, eps=norm.eps)


def _nothing(x: Tensor) -> Tensor:
    return x
