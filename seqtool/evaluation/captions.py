"""`eval` of captions: coco-caption's scores for files, or for a captioner's output on a split."""

import base64
import io
import json
import logging
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from seqtool.data.corpora.caption_files import Captions, check_captions, read_captions, records
from seqtool.data.corpora.corpus import ImageCorpus
from seqtool.data.images.finding import ImageNames, image_id
from seqtool.data.images.image_decoding import fit, read_image
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import (
    Evaluation,
    EvaluationData,
    Evaluator,
    Output,
    Segment,
    SystemsEvaluation,
    flags_of,
)
from seqtool.metrics.bootstrap import FEW, few
from seqtool.metrics.captions import TOKENIZERS, DocumentFrequencies, brevity, fitting_tokeniser, tokenized
from seqtool.metrics.java import java_scores
from seqtool.metrics.scores import CAPTIONING, labels_of, score
from seqtool.models.tokens import END
from seqtool.runtime.files import replacing, without_suffix
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.tables import columns
from seqtool.settings import declarations, names
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.predict.captioner import Captioner
    from seqtool.predict.likelihood import Likelihood

OTHER_LABELS = frozenset(  # in the record, besides those of the scores
    ("brevity_penalty", "length_ratio", "signature", "signatures", "intervals", "comparison", "likelihood")
)
LIKELIEST = 5  # tokens at each place, in a report
MOST_DRAWS = 10_000  # for each reference

SHOWN = 200  # pictures in a report
CONSIDERED = 5000  # pictures from which they are chosen, those of the first images
IN_ORDER = 12  # of the best, the worst, and those at random
SIDE = 224  # pixels of a picture that is read from a file
SMALL = 128  # up to this side a picture is kept as it is; a larger one as JPEG
QUALITY = 80

Caption = dict[str, Any]  # text, words, and with attention the grid and the packed weights

log = logging.getLogger(__name__)


@dataclass
class CaptionOutput(Output):
    """What a system wrote about images, and what a report shows of these: pictures, as addresses that hold their data,
    and captions, each with its words and attention.
    """

    pictures: dict[str, str] = field(default_factory=dict)
    captions: dict[str, Caption] = field(default_factory=dict)


@dataclass(kw_only=True)
class CaptionEvaluation(SystemsEvaluation):
    """Captions, scored.

    java: METEOR and SPICE (0–1) of each system, as far as they were asked for and are available
    warnings: sentences that a reader should know before trusting the scores
    likelihood: of the references, if asked for
    """

    outputs: Sequence[CaptionOutput]
    java: Sequence[Mapping[str, float]]
    warnings: list[str]
    likelihood: "Likelihood | None" = None

    task = CAPTIONING
    segment = "image"

    @property
    def lengths(self) -> dict[str, float]:
        """BLEU's brevity penalty, and the length ratio."""
        return brevity(self.system.statistics[0])

    def signatures(self) -> tuple[str, dict[str, str]]:
        """That of coco-caption's scores, and those of others, by label."""
        signatures = {score(name).label: self.system.signature(name) for name in self.system.values}
        first = next(iter(signatures.values()))
        return first, {label: signature for label, signature in signatures.items() if signature != first}

    def java_of_both(self) -> list[tuple[str, float, float]]:
        """Java's scores of the baseline and of the system, by name. They are not resampled: no intervals, no p."""
        system, *baseline = self.java
        return [(name, scores[name], value) for scores in baseline for name, value in system.items() if name in scores]

    def record(self) -> dict[str, Any]:
        signature, others = self.signatures()
        record: dict[str, Any] = {score(name).label: value for name, value in self.system.values.items()}
        record |= {**self.java[0], **self.lengths, "signature": signature}
        if others:
            record["signatures"] = others
        if self.likelihood is not None:
            record["likelihood"] = self.likelihood.record()
        if self.system.samples:
            record["intervals"] = {score(name).label: asdict(e) for name, e in self.system.estimates.items()}
        if self.comparison is not None:
            record["comparison"] = self.comparison.record()
            if java := {name: {"baseline": theirs, "system": ours} for name, theirs, ours in self.java_of_both()}:
                record["comparison"]["java"] = java
        return record

    def text(self) -> str:
        signature, others = self.signatures()
        rows = {score(name).label: e.text(score(name).digits) for name, e in self.system.estimates.items()}
        rows |= {name: f"{value:.4f}" for name, value in self.java[0].items()}
        lines = columns([("score", f"{len(self.segments):,} images"), *rows.items()])
        lines += ["", "brevity penalty {brevity_penalty:.3f}, length ratio {length_ratio:.3f}".format(**self.lengths)]
        lines += ["", signature, *(f"{label}: {other}" for label, other in others.items())]
        if self.likelihood is not None:
            lines += ["", *self.likelihood.lines()]
        lines += [f"Warning: {warning}" for warning in self.warnings]
        if self.comparison is not None:
            lines += ["", self.comparison.text()]
        for name, theirs, ours in self.java_of_both():
            difference = f"difference {ours - theirs:+.4f}, without p"
            lines.append(f"{name}: baseline {theirs:.4f}, system {ours:.4f}, {difference}")
        return "\n".join(lines)

    def by_segment(self) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(super().by_segment()):
            likelihood = {} if self.likelihood is None else {"likelihood": self.likelihood.of_image(number)}
            yield {**record, **likelihood}

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        rows: dict[str, float] = {}
        for title, scores in zip(self.systems, self.java, strict=True):
            owner = "" if scores is self.java[0] else f" of {title}"
            rows |= {f"{score(name).heading}{owner}": value for name, value in scores.items()}
        rows |= {name.replace("_", " "): value for name, value in self.lengths.items()}
        likelihood = self.likelihood
        sections = [
            self.score_table(),
            report.facts("Lengths and further scores", {name: f"{value:.4f}" for name, value in rows.items()}),
            None if likelihood is None else report.text("Likelihood of the references", likelihood.lines()),
            self.f1_of_words(),
            pictures(self, self.outputs),
            self.segment_table("Captions"),
        ]
        return f"Captions of {self.title}", f"{len(self.segments):,} images", sections


@dataclass
class SavedFrequencies(Evaluation):
    """What `save_document_frequencies=` wrote; it has no report."""

    frequencies: DocumentFrequencies
    file: str

    def record(self) -> dict[str, Any]:
        sizes = {"images": self.frequencies.images, "ngrams": len(self.frequencies.counts)}
        return {"document_frequencies": self.file, **sizes, "tokenize": self.frequencies.tokenize}

    def text(self) -> str:
        ngrams, images = len(self.frequencies.counts), self.frequencies.images
        return f"{self.file}: {ngrams:,} n-grams in the references of {images:,} images"


class CaptionEvaluator(Evaluator):
    """Evaluates a file of captions, or describes a split's images and evaluates that."""

    own, decoding = declarations.EvalCaptions, declarations.DecodeCaptions
    labels = labels_of(CAPTIONING) | OTHER_LABELS

    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        settings = self.settings
        if settings.tokenize not in (None, *TOKENIZERS):
            yield f"Unknown tokeniser '{settings.tokenize}'; choose from {', '.join(TOKENIZERS)}."
        if settings.bound is not None and not 1 <= settings.bound <= MOST_DRAWS:
            yield f"bound must be from 1 to {MOST_DRAWS:,}, not {settings.bound}."
        if settings.bound is not None and not checkpoint:
            yield "bound= goes with checkpoint=PATH, a captioner with attention."
        if settings.java and settings.format == "jsonl":
            yield "java=true scores all captions together: leave it out with format=jsonl."
        if settings.save_document_frequencies is not None:
            others = settings.hypotheses, settings.baseline, settings.document_frequencies, settings.output
            if {*others, settings.report} != {None} or len(settings.references) != 1 or checkpoint or settings.java:
                yield "save_document_frequencies=FILE goes with references=FILE alone."
            return
        if checkpoint == (settings.hypotheses is not None):
            yield "eval needs either checkpoint=PATH or hypotheses=FILE references=FILE."
        if checkpoint and settings.references:
            yield "references=FILE goes with hypotheses=FILE: with checkpoint=PATH the split is scored."
        if not checkpoint and len(settings.references) != 1:
            yield "Captions are scored against one file: references=FILE."
        if not checkpoint and settings.output is not None:
            yield "output= means nothing with hypotheses=."

    def of_files(self) -> Evaluation:
        """Captions, one per image, against references, which may be of further images: these are left out. Or, instead,
        the references' document frequencies.
        """
        settings, place = self.settings, self.settings.references[0]
        references = read_references(Path(place))
        if settings.save_document_frequencies is not None:
            check_references(references, name=place)
            tokenize, file = self._scoring(references)["tokenize"], Path(settings.save_document_frequencies)
            captions = [tokenized(image, tokenize) for image in references.values()]
            frequencies = DocumentFrequencies.count(captions, tokenize=tokenize, name=without_suffix(file.name))
            frequencies.save(file)
            return SavedFrequencies(frequencies, str(file))
        name = str(settings.hypotheses)
        warnings: list[str] = []
        outputs = [self._read(file, references) for file in (name, *names(settings.baseline))]
        hypotheses = outputs[0].hypotheses
        described = references.only(hypotheses)
        if 0 < len(described) < len(references):
            images = f"{len(described):,} of the {len(references):,} images of {place}"
            warnings.append(f"{name} has captions for {images}: only these are scored.")
            references = described
        check_images(hypotheses, references, hypotheses_name=name, references_name=place)
        if empty := [image for image in references if not hypotheses[image].strip()]:
            warnings.append(f"Empty captions of {name} are scored as such: {len(empty):,}, first that of {empty[0]}.")
        return self._evaluate(outputs, references, options=self._scoring(references), warnings=warnings)

    def of_checkpoint(self, predictor: "Captioner", data: EvaluationData) -> CaptionEvaluation:
        """Captions of a split's images against all references; reports and leaves out images that cannot be read."""
        settings = self.settings
        if settings.bound is not None:
            predictor.check_likelihood()
        corpus = data.corpus(ImageCorpus, predictor)
        data.check_files(corpus)
        if settings.split not in corpus.splits():
            raise InputError(f"Unknown split '{settings.split}'; this corpus has {', '.join(corpus.splits())}.")
        images = {str(image.file): image for image in corpus.images(settings.split)}
        references = Captions(
            {image.identifier: image.captions for image in images.values()},
            {file: image.identifier for file, image in images.items()},
        )
        baseline = [self._read(file, references) for file in names(settings.baseline)]
        output, options = CaptionOutput(predictor.name), self._scoring(references)
        details = output.details = None if settings.report is None else report.Details()
        asked: dict[str, Any] = {} if settings.report is None else {"likeliest": LIKELIEST}
        out = nullcontext() if settings.output is None else replacing(Path(settings.output))
        with out as file, progress_bar(total=len(images), unit="image", description="caption") as bar:
            for path, pixels, captions in predictor.caption_each(list(images), **asked):
                bar.update()
                if isinstance(captions, InputError):
                    tqdm.write(f"Left out: {captions}", file=sys.stderr)
                    continue
                best, image = captions[0], images[path].identifier
                output.hypotheses[image] = best.text
                if details is not None:
                    details.add(predicted=best.predicted)
                    output.flags.append(flags_of(best.text, ended=best.ended))
                    if len(output.pictures) < CONSIDERED:
                        output.pictures[image], output.captions[image] = (
                            address(pixels),
                            _caption(best.record(weights=True)),
                        )
            if file is not None:
                ids: dict[str, int | str] = {image: image_id(image) for image in output.hypotheses}
                if len(set(ids.values())) < len(ids):  # 000000000042.jpg and 000000000042.png
                    ids = {image: image for image in ids}
                results = [{"image_id": ids[image], "caption": text} for image, text in output.hypotheses.items()]
                file.write(json.dumps(results, ensure_ascii=False) + "\n")
        references = references.only(output.hypotheses)
        check_references(references, name="the references")
        others: dict[str, Any] = {} if settings.report is None else {"counts": data.word_counts(predictor)}
        if settings.bound is not None:
            files = [file for file, image in images.items() if image.identifier in references]
            others["likelihood"] = predictor.likelihood(files, list(references.values()), settings.bound)
        return self._evaluate([output, *baseline], references, options=options, warnings=[], **others)

    def _read(self, file: str, references: Captions[str]) -> CaptionOutput:
        """A system's captions. If there will be a report, also what it shows of them: words and attention as `caption
        format=jsonl` wrote them, and the pictures whose files are still there.
        """
        records = read_hypotheses(file, references)
        output = CaptionOutput(file, {image: str(record["text"]) for image, record in records.items()})
        for image, record in [] if self.settings.report is None else [*records.items()][:CONSIDERED]:
            output.captions[image] = _caption(record)
            if Path(record["file"]).is_file():
                with suppress(InputError):  # squeezed into a square, as `caption` does by default
                    output.pictures[image] = address(fit(read_image(record["file"]), size=SIDE, mode="squash"))
        return output

    def _scoring(self, references: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The tokeniser, and the document frequencies of a file, checked before anything is decoded."""
        tokenize = self.tokeniser(lambda: fitting_tokeniser(chain.from_iterable(references.values())))
        file = self.settings.document_frequencies
        frequencies = None if file is None else DocumentFrequencies.load(Path(file)).check(tokenize=tokenize)
        return {"tokenize": tokenize, "document_frequencies": frequencies}

    def _evaluate(
        self, outputs: Sequence[CaptionOutput], references: Captions[str], *, options: Mapping[str, Any], **others: Any
    ) -> CaptionEvaluation:
        """The evaluation on the images that have references here; a baseline may have described more.

        options: of the scorers (`_scoring`)
        others: further fields of the evaluation
        """
        settings = self.settings
        for output in outputs[1:]:
            described = dict.fromkeys(image for image in references if image in output.hypotheses)
            check_images(described, references, hypotheses_name=output.name)
        answers: list[tuple[dict[str, float], list[str]]] = [({}, []) for _ in outputs]
        if settings.java:
            texts = [{image: output.hypotheses[image] for image in references} for output in outputs]
            answers = [java_scores(captions, references, tokenize=options["tokenize"]) for captions in texts]
        java, problems = [scores for scores, _ in answers], answers[0][1]
        segments = [Segment(image, captions) for image, captions in references.items()]
        evaluation = CaptionEvaluation(
            settings=settings, segments=segments, outputs=outputs, options=options, java=java, **others
        )
        evaluation.warnings += [*(w for scorer in evaluation.system.scorers for w in scorer.warnings()), *problems]
        if settings.bootstrap and settings.baseline is not None and len(references) < FEW:
            evaluation.warnings.append(few(len(references), "images"))
        for warning in evaluation.warnings:
            log.warning(warning)
        return evaluation


def read_references(path: Path) -> Captions[str]:
    """Image → captions, from any file of captions."""
    entries = read_captions(path)
    check_captions(entry for of_image in entries.values() for entry in of_image if entry.own)
    captions = {image: [entry.caption for entry in of_image] for image, of_image in entries.items()}
    return Captions(captions, entries.others)


def read_hypotheses(file: str, references: Captions[str]) -> dict[str, dict[str, Any]]:
    """What a file says of each image's only caption: its `text`, what else `caption format=jsonl` wrote of its best
    one, and as `file` the image's name in the file; under the names that the images have in the references. InputError
    for an image with two captions.

    An image may have the same name in both, or one that is the end of the other's path (`photos/a.jpg` is `a.jpg`) in
    any normal form and case, or the number or name that it has in COCO's results. An image that is not among the
    references, or might be several of them, keeps its name.
    """
    captions: dict[str, list[dict[str, Any]]] = {}
    others: dict[str, str] = {}
    for record in records(Path(file)):
        entries = [{**record.best, "text": entry.caption, "file": entry.image} for entry in record.captions]
        captions.setdefault(record.image, []).extend(entries)
        others[record.other or record.image] = record.image
    if not captions:
        raise InputError(f"{file} has no captions.")
    for image, listed in captions.items():
        if len(listed) > 1:
            raise InputError(f"{file} has {len(listed)} captions for image {image}: expected one an image.")
    image_names = ImageNames([*references, *references.others])
    short: dict[str, set[str]] = {}
    for image in references:
        short.setdefault(_short(image), set()).add(image)
    further = {image: other for other, image in others.items()}

    def find(name: str) -> str | None:
        if name in references:
            return name
        alike = [name] if name in references.others else image_names.find(name)
        images = {references.others.get(other, other) for other in alike} & references.keys()
        images = images or short.get(_short(name), set())
        return next(iter(images)) if len(images) == 1 else None

    renamed: dict[str, dict[str, Any]] = {}
    called: dict[str, str] = {}
    for image, (caption,) in ((image, listed) for image, listed in captions.items() if listed):
        name = find(image) or find(further.get(image, image)) or image
        if name in renamed:
            raise InputError(f"{file} has captions for {called[name]} and {image}, which are both image {name}.")
        renamed[name], called[name] = caption, image
    return renamed


def check_images(
    hypotheses: Mapping[str, Any],
    references: Mapping[str, Sequence[str]],
    *,
    hypotheses_name: str = "the hypotheses",
    references_name: str = "the references",
) -> None:
    """Refuse captions and references of different images, saying how many have no counterpart and naming one."""
    check_references(references, name=references_name)
    missing = [image for image in references if image not in hypotheses]
    unknown = [image for image in hypotheses if image not in references]
    if unknown and len(missing) == len(references):
        raise InputError(
            f"{hypotheses_name} and {references_name} have no image in common: {hypotheses_name} has "
            f"{_count(unknown).rstrip(',')}; {references_name} has {_count(missing).rstrip(',')}."
        )
    if missing:
        raise InputError(
            f"{hypotheses_name} has no caption for {_count(missing)} of {references_name}: every image must have one."
        )
    if unknown:
        raise InputError(
            f"{hypotheses_name} has captions for {_count(unknown)} that {references_name} does not have: "
            "remove them, or give the references of the same images. An image that it has is called "
            f"{next(iter(references))} there."
        )


def check_references(references: Mapping[str, Sequence[str]], *, name: str) -> None:
    """Refuse references without images, and images without references."""
    if not references:
        raise InputError(f"{name} has no image: there is nothing to score.")
    if without := [image for image, captions in references.items() if not captions]:
        raise InputError(f"{name} has no caption for {_count(without)}: every image needs at least one.")


def _count(images: Sequence[str]) -> str:
    return f"image {images[0]}" if len(images) == 1 else f"{len(images):,} images, such as {images[0]},"


def _short(image: str) -> str:
    """COCO's number, or the name of the file without its directory."""
    return str(image_id(PurePosixPath(image).name))


def pictures(evaluation: SystemsEvaluation, outputs: Sequence[CaptionOutput]) -> report.Section:
    """Pictures with each system's caption; images of which there is no picture are left out."""
    addresses = ChainMap(*(output.pictures for output in outputs))
    labels, values = evaluation.scores_by_segment
    column = next((j for j, name in enumerate(evaluation.system.values) if name == "cider_d"), 0)
    segments = [(i, segment) for i, segment in enumerate(evaluation.segments) if segment.name in addresses]
    scores = [values[0][column][i] or 0.0 for i, _ in segments]
    ranked = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    drawn = np.random.default_rng(0).permutation(len(scores)).tolist()
    best, worst = ranked[:IN_ORDER], ranked[::-1][:IN_ORDER]
    shown = sorted([*dict.fromkeys([*best, *worst, *drawn])][:SHOWN])
    orders = {"best twelve": best, "worst twelve": worst, "random twelve": drawn[:IN_ORDER], "all": shown}
    cards = []
    for i, segment in (segments[place] for place in shown):
        image, captions = str(segment.name), []
        for output in outputs:
            text = output.hypotheses[image]
            captions.append(output.captions.get(image) or {"text": text, "words": text.split()})
        cards.append(
            {
                "name": image,
                "picture": addresses[image],
                "captions": captions,
                "references": list(segment.references),
                "values": [[of_score[i] for of_score in of_system] for of_system in values],
            }
        )
    numbers, by = {place: card for card, place in enumerate(shown)}, labels[column]["label"]
    count = f"{len(cards):,} of {len(evaluation.segments):,} images"
    return {
        "kind": "pictures",
        "title": "Pictures",
        "note": f"{count}: the best and the worst by {by}, and others at random.",
        "systems": list(evaluation.systems),
        "pictures": cards,
        "orders": {name: [numbers[place] for place in order] for name, order in orders.items()},
        "scores": labels,
    }


def address(pixels: NDArray[np.uint8]) -> str:
    """An image, size×size×3, as a data: address."""
    buffer, image = io.BytesIO(), Image.fromarray(pixels)
    kind, option = ("png", {"optimize": True}) if max(image.size) <= SMALL else ("jpeg", {"quality": QUALITY})
    image.save(buffer, kind, **option)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _caption(record: Mapping[str, Any]) -> Caption:
    """A caption from its record; what is damaged or missing in it is not shown."""
    text, words = str(record.get("text", "")), record.get("words")
    words = (list(map(str, words)) if isinstance(words, list) else []) or text.split()
    caption: Caption = {"text": text, "words": words}
    grid, rows, attended = record.get("grid"), record.get("attention"), record.get("attended")
    try:
        weights = np.asarray(rows, float)
        height, width = (int(side) for side in grid or ())
        chosen = [int(row) * width + int(column) for row, column in attended or ()] if record.get("hard") else None
    except (TypeError, ValueError, OverflowError):
        return caption
    fits = weights.ndim == 2 and weights.shape[1] == height * width and 0 <= len(weights) - len(words) <= 1
    if not fits or not np.isfinite(weights).all():
        return caption
    if len(weights) > len(words):
        words.append(END)
    caption |= {"grid": [height, width], "weights": report.rounded_weights(weights)}
    if chosen is not None:
        caption["chosen"] = chosen
    return caption
