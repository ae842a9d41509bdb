"""`eval` of language models: how well a text is predicted, read as one stream whose state is carried to its end."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.preparation import make_corpus
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import Evaluation, EvaluationData, EvaluationSettings, Evaluator
from seqtool.metrics.bootstrap import FEW, Estimate, bootstrap, few, record_of
from seqtool.models.tokens import UNK
from seqtool.runtime.files import read_lines
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.tables import table
from seqtool.settings import declarations
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.predict.generator import Generator

LIKELIEST = 10  # symbols at each place, in a report
BLOCK = 100  # tokens that are resampled together, at most

Floats = NDArray[np.float64]


@dataclass
class TextEvaluation(Evaluation):
    """How well a text is predicted. The model treats all symbols that it does not know as one, so a text with many of
    them is predicted too well.

    name: of the text
    lines: with their ends
    ids: the tokens of each line
    token_nats: −log p of each token of the text
    expected: what was expected at each token (`predictor.expectations`); empty if not asked for
    """

    settings: EvaluationSettings
    name: str
    lines: Sequence[str]
    ids: Sequence[Sequence[int]]
    token_nats: Floats
    expected: Sequence[dict[str, Any]]

    def __post_init__(self) -> None:
        self.tokens = np.array([len(ids) for ids in self.ids], np.int64)
        self.characters = np.array([len(line) for line in self.lines], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.tokens)[:-1]])
        self.nats: Floats = np.add.reduceat(self.token_nats, self._starts)

    @cached_property
    def blocks(self) -> tuple[Floats, Floats] | None:
        """The nats and characters of blocks of equally many tokens, which are resampled if resampling lines would say
        nothing: because there are few of them for the length of the text, or one of them is most of it. A line's
        characters are shared among its tokens. None if lines will do.
        """
        nats, tokens, characters = self.token_nats, self.tokens, self.characters
        lines = len(tokens)
        if 2 * characters.max() <= characters.sum() and (lines >= FEW or len(nats) <= BLOCK * lines):
            return None
        starts = np.arange(0, len(nats), min(BLOCK, max(1, len(nats) // FEW)))
        shared = np.repeat(characters / np.maximum(tokens, 1), tokens)
        return np.add.reduceat(nats, starts), np.add.reduceat(shared, starts)

    @cached_property
    def bits(self) -> Estimate:
        """Bits per character; the interval comes from resampling lines, or blocks."""
        nats, characters = self.blocks or (self.nats, self.characters)

        def bits(segments: NDArray[np.int64]) -> float:
            return float(nats[segments].sum() / math.log(2) / characters[segments].sum())

        return bootstrap(bits, [np.arange(len(nats))], self.settings.bootstrap)

    @property
    def note(self) -> str:
        """What to say about the interval: nothing if it comes from enough lines."""
        if not self.settings.bootstrap:
            return ""
        if self.blocks is None:
            segments, number, reason = "lines", len(self.lines), ""
        else:
            segments, number = "blocks", len(self.blocks[0])
            reason = f"The interval is by {number:,} blocks of the text, which has few lines. "
        return (reason + (few(number, segments) if number < FEW else "")).strip()

    def record(self) -> dict[str, Any]:
        loss = float(self.nats.sum() / self.tokens.sum())
        return {
            "text": self.name,
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),
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
        return "\n".join([f"Text: {self.name}, as one stream", "", *table(header, [row]), *notes])

    def predicted(self) -> Iterator[Sequence[dict[str, Any]]]:
        """What was expected at the tokens of each line."""
        return (self.expected[start : start + count] for start, count in zip(self._starts, self.tokens, strict=True))

    def by_segment(self) -> Iterator[dict[str, Any]]:
        columns = zip(self.lines, self.nats, self.tokens, self.predicted(), strict=True)
        for number, (line, nats, tokens, predicted) in enumerate(columns, 1):
            record = {"line": number, "text": line, "nats": float(nats), "tokens": int(tokens)}
            yield {**record, "predicted": predicted} if self.expected else record

    @cached_property
    def _packed(self) -> report.Details:
        details = report.Details()
        for predicted in self.predicted():
            details.add(predicted=predicted)
        return details

    def details(self) -> Iterator[str]:
        return self._packed.chunks()

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        record, bits = self.record(), self.bits.text(4)
        rows = {name: f"{record[name]:,}" for name in ("tokens", "characters", "unknown")}
        rows |= {"nats a token": f"{record['loss']:.4f}", "perplexity": f"{record['perplexity']:.2f}"}
        rows |= {"nats a character": f"{record['nats_per_character']:.4f}", "bits a character": bits}
        rows |= {"interval": self.note} if self.note else {}
        nats_per_token = (self.nats / np.maximum(self.tokens, 1)).tolist()
        lines: report.Section = {
            "kind": "sentences",
            "title": "Lines",
            "systems": ["text"],
            "scores": [{"label": "nats a token", "digits": 3}],
            "sources": None,
            "names": None,
            "references": [[] for _ in self.lines],
            "hypotheses": [[line.rstrip("\n") for line in self.lines]],
            "values": [[[report.rounded(nats) for nats in nats_per_token]]],
            "flags": [[] for _ in self.lines],
            "details": self._packed.described(),
        }
        sections = [report.facts("Text", rows), lines]
        return f"{self.name}, read by a language model", f"{bits} bits a character", sections


class TextEvaluator(Evaluator):
    """Evaluates a language model on a file, or on a split of the data that it was trained with."""

    own, decoding = declarations.EvalTexts, declarations.ReadingMachine

    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        settings = self.settings
        if not checkpoint:
            yield "task=language_modelling needs checkpoint=PATH: a text by itself has no score."
        if settings.likeliest and settings.format != "jsonl" and settings.report is None:
            yield "likeliest= goes with format=jsonl or report=FILE.html."

    def of_checkpoint(self, predictor: "Generator", data: EvaluationData) -> TextEvaluation:
        settings = self.settings
        name, lines = self._read(predictor, data)
        ids = predictor.target_vocabulary.encode_batch(lines)
        stream = [token for of_line in ids for token in of_line]
        likeliest = settings.likeliest or (0 if settings.report is None else LIKELIEST)
        with progress_bar(total=len(stream), unit="token", description="eval") as bar:
            nats, expected = predictor.predicted(stream, bar.update, likeliest=likeliest)
        return TextEvaluation(settings, name, lines, ids, nats, expected)

    def _read(self, predictor: "Generator", data: EvaluationData) -> tuple[str, list[str]]:
        """The text's name, and its lines with their line ends."""
        settings = self.settings
        if settings.text is not None:
            return settings.text, list(read_lines(Path(settings.text), with_ends=True))
        corpus = data.corpus(PlainText, predictor)
        split = settings.split if settings.split in corpus.splits() or settings.split != "test" else "valid"
        if split != settings.split and data.checkpoint is not None:
            from seqtool.training import moved_data  # imports torch

            own = predictor.config["data"]
            kept = {str(name): own[name] for name in own if name not in moved_data.SOURCES}
            corpus = make_corpus(
                moved_data.data_settings(data.checkpoint, kept, split), PlainText, trusted=predictor.trust
            )
        if split not in corpus.splits():
            raise InputError(f"The text has no split '{split}'; it has {', '.join(corpus.splits())}.")
        if missing := [path for path in corpus.files()[split] if not path.exists()]:
            setting = split if predictor.config["data"].get(split) else "train"
            raise InputError(f"{missing[0]} does not exist: say where the text is, data.{setting}=FILE.")
        return f"the split {split}", list(corpus.lines(split))
