"""Write the results of `translate`, `score` and `caption`: text, JSON lines or COCO results, alignments and plots."""

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TextIO, TypeVar

from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.data.images.finding import coco_id
from seqtool.data.text.alignment import format_pharaoh
from seqtool.data.text.words import SPLITS, analyse_writing
from seqtool.errors import InputError, counted, place
from seqtool.predict.predictor import Prediction, Predictor
from seqtool.predict.translator import Translation, Translator
from seqtool.runtime import distributed, files
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations, typed
from seqtool.view import plots

if TYPE_CHECKING:
    from seqtool.predict.captioner import Caption  # not imported for translation, which needs no image libraries

LINES_WITH_HEADS = 20  # the figures of all heads of a sentence take some seconds

P = TypeVar("P", bound=Prediction)


@dataclass
class OutputSettings(declarations.Output):
    """The settings of a command that concern its output."""

    @classmethod
    def of(cls, config: DictConfig, predictor: type[Predictor]) -> Self:
        """Make the output settings from a command's configuration: all settings that the predictor does not take."""
        predictor_settings = {"checkpoint", "trust", *predictor.default_settings()}
        settings = typed(cls, {str(name): value for name, value in config.items() if name not in predictor_settings})
        if frequencies := config.get("mbr_frequencies"):
            files.check_outputs({"output": settings.output}, [(f"mbr_frequencies={frequencies}", frequencies)])
        return settings

    def __post_init__(self) -> None:
        declarations.check_values(self)
        if self.weights and self.format != "jsonl":
            raise InputError("weights=true needs format=jsonl.")
        if self.likeliest and self.format != "jsonl":
            raise InputError("likeliest= needs format=jsonl.")
        if self.attribution and self.format != "jsonl" and self.plot is None:
            raise InputError("attribution= needs format=jsonl or plot=DIRECTORY.")
        if self.contrast is not None and self.attribution in (None, "attention"):
            raise InputError("contrast= needs attribution=gradient, integrated or occlusion.")
        if self.end and self.plot is None:
            raise InputError("end=true needs plot=DIRECTORY.")


class Writer(ABC, Generic[P]):
    """Writes the n best predictions for each source, in order, as text or JSON lines.

    Output files appear when they are complete; if the work is stopped, the finished part is kept in a file beside them.
    Only the first of several processes writes.
    """

    unit: ClassVar[str]  # what progress bars and messages call one source

    def __init__(self, settings: declarations.Output, predictor: Predictor) -> None:
        plots_attributions = "plot" if settings.attribution else None  # which need no attention
        names = [name for name, setting in declarations.declared(type(settings)).items() if setting.attention]
        set_names = [name for name in names if getattr(settings, name) not in (None, False)]
        attention_options = [f"{name}=…" for name in set_names if name != plots_attributions]
        attention_options += ["format=grid"] * (settings.format == "grid")
        if attention_options and not predictor.attends:
            reason = "reads only the text" if predictor.task == "language_modelling" else "has a fixed context"
            raise InputError(f"{attention_options[0]} needs a model with attention over a source; this one {reason}.")
        self.settings, self.predictor = settings, predictor
        self.plot = Path(settings.plot) if settings.plot is not None and distributed.is_first() else None
        self.count, self.has_contrast = 0, settings.contrast is None
        if settings.attribution:
            _ = predictor.plain_model  # refuses an ensemble before any work

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Open the writer's files within the context."""
        if self.plot is not None:
            files.check_directory(self.plot, "plot")
        with self.file(self.settings.output) as self.out:
            yield self
        if self.count and not self.has_contrast:
            print(f"contrast={self.settings.contrast} changed nothing: no output has the first word.", file=sys.stderr)
        if self.plot is not None and self.plot.is_dir():
            print(f"The figures are in {place(self.plot)}.", file=sys.stderr)

    def file(self, path: str | None) -> AbstractContextManager[TextIO]:
        """Open an output file; standard output if `path` is None or this is not the first process."""
        if path is None or not distributed.is_first():
            return nullcontext(sys.stdout)
        if self.settings.format == "coco":
            return files.replacing(Path(path))  # part of a JSON list cannot be used, so none is kept
        return files.keeping(Path(path), lambda: counted(self.count, self.unit))

    def progress(self, command: str, total: Callable[[], int | None], *, wanted: bool = True) -> tqdm:
        """Make a progress bar. It is hidden unless `wanted`, and if results are written to the same terminal."""
        shown = wanted and distributed.is_first() and not (self.settings.output is None and sys.stdout.isatty())
        return progress_bar(total=total() if shown else None, unit=self.unit, description=command, shown=shown)

    def write(self, source: str, n_best: Sequence[P]) -> None:
        """Write the n best predictions for the next source, with the attributions of the best on request, which are
        computed only by the first process.
        """
        best, settings = n_best[0], self.settings
        if settings.attribution and distributed.is_first() and (best.pieces or source):
            attribution = self.predictor.attribute(best, method=settings.attribution, contrast=settings.contrast)
            n_best = [replace(best, attribution=attribution), *n_best[1:]]
            self.has_contrast |= bool(attribution.contrast)
        text = self.text(source, n_best)
        self.count += 1  # Python handles no signal between this and the end of the call below
        self.out.write(text)
        if self.plot is not None and n_best[0].attribution is not None:
            file = self.plot / f"attribution-{self.count:04d}.{settings.figures}"
            with plots.optional_figure(file):
                n_best[0].attribution.by_word().plot(file)

    @abstractmethod
    def text(self, source: str, n_best: Sequence[P]) -> str:
        """The text to write for one source, newlines included."""

    def records(self, n_best: Sequence[P]) -> list[dict[str, Any]]:
        """The records of the n best predictions, for JSON."""
        return [prediction.record(weights=self.settings.weights) for prediction in n_best]

    def lines(self, source: str, n_best: Sequence[P], separator: str) -> str:
        """A line for each of the n best: source, text and score, and a mark if it was cut off at its maximum length."""
        fields = ((source, best.text, f"{best.score:.6f}", *[files.NOT_ENDED] * (not best.ended)) for best in n_best)
        return "".join(separator.join(line) + "\n" for line in fields)


class TranslationWriter(Writer[Translation]):
    """Writes translations, with alignments and plots on request."""

    unit = "line"
    settings: declarations.AlignedOutput

    def __init__(self, settings: declarations.AlignedOutput, predictor: Predictor) -> None:
        super().__init__(settings, predictor)
        if isinstance(predictor, Translator):
            predictor.split = SPLITS[settings.words]
        shows_words = settings.alignments is not None or settings.plot is not None or settings.format == "grid"
        self._warns_of_no_spaces = settings.words == "spaces" and shows_words

    @contextmanager
    def opened(self) -> Iterator[Self]:
        path = self.settings.alignments
        with super().opened(), nullcontext() if path is None else self.file(path) as self.links:
            yield self

    def warn_of_no_spaces(self, *columns: Iterable[str]) -> None:
        """Warn once if links and plots treat whole sentences as words because the texts have no spaces."""
        if self._warns_of_no_spaces and any(analyse_writing(column).has_no_spaces for column in columns):
            self._warns_of_no_spaces = False
            note = "A sentence without spaces counts as one word in links and plots: see words=characters."
            print(note, file=sys.stderr)

    def write(self, source: str, n_best: Sequence[Translation]) -> None:
        super().write(source, n_best)
        best = n_best[0]
        if self.links is not None:
            self.links.write(format_pharaoh(best.alignment or set()) + "\n")
        if self.plot is not None and self.predictor.attends:
            predictor: Any = self.predictor
            file = self.plot / f"alignment-{self.count:04d}.{self.settings.figures}"
            with plots.optional_figure(file):
                best.plot(file, end=self.settings.end, greyscale=self.settings.greyscale)
                if len(predictor.models) == 1 and self.count <= LINES_WITH_HEADS:
                    predictor.trace(best).plot_heads(self.plot, self.settings.figures, number=self.count)

    def flush(self) -> None:
        """Flush the files, so that each line can be read at once."""
        for stream in filter(None, (self.out, self.links)):
            stream.flush()

    def text(self, source: str, n_best: Sequence[Translation]) -> str:
        """One translation as a line, several as in Moses' n-best lists (sources numbered from 0), JSON, or grids."""
        if self.settings.format == "jsonl":
            record = {"source": source, **n_best[0].source_record(), "translations": self.records(n_best)}
            return files.finite_json(record) + "\n"
        if self.settings.format == "grid":
            return "".join(f"{source}\n{best.text}\n\n{best.grid}\n" for best in n_best)
        if self.predictor.settings.n_best == 1:
            return f"{n_best[0].text}\n"
        return self.lines(str(self.count), n_best, " ||| ")


class ScoreWriter(TranslationWriter):
    """Writes the log-probability of each scored text, whether it is a translation or not."""

    def text(self, source: str, n_best: Sequence[Any]) -> str:
        (prediction,) = n_best
        if self.settings.format == "text":
            return f"{prediction.log_probability:.4f}\n"
        record = {**prediction.inputs(), **prediction.scored_record(weights=self.settings.weights)}
        return files.finite_json(record) + "\n"


class CaptionWriter(Writer["Caption"]):
    """Writes captions, with plots of their attention on request."""

    unit = "image"

    def __init__(self, settings: OutputSettings, predictor: Predictor) -> None:
        super().__init__(settings, predictor)
        if settings.format == "coco" and predictor.settings.n_best != 1:
            raise InputError("format=coco allows one caption per image: leave n_best out, or choose format=jsonl.")
        self._results: list[dict[str, Any]] = []  # COCO's format is one JSON list

    @contextmanager
    def opened(self) -> Iterator[Self]:
        with super().opened():
            yield self
            if self.settings.format == "coco":
                self.out.write(files.finite_json(self._results) + "\n")

    def write_image(self, name: str, n_best: "Sequence[Caption]") -> None:
        """Write the captions of an image, and plot the attention of the best one over the image."""
        self.write(name, n_best)
        if self.plot is not None:
            stem = re.sub(r"[^\w.-]+", "_", files.without_suffix(PurePosixPath(name).name))[:80]
            file = self.plot / f"caption-{self.count:04d}-{stem}.{self.settings.figures}"
            with plots.optional_figure(file):
                n_best[0].plot(file, end=self.settings.end)
        self.out.flush()

    def text(self, source: str, n_best: "Sequence[Caption]") -> str:
        if self.settings.format == "coco":
            self._results.append({"image_id": coco_id(source), "caption": n_best[0].text})
            return ""
        if self.settings.format == "jsonl":
            return files.finite_json({"image": source, "captions": self.records(n_best)}) + "\n"
        if self.predictor.settings.n_best == 1:
            return f"{source}\t{n_best[0].text}\n"
        return self.lines(source, n_best, "\t")
