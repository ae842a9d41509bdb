"""The parts of a Transformer (Vaswani et al. 2017), whose models are in `transformer.py`.

Letters of the paper: Q, K, V queries, keys and values, E = d_model (`width`), d = d_k, h `heads`. Dropout is where the
paper has it (5.4): on embedded words, and on what a sub-layer adds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.number_types import single
from seqtool.models.parts import PLAIN, Parts
from seqtool.settings.declarations import choice

Vectors = Float[Tensor, "N t E"]
PastKeysValues = Float[Tensor, "N p EE"]  # keys and values of the p tokens before, EE = 2·E
KeysValues = Float[Tensor, "N pt EE"]  # and of these p + t
SourceKeysValues = Float[Tensor, "B S EE"]
Mask = Bool[Tensor, "B S"]  # true at real positions

Norm = Annotated[str, choice("pre", "post")]
Positions = Annotated[str, choice("sinusoids", "learnt")]


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence over itself (3.2.2), with one product for Q, K and V."""

    def __init__(self, width: int, heads: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = parts.linear(width, 3 * width)
        self.attend = parts.attend
        self.output = parts.linear(width, width)

    def forward(
        self, x: Vectors, past: PastKeysValues | None = None, mask: Bool[Tensor, "N t"] | None = None
    ) -> tuple[Vectors, KeysValues]:
        """With `past`, the keys and values of the tokens before, each token sees these and those up to itself; without
        it, all that the mask allows. Also the keys and values of all tokens so far.
        """
        q, keys_values = self.queries_keys_values(x).split((x.shape[-1], 2 * x.shape[-1]), -1)
        allowed = None if mask is None else mask[:, None, None]
        if past is not None and past.shape[1]:
            keys_values = torch.cat([past.to(keys_values.dtype), keys_values], 1)
            if x.shape[1] > 1:
                shape = x.shape[1], keys_values.shape[1]
                allowed = torch.ones(shape, dtype=torch.bool, device=x.device).tril(past.shape[1])
        q, k, v = (split_heads(part, self.heads) for part in (q, *keys_values.chunk(2, -1)))
        first = past is not None and not past.shape[1]
        return self.output(join_heads(self.attend(q, k, v, allowed, is_causal=first))), keys_values


class SourceAttention(nn.Module):
    """Multi-head attention over a source (3.2.2). N = B·K: K rows for each of the source's B."""

    def __init__(self, width: int, heads: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.heads = heads
        self.queries = parts.linear(width, width)
        self.keys_values = parts.linear(width, 2 * width)
        self.attend = parts.attend
        self.output = parts.linear(width, width)

    def forward(self, x: Vectors, source: SourceKeysValues, mask: Mask) -> Vectors:
        q, k, v = self._split(x, source)
        return self._join(self.attend(q, k, v, mask[:, None, None]), x)

    def with_weights(
        self, x: Vectors, source: SourceKeysValues, mask: Mask
    ) -> tuple[Vectors, Float[Tensor, "N t heads S"]]:
        """The same, and the weights, softmax(QKᵀ/√d_k) of (1)."""
        q, k, v = self._split(x, source)
        scaled = q / math.sqrt(q.shape[-1])  # before the product, which half precision may not hold
        e = (scaled @ k.transpose(-1, -2)).masked_fill(~mask[:, None, None], -math.inf)
        alpha = e.softmax(-1, dtype=single(e.dtype))
        weights = alpha.transpose(1, 2).reshape(*x.shape[:2], self.heads, -1)
        return self._join(alpha.to(v.dtype) @ v, x), weights

    def _split(self, x: Tensor, source: Tensor) -> Sequence[Tensor]:
        """Q, with all rows of a source as if they were one, and K and V."""
        q = self.queries(x)
        k, v = source.to(q.dtype).chunk(2, -1)
        return [split_heads(part, self.heads) for part in (q.reshape(len(source), -1, q.shape[-1]), k, v)]

    def _join(self, y: Tensor, x: Tensor) -> Tensor:
        return self.output(join_heads(y).reshape(x.shape))


class Residual(nn.Module):
    """Around a sub-layer f: LayerNorm(x + f(x)) as in the paper (`post`), or x + f(LayerNorm(x)) (`pre`), which trains
    without a long warm-up (Xiong et al. 2020).
    """

    def __init__(self, width: int, dropout: float, norm: str, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.norm, self.dropout, self.first = nn.LayerNorm(width), parts.dropout(dropout), norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What f reads."""
        return self.norm(x) if self.first else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """x and y, which f made of it, put together."""
        total = x + self.dropout(y)
        return total if self.first else self.norm(total)


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (2)."""

    def __init__(self, width: int, hidden: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.inner, self.outer = parts.linear(width, hidden), parts.linear(hidden, width)

    def forward(self, x: Vectors) -> Vectors:
        return self.outer(self.inner(x).relu_())


@dataclass(frozen=True)
class LayerSettings:
    """What the layers of an encoder and a decoder have in common."""

    width: int
    heads: int
    feed_forward: int
    norm: str
    dropout: float
    parts: Parts

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise InputError(
                f"model.width must be a multiple of twice model.heads, but they are {self.width} and {self.heads}."
            )

    def residual(self) -> Residual:
        return Residual(self.width, self.dropout, self.norm, self.parts)

    def last(self) -> nn.Module:
        """What follows the last layer: with `pre`, the normalisation that nothing else would make."""
        return nn.LayerNorm(self.width) if self.norm == "pre" else nn.Identity()


class EncoderLayer(nn.Module):
    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        self.attention = SelfAttention(settings.width, settings.heads, settings.parts)
        self.around_attention = settings.residual()
        self.feed_forward = FeedForward(settings.width, settings.feed_forward, settings.parts)
        self.around_feed_forward = settings.residual()

    def forward(self, x: Vectors, mask: Bool[Tensor, "N t"]) -> Vectors:
        y, _ = self.attention(self.around_attention.before(x), mask=mask)
        x = self.around_attention.after(x, y)
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x)))


class DecoderLayer(nn.Module):
    """`reads`: whether it attends over a source."""

    def __init__(self, settings: LayerSettings, *, reads: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(settings.width, settings.heads, settings.parts)
        self.around_attention = settings.residual()
        if reads:
            self.source_attention = SourceAttention(settings.width, settings.heads, settings.parts)
            self.around_source = settings.residual()
        self.feed_forward = FeedForward(settings.width, settings.feed_forward, settings.parts)
        self.around_feed_forward = settings.residual()

    def forward(
        self, x: Vectors, past: PastKeysValues, source: SourceKeysValues | None, mask: Mask | None, *, weights: bool
    ) -> tuple[Vectors, KeysValues, Float[Tensor, "N t heads S"] | None]:
        """Tokens after those of `past`, over a source, if there is one; also the keys and values of all tokens so far
        and, on request, the weights of the source.
        """
        y, past = self.attention(self.around_attention.before(x), past)
        x, alpha = self.around_attention.after(x, y), None
        if source is not None and mask is not None:
            queries = self.around_source.before(x)
            if weights:
                y, alpha = self.source_attention.with_weights(queries, source, mask)
            else:
                y = self.source_attention(queries, source, mask)
            x = self.around_source.after(x, y)
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x))), past, alpha


class Words(nn.Module):
    """Embedded words times √E (3.4) plus their positions (3.5): sinusoids, or learnt vectors of `max_positions`."""

    def __init__(self, settings: LayerSettings, positions: str, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions if positions == "learnt" else None
        self.position_embedding = nn.Embedding(max_positions, settings.width) if positions == "learnt" else None
        self.dropout = settings.parts.dropout(settings.dropout)

    def forward(self, tokens: Int[Tensor, "N t"], embedding: nn.Embedding, start: int) -> Vectors:
        """`start` is the first token's position."""
        y = embedding(tokens) * scale(embedding.embedding_dim)
        end = start + tokens.shape[1]
        return self.dropout(y + self.positions(end, y)[start:end])

    def positions(self, end: int, like: Float[Tensor, "... E"]) -> Float[Tensor, "p E"]:
        """Those of the first `end` tokens, or of more."""
        if self.position_embedding is None:
            return sinusoids_up_to(1 << (end - 1).bit_length(), like.shape[-1], like.dtype, like.device)
        table = self.position_embedding.weight
        if end > len(table):
            raise InputError(
                f"A sequence of {end:,} tokens is longer than model.longest={len(table)}, the number of learnt "
                "positions: shorten it."
            )
        return table


def scale(width: int) -> float:
    """√E, by which embedded words are multiplied (3.4)."""
    return math.sqrt(width)


def sinusoids_up_to(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "t E"]:
    """Those of the positions 0, 1, … length − 1."""
    if torch.compiler.is_compiling():  # torch.compile follows neither a cache nor a change of inference_mode
        return sinusoids(torch.arange(length), width).to(device, dtype)
    return _kept_sinusoids(length, width, dtype, device)


@lru_cache(maxsize=32)
def _kept_sinusoids(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "t E"]:
    """Kept, since decoding needs them at every step."""
    with torch.inference_mode(False):
        return sinusoids(torch.arange(length), width).to(device, dtype)


def sinusoids(position: Int[Tensor, "t"], width: int) -> Float[Tensor, "t E"]:
    """sin(pos / 10000^(2i/E)) at 2i and its cosine at 2i + 1 (3.5)."""
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float64) / width
    angle = position[:, None] / 10_000**exponent
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """N×t×E → N×h×t×d."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """N×h×t×d → N×t×E."""
    return x.transpose(1, 2).flatten(-2)
