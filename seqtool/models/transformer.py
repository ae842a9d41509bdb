"""The Transformer (Vaswani et al. 2017): its layers, and models that translate, caption and continue text.

Letters of the paper: Q, K, V queries, keys and values, E = d_model (`width`), d = d_k, h `heads`. Dropout is applied
where the paper applies it (5.4): to embedded words, and to the output of each sub-layer.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings, ImageCaptioner
from seqtool.models.contract import DropoutRate, EncoderDecoder, LayerCount, Output, Prefilled, Size, Step, tie_matrices
from seqtool.models.inputs import Images, Source
from seqtool.models.parts import PLAIN, Parts, product_dtype, single
from seqtool.settings.declarations import choice

Tokens = Int[Tensor, "N t"]
Vectors = Float[Tensor, "N t E"]
PastKeysValues = Float[Tensor, "N p EE"]  # keys and values of the p tokens read before, EE = 2·E
KeysValues = Float[Tensor, "N pt EE"]  # keys and values of all p + t tokens so far
SourceKeysValues = Float[Tensor, "B S EE"]
Heads = Float[Tensor, "N h p d"]  # the keys or the values of p tokens, for each head
Bias = Float[Tensor, "B 1 1 S"]  # 0 at real positions, −∞ elsewhere

Norm = Annotated[str, choice("pre", "post")]
Positions = Annotated[str, choice("sinusoids", "learnt", "none")]
LayerAndHead = tuple[int | None, int | None]


@dataclass(frozen=True)
class LayerSettings:
    """The settings that the layers of an encoder and a decoder share; `max_positions` limits learnt positions."""

    width: int
    heads: int
    feed_forward: int
    norm: str
    positions: str
    max_positions: int
    dropout: float
    parts: Parts

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise InputError(
                f"model.width must be a multiple of twice model.heads, but they are {self.width} and {self.heads}."
            )

    def final_norm(self) -> nn.Module:
        """Make the module after the last layer, whose output is not yet normalised if norm=pre."""
        return nn.LayerNorm(self.width) if self.norm == "pre" else nn.Identity()


def attend_with_weights(
    q: Float[Tensor, "N h t d"], k: Heads, v: Heads, bias: Float[Tensor, "..."] | None, *, is_causal: bool = False
) -> tuple[Float[Tensor, "N h t d"], Float[Tensor, "N h t p"]]:
    """Return softmax(QKᵀ/√d_k) V of (1) and the weights; the arguments are those of `Parts.attend`."""
    if is_causal:
        bias = hide_later(q, k.shape[2])
    e = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)  # the unscaled product may overflow in half precision
    if bias is not None:
        e = e + bias
    alpha = e.softmax(-1, dtype=single(e.dtype))
    return alpha.to(v.dtype) @ v, alpha


def hide_later(queries: Float[Tensor, "... t d"], keys: int) -> Float[Tensor, "t p"]:
    """Return what is added to the scores of the last t of p tokens: −∞ where a key comes after the query."""
    t = queries.shape[-2]
    return queries.new_full((t, keys), -math.inf).triu(keys - t + 1)


class SelfAttention(nn.Module):
    """Multi-head self-attention (3.2.2), with one product for Q, K and V: bidirectional, or `causal`."""

    def __init__(self, width: int, heads: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = parts.linear(width, 3 * width)
        self.attend = parts.attend
        self.output = parts.linear(width, width)

    def forward(self, x: Vectors, bias: Float[Tensor, "N 1 1 t"]) -> Vectors:
        """Attend from each token to all real positions, where `bias` is 0."""
        return self._output(*self._project(x), bias)

    def causal(self, x: Vectors, past: PastKeysValues) -> tuple[Vectors, KeysValues]:
        """Attend from each token to the tokens of `past` and to the tokens of `x` up to itself; return the output, and
        the keys and values of all tokens so far.
        """
        q, keys_values = self._project(x)
        if not past.shape[1]:
            return self._output(q, keys_values, None, is_causal=True), keys_values
        keys_values = torch.cat([past.to(keys_values.dtype), keys_values], 1)
        bias = hide_later(q, keys_values.shape[1]) if x.shape[1] > 1 else None  # a single token sees all tokens
        return self._output(q, keys_values, bias), keys_values

    def _project(self, x: Vectors) -> tuple[Vectors, Float[Tensor, "N t EE"]]:
        q, keys_values = self.queries_keys_values(x).split((x.shape[-1], 2 * x.shape[-1]), -1)
        return q, keys_values

    def _output(self, q: Vectors, keys_values: KeysValues, bias: Tensor | None, *, is_causal: bool = False) -> Vectors:
        q, k, v = (split_heads(vectors, self.heads) for vectors in (q, *keys_values.chunk(2, -1)))
        return self.output(join_heads(self.attend(q, k, v, bias, is_causal=is_causal)))


class CrossAttention(nn.Module):
    """Multi-head attention over a source (3.2.2). N = B·K: K rows for each of the source's B."""

    def __init__(self, width: int, heads: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.heads = heads
        self.queries = parts.linear(width, width)
        self.keys_values = parts.linear(width, 2 * width)
        self.attend, self.attend_with_weights = parts.attend, attend_with_weights
        self.output = parts.linear(width, width)

    def forward(
        self, x: Vectors, source: SourceKeysValues, bias: Bias, *, return_weights: bool
    ) -> tuple[Vectors, Float[Tensor, "N t heads S"] | None]:
        """Return the output and, if `return_weights`, the attention weights softmax(QKᵀ/√d_k) of (1)."""
        q, alpha = self.queries(x), None
        joined_rows = q.reshape(len(source), -1, q.shape[-1])  # the tokens of a source's K rows, in one row
        bias = bias.to(q.dtype)
        q, k, v = (split_heads(part, self.heads) for part in (joined_rows, *source.to(q.dtype).chunk(2, -1)))
        if return_weights:
            y, alpha = self.attend_with_weights(q, k, v, bias)
            alpha = alpha.transpose(1, 2).reshape(*x.shape[:2], self.heads, -1)
        else:
            y = self.attend(q, k, v, bias)
        return self.output(join_heads(y).reshape(x.shape)), alpha


class Residual(nn.Module):
    """The residual connection around a sub-layer f: LayerNorm(x + f(x)) as in the paper (norm=post), or
    x + f(LayerNorm(x)) (norm=pre), which trains without a long warm-up (Xiong et al. 2020).
    """

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        self.norm, self.norm_first = nn.LayerNorm(settings.width), settings.norm == "pre"
        self.dropout = settings.parts.dropout(settings.dropout)

    def input(self, x: Tensor) -> Tensor:
        """Return the input of f: x, normalised if norm=pre."""
        return self.norm(x) if self.norm_first else x

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of x and y, the output of f, normalised if norm=post."""
        total = x + self.dropout(y)
        return total if self.norm_first else self.norm(total)


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (2)."""

    def __init__(self, width: int, hidden: int, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.inner, self.outer = parts.linear(width, hidden), parts.linear(hidden, width)

    def forward(self, x: Vectors) -> Vectors:
        return self.outer(self.inner(x).relu_())


class Layer(nn.Module):
    """The sub-layers of a layer, perhaps with cross-attention. Weights in checkpoints have the names of attributes."""

    def __init__(self, settings: LayerSettings, *, cross_attention: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(settings.width, settings.heads, settings.parts)
        self.around_attention = Residual(settings)
        if cross_attention:
            self.source_attention = CrossAttention(settings.width, settings.heads, settings.parts)
            self.around_source = Residual(settings)
        self.feed_forward = FeedForward(settings.width, settings.feed_forward, settings.parts)
        self.around_feed_forward = Residual(settings)


class EncoderLayer(Layer):
    def forward(self, x: Vectors, bias: Float[Tensor, "N 1 1 t"]) -> Vectors:
        x = self.around_attention.add(x, self.attention(self.around_attention.input(x), bias))
        return self.around_feed_forward.add(x, self.feed_forward(self.around_feed_forward.input(x)))


class DecoderLayer(Layer):
    def forward(
        self, x: Vectors, past: PastKeysValues, source: tuple[SourceKeysValues, Bias] | None, *, return_weights: bool
    ) -> tuple[Vectors, KeysValues, Float[Tensor, "N t heads S"] | None]:
        """Read tokens that follow the tokens of `past`; return the output, the keys and values of all tokens so far
        and, if `return_weights`, the weights of cross-attention to the source with this bias.
        """
        y, past = self.attention.causal(self.around_attention.input(x), past)
        x, alpha = self.around_attention.add(x, y), None
        if source is not None:
            y, alpha = self.source_attention(self.around_source.input(x), *source, return_weights=return_weights)
            x = self.around_source.add(x, y)
        return self.around_feed_forward.add(x, self.feed_forward(self.around_feed_forward.input(x))), past, alpha


class InputEmbedding(nn.Module):
    """Embedded words times √E (3.4) plus their positions (3.5): sinusoids, `max_positions` learnt vectors, or none.

    Without positions, an encoder reads a set of words: permuted words give permuted annotation vectors. A decoder still
    sees something of the order, because its mask hides later tokens.
    """

    def __init__(self, settings: LayerSettings) -> None:
        super().__init__()
        learnt, self.has_positions = settings.positions == "learnt", settings.positions != "none"
        self.max_positions = settings.max_positions if learnt else None
        self.position_embedding = nn.Embedding(settings.max_positions, settings.width) if learnt else None
        self.dropout = settings.parts.dropout(settings.dropout)

    def forward(self, tokens: Tokens, embedding: nn.Embedding, start: int) -> Vectors:
        """Embed tokens, the first of which is at position `start`."""
        y = embedding(tokens) * math.sqrt(embedding.embedding_dim)
        end = start + tokens.shape[1]
        return self.dropout(y + self.positions(end, y)[start:end])

    def positions(self, end: int, like: Float[Tensor, "... E"]) -> Float[Tensor, "p E"]:
        """Return the vectors of at least the first `end` positions, in the type and on the device of `like`."""
        if not self.has_positions:
            return like.new_zeros(end, like.shape[-1])
        if self.position_embedding is None:
            length, width = 1 << (end - 1).bit_length(), like.shape[-1]  # a power of two, so that few tables are cached
            if torch.compiler.is_compiling():  # torch.compile traces neither lru_cache nor a change of inference_mode
                return sinusoids(torch.arange(length), width).to(like.device, like.dtype)
            return _cached_sinusoids(length, width, like.dtype, like.device)
        table = self.position_embedding.weight
        if end > len(table):
            raise InputError(
                f"A sequence of {end:,} tokens is longer than model.longest={len(table)}, the number of learnt "
                "positions: shorten it."
            )
        return table


@lru_cache(maxsize=32)  # enough tables for a few lengths, types and devices
def _cached_sinusoids(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "t E"]:
    """Return the vectors of the positions 0 to length − 1, cached since decoding needs them at every step."""
    with torch.inference_mode(False):
        return sinusoids(torch.arange(length), width).to(device, dtype)


def sinusoids(position: Int[Tensor, "t"], width: int) -> Float[Tensor, "t E"]:
    """Return sin(pos / 10000^(2i/E)) at index 2i and the cosine at 2i + 1 (3.5)."""
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float64) / width
    angle = position[:, None] / 10_000**exponent
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape N×t×E to N×h×t×d."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Reshape N×h×t×d to N×t×E."""
    return x.transpose(1, 2).flatten(-2)


@dataclass(frozen=True)
class KeyValueCache:
    """The keys and values of the p tokens read so far, for each layer, 2·E numbers per token."""

    layers: tuple[Float[Tensor, "N p EE"], ...]

    @property
    def length(self) -> int:
        return self.layers[0].shape[1]


@dataclass(frozen=True)
class SourceMemory:
    """The keys and values of the source for each layer of the decoder."""

    layers: tuple[Float[Tensor, "B S EE"], ...]
    bias: Float[Tensor, "B 1 1 S"]  # what is added to the scores of attention: 0 at real positions, −∞ elsewhere


def bias_of(mask: Bool[Tensor, "B S"], like: Tensor) -> Float[Tensor, "B 1 1 S"]:
    """Return 0 where the mask is true and −∞ elsewhere, in the type of products with `like`."""
    bias = torch.zeros_like(mask, dtype=product_dtype(like))
    return bias.masked_fill_(~mask, -math.inf)[:, None, None]


class TransformerDecoder(nn.Module):
    """A stack of layers over embedded words, with cross-attention to a source or without.

    show: the layer and the head, counted from 1, whose cross-attention is returned; None: the last layer, and the mean
        of the heads
    """

    def __init__(
        self, settings: LayerSettings, layers: int, *, cross_attention: bool, show: LayerAndHead = (None, None)
    ) -> None:
        super().__init__()
        for name, value, count in zip(("layer", "head"), show, (layers, settings.heads), strict=True):
            if value is not None and not 1 <= value <= count:
                raise InputError(f"model.attention_{name} must be from 1 to {count}, or null, not {value}.")
        self.words = InputEmbedding(settings)
        self.layers = nn.ModuleList(DecoderLayer(settings, cross_attention=cross_attention) for _ in range(layers))
        self.last = settings.final_norm()
        self.shown_layer, self.shown_head = (show[0] or layers) - 1, show[1]

    def forward(
        self, tokens: Tokens, embedding: nn.Embedding, cache: KeyValueCache, source: SourceMemory | None = None
    ) -> Output:
        """Read t tokens after the tokens of `cache`. No attention is returned in training."""
        x = self.words(tokens, embedding, cache.length)
        layers, attention = [], None
        for i, layer in enumerate(self.layers):
            layer_source = None if source is None else (source.layers[i], source.bias)
            return_weights = source is not None and i == self.shown_layer and not self.training
            x, keys_values, alpha = layer(x, cache.layers[i], layer_source, return_weights=return_weights)
            layers.append(keys_values.to(embedding.weight.dtype))
            if alpha is not None:
                attention = alpha.mean(2) if self.shown_head is None else alpha[:, :, self.shown_head - 1]
        return Output(self.last(x), attention, KeyValueCache(tuple(layers)))

    def empty_cache(self, rows: int, like: Float[Tensor, "V E"]) -> KeyValueCache:
        """Return an empty cache, in the type and on the device of the embedding matrix `like`."""
        return KeyValueCache(tuple(like.new_empty(rows, 0, 2 * like.shape[1]) for _ in self.layers))


class SourceTransformer(EncoderDecoder[KeyValueCache]):
    """The base class of the translator and the captioner: a decoder over annotation vectors."""

    attends = True
    reads_at_once = True

    def make_decoder(self, settings: LayerSettings, layers: int, vocabulary: int, tie: str, show: LayerAndHead) -> None:
        """Make the decoder and the output matrix, after the parts that compute the annotation vectors."""
        self.decoder = TransformerDecoder(settings, layers, cross_attention=True, show=show)
        self.max_positions = self.decoder.words.max_positions
        self.output = settings.parts.linear(settings.width, vocabulary)
        self.embedding_scale = math.sqrt(settings.width)
        tie_matrices(self, tie)

    def annotate(self, source: Any) -> tuple[Float[Tensor, "B S E"], Bool[Tensor, "B S"]]:
        """Return the annotation vectors of the source, and a mask that is true at real positions."""
        raise NotImplementedError

    def encode(self, source: Any) -> tuple[SourceMemory, KeyValueCache]:
        annotations, mask = self.annotate(source)
        attentions = (cast(DecoderLayer, layer).source_attention for layer in self.decoder.layers)
        keys_values = tuple(attention.keys_values(annotations) for attention in attentions)
        memory = SourceMemory(keys_values, bias_of(mask, annotations))
        return memory, self.decoder.empty_cache(len(mask), self.target_embedding.weight)

    def step(self, memory: SourceMemory, state: KeyValueCache, token: Tensor) -> Step[KeyValueCache]:
        output = self.decoder(token[:, None], self.target_embedding, state, memory)
        alpha = None if output.attention is None else output.attention[:, 0]
        return Step(self.project(output.features[:, 0]), output.state, alpha)

    def prefill(self, memory: SourceMemory, state: KeyValueCache, tokens: Tensor) -> Prefilled[KeyValueCache]:
        output = self.decoder(tokens, self.target_embedding, state, memory)
        return Prefilled(output.state, output.attention)

    def forward(self, source: Any, target: Tensor, state: KeyValueCache | None = None) -> Output:
        memory, first_state = self.encode(source)
        return self.decoder(target, self.target_embedding, first_state if state is None else state, memory)


class Transformer(SourceTransformer):
    """An encoder and a decoder. The paper's base model: 6 layers each, width 512, feed_forward 2048, 8 heads, post."""

    task = "translation"

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        width: Size,
        encoder_layers: LayerCount,
        decoder_layers: LayerCount,
        heads: Size,
        feed_forward: Size,
        norm: Norm,
        positions: Positions,
        longest: Size,
        dropout: DropoutRate,
        tie: str,
        attention_layer: int | None,
        attention_head: int | None,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        settings = LayerSettings(width, heads, feed_forward, norm, positions, longest, dropout, parts)
        self.source_embedding = nn.Embedding(source_vocabulary, width)
        self.target_embedding = nn.Embedding(target_vocabulary, width)
        self.words = InputEmbedding(settings)
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(encoder_layers))
        self.last = settings.final_norm()
        self.make_decoder(settings, decoder_layers, target_vocabulary, tie, (attention_layer, attention_head))

    def annotate(self, source: Source) -> tuple[Tensor, Tensor]:
        x = self.words(source.tokens, self.source_embedding, 0)
        bias = bias_of(source.mask, x)
        for layer in self.encoder:
            x = layer(x, bias)
        return self.last(x), source.mask


class TransformerCaptioner(SourceTransformer, ImageCaptioner[KeyValueCache]):
    """A decoder over an image's annotation vectors after a linear map, which have no position vectors."""

    def __init__(
        self,
        *,
        target_vocabulary: int,
        pretrained: bool,
        encoder: EncoderSettings,
        width: Size,
        layers: LayerCount,
        heads: Size,
        feed_forward: Size,
        norm: Norm,
        positions: Positions,
        longest: Size,
        dropout: DropoutRate,
        tie: str,
        attention_layer: int | None,
        attention_head: int | None,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(target_vocabulary, width, encoder, pretrained=pretrained, parts=parts)
        settings = LayerSettings(width, heads, feed_forward, norm, positions, longest, dropout, parts)
        self.image = parts.linear(self.backbone.dimension, width)
        self.make_decoder(settings, layers, target_vocabulary, tie, (attention_layer, attention_head))

    def encode(self, source: Images) -> tuple[SourceMemory, KeyValueCache]:
        return source.for_captions(*super().encode(source))

    def annotate(self, source: Images) -> tuple[Tensor, Tensor]:
        a = self.image(self.image_annotations(source))
        return a, torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)


@dataclass(frozen=True)
class Window:
    """The w tokens of a window that have been read so far, N×w, and their keys and values."""

    tokens: Int[Tensor, "N w"]
    cache: KeyValueCache


class TransformerLanguageModel(EncoderDecoder[Window]):
    """A decoder without cross-attention, which reads a text in windows of `context` tokens.

    When a window is full, its second half is read again as the beginning of the next. Every token therefore sees at
    least the context / 2 tokens before it, if the text has as many, however it is cut into targets. In training, a
    target that fits into one window starts from an empty window, and leaves an empty one for the next.
    """

    task = "language_modelling"
    attends = False

    def __init__(
        self,
        *,
        target_vocabulary: int,
        width: Size,
        layers: LayerCount,
        heads: Size,
        feed_forward: Size,
        norm: Norm,
        positions: Positions,
        context: Size,
        dropout: DropoutRate,
        tie: str,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        settings = LayerSettings(width, heads, feed_forward, norm, positions, context, dropout, parts)
        if context < 2 or context % 2:
            raise InputError(f"model.context must be an even number of tokens, at least 2, not {context}.")
        self.context = context
        self.target_embedding = nn.Embedding(target_vocabulary, width)
        self.decoder = TransformerDecoder(settings, layers, cross_attention=False)
        self.output = parts.linear(width, target_vocabulary)
        self.embedding_scale = math.sqrt(width)
        tie_matrices(self, tie)

    def encode(self, source: Any) -> tuple[tuple[()], Window]:
        return (), self._empty_window(1)

    def step(self, memory: Any, state: Window, token: Tensor) -> Step[Window]:
        features, window = self._read(state, token[:, None])
        return Step(self.project(features[:, 0]), window, None)

    def prefill(self, memory: Any, state: Window, tokens: Tensor) -> Prefilled[Window]:
        return Prefilled(self._read(state, tokens)[1] if tokens.shape[1] else state, None)

    def forward(self, source: Any, target: Tensor, state: Window | None = None) -> Output:
        empty = self._empty_window(len(target))
        starts_afresh = self.training and target.shape[1] <= self.context
        features, window = self._read(empty if state is None or starts_afresh else state, target)
        return Output(features, None, empty if starts_afresh else window)

    def with_room(self, window: Window) -> Window:
        """Return a window with room for a token: this one or, if it is full, one that begins with its second half."""
        if window.tokens.shape[1] < self.context:
            return window
        half = window.tokens[:, self.context // 2 :]
        return self._read(self._empty_window(len(half)), half)[1]

    def _empty_window(self, rows: int) -> Window:
        like = self.target_embedding.weight
        return Window(torch.empty(rows, 0, dtype=torch.int64, device=like.device), self.decoder.empty_cache(rows, like))

    def _read(self, window: Window, tokens: Tensor) -> tuple[Tensor, Window]:
        """Read tokens, the first of them into `window`; return their features and the last window."""
        features = []
        while tokens.shape[1]:
            window = self.with_room(window)
            window_tokens, tokens = tokens.tensor_split([self.context - window.tokens.shape[1]], 1)
            output = self.decoder(window_tokens, self.target_embedding, window.cache)
            window = Window(torch.cat([window.tokens, window_tokens], 1), output.state)
            features.append(output.features)
        return torch.cat(features, 1), window
