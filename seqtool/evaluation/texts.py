"""`eval` of language models: measures how well they predict a text, read as one stream without state resets.

With `window`, the state is reset after each so many tokens, and only the last token before a window is known in it.
A model that was trained on lines as sequences of their own (`data.lines`) reads each line by itself, and predicts its
end, which counts as one character.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.preparation import make_corpus
from seqtool.errors import InputError, counted
from seqtool.evaluation import Evaluation, EvaluationData, EvaluationSettings, Evaluator
from seqtool.metrics.bootstrap import MIN_SEGMENTS, Draws, Estimate, estimate, record_of, resampled, too_few
from seqtool.models.tokens import BOS, EOS, UNK
from seqtool.runtime.files import read_lines
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.tables import table
from seqtool.settings import declarations
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.predict.generator import Generator

LIKELIEST_SYMBOLS = 10  # tokens that a report shows at each position, unless likeliest= is set
MAX_BLOCK_TOKENS = 100  # tokens in a block, if blocks are resampled instead of lines

Floats = NDArray[np.float64]


@dataclass
class TextEvaluation(Evaluation):
    """The scores of a language model's predictions of a text.

    All symbols outside the vocabulary are the same token, UNK, so a text with many of them seems easier to predict.
    """

    settings: EvaluationSettings  # the settings of `eval`
    name: str  # the name of the text
    lines: Sequence[str]  # the lines, with their line ends
    ids: Sequence[Sequence[int]]  # the token ids of each line; with EOS if it was read by itself
    token_nats: Floats  # −log p of each token of the text
    predictions: Sequence[dict[str, Any]]  # the likeliest tokens (`prediction_records`), if requested

    def __post_init__(self) -> None:
        self.tokens = np.array([len(ids) for ids in self.ids], np.int64)
        self.characters = np.array([len(line) for line in self.lines], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.tokens)[:-1]])
        self.nats: Floats = np.add.reduceat(self.token_nats, self._starts)

    @cached_property
    def blocks(self) -> tuple[Floats, Floats] | None:
        """The nats and the characters of each block of tokens; None if lines can be resampled instead.

        Lines cannot be resampled if one of them is more than half of the text, or if there are few lines and they are
        longer than a block on average. All blocks but the last have equally many tokens, and each token counts as an
        equal part of its line's characters.
        """
        nats, tokens, characters = self.token_nats, self.tokens, self.characters
        lines = len(tokens)
        has_enough_lines = lines >= MIN_SEGMENTS or len(nats) <= MAX_BLOCK_TOKENS * lines
        if has_enough_lines and 2 * characters.max() <= characters.sum():
            return None
        size = min(MAX_BLOCK_TOKENS, max(1, len(nats) // MIN_SEGMENTS))
        starts = np.arange(0, len(nats), size)
        characters_per_token = np.repeat(characters / np.maximum(tokens, 1), tokens)
        return np.add.reduceat(nats, starts), np.add.reduceat(characters_per_token, starts)

    @cached_property
    def bits(self) -> Estimate:
        """Bits per character, with an interval from resampling lines or blocks."""
        return estimate((bits := self.drawn()[1]["bits", ""])[0], bits[1:])

    def drawn(self) -> tuple[Sequence[Any], dict[tuple[str, str], Draws]]:
        nats, characters = self.blocks or (self.nats, self.characters)

        def bits_per_character(segments: NDArray[np.int64]) -> float:
            return float(nats[segments].sum() / math.log(2) / characters[segments].sum())

        segments = np.arange(len(nats))
        draws = resampled(bits_per_character, [segments], self.settings.bootstrap)
        units = self.lines if self.blocks is None else [hash(tuple(self.lines))] * len(nats)  # equal for equal texts
        return units, {("bits", ""): np.array([bits_per_character(segments), *draws])}

    @property
    def note(self) -> str:
        """A caveat about the interval; empty if there is no interval or if it comes from enough lines."""
        if not self.settings.bootstrap:
            return ""
        if self.blocks is None:
            segments, number, reason = "lines", len(self.lines), ""
        else:
            segments, number = "blocks", len(self.blocks[0])
            few = "has few lines" if len(self.lines) < MIN_SEGMENTS else "has a line that is more than half of it"
            reason = f"The interval is from resampling {counted(number, 'block')} of the text, which {few}. "
        return (reason + (too_few(number, segments) if number < MIN_SEGMENTS else "")).strip()

    @property
    def reading(self) -> str:
        """How the text was read."""
        if (window := self.settings.window) is not None:
            return f"in windows of {window:,} {'token' if window == 1 else 'tokens'}"
        return "line by line" if self.ids[0][-1:] == [EOS] else "as one stream"

    def record(self) -> dict[str, Any]:
        loss = float(self.nats.sum() / self.tokens.sum())
        return {
            "text": self.name,
            **({} if self.settings.window is None else {"window": self.settings.window}),
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),  # the exponential of more than 709 overflows
            "nats_per_character": float(self.nats.sum() / self.characters.sum()),
            "bits_per_character": record_of(self.bits),
            "tokens": int(self.tokens.sum()),
            "characters": int(self.characters.sum()),
            "unknown": sum(ids.count(UNK) for ids in self.ids),
        }

    def text(self) -> str:
        record = self.record()
        header = ("nats/token", "perplexity", "nats/character", "bits/character", "tokens", "characters", "unknown")
        row = (
            *(f"{record[name]:.4f}" for name in ("loss", "perplexity", "nats_per_character")),
            self.bits.text(4),
            *(f"{record[name]:,}" for name in ("tokens", "characters", "unknown")),
        )
        notes = ["", self.note] if self.note else []
        return "\n".join([f"Text: {self.name}, {self.reading}", "", *table(header, [row]), *notes])

    def predictions_by_line(self) -> Iterator[Sequence[dict[str, Any]]]:
        """Yield the likeliest tokens at each position, line by line."""
        return (self.predictions[start : start + count] for start, count in zip(self._starts, self.tokens, strict=True))

    def by_segment(self) -> Iterator[dict[str, Any]]:
        columns = zip(self.lines, self.nats, self.tokens, self.predictions_by_line(), strict=True)
        for number, (line, nats, tokens, predicted) in enumerate(columns, 1):
            record = {"line": number, "text": line, "nats": float(nats), "tokens": int(tokens)}
            yield {**record, "predicted": predicted} if self.predictions else record

    def details(self) -> Iterator[str]:
        details = report.Details()
        for predicted in self.predictions_by_line():
            details.add(predicted=predicted)
        return details.chunks()

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        record, bits = self.record(), self.bits.text(4)
        rows = {name: f"{record[name]:,}" for name in ("tokens", "characters", "unknown")}
        rows |= {"nats per token": f"{record['loss']:.4f}", "perplexity": f"{record['perplexity']:.2f}"}
        rows |= {"nats per character": f"{record['nats_per_character']:.4f}", "bits per character": bits}
        rows |= {"read": self.reading, **({"interval": self.note} if self.note else {})}
        nats_per_token = (self.nats / np.maximum(self.tokens, 1)).tolist()
        lines: report.Section = {
            "kind": "sentences",
            "title": "Lines",
            "systems": ["text"],
            "scores": [{"label": "nats per token", "digits": 3, "lower": True}],
            "sources": None,
            "names": None,
            "references": [[] for _ in self.lines],
            "hypotheses": [[line.rstrip("\n") for line in self.lines]],
            "values": [[[report.rounded(nats) for nats in nats_per_token]]],
            "flags": [[] for _ in self.lines],
            "details": {"size": report.SIZE},
        }
        sections = [report.facts("Text", rows), lines]
        return f"{self.name}, read by a language model", f"{bits} bits per character", sections


class TextEvaluator(Evaluator):
    """Evaluates a language model on a text file, or on a split of its data or of another corpus."""

    schema, decoding_schema = declarations.EvalTexts, declarations.InferenceMachine

    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        settings = self.settings
        if not checkpoint:
            yield "task=language_modelling needs checkpoint=PATH, the language model that scores the text."
        if settings.likeliest and settings.format != "jsonl" and settings.report is None:
            yield "likeliest= needs format=jsonl or report=FILE.html."

    def evaluate_checkpoint(self, predictor: "Generator", data: EvaluationData) -> TextEvaluation:
        settings = self.settings
        name, lines = self._read_text(predictor, data)
        ids = predictor.target_vocabulary.encode_batch(lines)
        if not any(ids):
            raise InputError(f"{name} has no text that could be scored.")
        if predictor.by_line:
            if settings.window is not None:
                raise InputError("window= is for a text that is read as one stream; this model reads each line alone.")
            lines, ids = [f"{line}\n" for line in lines], [[*tokens, EOS] for tokens in ids]
            sequences = [(tokens, BOS) for tokens in ids]
        else:
            stream = [*chain.from_iterable(ids)]
            size = settings.window or len(stream)
            starts = range(0, len(stream), size)
            sequences = [(stream[start : start + size], stream[start - 1] if start else BOS) for start in starts]
        likeliest = settings.likeliest or (0 if settings.report is None else LIKELIEST_SYMBOLS)
        with progress_bar(total=sum(map(len, ids)), unit="token", description="eval") as bar:
            results = [
                predictor.predict_tokens(tokens, bar.update, likeliest=likeliest, before=before)
                for tokens, before in sequences
            ]
        nats, predictions = zip(*results, strict=True)
        return TextEvaluation(settings, name, lines, ids, np.concatenate(nats), [*chain.from_iterable(predictions)])

    def _read_text(self, predictor: "Generator", data: EvaluationData) -> tuple[str, list[str]]:
        """Read the text. Returns its name and its lines, with line ends unless each is read by itself."""
        settings = self.settings
        if settings.text is not None:
            return settings.text, [*filter(None, read_lines(Path(settings.text), with_ends=not predictor.by_line))]
        corpus = data.corpus(PlainText, predictor)
        split = settings.split
        if split == "test" and split not in corpus.splits():
            split = "valid"
        if split != settings.split and data.checkpoint is not None:
            from seqtool.training import moved_data  # imports torch

            data_config = predictor.config["data"]
            overrides = {str(name): data_config[name] for name in data_config if name not in moved_data.SOURCES}
            data_config = moved_data.data_settings(data.checkpoint, overrides, split)
            corpus = make_corpus(data_config, PlainText, trusted=predictor.trust)
        if split not in corpus.splits():
            raise InputError(f"The text has no split '{split}'; it has {', '.join(corpus.splits())}.")
        if missing := [path for path in corpus.files[split] if not path.exists()]:
            setting = split if predictor.config["data"].get(split) else "train"
            raise InputError(f"{missing[0]} does not exist: give the path of the text as data.{setting}=FILE.")
        corpus.by_line = predictor.by_line  # other data, given by data=, may be set up otherwise
        return f"the split {split}", list(corpus.lines(split))
