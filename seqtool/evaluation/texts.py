"""`eval` of language models: how well a text is predicted, read as one stream whose state is carried to its end."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.plain_text import PlainText
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import Evaluation
from seqtool.evaluation.evaluator import Evaluator, corpus_of
from seqtool.metrics.bootstrap import FEW, Estimate, bootstrap, few, record_of
from seqtool.metrics.tables import table
from seqtool.models.tokens import UNK
from seqtool.runtime.files import read_lines
from seqtool.runtime.progress import progress_bar
from seqtool.view import report
from seqtool.view.packing import Details
from seqtool.view.report import Section, rounded

if TYPE_CHECKING:
    from seqtool.predict.generator import Generator
    from seqtool.training.checkpoint import Checkpoint

LIKELIEST = 10  # symbols at each place, in a report
BLOCK = 100  # tokens that are resampled together, at most

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TextEvaluation(Evaluation):
    """How well a text is predicted, by line.

    name: of the text
    lines: with their ends
    nats, tokens, characters: of each line; nats are −log p
    unknown: how many symbols the model does not know. It treats all of them as one, so a text with many is predicted
        too well
    resamples: for the interval
    predicted: of each line's tokens, what was expected there (`predictor.expectation`); None if not asked for
    blocks: nats and characters of blocks of tokens, if these are resampled in place of lines
    """

    name: str
    lines: Sequence[str]
    nats: Floats
    tokens: Integers
    characters: Integers
    unknown: int
    resamples: int
    blocks: tuple[Floats, Floats] | None
    predicted: Sequence[Sequence[dict[str, Any]]] | None

    @cached_property
    def bits(self) -> Estimate:
        """Bits per character; the interval comes from resampling lines, or blocks."""
        nats, characters = self.blocks or (self.nats, self.characters)

        def bits(segments: Integers) -> float:
            return float(nats[segments].sum() / math.log(2) / characters[segments].sum())

        return bootstrap(bits, [np.arange(len(nats))], self.resamples)

    @property
    def note(self) -> str:
        """What to say about the interval: nothing if it comes from enough lines."""
        if not self.resamples:
            return ""
        if self.blocks is None:
            segments, number, reason = "lines", len(self.nats), ""
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
            "unknown": self.unknown,
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

    def by_segment(self) -> Iterator[dict[str, Any]]:
        for number, (text, nats, tokens) in enumerate(zip(self.lines, self.nats, self.tokens, strict=True), start=1):
            record = {"line": number, "text": text, "nats": float(nats), "tokens": int(tokens)}
            yield record if self.predicted is None else {**record, "predicted": self.predicted[number - 1]}

    @cached_property
    def _packed(self) -> Details:
        details = Details()
        for predicted in self.predicted or ():
            details.add(predicted=predicted)
        return details

    def details(self) -> Iterator[str]:
        return self._packed.chunks()

    def page(self) -> tuple[str, str, Sequence[Section | None]]:
        record = self.record()
        rows = {name: f"{record[name]:,}" for name in ("tokens", "characters", "unknown")}
        rows |= {"nats a token": f"{record['loss']:.4f}", "perplexity": f"{record['perplexity']:.2f}"}
        rows |= {"nats a character": f"{record['nats_per_character']:.4f}", "bits a character": self.bits.text(4)}
        rows |= {"interval": self.note} if self.note else {}
        table_of_lines: Section = {
            "kind": "sentences",
            "title": "Lines",
            "systems": ["text"],
            "scores": [{"label": "nats a token", "digits": 3}],
            "sources": None,
            "names": None,
            "references": [[] for _ in self.lines],
            "hypotheses": [[text.rstrip("\n") for text in self.lines]],
            "values": [[[rounded(nats) for nats in (self.nats / np.maximum(self.tokens, 1)).tolist()]]],
            "flags": [[] for _ in self.lines],
            "details": self._packed.described(),
        }
        title, subtitle = f"{self.name}, read by a language model", f"{self.bits.text(4)} bits a character"
        return title, subtitle, [report.facts("Text", rows), table_of_lines]


class TextEvaluator(Evaluator):
    """Evaluates a language model on a file, or on a split of the data that it was trained with."""

    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        settings = self.settings
        if not checkpoint:
            yield "task=language_modelling needs checkpoint=PATH: a text by itself has no score."
        if settings.likeliest < 0:
            yield f"likeliest must be at least 0, not {settings.likeliest}."
        if settings.likeliest and settings.format != "jsonl" and settings.report is None:
            yield "likeliest= goes with format=jsonl or report=FILE.html."

    def of_checkpoint(
        self, predictor: "Generator", data: DictConfig | None, checkpoint: "Checkpoint | None" = None
    ) -> TextEvaluation:
        settings = self.settings
        name, lines = self._read(predictor, data, checkpoint)
        encoded = predictor.target_vocabulary.encode_batch(lines)
        tokens = np.array([len(ids) for ids in encoded], np.int64)
        likeliest = settings.likeliest or (0 if settings.report is None else LIKELIEST)
        with progress_bar(total=int(tokens.sum()), unit="token", description="eval") as bar:
            stream = [token for ids in encoded for token in ids]
            nats, expected = predictor.predicted(stream, bar.update, likeliest=likeliest)
        starts = np.concatenate([[0], np.cumsum(tokens)[:-1]])
        predicted = None
        if likeliest:
            predicted = [expected[start : start + count] for start, count in zip(starts, tokens, strict=True)]
        characters = np.array(list(map(len, lines)), np.int64)
        return TextEvaluation(
            name=name,
            lines=lines,
            nats=np.add.reduceat(nats, starts),
            tokens=tokens,
            characters=characters,
            unknown=sum(ids.count(UNK) for ids in encoded),
            resamples=settings.bootstrap,
            blocks=_blocks(nats, tokens, characters),
            predicted=predicted,
        )

    def _read(
        self, predictor: "Generator", data: DictConfig | None, checkpoint: "Checkpoint | None"
    ) -> tuple[str, list[str]]:
        """The text's name, and its lines with their line ends."""
        settings = self.settings
        if settings.text is not None:
            return settings.text, list(read_lines(Path(settings.text), with_ends=True))
        corpus = corpus_of(PlainText, predictor, data)
        split = settings.split if settings.split in corpus.splits() or settings.split != "test" else "valid"
        if split != settings.split and checkpoint is not None:
            from seqtool.training import moved_data  # imports torch

            own = predictor.config["data"]
            kept = {str(name): own[name] for name in own if name not in moved_data.SOURCES}
            corpus = make_corpus(moved_data.data_settings(checkpoint, kept, split), PlainText, trusted=predictor.trust)
        if split not in corpus.splits():
            raise InputError(f"The text has no split '{split}'; it has {', '.join(corpus.splits())}.")
        if missing := [path for path in corpus.files()[split] if not path.exists()]:
            setting = split if predictor.config["data"].get(split) else "train"
            raise InputError(f"{missing[0]} does not exist: say where the text is, data.{setting}=FILE.")
        return f"the split {split}", list(corpus.lines(split))


def _blocks(nats: Floats, tokens: Integers, characters: Integers) -> tuple[Floats, Floats] | None:
    """The nats and characters of blocks of equally many tokens, which are resampled if resampling lines would say
    nothing: because there are few of them for the length of the text, or one of them is most of it. A line's characters
    are shared among its tokens. None if lines will do.
    """
    lines = len(tokens)
    if 2 * characters.max() <= characters.sum() and (lines >= FEW or len(nats) <= BLOCK * lines):
        return None
    starts = np.arange(0, len(nats), min(BLOCK, max(1, len(nats) // FEW)))
    return np.add.reduceat(nats, starts), np.add.reduceat(np.repeat(characters / np.maximum(tokens, 1), tokens), starts)
