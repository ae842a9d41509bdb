"""A Transformer that writes one text: a step for a single row, in single precision on a CPU.

Keys and values are written into a tensor with room for a whole window instead of being copied at every step, and the
layers' operations follow each other without calls between modules. A character of 4 layers of 256 takes 620 µs instead
of 1,050 (two threads); its products alone take 270.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models import transformer
from seqtool.models.contract import Step
from seqtool.models.fast.packed import Packed
from seqtool.models.transformer import KeyValueCache, Residual, TransformerLanguageModel, Window

Map = tuple[Tensor, Tensor]  # the bias and the matrix of a linear map, as `addmv` takes them
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PreallocatedCache:
    """The queries, keys and values of one row, p = `length` tokens, in a tensor with room for the C of a window.

    The states of a window share the tensor. `free` holds the position that may be filled next, and nothing while a step
    fills it. A step from a state that has been continued already copies what it needs into a tensor of its own.
    """

    numbers: Float[Tensor, "L C EEE"]
    length: int
    free: list[int]

    @classmethod
    def after(cls, cache: Any, context: int) -> "PreallocatedCache":
        """One with room for the token after `cache`, which may be such a cache itself; nobody else has its position."""
        if isinstance(cache, cls) and cache._claim():
            return cache
        width = cache.layers[0].shape[2] // 2
        numbers = cache.layers[0].new_empty(len(cache.layers), context, 3 * width)
        for layer, keys_values in zip(numbers, cache.layers, strict=True):
            layer[: cache.length, width:] = keys_values[0]
        return cls(numbers, cache.length, [])

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """Keys and values of each layer, 1×p×2E."""
        return self.numbers[:, None, : self.length, self.numbers.shape[2] // 3 :].unbind(0)

    def select(self, rows: Tensor) -> KeyValueCache:
        return KeyValueCache(tuple(layer.index_select(0, rows) for layer in self.layers))

    def views(self, heads: int) -> Iterator[tuple[Tensor, ...]]:
        """For each layer: where the next token's query, key and value are to be written, 3·E, and views that include
        them, q 1×h×1×d, k and v 1×h×(p + 1)×d.
        """
        count, context, row = self.numbers.shape
        width, p = row // 3, self.length
        d, layer = width // heads, context * row
        q = self.numbers.as_strided((count, 1, heads, 1, d), (layer, row, d, row, 1), p * row)
        shape, strides = (2, count, 1, heads, p + 1, d), (width, layer, row, d, row, 1)
        k, v = self.numbers.as_strided(shape, strides, width).unbind(0)
        return zip(self.numbers.select(1, p).unbind(0), q.unbind(0), k.unbind(0), v.unbind(0), strict=True)

    def filled(self) -> "PreallocatedCache":
        """The cache once the next token has been written."""
        self.free.append(self.length + 1)
        return PreallocatedCache(self.numbers, self.length + 1, self.free)

    def _claim(self) -> bool:
        """Take the position after the last token, if it is free. What was made under inference_mode stays so."""
        if self.numbers.is_inference() and not torch.is_inference_mode_enabled():
            return False
        try:
            self.free.remove(self.length)
        except ValueError:
            return False
        return True


class Operations:
    """Those of a `DecoderLayer`. What is around a sub-layer: a function of its input, and one of the sum."""

    def __init__(self, layer: Any) -> None:
        attention, feed_forward = layer.attention, layer.feed_forward
        self.around_attention = _around(layer.around_attention)
        self.queries_keys_values, self.output = _map(attention.queries_keys_values), _map(attention.output)
        self.around_feed_forward = _around(layer.around_feed_forward)
        self.inner, self.outer = _map(feed_forward.inner), _map(feed_forward.outer)


PARTS = {
    *(TransformerLanguageModel, transformer.TransformerDecoder, transformer.DecoderLayer, transformer.SelfAttention),
    *(transformer.FeedForward, Residual, transformer.Words, Packed),
    *(nn.ModuleList, nn.Embedding, nn.LayerNorm, nn.Identity),
}


class DecodingTransformerLanguageModel(TransformerLanguageModel):
    """The same step for several rows, and another for one."""

    def __init__(self, model: Any) -> None:
        """`model` has `Packed` maps with `single_rows`."""
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        decoder = model.decoder
        self.symbols, self.positions = model.target_embedding.weight.detach(), decoder.words.positions
        self.operations = tuple(map(Operations, decoder.layers))
        self.heads: int = decoder.layers[0].attention.heads
        self.last = _normalisation(decoder.last) if isinstance(decoder.last, nn.LayerNorm) else _nothing
        self.logits = _map(model.output)

    @staticmethod
    def takes(model: Any, *, single_rows: bool) -> bool:
        """Whether it is ours, of `PARTS` alone."""
        return single_rows and {type(module) for module in model.modules()} <= PARTS

    def step(self, memory: Any, state: Window, token: Tensor) -> Step[Window]:
        if len(token) != 1 or torch.is_autocast_enabled("cpu"):
            return super().step(memory, state, token)
        window = self.opened(state)
        cache = PreallocatedCache.after(window.cache, self.context)
        embedded = F.embedding(token, self.symbols)
        position = self.positions(cache.length + 1, embedded)[cache.length]
        x = torch.add(position, embedded[0], alpha=self.embedding_scale)
        for layer, (place, q, k, v) in zip(self.operations, cache.views(self.heads), strict=True):
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
        return Step(logits[None], Window(tokens, cast(KeyValueCache, cache.filled())), None)


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
