"""`Attribution`: how much each predicted token depends on the source and on the tokens before it.

What is explained is log p(y_t | y_<t, source) in nats or, with a contrast, log p(y_t | …) − log p(other | …): why the
model predicts this token rather than another (Yin & Neubig 2022). The methods:

gradient     gradient × input: the vector of a word or of an image's location times the gradient with respect to it
             (Denil et al. 2014)
integrated   integrated gradients (Sundararajan et al. 2017): the vector's difference from a baseline, times the mean
             gradient on the straight line from the baseline. The baseline is the mean embedding of the vocabulary for
             words, and the mean annotation vector of the image for locations, or 0 if there is only one. With enough
             steps, the attributions of a token to the source and to the text add up to what is explained minus its
             value at the baseline.
occlusion    what is explained, minus its value after a token is taken out of the source or of the text, or after a
             location's annotation vector is replaced by the same baseline. The source's <end> and the text's <begin>
             cannot be taken out: their attributions are NaN.
attention    the attention to the source, for comparison
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from seqtool.data.text.alignment import SPACE, word_attention
from seqtool.data.text.words import PUNCTUATION
from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder
from seqtool.models.tokens import BOS, END, EOS, UNK
from seqtool.predict.trace import BEGIN, Example, as_input
from seqtool.runtime.progress import progress_bar
from seqtool.settings.declarations import METHOD, at_least
from seqtool.view import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqtool.predict.predictor import EncodedText

STEPS = 64  # points on the line; 20 to 300 are enough for an error of 5 % (Sundararajan et al. 2017, section 5)
ROWS = 64  # the number of variants of a text that the model reads at once

Array = NDArray[np.float64]
Contrast = Mapping[int, str] | str | None
Sides = dict[str, Tensor]  # tensors about the `source`, which language models lack, and the `prefix`, the tokens read
NULL = np.array(None)  # as an array, so that NumPy's types allow it in `where`
EMBEDDINGS = {"source": "source_embedding.weight", "prefix": "target_embedding.weight"}


@dataclass(frozen=True, eq=False)
class Attribution:
    """The attributions of T predicted tokens in nats or, with the method attention, attention weights.

    example: what the model read; `by_word` splits its texts
    tokens: the tokens that are predicted: the pieces of the text and, if it ends, <end>; language models predict no end
    read: the tokens that are read, one before each of them: <begin> and pieces of the text
    explained: the log-probability of each token or, with a contrast, the difference
    contrast: the token, or the word to which it belongs, that a token is compared with, by the token's position from 0
    source: attributions to the source, T×S; None for language models
    prefix: attributions to the text: [t, j] is about the token that is read at step j, and is 0 for j > t; None with
        the method attention
    baseline: the value of `explained` at the baseline of integrated gradients; None with other methods
    source_tokens: the pieces of the source and <end>; None unless it is a sentence
    """

    example: Example
    method: str
    tokens: list[str]
    read: list[str]
    explained: Array
    contrast: dict[int, str]
    source: Array | None = None
    prefix: Array | None = None
    baseline: Array | None = None
    source_tokens: list[str] | None = None

    @classmethod
    def of(cls, model: Any, example: Example, method: str, contrast: Contrast = None, steps: int = STEPS) -> Self:
        """Explain each token of an example's text.

        model: a model of plain parts, in eval mode
        method: a name in `METHODS`
        contrast: pieces to compare tokens with, by the token's position from 0. Or dog/cat: wherever the text has the
            word dog, the first piece that would differ with cat in its place is compared with that piece
        steps: the number of points of integrated gradients

        Raises InputError for an unknown method or piece, and if the method does not suit the model.
        """
        if problem := METHOD.problem("method", method) or at_least(1).problem("steps", steps):
            raise InputError(f"{problem}.")
        positions = contrast if isinstance(contrast, Mapping) else {0: contrast or ""}
        if not all(isinstance(t, int | np.integer) and isinstance(piece, str) for t, piece in positions.items()):
            raise InputError("contrast must be WORD/OTHER, such as dog/cat, or pieces by the tokens' positions from 0.")
        text, source = example.text, example.source
        end = [END] * (source is not None and text.ended)  # language models predict no end
        tokens, labels = [*text.pieces, *end], [*text.ids, EOS][: len(text.ids) + len(end)]
        if not tokens:
            raise InputError("The text is empty: there is no token to explain.")
        if isinstance(contrast, str):
            others = {t: other for t, other in other_words(contrast, text).items() if t < len(labels)}
        else:
            others = {t: _other_token(piece, t, tokens, text) for t, piece in (contrast or {}).items()}
        read = torch.tensor([BOS, *text.ids][: len(labels)], device=model.target_embedding.weight.device)
        inputs = {"prefix": read} if source is None else {"source": source, "prefix": read}
        question = Question(model, inputs, labels, others, steps if method == "integrated" else None)
        with torch.no_grad():
            maps = {"explained": question.values_once(inputs), **METHODS[method](question)}
        arrays: dict[str, Any] = {name: values.cpu().double().numpy() for name, values in maps.items()}
        word = contrast.partition("/")[2] if isinstance(contrast, str) else ""
        names = {t: END if other == EOS else text.vocabulary.piece(other) for t, other in others.items()}
        arrays["contrast"] = {t: word or name for t, name in names.items()}
        if example.source_text is not None:
            arrays["source_tokens"] = [*example.source_text.pieces, END]
        return cls(example, method, tokens, [BEGIN, *tokens][: len(read)], **arrays)

    def by_word(self) -> Self:
        """The attributions between words: sums over the pieces of both, since the log-probabilities of its pieces add
        up to that of a word. Attention is averaged over the pieces of a predicted word. White space after the last word
        belongs to no word.
        """
        text, source_text = self.example.text, self.example.source_text
        words = [*text.words, *self.tokens[len(text.pieces) :]]
        rows = [*text.word_indices, len(text.words)][: len(self.tokens)]
        read = [0, *(index + 1 or -1 for index in text.word_indices)][: len(self.read)]
        columns, source_words = [*range(0 if self.source is None else self.source.shape[1])], None
        if source_text is not None:
            source_words = [*source_text.words, END]
            columns = [*source_text.word_indices, len(source_words) - 1]

        def merge(values: Array | None, columns: Sequence[int], *, mean: bool = False) -> Any:
            if values is None:
                return None
            shape = len(words), max(columns) + 1
            is_nan = word_attention(np.isnan(values), columns, rows, shape) > 0
            return np.where(is_nan, np.nan, word_attention(np.nan_to_num(values), columns, rows, shape, mean=mean))

        return replace(
            self,
            tokens=words,
            read=[BEGIN, *text.words][: max(read) + 1],
            explained=merge(self.explained[:, None], [0])[:, 0],
            contrast={rows[t]: piece for t, piece in self.contrast.items() if rows[t] >= 0},
            source=merge(self.source, columns, mean=self.method == "attention"),
            prefix=merge(self.prefix, read),
            baseline=None if self.baseline is None else merge(self.baseline[:, None], [0])[:, 0],
            source_tokens=source_words,
        )

    def record(self) -> dict[str, Any]:
        """The record for JSON, in which null stands for NaN, and for a token without a contrast."""
        contrast = [self.contrast.get(t) for t in range(len(self.tokens))] if self.contrast else None
        record: dict[str, Any] = {"method": self.method, "tokens": self.tokens, "read": self.read, "contrast": contrast}
        record |= {"source_tokens": self.source_tokens, "grid": self.example.grid}
        for name in ("explained", "baseline", "source", "prefix"):
            if (values := getattr(self, name)) is not None:
                record[name] = np.where(np.isnan(values), NULL, values.round(6)).tolist()
        return {name: value for name, value in record.items() if value is not None}

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw a heat map, with what is read at the top and the predicted tokens at the left; blue speaks for a token
        and red against it. What is read only after a token is grey, as is, between words, the word itself, whose pieces
        depend on each other. An image is drawn once for each token, under the same colours.

        path: the PNG, SVG or PDF file to write, if any
        """
        contrasted = ([token, *filter(None, [self.contrast.get(t)])] for t, token in enumerate(self.tokens))
        labels = [", not ".join(tokens).replace(SPACE, "") for tokens in contrasted]
        grid, pixels = self.example.grid, self.example.pixels
        if self.source is not None and grid is not None and pixels is not None:
            look = None if self.method == "attention" else plots.signed(self.source)
            maps = self.source.reshape(-1, *grid)
            return plots.attention_over_image(pixels, labels, maps, path, chosen=None, look=look)
        source_tokens = self.source_tokens or []
        if self.source is not None and self.prefix is None:
            return plots.alignment(self.source, source_tokens, labels, path)
        assert self.prefix is not None  # only attention, which is to a source, leaves it out
        prefix = np.where(np.tri(*self.prefix.shape) > 0, self.prefix, np.nan)
        values = prefix if self.source is None else np.hstack([self.source, prefix])
        sides = {"xlabel": "source, and the text before" if source_tokens else "the text before", "ylabel": "predicted"}
        look, bar = plots.signed(values), {"label": "attribution in nats"}
        return plots.heat_map(values, [*source_tokens, *self.read], labels, path, sides=sides, look=look, bar=bar)


@dataclass(frozen=True)
class Question:
    """What is to be explained: how a model predicts the tokens of a text."""

    model: EncoderDecoder[Any]
    inputs: Sides  # S ids of a sentence, or S×D annotation vectors; and the T ids that are read, from BOS on
    labels: Sequence[int]  # the T tokens that are predicted
    others: Mapping[int, int]  # the tokens that they are compared with, by position
    steps: int | None  # the number of points of integrated gradients; None for the gradient at the inputs

    def run(self, rows: Sides) -> Any:
        """Return the model's `Output` for N rows of ids, of annotation vectors or of words' vectors.

        Each vector of a word has an entry of its own, after the special tokens, in a table of embeddings. So it is
        found in whatever order, and however often, the model looks up its words.
        """
        inputs, tables = dict(rows), {}
        for side, x in rows.items():
            if x.is_floating_point() and not self.inputs[side].is_floating_point():
                special = self.model.get_parameter(EMBEDDINGS[side])[: EOS + 1].detach()
                tables[EMBEDDINGS[side]] = torch.cat([special, x.flatten(0, 1)])
                inputs[side] = EOS + 1 + torch.arange(x.shape[:2].numel(), device=x.device).view(x.shape[:2])
        arguments = as_input(inputs.get("source")), inputs["prefix"]
        return functional_call(self.model, tables, arguments, tie_weights=False)

    def values(self, rows: Sides, first: int = 0) -> Iterator[Tensor]:
        """Yield what is explained about each token from `first` on, N, from rows that `run` takes."""
        for t, x in enumerate(self.run(rows).features.unbind(1), first):
            log_p = self.model.project(x).log_softmax(-1)
            yield log_p[:, self.labels[t]] - (log_p[:, self.others[t]] if t in self.others else 0)

    def values_once(self, inputs: Sides) -> Tensor:
        """Return what is explained about each token, T, from inputs of one row."""
        return torch.cat([*self.values({side: x[None] for side, x in inputs.items()})])


def _gradients(question: Question) -> Sides:
    """Return (x − b) times the mean of ∂/∂x at points b + p (x − b), for vectors x. Without `steps`, b is 0 and p is 1.

    Raises InputError if the model does not read words by their embeddings alone.
    """
    vectors, starts, points = {}, {}, torch.ones(1)  # one point, which is x, if b is 0
    for side, x in question.inputs.items():
        is_image = x.is_floating_point()
        table = x if is_image else question.model.get_parameter(EMBEDDINGS[side]).detach()
        vectors[side] = x if is_image else table[x]
        starts[side] = (question.steps is not None and len(table) > 1) * table.mean(0).expand_as(vectors[side])
    if not torch.allclose(question.values_once(vectors), question.values_once(question.inputs), rtol=1e-3, atol=1e-4):
        name = type(question.model).__name__
        raise InputError(f"{name} does not read words by their embeddings alone: choose the method occlusion.")
    differences = {side: x - starts[side] for side, x in vectors.items()}
    maps = {side: x.new_zeros(len(question.labels), len(x)) for side, x in vectors.items()}
    if question.steps is not None:
        points = (torch.arange(question.steps) + 0.5) / question.steps
        maps["baseline"] = question.values_once(starts)
    chunks = torch.split(points, ROWS)
    total = len(chunks) * len(question.labels)
    # shown for texts that take longer than 2 seconds; below another bar it disappears at the end
    options: dict[str, Any] = {"description": "attribution", "delay": 2, "leave": None}
    with torch.enable_grad(), progress_bar(total=total, unit="token", **options) as bar:
        for chunk in chunks:
            p = chunk[:, None, None].to(vectors["prefix"])
            rows = {side: (starts[side] + p * x).requires_grad_() for side, x in differences.items()}
            for t, value in enumerate(question.values(rows)):
                mean = value.sum() / len(points)
                gradients = torch.autograd.grad(mean, [*rows.values()], retain_graph=True, materialize_grads=True)
                for side, gradient in zip(rows, gradients, strict=True):
                    maps[side][t] += (gradient.sum(0) * differences[side]).sum(-1)
                bar.update()
    return maps


def _occlusion(question: Question) -> Sides:
    whole, maps = question.values_once(question.inputs), {}
    for side, x in question.inputs.items():
        first, is_image = int(side == "prefix"), x.is_floating_point()
        replacement = (len(x) > 1) * x.mean(0, keepdim=True) if is_image else x[:0]
        places = range(first, len(x) - (side == "source" and not is_image))  # BOS and the source's EOS are left in
        maps[side] = whole.new_full((len(whole), len(x)), torch.nan)
        for start in range(0, len(places), ROWS):
            chunk = places[start : start + ROWS]
            variants = torch.stack([torch.cat([x[:j], replacement, x[j + 1 :]]) for j in chunk])
            rows = {other: y.expand(len(chunk), *y.shape) for other, y in question.inputs.items()} | {side: variants}
            # without an earlier token of the text, token t is predicted at step t − 1
            maps[side][first:, list(chunk)] = whole[first:, None] - torch.stack([*question.values(rows, first)])
    maps["prefix"] = maps["prefix"].tril()
    return maps


def _attention(question: Question) -> Sides:
    attention = question.run({side: x[None] for side, x in question.inputs.items()}).attention
    if attention is None:
        raise InputError(
            f"{type(question.model).__name__} does not attend to a source: choose from {', '.join([*METHODS][:-1])}."
        )
    if question.others:
        raise InputError("Attention has no contrast, since it is the same for every next token: leave out contrast.")
    return {"source": attention[0]}


METHODS = {"gradient": _gradients, "integrated": _gradients, "occlusion": _occlusion, "attention": _attention}


def other_words(contrast: str, text: "EncodedText") -> dict[int, int]:
    """The first token of OTHER that differs from WORD in a contrast WORD/OTHER, by its position for each WORD."""
    word, _, other = contrast.partition("/")
    ids, other_ids = text.vocabulary.encode(word), text.vocabulary.encode(other)
    if UNK in other_ids:
        raise InputError(f"contrast={contrast}: the vocabulary has no '{other}'.")
    if not word.strip() or not other_ids or ids == other_ids:
        raise InputError(f"contrast={contrast} must be WORD/OTHER, such as dog/cat.")
    tokens, n = [*text.ids, EOS], len(ids)
    starts = [t for t in range(len(text.ids) - n + 1) if tokens[t : t + n] == ids]
    starts = [t for t in starts if text.words[text.word_indices[t + n - 1]].strip(PUNCTUATION) == word]
    changes = (enumerate(zip(tokens[t:], other_ids + tokens[t + n :], strict=False), t) for t in starts)
    return dict(next((k, other) for k, (token, other) in change if token != other) for change in changes)


def _other_token(piece: str, t: int, tokens: Sequence[str], text: "EncodedText") -> int:
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
