"""`eval` of language models: how well a text is predicted, read as one stream whose state is carried to its end."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.plain_text import PlainText
from seqtool.errors import InputError
from seqtool.metrics.bootstrap import FEW, Estimate, bootstrap, few, known
from seqtool.metrics.tables import table
from seqtool.models.tokens import UNK
from seqtool.predict import evaluation_pages
from seqtool.predict.evaluation import Evaluation, Report
from seqtool.runtime.files import read_lines
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations
from seqtool.view.packing import Details

if TYPE_CHECKING:
    from seqtool.predict.generator import Generator
    from seqtool.training.checkpoint import Checkpoint

LIKELIEST = 10  # symbols at each place, in a report
BLOCK = 100  # tokens that are resampled together, at most


@dataclass(frozen=True)
class TextReport(Report):
    """The report on a text, by line: −log p in nats, tokens and characters; and how many symbols are unknown.
    predicted: of each line's tokens, if asked for, what was expected there (`predictor.expectation`). blocks: the nats
    and characters of equally many tokens each, if a text of hardly any lines is resampled by these.

    The model treats all unknown symbols as one, so a text with many of them is predicted too well.
    """

    name: str
    lines: Sequence[str]
    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]
    characters: NDArray[np.int64]
    unknown: int
    resamples: int
    predicted: Sequence[Sequence[dict[str, Any]]] | None = None
    blocks: "tuple[NDArray[np.float64], NDArray[np.float64]] | None" = None

    @cached_property
    def _packed(self) -> Details:
        details = Details()
        for predicted in self.predicted or ():
            details.add(predicted=predicted)
        return details

    def page(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return evaluation_pages.of_text(self, made, self._packed)

    def details(self) -> Iterator[str]:
        return self._packed.chunks()

    @cached_property
    def bits(self) -> Estimate:
        """Bits per character; the interval comes from resampling lines, or blocks."""
        nats, characters = self.blocks or (self.nats, self.characters)

        def bits(segments: NDArray[np.int64]) -> float:
            return float(nats[segments].sum() / math.log(2) / characters[segments].sum())

        return bootstrap(bits, [np.arange(len(nats))], self.resamples)

    @property
    def note(self) -> str:
        """What to know about the interval, if there is one: blocks for lines, or few of either."""
        segments, number = ("lines", len(self.lines)) if self.blocks is None else ("blocks", len(self.blocks[0]))
        why = "" if self.blocks is None else f"The interval is by {number:,} blocks of the text, which has few lines. "
        return (why + (few(number, segments) if number < FEW else "")).strip() if self.resamples else ""

    def record(self) -> dict[str, Any]:
        loss = float(self.nats.sum() / self.tokens.sum())
        return {
            "text": self.name,
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),
            "nats_per_character": float(self.nats.sum() / self.characters.sum()),
            "bits_per_character": asdict(self.bits, dict_factory=known),
            "tokens": int(self.tokens.sum()),
            "characters": int(self.characters.sum()),
            "unknown": self.unknown,
        }

    def text(self) -> str:
        found = self.record()
        header = ("nats/token", "perplexity", "nats/character", "bits/character", "tokens", "characters", "unknown")
        row = (
            *(f"{found[name]:.4f}" for name in ("loss", "perplexity", "nats_per_character")),
            self.bits.text(4),
            *(f"{found[name]:,}" for name in ("tokens", "characters", "unknown")),
        )
        notes = ["", self.note] if self.note else []
        return "\n".join([f"Text: {self.name}, as one stream", "", *table(header, [row]), *notes])

    def segments(self) -> Iterator[dict[str, Any]]:
        for number, (line, nats, tokens) in enumerate(zip(self.lines, self.nats, self.tokens, strict=True), start=1):
            found = {"line": number, "text": line, "nats": float(nats), "tokens": int(tokens)}
            yield found if self.predicted is None else {**found, "predicted": self.predicted[number - 1]}


@dataclass
class TextEvaluation(declarations.EvalTexts, Evaluation):
    """The `eval` settings of language models: a file, or a split of the data that a model was trained with."""

    @property
    def shows_tokens(self) -> bool:
        return self.format == "jsonl" or self.report is not None

    def rules(self, *, checkpoint: bool) -> Mapping[str, bool]:
        return {
            "task=language_modelling needs checkpoint=PATH: a text by itself has no score.": checkpoint,
            "likeliest= goes with format=jsonl or report=FILE.html.": not self.likeliest or self.shows_tokens,
        }

    def of_checkpoint(self, predictor: "Generator", data: DictConfig | None, found: "Checkpoint | None") -> TextReport:
        name, lines = self._lines(predictor, data, found)
        encoded = predictor.target_vocabulary.encode_batch(lines)
        tokens = np.array([len(ids) for ids in encoded], np.int64)
        with progress_bar(total=int(tokens.sum()), unit="token", description="eval") as bar:
            stream = [index for ids in encoded for index in ids]
            likeliest = self.likeliest or (LIKELIEST if self.report is not None else 0)
            nats, expected = predictor.predicted(stream, bar.update, likeliest=likeliest)
        starts = np.concatenate([[0], np.cumsum(tokens)[:-1]])
        predicted = None
        if likeliest:
            predicted = [expected[start : start + count] for start, count in zip(starts, tokens, strict=True)]
        characters = np.array(list(map(len, lines)), np.int64)
        return TextReport(
            name=name,
            lines=lines,
            nats=np.add.reduceat(nats, starts),
            tokens=tokens,
            characters=characters,
            blocks=_blocks(nats, tokens, characters),
            unknown=sum(ids.count(UNK) for ids in encoded),
            resamples=self.bootstrap,
            predicted=predicted,
        )

    def _lines(
        self, predictor: "Generator", data: DictConfig | None, found: "Checkpoint | None"
    ) -> tuple[str, list[str]]:
        """The text's name, and its lines with their line ends."""
        if self.text is not None:
            return self.text, list(read_lines(Path(self.text), with_ends=True))
        corpus = self.corpus(PlainText, predictor, data)
        split = self.split if self.split in corpus.splits() or self.split != "test" else "valid"
        if split != self.split and found is not None:
            from seqtool.training import moved_data  # imports torch

            own = predictor.config["data"]
            given = {str(name): own[name] for name in own if name not in moved_data.SOURCES}
            corpus = make_corpus(moved_data.data_settings(found, given, split), PlainText, trusted=predictor.trust)
        if split not in corpus.splits():
            raise InputError(f"The text has no split '{split}'; it has {', '.join(corpus.splits())}.")
        if gone := [path for path in corpus.files()[split] if not path.exists()]:
            named = split if predictor.config["data"].get(split) else "train"
            raise InputError(f"{gone[0]} does not exist: say where the text is, data.{named}=FILE.")
        return f"the split {split}", list(corpus.lines(split))


def _blocks(
    nats: NDArray[np.float64], tokens: NDArray[np.int64], characters: NDArray[np.int64]
) -> "tuple[NDArray[np.float64], NDArray[np.float64]] | None":
    """The nats and characters of blocks of tokens, if resampling lines would say nothing: because there are few of
    them for the length of the text, or one of them is most of it. A line's characters are shared among its tokens.
    """
    lines = len(tokens)
    if 2 * characters.max() <= characters.sum() and (lines >= FEW or len(nats) <= BLOCK * lines):
        return None
    starts = np.arange(0, len(nats), min(BLOCK, max(1, len(nats) // FEW)))
    return np.add.reduceat(nats, starts), np.add.reduceat(np.repeat(characters / np.maximum(tokens, 1), tokens), starts)
