"""The Transformer (Vaswani et al. 2017): for translation, for captions, and as a language model."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings
from seqtool.models.contract import EncoderDecoder, Output, Prefilled, Step
from seqtool.models.image_captioner import ImageCaptioner, Images
from seqtool.models.inputs import Source
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.sizes import DropoutRate, LayerCount, Size, tie_matrices
from seqtool.models.transformer_layers import DecoderLayer, EncoderLayer, LayerSettings, Norm, Positions, Words, scale


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of the p tokens read so far, for each layer, 2·E numbers a token."""

    layers: tuple[Float[Tensor, "N p EE"], ...]

    @property
    def length(self) -> int:
        return self.layers[0].shape[1]


@dataclass(frozen=True)
class SourceMemory:
    """Keys and values of the source for each layer of the decoder; the mask is true at real positions."""

    layers: tuple[Float[Tensor, "B S EE"], ...]
    mask: Bool[Tensor, "B S"]


class TransformerDecoder(nn.Module):
    """Embedded words and the layers that read them, over a source or over the text alone.

    `shown` are the layer, from 1, and the head of the attention that is given; None stands for the last layer, and for
    the mean of the heads.
    """

    def __init__(
        self,
        settings: LayerSettings,
        layers: int,
        words: Words,
        *,
        reads: bool,
        shown: tuple[int | None, int | None] = (None, None),
    ) -> None:
        super().__init__()
        for name, value, count in zip(("layer", "head"), shown, (layers, settings.heads), strict=True):
            if value is not None and not 1 <= value <= count:
                raise InputError(f"model.attention_{name} must be from 1 to {count}, or null, not {value}.")
        self.words = words
        self.layers = nn.ModuleList(DecoderLayer(settings, reads=reads) for _ in range(layers))
        self.last = settings.last()
        self.shown, self.head = (shown[0] or layers) - 1, shown[1]

    def forward(
        self,
        tokens: Int[Tensor, "N t"],
        embedding: nn.Embedding,
        cache: KeyValueCache,
        source: SourceMemory | None = None,
    ) -> Output:
        """Read t tokens after those of `cache`. In training there is no attention to show."""
        x = self.words(tokens, embedding, cache.length)
        layers, attention = [], None
        for i, layer in enumerate(self.layers):
            over = (None, None) if source is None else (source.layers[i], source.mask)
            weights = source is not None and i == self.shown and not self.training
            x, keys_values, alpha = layer(x, cache.layers[i], *over, weights=weights)
            layers.append(keys_values.to(embedding.weight.dtype))
            if alpha is not None:
                attention = alpha.mean(2) if self.head is None else alpha[:, :, self.head - 1]
        return Output(self.last(x), attention, KeyValueCache(tuple(layers)))

    def memory(self, annotations: Float[Tensor, "B S E"], mask: Bool[Tensor, "B S"]) -> SourceMemory:
        layers = (cast(DecoderLayer, layer).source_attention for layer in self.layers)
        return SourceMemory(tuple(attention.keys_values(annotations) for attention in layers), mask)

    def empty(self, rows: int, like: Float[Tensor, "V E"]) -> KeyValueCache:
        """The cache of rows that have read nothing."""
        return KeyValueCache(tuple(like.new_empty(rows, 0, 2 * like.shape[1]) for _ in self.layers))


class SourceTransformer(EncoderDecoder[KeyValueCache]):
    """A decoder over annotation vectors: what the translator and the captioner share."""

    attends = True
    decoder: TransformerDecoder

    def annotate(self, source: Any) -> tuple[Float[Tensor, "B S E"], Bool[Tensor, "B S"]]:
        """Annotation vectors of the source, and a mask that is true at real positions."""
        raise NotImplementedError

    def encode(self, source: Any) -> tuple[SourceMemory, KeyValueCache]:
        annotations, mask = self.annotate(source)
        return self.decoder.memory(annotations, mask), self.decoder.empty(len(mask), self.target_embedding.weight)

    def step(self, memory: SourceMemory, state: KeyValueCache, token: Tensor) -> Step[KeyValueCache]:
        output = self.decoder(token[:, None], self.target_embedding, state, memory)
        alpha = None if output.attention is None else output.attention[:, 0]
        return Step(self.project(output.features[:, 0]), output.state, alpha)

    def prefill(self, memory: SourceMemory, state: KeyValueCache, tokens: Tensor) -> Prefilled[KeyValueCache]:
        output = self.decoder(tokens, self.target_embedding, state, memory)
        return Prefilled(output.state, output.attention)

    def forward(self, source: Any, target: Tensor, state: KeyValueCache | None = None) -> Output:
        memory, first = self.encode(source)
        return self.decoder(target, self.target_embedding, first if state is None else state, memory)


class Transformer(SourceTransformer):
    """Encoder and decoder. The paper's base model: 6 layers each, width 512, feed_forward 2048, 8 heads, norm post."""

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
        settings = LayerSettings(width, heads, feed_forward, norm, dropout, parts)
        self.source_embedding = nn.Embedding(source_vocabulary, width)
        self.target_embedding = nn.Embedding(target_vocabulary, width)
        self.words = Words(settings, positions, longest)
        self.max_positions = self.words.max_positions
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(encoder_layers))
        self.last = settings.last()
        shown = attention_layer, attention_head
        words = Words(settings, positions, longest)
        self.decoder = TransformerDecoder(settings, decoder_layers, words, reads=True, shown=shown)
        self.output = parts.linear(width, target_vocabulary)
        self.embedding_scale = scale(width)
        tie_matrices(self, tie)

    def annotate(self, source: Source) -> tuple[Tensor, Tensor]:
        x, mask = self.words(source.tokens, self.source_embedding, 0), source.mask
        for layer in self.encoder:
            x = layer(x, mask)
        return self.last(x), mask


class TransformerCaptioner(SourceTransformer, ImageCaptioner[KeyValueCache]):
    """A decoder over an image's annotation vectors through a linear map; the locations have no positions."""

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
        settings = LayerSettings(width, heads, feed_forward, norm, dropout, parts)
        self.image = parts.linear(self.backbone.dimension, width)
        shown = attention_layer, attention_head
        self.decoder = TransformerDecoder(
            settings, layers, Words(settings, positions, longest), reads=True, shown=shown
        )
        self.max_positions = self.decoder.words.max_positions
        self.output = parts.linear(width, target_vocabulary)
        self.embedding_scale = scale(width)
        tie_matrices(self, tie)

    def annotate(self, source: Images) -> tuple[Tensor, Tensor]:
        a = self.image(self.annotations(source))
        return a, torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)


@dataclass(frozen=True)
class Window:
    """The tokens of the window that is open, N×w, and their keys and values."""

    tokens: Int[Tensor, "N w"]
    cache: KeyValueCache


class TransformerLanguageModel(EncoderDecoder[Window]):
    """A decoder alone, which reads windows of `context` tokens. When one is full, its second half is read anew as the
    beginning of the next: all but the first tokens of a text see at least the context / 2 tokens before them, however
    the text is cut. In training, a target that is no longer than a window is one by itself.
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
        settings = LayerSettings(width, heads, feed_forward, norm, dropout, parts)
        if context < 2 or context % 2:
            raise InputError(f"model.context must be an even number of tokens, at least 2, not {context}.")
        self.context = context
        self.target_embedding = nn.Embedding(target_vocabulary, width)
        self.decoder = TransformerDecoder(settings, layers, Words(settings, positions, context), reads=False)
        self.output = parts.linear(width, target_vocabulary)
        self.embedding_scale = scale(width)
        tie_matrices(self, tie)

    def encode(self, source: Any) -> tuple[tuple[()], Window]:
        return (), self._empty(1)

    def step(self, memory: Any, state: Window, token: Tensor) -> Step[Window]:
        features, window = self._read(state, token[:, None])
        return Step(self.project(features[:, 0]), window, None)

    def prefill(self, memory: Any, state: Window, tokens: Tensor) -> Prefilled[Window]:
        return Prefilled(self._read(state, tokens)[1] if tokens.shape[1] else state, None)

    def forward(self, source: Any, target: Tensor, state: Window | None = None) -> Output:
        by_itself = self.training and target.shape[1] <= self.context  # and so is the next target
        features, window = self._read(self._empty(len(target)) if state is None or by_itself else state, target)
        return Output(features, None, self._empty(len(target)) if by_itself else window)

    def opened(self, window: Window) -> Window:
        """The window that the next token belongs to: of a full one, the second half is read anew."""
        if window.tokens.shape[1] < self.context:
            return window
        half = window.tokens[:, self.context // 2 :]
        return self._read(self._empty(len(half)), half)[1]

    def _empty(self, rows: int) -> Window:
        weight = self.target_embedding.weight
        return Window(torch.empty(rows, 0, dtype=torch.int64, device=weight.device), self.decoder.empty(rows, weight))

    def _read(self, window: Window, tokens: Tensor) -> tuple[Tensor, Window]:
        """Features of the tokens, and the window that they leave open."""
        features = []
        while tokens.shape[1]:
            window = self.opened(window)
            new, tokens = tokens.tensor_split([self.context - window.tokens.shape[1]], 1)
            output = self.decoder(new, self.target_embedding, window.cache)
            window = Window(torch.cat([window.tokens, new], 1), output.state)
            features.append(output.features)
        return torch.cat(features, 1), window
