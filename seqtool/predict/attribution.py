"""`Attribution`: how much each predicted token depends on the source and on the tokens before it.

What is explained is log p(y_t | y_<t, source) in nats or, with a contrast, log p(y_t | …) − log p(other | …): why the
model predicts this token rather than another (Yin & Neubig 2022). The methods:

gradient     gradient × input: the vector of a word or of an image's location times the gradient with respect to it
             (Denil et al. 2014)
integrated   integrated gradients (Sundararajan et al. 2017): the vector's difference from a baseline, times the mean
             gradient on the straight line from the baseline. The baseline is the mean embedding of the vocabulary for
             words, and the mean annotation vector of the image for locations. With enough steps, the attributions of a
             token to the source and to the text add up to what is explained minus its value at the baseline.
occlusion    what is explained, minus its value after a token is taken out of the source or of the text, or after a
             location's annotation vector is replaced by the image's mean one. The source's <end> and the text's <begin>
             cannot be taken out: their attributions are NaN.
attention    the attention to the source, for comparison
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from seqtool.data.text.alignment import SPACE
from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder, Output
from seqtool.models.inputs import Annotations, Source
from seqtool.models.tokens import BOS, END, EOS, UNK
from seqtool.predict.predictor import EncodedText, display_token
from seqtool.predict.trace import BEGIN
from seqtool.view import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 64  # points on the line; 20 to 300 are enough for an error of 5 % (Sundararajan et al. 2017, section 5)
ROWS = 64  # the number of variants of a text that the model reads at once

Array = NDArray[np.float64]
Contrast = Mapping[int, str] | None
Sides = dict[str, Tensor]  # tensors about the `source`, which language models lack, and the `prefix`, the tokens read
NULL = np.array(None)  # as an array, so that NumPy's types allow it in `where`
EMBEDDINGS = {"source": "source_embedding.weight", "prefix": "target_embedding.weight"}


@dataclass(frozen=True, eq=False)
class Attribution:
    """The attributions of T predicted tokens in nats or, with the method attention, attention weights.

    tokens: the tokens that are predicted: the pieces of the text and, except with language models, <end>
    read: the tokens that are read, one before each of them: <begin> and pieces of the text
    explained: the log-probability of each token or, with a contrast, the difference
    contrast: the token that a token is compared with, by the token's position from 0
    source: attributions to the source, T×S; None for language models
    prefix: attributions to the text: [t, j] is about the token that is read at step j, and is 0 for j > t; None with
        the method attention
    baseline: the value of `explained` at the baseline of integrated gradients; None with other methods
    source_tokens: the pieces of the source and <end>; None unless it is a sentence
    grid: the numbers of rows and columns of an image's locations, which are in reading order
    pixels: the pixels that the model saw, size × size × 3
    text, source_text: the text, and the source if it is a sentence; `by_word` splits them
    """

    method: str
    tokens: list[str]
    read: list[str]
    explained: Array
    contrast: dict[int, str]
    source: Array | None = None
    prefix: Array | None = None
    baseline: Array | None = None
    source_tokens: list[str] | None = None
    grid: tuple[int, int] | None = None
    pixels: NDArray[np.uint8] | None = field(default=None, repr=False)
    text: EncodedText = field(kw_only=True, repr=False)
    source_text: EncodedText | None = field(default=None, kw_only=True, repr=False)

    @classmethod
    def of(
        cls,
        model: EncoderDecoder[Any],
        source: Tensor | None,
        text: EncodedText,
        method: str = "integrated",
        contrast: Contrast = None,
        steps: int = STEPS,
        **of_source: Any,
    ) -> "Attribution":
        """Explain each token of a text.

        model: a model of plain parts, in eval mode
        source: the ids of a sentence, S, EOS included; the annotation vectors of an image, S×D; None for a language
            model
        method: a name in `METHODS`
        contrast: pieces to compare tokens with, by the token's position from 0
        steps: the number of points of integrated gradients
        of_source: the fields about the source

        Raises InputError for an unknown method or piece, and if the method does not suit the model.
        """
        if method not in METHODS:
            raise InputError(f"Unknown method '{method}'; choose from {', '.join(METHODS)}.")
        if steps < 1:
            raise InputError(f"steps must be at least 1, not {steps}.")
        end = [] if source is None else [END]  # language models predict no end
        tokens, labels = [*text.pieces, *end], [*text.ids, EOS][: len(text.ids) + len(end)]
        if not tokens:
            raise InputError("The text is empty: there is no token to explain.")
        others = {t: _other_token(piece, t, tokens, text) for t, piece in (contrast or {}).items()}
        read = torch.tensor([BOS, *text.ids][: len(labels)], device=model.target_embedding.weight.device)
        inputs = {"prefix": read} if source is None else {"source": source, "prefix": read}
        question = Question(model, inputs, labels, others, steps)
        with torch.no_grad():
            maps = {"explained": question.values(question.run_once().features)[0], **METHODS[method](question)}
        arrays: dict[str, Any] = {name: values.cpu().double().numpy() for name, values in maps.items()}
        shown = {t: display_token(other, text.vocabulary) for t, other in others.items()}
        read_tokens = [BEGIN, *text.pieces][: len(labels)]
        return cls(method, tokens, read_tokens, contrast=shown, text=text, **arrays, **of_source)

    def by_word(self) -> "Attribution":
        """The attributions between words: sums over the pieces of both, since the log-probabilities of its pieces add
        up to that of a word. Attention is averaged over the pieces of a predicted word. White space after the last word
        belongs to no word.
        """
        rows, read = Words.of(self.text, after=self.tokens[len(self.text.pieces) :]), Words.of(self.text, [BEGIN])
        columns = None if self.source_text is None else Words.of(self.source_text, after=[END])
        counts = np.maximum(rows.sum(np.ones((len(self.tokens), 1))), 1) if self.method == "attention" else 1

        def between_words(values: Array | None, columns: Words | None) -> Array | None:
            if values is None:
                return None
            sums = rows.sum(values) / counts
            return sums if columns is None else columns.sum(sums.T).T

        return replace(
            self,
            tokens=rows.labels,
            read=read.labels,
            explained=rows.sum(self.explained),
            contrast={rows.indices[t]: piece for t, piece in self.contrast.items() if rows.indices[t] >= 0},
            source=between_words(self.source, columns),
            prefix=between_words(self.prefix, read),
            baseline=None if self.baseline is None else rows.sum(self.baseline),
            source_tokens=None if columns is None else columns.labels,
        )

    def record(self) -> dict[str, Any]:
        """The record for JSON, in which null stands for NaN, and for a token without a contrast."""
        record: dict[str, Any] = {"method": self.method, "tokens": self.tokens, "read": self.read}
        if self.contrast:
            record["contrast"] = [self.contrast.get(t) for t in range(len(self.tokens))]
        record |= {"source_tokens": self.source_tokens, "grid": self.grid}
        for name in ("explained", "baseline", "source", "prefix"):
            values: Array | None = getattr(self, name)
            record[name] = None if values is None else np.where(np.isnan(values), NULL, values.round(6)).tolist()
        return {name: value for name, value in record.items() if value is not None}

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw a heat map, with what is read at the top and the predicted tokens at the left; blue speaks for a token
        and red against it. An image is drawn once for each token, bright where it speaks for the token: the brightest
        location has the token's greatest attribution, however small.

        path: the PNG, SVG or PDF file to write, if any
        """
        labels = [token.replace(SPACE, "") for token in self.tokens]
        for t, piece in self.contrast.items():
            labels[t] += f", not {piece.replace(SPACE, '')}"
        if self.source is not None and self.grid is not None and self.pixels is not None:
            maps = self.source.clip(0).reshape(-1, *self.grid)
            return plots.attention_over_image(self.pixels, labels, maps, path, chosen=None)
        source_tokens = self.source_tokens or []
        if self.source is not None and self.prefix is None:
            return plots.alignment(self.source, source_tokens, labels, path)
        values = np.hstack([values for values in (self.source, self.prefix) if values is not None])
        return plots.attribution(values, [*source_tokens, *self.read], labels, path, split=len(source_tokens))


@dataclass(frozen=True)
class Question:
    """What is to be explained: how a model predicts the tokens of a text.

    inputs: the ids of a sentence, S, or annotation vectors, S×D; and the ids of the T tokens that are read, from BOS on
    labels: the T tokens that are predicted
    others: the tokens that they are compared with, by position
    steps: the number of points of integrated gradients
    """

    model: EncoderDecoder[Any]
    inputs: Sides
    labels: Sequence[int]
    others: Mapping[int, int]
    steps: int

    def run(self, rows: Sides, **tables: Tensor) -> Output:
        """Run the model on rows of ids and annotation vectors, with these tables in place of its embedding matrices."""
        source: Any = rows.get("source")
        if source is not None and source.is_floating_point():
            source = Annotations(source)
        elif source is not None:
            source = Source(source, torch.full(source.shape[:1], source.shape[1], device=source.device))
        weights = {EMBEDDINGS[side]: table for side, table in tables.items()}
        output: Output = functional_call(self.model, weights, (source, rows["prefix"]), tie_weights=False)
        return output

    def run_once(self) -> Output:
        """Run the model on the inputs themselves."""
        return self.run({side: x[None] for side, x in self.inputs.items()})

    def value(self, features: Tensor, t: int) -> Tensor:
        """Return what is explained about token t, N, from the features at its position, N×R."""
        log_p = self.model.project(features).log_softmax(-1)
        return log_p[:, self.labels[t]] - (log_p[:, self.others[t]] if t in self.others else 0)

    def values(self, features: Tensor, first: int = 0) -> Tensor:
        """Return what is explained, N×t, from features N×t×R, the first of which is that of token `first`."""
        return torch.stack([self.value(x, first + t) for t, x in enumerate(features.unbind(1))], 1)

    def vectors(self) -> tuple[Sides, Sides]:
        """Return the vectors of the inputs, and the mean vectors of the vocabulary or image, S×E or S×D, and T×E."""
        vectors, means = {}, {}
        for side, x in self.inputs.items():
            is_image = x.is_floating_point()
            table = x if is_image else self.model.get_parameter(EMBEDDINGS[side]).detach()
            vectors[side] = x if is_image else table[x]
            means[side] = table.mean(0).expand_as(vectors[side])
        return vectors, means

    def read(self, rows: Sides) -> Tensor:
        """Return the features, N×T×R, of N rows of vectors.

        Each word has an entry of its own, after the special tokens, in tables of embeddings. So its vector is found in
        whatever order, and however often, the model looks up its words.
        """
        inputs, tables = dict(rows), {}
        for side, x in self.inputs.items():
            if not x.is_floating_point():
                n, special = rows[side].shape[:2], self.model.get_parameter(EMBEDDINGS[side])[: EOS + 1]
                tables[side] = torch.cat([special.detach(), rows[side].flatten(0, 1)])
                inputs[side] = torch.arange(EOS + 1, len(tables[side]), device=x.device).view(n)
        return self.run(inputs, **tables).features


def _gradient(question: Question) -> Sides:
    vectors, _ = question.vectors()
    return _mean_gradients(question, vectors, {side: torch.zeros_like(x) for side, x in vectors.items()}, torch.ones(1))


def _integrated(question: Question) -> Sides:
    vectors, means = question.vectors()
    points = (torch.arange(question.steps) + 0.5) / question.steps
    baseline = question.values(question.read({side: b[None] for side, b in means.items()}))[0]
    return {"baseline": baseline, **_mean_gradients(question, vectors, means, points)}


def _mean_gradients(question: Question, vectors: Sides, starts: Sides, points: Tensor) -> Sides:
    """Return (x − b) times the mean of ∂/∂x at b + p (x − b), for vectors x, starts b and points p.

    Raises InputError if the model does not read words by their embeddings alone.
    """
    features = question.read({side: x[None] for side, x in vectors.items()})
    if not torch.allclose(features, question.run_once().features, rtol=1e-3, atol=1e-4):
        name = type(question.model).__name__
        raise InputError(f"{name} does not read words by their embeddings alone: choose the method occlusion.")
    differences = {side: x - starts[side] for side, x in vectors.items()}
    maps = {side: x.new_zeros(len(question.labels), len(x)) for side, x in vectors.items()}
    for start in range(0, len(points), ROWS):
        p = points[start : start + ROWS, None, None].to(features)
        with torch.enable_grad():
            rows = {side: (starts[side] + p * x).requires_grad_() for side, x in differences.items()}
            for t, x in enumerate(question.read(rows).unbind(1)):
                value = question.value(x, t).sum() / len(points)
                gradients = torch.autograd.grad(value, [*rows.values()], retain_graph=True, materialize_grads=True)
                for side, gradient in zip(rows, gradients, strict=True):
                    maps[side][t] += (gradient.sum(0) * differences[side]).sum(-1)
    return maps


def _occlusion(question: Question) -> Sides:
    whole, maps = question.values(question.run_once().features)[0], {}
    for side, x in question.inputs.items():
        n, first = len(x), int(side == "prefix")  # BOS is left in
        if x.is_floating_point():
            is_hidden = torch.eye(n, dtype=torch.bool, device=x.device)[:, :, None]
            variants = torch.where(is_hidden, x.mean(0), x)
        else:
            kept = [[k for k in range(n) if k != j] for j in range(first, first + n - 1)]
            variants = x[torch.tensor(kept, dtype=torch.int64, device=x.device).view(n - 1, n - 1)]
        maps[side] = whole.new_full((len(whole), n), torch.nan)
        for start in range(0, len(variants), ROWS):
            chunk = variants[start : start + ROWS]
            rows = {other: y.expand(len(chunk), *y.shape) for other, y in question.inputs.items()} | {side: chunk}
            # without an earlier token of the text, token t is predicted at step t − 1
            difference = whole[first:, None] - question.values(question.run(rows).features, first).t()
            maps[side][first:, first + start : first + start + len(chunk)] = difference
    maps["prefix"] = maps["prefix"].tril()
    return maps


def _attention(question: Question) -> Sides:
    attention = question.run_once().attention
    if attention is None:
        others = ", ".join(name for name in METHODS if name != "attention")
        raise InputError(f"{type(question.model).__name__} does not attend to a source: choose from {others}.")
    if question.others:
        raise InputError("Attention has no contrast, since it is the same for every next token: leave out contrast.")
    return {"source": attention[0]}


METHODS: dict[str, Callable[[Question], Sides]] = {
    "gradient": _gradient,
    "integrated": _integrated,
    "occlusion": _occlusion,
    "attention": _attention,
}


def _other_token(piece: str, t: int, tokens: Sequence[str], text: EncodedText) -> int:
    """The id of the piece that token t is compared with; the space at its beginning may be left out."""
    if not 0 <= t < len(tokens):
        raise InputError(f"contrast names token {t}, but the tokens are numbered from 0 to {len(tokens) - 1}.")
    if piece == END == tokens[-1]:
        return EOS
    spellings = (SPACE + piece, piece) if tokens[t].startswith((SPACE, END)) else (piece, SPACE + piece)
    known = [index for spelling in spellings if (index := text.vocabulary.index(spelling)) != UNK]
    if not known:
        raise InputError(f"contrast names '{piece}', which is not a piece of the vocabulary.")
    return known[0]


class Words(NamedTuple):
    """The words of a text, with labels before and after them, and the index of the label of each piece; -1 for none."""

    labels: list[str]
    indices: list[int]

    @classmethod
    def of(cls, text: EncodedText, before: Sequence[str] = (), after: Sequence[str] = ()) -> "Words":
        labels = [*before, *text.words, *after]
        indices = [index if index < 0 else len(before) + index for index in text.word_indices]
        return cls(labels, [*range(len(before)), *indices, *(len(labels) - 1 for _ in after)])

    def sum(self, values: Array) -> Array:
        """Sum rows, one for each piece or for the first pieces, to a row for each label."""
        sums = np.zeros((len(self.labels), *values.shape[1:]))
        for index, row in zip(self.indices, values, strict=False):
            if index >= 0:
                sums[index] += row
        return sums
