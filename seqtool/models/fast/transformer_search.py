"""A Transformer that decodes many hypotheses at once: its step for the rows of a search, on any device.

Keys and values are written into tables with room for more tokens, and do not move when a search reorders the hypotheses
of a source. These share one table instead: each attends to all of it, with −∞ added to the scores of tokens that are
not its own. This reads as much memory as tables of their own would, and its arithmetic is little beside that of the
linear maps. Only finite keys and values are hidden by this: one that overflows spoils all hypotheses of its source. On
a CPU, attention is in single precision, whatever the precision of the linear maps.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from seqtool.models.contract import Step
from seqtool.models.fast.packed import linear_add, linear_relu
from seqtool.models.parts import product_dtype, single
from seqtool.models.transformer import (
    DecoderLayer,
    Heads,
    KeyValueCache,
    Residual,
    SourceTransformer,
    Transformer,
    TransformerCaptioner,
    attend_with_weights,
    join_heads,
    split_heads,
)
from seqtool.runtime.precision import without_onednn

ROOM = 20  # the number of slots by which tables grow, unless a token needs more
CACHE = 1 << 19  # bytes of keys or values that are brought into a core's cache at once
LEAST_POSITIONS = 16  # of a source on a CPU, where torch takes nine times as long for the softmax of 13 numbers
MAX_PROJECTED = 1 << 23  # the number of numbers that are computed beforehand, in 34 MB


@dataclass(frozen=True)
class SharedCache:
    """The keys and values of the p tokens that N rows have read, in G tables: one for the M rows of each source. The
    states of a search share them, and a step from a state that has been continued before copies what it needs into new
    ones. s slots are filled.
    """

    storage: tuple[Float[Tensor, "2 G h slots d"], ...]  # of each layer, in tables with room for more tokens
    visible: Float[Tensor, "N s"] | None  # added to a row's scores: 0 at its own tokens, −∞ elsewhere; None if M is 1
    length: int  # the number of tokens, p
    members: int  # the number of rows of each source, M
    own: Float[Tensor, "N M"] | None  # what is added to the scores of a step's own tokens; None if M is 1
    free_slots: list[int]  # the slot that may be filled next; empty while a step fills it

    @classmethod
    def of(cls, cache: KeyValueCache, beams: int, heads: int, dtype: torch.dtype) -> "SharedCache":
        """Return a cache of this type with the keys and values of another."""
        n, length, width = cache.layers[0].shape
        shape = n // beams, beams, length, 2, heads, width // 2 // heads  # G×M×p×2×h×d
        layers = (layer.to(dtype).view(shape).permute(3, 0, 4, 2, 1, 5).flatten(3, 4) for layer in cache.layers)
        storage, filled = tuple(F.pad(layer, (0, 0, 0, _spare_slots(beams))) for layer in layers), beams * length
        if beams == 1:
            return cls(storage, None, length, beams, None, [filled])
        own = storage[0].new_full((beams, beams), -torch.inf).fill_diagonal_(0.0).repeat(n // beams, 1)
        return cls(storage, own.repeat(1, length), length, beams, own, [filled])

    @property
    def tables(self) -> int:
        return self.storage[0].shape[1]

    @property
    def filled(self) -> int:
        """The number of slots that are filled, s."""
        return self.length if self.visible is None else self.visible.shape[1]

    @property
    def layers(self) -> tuple[Float[Tensor, "N p EE"], ...]:
        """The keys and values of each layer, as those of a `KeyValueCache`."""
        keys_values = [layer[:, :, :, : self.filled].transpose(2, 3) for layer in self.storage]
        if self.visible is not None:
            slots = self.visible.isfinite().nonzero()[:, 1].view(len(self.visible), self.length)
            tables = torch.arange(len(slots), device=slots.device)[:, None] // self.members
            keys_values = [layer[:, tables, slots] for layer in keys_values]
        return tuple(layer.movedim(0, 2).flatten(2) for layer in keys_values)

    def select(self, rows: Int[Tensor, "n"]) -> "SharedCache | KeyValueCache":
        """Select rows, which are on any device."""
        return self.select_on_cpu(rows.cpu())

    def select_on_cpu(self, rows: Int[Tensor, "n"]) -> "SharedCache | KeyValueCache":
        """Select rows. Where they are M rows of each source, tables are copied only when a source has gone."""
        m, device = self.members, self.storage[0].device
        if self.visible is None and len(rows) <= self.tables:
            return self._copy(rows, None)
        sources = rows.view(-1, m) // m if len(rows) % m == 0 else rows[None, :0]
        if self.visible is not None and sources.numel() and bool((sources == sources[:, :1]).all()):
            visible, tables = self.visible.index_select(0, rows.to(device, non_blocking=True)), sources[:, 0]
            if torch.equal(tables, torch.arange(self.tables)):
                return replace(self, visible=visible)
            own = cast(Tensor, self.own)[:m].repeat(len(tables), 1)
            return replace(self._copy(tables, visible), own=own)
        return KeyValueCache(tuple(layer.index_select(0, rows.to(device)) for layer in self.layers))

    def claim_next(self) -> "SharedCache":
        """Return a cache in which the slots of the next token are claimed: this one if possible, or a copy."""
        first = self.storage[0]
        has_room = first.shape[3] >= self.filled + self.members and self.filled in self.free_slots
        if has_room and (torch.is_inference_mode_enabled() or not first.is_inference()):
            self.free_slots.remove(self.filled)
            return self
        copy = self._copy(torch.arange(self.tables), self.visible)
        copy.free_slots.clear()
        return copy

    def with_next(self) -> "SharedCache":
        """Return the cache that includes the next token, which is still to be written."""
        visible = None if self.visible is None or self.own is None else torch.cat([self.visible, self.own], 1)
        return replace(self, visible=visible, length=self.length + 1)

    def _copy(self, tables: Int[Tensor, "G"], visible: Tensor | None) -> "SharedCache":
        """Copy these tables into new ones with room for the next token; `visible` is of their rows. On a CPU, slots
        that no row sees any more are left out, most of them in a long search; a GPU would have to wait for their count.
        """
        count, like, slots = self.filled, self.storage[0], None
        if visible is not None and visible.device.type == "cpu":
            seen_by = visible.view(len(tables), self.members, -1)
            seen = seen_by.isfinite().any(1)
            count = int(seen.sum(1).max())
            slots = seen.int().argsort(descending=True, stable=True)[:, :count]  # in their order
            visible = seen_by.gather(2, slots[:, None].expand(-1, self.members, -1)).flatten(0, 1)
            first = torch.arange(like[..., 0, 0].numel()).view(like.shape[:3])[:, tables] * like.shape[3]  # 2×G×h
            slots = F.pad(slots, (0, _spare_slots(self.members)))  # of slot 0 at first, so that one gather makes all
            slots = first[..., None] + slots[:, None]  # of all slots of a layer
        storage = []
        for layer in self.storage:
            if slots is None:
                shape = 2, len(tables), layer.shape[2], count + _spare_slots(self.members), layer.shape[4]
                room = layer.new_empty(shape)
                to = tables.to(layer.device, non_blocking=True)
                torch.index_select(layer[:, :, :, :count], 1, to, out=room[:, :, :, :count])
            else:
                room = layer.flatten(0, 3).index_select(0, slots.flatten()).view(*slots.shape, -1)
            storage.append(room)
        return replace(self, storage=tuple(storage), visible=visible, free_slots=[count])


def _spare_slots(members: int) -> int:
    """The number of slots that new tables have to spare, enough for a token of each row of a source."""
    return max(ROOM, members)


class WordsProjected:
    """The queries, keys and values of a decoder's first layer on a CPU, without a step's product for them.

    They are W (r (x − mean x) g + b) + c, where x = e + p is a word e at a position p, r is the inverse of its standard
    deviation, and g and b belong to the normalisation. That is r (M e + M p) + W b + c, where M is W g minus the means
    of its rows. M e is computed once for every word; with norm=post, so is W e.
    """

    def __init__(self, model: Any) -> None:
        layer, embedding = model.decoder.layers[0], model.target_embedding.weight.detach()
        linear, around = layer.attention.queries_keys_values, layer.around_attention
        matrix, bias = (parameter.detach().to(embedding.dtype) for parameter in (linear.weight, linear.bias))
        if around.norm_first:
            bias = bias + matrix @ around.norm.bias.detach()
            matrix = matrix * around.norm.weight.detach()
            matrix = matrix - matrix.mean(1, keepdim=True)
        self.matrix, self.bias, self.norm = matrix, bias, around.norm if around.norm_first else None
        self.of_words = F.linear(embedding * model.embedding_scale, matrix)

    def __call__(self, token: Int[Tensor, "N"], position: Float[Tensor, "E"], x: Float[Tensor, "N E"]) -> Tensor:
        """Compute them, N×3E, for words at a position and the sums x of both."""
        y = F.embedding(token, self.of_words).add_(self.matrix.mv(position))
        if self.norm is None:
            return y.add_(self.bias)
        r = torch.native_layer_norm(x, x.shape[-1:], None, None, self.norm.eps)[2]
        return torch.addcmul(self.bias, y, r, out=y)


@dataclass(frozen=True)
class MemoryByHeads:
    """The keys and the values of the source for each layer, head by head, and the bias of a `SourceMemory`. On a CPU,
    sources of fewer than `LEAST_POSITIONS` are padded, with a bias of −∞.
    """

    keys: tuple[Heads, ...]
    values: tuple[Heads, ...]
    padded_bias: Float[Tensor, "B 1 1 positions"]
    length: int  # S, without the padding

    @property
    def bias(self) -> Float[Tensor, "B 1 1 S"]:
        return self.padded_bias[..., : self.length]

    @property
    def layers(self) -> tuple[Float[Tensor, "B S EE"], ...]:
        """The keys and values as those of a `SourceMemory`."""
        pairs = zip(self.keys, self.values, strict=True)
        layers = (torch.cat([join_heads(keys), join_heads(values)], -1) for keys, values in pairs)
        return tuple(layer[:, : self.length] for layer in layers)


class _StepsInPlace(SourceTransformer):
    """Transformers over a source, with the step of this module."""

    def __init__(self, model: Any, device: torch.device) -> None:
        """Take over a model that was built for decoding on this device."""
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        self.heads: int = model.decoder.layers[0].attention.heads
        is_small = 3 * model.target_embedding.weight.numel() <= MAX_PROJECTED
        self.words_projected = WordsProjected(model) if device.type == "cpu" and is_small else None

    def encode(self, source: Any) -> tuple[Any, KeyValueCache]:
        memory, state = super().encode(source)
        dtype, bias, length = self._attention_dtype(), memory.bias, memory.bias.shape[-1]
        parts = [split_heads(part, self.heads) for layer in memory.layers for part in layer.to(dtype).chunk(2, -1)]
        if bias.device.type == "cpu" and (missing := LEAST_POSITIONS - length) > 0:
            parts = [F.pad(part, (0, 0, 0, missing)) for part in parts]
            bias = F.pad(bias, (0, missing), value=-torch.inf)
        keys, values = (tuple(part.contiguous() for part in parts[first::2]) for first in range(2))
        return MemoryByHeads(keys, values, bias.to(dtype), length), state

    def step(self, memory: Any, state: Any, token: Tensor) -> Step[KeyValueCache]:
        return self._step(memory, state, token, self.decoder.shown_layer)

    def step_without_attention(self, memory: Any, state: Any, token: Tensor) -> Step[KeyValueCache]:
        return self._step(memory, state, token, None)

    @torch.no_grad()
    def _step(self, memory: MemoryByHeads, state: Any, token: Tensor, shown_layer: int | None) -> Step[KeyValueCache]:
        decoder, beams = self.decoder, len(token) // len(memory.padded_bias)
        if not isinstance(state, SharedCache) or state.members != beams:
            state = SharedCache.of(state, beams, self.heads, self._attention_dtype())
        embedded, alpha = F.embedding(token, self.target_embedding.weight), None
        position = decoder.words.positions(state.length + 1, embedded)[state.length]
        x = torch.add(position, embedded, alpha=self.embedding_scale)
        cache = state.claim_next()
        after, filled, m = cache.with_next(), cache.filled, cache.members
        visible = None if after.visible is None else after.visible.view(-1, 1, m, filled + m)
        with without_onednn() if x.device.type == "cpu" else nullcontext():
            for i, layer in enumerate(cast(Iterable[DecoderLayer], decoder.layers)):
                keys_values = cache.storage[i][:, :, :, : filled + m]
                if i == 0 and self.words_projected is not None:
                    qkv = self.words_projected(token, position, x)
                else:
                    qkv = layer.attention.queries_keys_values(layer.around_attention.input(x))
                qkv = qkv.view(-1, m, 3, self.heads, x.shape[1] // self.heads).permute(2, 0, 3, 1, 4)  # 3×G×h×M×d
                keys_values[:, :, :, filled:].copy_(qkv[1:])
                y, _ = _attend(qkv[0], keys_values[0], keys_values[1], visible)
                x = _add(layer.around_attention, x, layer.attention.output, y.view(x.shape))
                q = layer.source_attention.queries(layer.around_source.input(x)).view(-1, beams, x.shape[1])
                q, k, v = split_heads(q, self.heads), memory.keys[i], memory.values[i]
                y, weights = _attend(q, k, v, memory.padded_bias, return_weights=i == shown_layer)
                alpha = weights if i == shown_layer else alpha
                x = _add(layer.around_source, x, layer.source_attention.output, y.view(x.shape))
                y = linear_relu(layer.feed_forward.inner, layer.around_feed_forward.input(x))
                x = _add(layer.around_feed_forward, x, layer.feed_forward.outer, y)
            logits = self.project(decoder.last(x))
        cache.free_slots.append(filled + m)
        if alpha is not None:
            head = decoder.shown_head  # its weights are copied, since a view would keep those of all heads
            alpha = (alpha.mean(1) if head is None else alpha[:, head - 1].clone()).flatten(0, 1)[:, : memory.length]
        return Step(logits, cast(KeyValueCache, after), alpha)

    def _attention_dtype(self) -> torch.dtype:
        weight = self.target_embedding.weight
        return single(weight.dtype) if weight.device.type == "cpu" else product_dtype(weight)


class DecodingTransformer(_StepsInPlace, Transformer):
    """`Transformer` with the step of this module."""


class DecodingTransformerCaptioner(_StepsInPlace, TransformerCaptioner):
    """`TransformerCaptioner` with the step of this module."""


VERSIONS: dict[type, type[_StepsInPlace]] = {
    Transformer: DecodingTransformer,
    TransformerCaptioner: DecodingTransformerCaptioner,
}


def _attend(
    q: Float[Tensor, "G h M d"], k: Heads, v: Heads, bias: Tensor | None, *, return_weights: bool = False
) -> tuple[Float[Tensor, "G M E"], Float[Tensor, "G h M p"] | None]:
    """Compute `Parts.attend`, in the type of the keys; return its output with heads joined and, if asked for, α."""
    alpha, device = None, q.device.type
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        q = q.to(k.dtype)
        if device == "cpu":
            y, alpha = _attend_on_cpu(q, k, v, bias)
        elif return_weights:
            y, alpha = attend_with_weights(q, k, v, bias)
        else:
            y = F.scaled_dot_product_attention(q, k, v, bias)
    return join_heads(y), alpha


def _attend_on_cpu(
    q: Float[Tensor, "G h M d"], k: Heads, v: Heads, bias: Tensor | None
) -> tuple[Float[Tensor, "G h M d"], Float[Tensor, "G h M p"]]:
    """Compute `attend_with_weights` for a few sources at a time. A sum reads their keys, and then their values, into a
    core's cache at the speed of the memory: the products, with few rows each, read three times more slowly.
    """
    sources, heads, rows, size = q.shape
    q = torch.mul(q, size**-0.5, out=q.new_empty(q.shape)).flatten(0, 1)  # which the product would otherwise copy
    y, alpha = torch.empty_like(q), q.new_empty(len(q), rows, k.shape[2])
    at_once = max(1, CACHE // (k[0].numel() * k.element_size()))
    parts = [torch.split(part, at_once * heads) for part in (q, k.flatten(0, 1).mT, v.flatten(0, 1), alpha, y)]
    biases = [None] * len(parts[0]) if bias is None else torch.split(bias, at_once)
    for queries, keys, values, weights, sums, part_bias in zip(*parts, biases, strict=True):
        if at_once < sources:
            keys.sum()
        e = queries.bmm(keys)
        if part_bias is not None:
            e.view(-1, heads, rows, k.shape[2]).add_(part_bias)
        torch.softmax(e, -1, out=weights)
        if at_once < sources:
            values.sum()
        torch.bmm(weights, values, out=sums)
    return y.view(sources, heads, rows, size), alpha.view(sources, heads, rows, -1)


def _add(around: Residual, x: Float[Tensor, "N E"], linear: nn.Module, y: Tensor) -> Float[Tensor, "N E"]:
    """Compute `around.add(x, linear(y))` without dropout."""
    total = linear_add(linear, x, y)
    return total if around.norm_first else around.norm(total)
