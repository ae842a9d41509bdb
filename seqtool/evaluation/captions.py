"""`eval` of captions: coco-caption's scores of a file of captions, or of a captioner's output on a split."""

import base64
import io
import json
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from seqtool.data.corpora.caption_files import Captions, check_captions, read_captions, records
from seqtool.data.corpora.corpus import ImageCorpus
from seqtool.data.images.finding import ImageNames, coco_id, image_id
from seqtool.data.images.image_decoding import fit, read_image
from seqtool.errors import InputError, counted
from seqtool.evaluation import Evaluation, EvaluationData, Evaluator, Output, Segment, SystemsEvaluation, find_flags
from seqtool.metrics.bootstrap import MIN_SEGMENTS, too_few
from seqtool.metrics.captions import TOKENIZERS, DocumentFrequencies, brevity, fitting_tokeniser, tokenize_captions
from seqtool.metrics.java import java_scores
from seqtool.metrics.scores import CAPTIONING, labels_of, score
from seqtool.models.tokens import END
from seqtool.runtime.files import replacing, without_suffix
from seqtool.runtime.log import log
from seqtool.runtime.progress import progress_bar
from seqtool.runtime.tables import columns
from seqtool.settings import declarations, names
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.predict.captioner import Captioner
    from seqtool.predict.likelihood import Likelihood

OTHER_KEYS = frozenset(  # the keys of the record besides the labels of the scores
    ("brevity_penalty", "length_ratio", "signature", "signatures", "intervals", "comparison", "likelihood")
)
LIKELIEST_TOKENS = 5  # tokens that a report shows at each position of a caption
MAX_BOUND_SAMPLES = 10_000  # samples for each reference

MAX_PICTURES = 200  # pictures in a report
PICTURE_CANDIDATES = 5000  # the pictures are chosen from this many images at the beginning of the test set
PICTURES_PER_ORDER = 12  # pictures that each order (best, worst, random) shows
PICTURE_SIZE = 224  # side in pixels of a picture that is read from a file
MAX_PNG_SIZE = 128  # pixels; pictures with a longer side are stored as JPEG
JPEG_QUALITY = 80  # out of 100; Pillow's default is 75

Caption = dict[str, Any]  # "text", "words"; with attention "grid", rounded "weights", and "chosen" if it is hard


@dataclass
class CaptionOutput(Output):
    """A system's captions, and for a report also pictures and attention."""

    pictures: dict[str, str] = field(default_factory=dict)  # data URLs of the pictures, by image
    captions: dict[str, Caption] = field(default_factory=dict)  # the captions with their words and attention, by image


@dataclass(kw_only=True)
class CaptionEvaluation(SystemsEvaluation):
    """The scores of captions."""

    outputs: Sequence[CaptionOutput]
    meteor_and_spice: Sequence[Mapping[str, float]]  # of each system (0–1), if they were requested and are available
    likelihood: "Likelihood | None" = None  # the likelihood of the references; None if it was not requested

    task = CAPTIONING
    segment_key = "image"

    @property
    def lengths(self) -> dict[str, float]:
        """The brevity penalty of BLEU and the length ratio of the evaluated system, by name."""
        return brevity(self.system.statistics[0])

    def signatures(self) -> tuple[str, dict[str, str]]:
        """The signature that coco-caption's scores share, and the signatures of the other scores, by label."""
        signatures = {score(name).label: self.system.signature(name) for name in self.system.values}
        common = next(iter(signatures.values()))
        return common, {label: signature for label, signature in signatures.items() if signature != common}

    def compare_meteor_and_spice(self) -> list[tuple[str, float, float]]:
        """METEOR and SPICE as (name, baseline's score, system's score). They have no intervals and no p-values."""
        if not self.settings.baseline:
            return []
        system, baseline = self.meteor_and_spice[:2]
        return [(name, baseline[name], value) for name, value in system.items() if name in baseline]

    def record(self) -> dict[str, Any]:
        signature, signatures = self.signatures()
        record: dict[str, Any] = {score(name).label: value for name, value in self.system.values.items()}
        record |= {**self.meteor_and_spice[0], **self.lengths, "images": len(self.segments), "signature": signature}
        if signatures:
            record["signatures"] = signatures
        if self.likelihood is not None:
            record["likelihood"] = self.likelihood.record()
        if self.system.samples:
            estimates = self.system.estimates.items()
            record["intervals"] = {score(name).label: asdict(estimate) for name, estimate in estimates}
        if self.comparison is not None:
            record["comparison"] = self.comparison.record()
            comparisons = self.compare_meteor_and_spice()
            if java := {name: {"baseline": baseline, "system": system} for name, baseline, system in comparisons}:
                record["comparison"]["java"] = java
        return record

    def text(self) -> str:
        signature, signatures = self.signatures()
        rows = {score(name).label: value.text(score(name).digits) for name, value in self.system.estimates.items()}
        rows |= {name: f"{value:.4f}" for name, value in self.meteor_and_spice[0].items()}
        lines = columns([("score", counted(len(self.segments), "image")), *rows.items()])
        lines += ["", "brevity penalty {brevity_penalty:.3f}, length ratio {length_ratio:.3f}".format(**self.lengths)]
        lines += ["", signature, *(f"{label}: {other}" for label, other in signatures.items())]
        if self.likelihood is not None:
            lines += ["", *self.likelihood.lines(self.settings.bootstrap)]
        if self.comparison is not None:
            lines += ["", self.comparison.text()]
        for name, baseline, system in self.compare_meteor_and_spice():
            difference = f"difference {system - baseline:+.4f}, without p-value"
            lines.append(f"{name}: baseline {baseline:.4f}, system {system:.4f}, {difference}")
        return "\n".join(lines)

    def by_segment(self) -> Iterator[dict[str, Any]]:
        for index, record in enumerate(super().by_segment()):
            likelihood = {} if self.likelihood is None else {"likelihood": self.likelihood.image_values(index)}
            yield {**record, **likelihood}

    def page(self) -> tuple[str, str, Sequence[report.Section | None]]:
        rows: dict[str, float] = {}
        for title, scores in zip(self.systems, self.meteor_and_spice, strict=True):
            suffix = "" if title == self.title else f" of {title}"
            rows |= {f"{score(name).heading}{suffix}": value for name, value in scores.items()}
        rows |= {name.replace("_", " "): value for name, value in self.lengths.items()}
        nats = None if self.likelihood is None else self.likelihood.lines(self.settings.bootstrap)
        sections = [
            self.score_table(),
            report.facts("Lengths and other scores", {name: f"{value:.4f}" for name, value in rows.items()}),
            None if nats is None else report.text("Likelihood of the references", nats),
            self.f1_of_words(),
            pictures(self, self.outputs),
            self.segment_table("Captions"),
        ]
        return f"Captions of {self.title}", counted(len(self.segments), "image"), sections


@dataclass
class SavedFrequencies(Evaluation):
    """The result of `save_document_frequencies=FILE`, which has no report."""

    frequencies: DocumentFrequencies
    file: str

    def record(self) -> dict[str, Any]:
        sizes = {"images": self.frequencies.images, "ngrams": len(self.frequencies.counts)}
        return {"document_frequencies": self.file, **sizes, "tokenize": self.frequencies.tokenize}

    def text(self) -> str:
        ngrams, images = len(self.frequencies.counts), self.frequencies.images
        return f"{self.file}: {counted(ngrams, 'n-gram')} in the references of {counted(images, 'image')}"


class CaptionEvaluator(Evaluator):
    """Evaluates a file of captions, or has a captioner describe the images of a split and evaluates its captions."""

    schema, decoding_schema = declarations.EvalCaptions, declarations.DecodeCaptions
    labels = labels_of(CAPTIONING) | OTHER_KEYS

    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        settings = self.settings
        if settings.tokenize not in (None, *TOKENIZERS):
            yield f"Unknown tokeniser '{settings.tokenize}'; choose from {', '.join(TOKENIZERS)}."
        if settings.bound is not None and not 1 <= settings.bound <= MAX_BOUND_SAMPLES:
            yield f"bound must be from 1 to {MAX_BOUND_SAMPLES:,}, not {settings.bound}."
        if settings.bound is not None and not checkpoint:
            yield "bound= needs checkpoint=PATH, a captioner with attention."
        if settings.java and settings.format == "jsonl":
            yield "java=true gives no scores of single captions: leave it out with format=jsonl."
        if settings.save_document_frequencies is not None:
            files = settings.hypotheses, settings.baseline, settings.document_frequencies
            is_scoring = any((checkpoint, settings.java, *files, settings.scores, settings.output, settings.report))
            if is_scoring or len(settings.references) != 1:
                yield "save_document_frequencies=FILE takes one references=FILE, and no setting of scoring."
            return
        if checkpoint == (settings.hypotheses is not None):
            yield "eval needs either checkpoint=PATH or hypotheses=FILE references=FILE."
        if checkpoint and settings.references:
            yield "references=FILE needs hypotheses=FILE: with checkpoint=PATH, a split of the data is scored."
        if not checkpoint and len(settings.references) != 1:
            yield "Captions are scored against the references of one file: references=FILE."
        if not checkpoint and settings.output is not None:
            yield "output= is for the captions of checkpoint=PATH: leave it out with hypotheses=FILE."

    def evaluate_files(self) -> Evaluation:
        """Evaluate captions, one for each image. References of images without a caption are left out, with a warning.
        With `save_document_frequencies`, save the document frequencies of the references instead.
        """
        settings, references_name = self.settings, self.settings.references[0]
        references = read_references(Path(references_name))
        if settings.save_document_frequencies is not None:
            check_references(references, name=references_name)
            tokenize, file = self._scorer_options(references)["tokenize"], Path(settings.save_document_frequencies)
            captions = [tokenize_captions(image_captions, tokenize) for image_captions in references.values()]
            frequencies = DocumentFrequencies.count(captions, tokenize=tokenize, name=without_suffix(file.name))
            frequencies.save(file)
            return SavedFrequencies(frequencies, str(file))
        name = str(settings.hypotheses)
        outputs = [self._read_output(file, references) for file in (name, *names(settings.baseline))]
        hypotheses = outputs[0].hypotheses
        captioned = references.only(hypotheses) or references
        check_images(hypotheses, captioned, hypotheses_name=name, references_name=references_name)
        if len(captioned) < len(references):
            images = f"{len(captioned):,} of the {len(references):,} images of {references_name}"
            log.warning(f"{name} has captions for {images}: only these are scored.")
        if blanks := [image for image in captioned if not hypotheses[image].strip()]:
            log.warning(f"{name} has {len(blanks):,} empty captions, such as that of {blanks[0]}: they are scored too.")
        return self._evaluate(outputs, captioned, options=self._scorer_options(captioned))

    def evaluate_checkpoint(self, predictor: "Captioner", data: EvaluationData) -> CaptionEvaluation:
        """Describe the images of a split and evaluate the captions. Unreadable images are reported and left out."""
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
        baseline = [self._read_output(file, references) for file in names(settings.baseline)]
        output, options = CaptionOutput(predictor.name), self._scorer_options(references)
        details = output.details = None if settings.report is None else report.Details()
        report_options: dict[str, Any] = {} if settings.report is None else {"likeliest": LIKELIEST_TOKENS}
        out = nullcontext() if settings.output is None else replacing(Path(settings.output))
        with out as file, progress_bar(total=len(images), unit="image", description="caption") as bar:
            for path, pixels, captions in predictor.caption_each(list(images), **report_options):
                bar.update()
                if isinstance(captions, InputError):
                    tqdm.write(f"Left out: {captions}", file=sys.stderr)
                    continue
                best, image = captions[0], images[path].identifier
                output.hypotheses[image] = best.text
                if details is not None:
                    details.add(predicted=best.predicted)
                    output.flags.append(find_flags(best.text, ended=best.ended))
                    if len(output.pictures) < PICTURE_CANDIDATES:
                        output.pictures[image] = data_url(pixels)
                        output.captions[image] = _caption(best.record(weights=True))
            if file is not None:
                ids: dict[str, int | str] = {image: image_id(image) for image in output.hypotheses}
                if len(set(ids.values())) < len(ids):  # 000000000042.jpg and 000000000042.png have the same id
                    ids = {image: image for image in ids}
                results = [{"image_id": ids[image], "caption": text} for image, text in output.hypotheses.items()]
                file.write(json.dumps(results, ensure_ascii=False) + "\n")
        references = references.only(output.hypotheses)
        check_references(references, name="the references")
        fields: dict[str, Any] = {} if settings.report is None else {"training_counts": data.word_counts(predictor)}
        if settings.bound is not None:
            files = [file for file, image in images.items() if image.identifier in references]
            fields["likelihood"] = predictor.likelihood(files, list(references.values()), settings.bound)
        return self._evaluate([output, *baseline], references, options=options, **fields)

    def _read_output(self, file: str, references: Captions[str]) -> CaptionOutput:
        """Read a system's captions; for a report, also the words and attention that `caption format=jsonl` wrote, and
        the pictures whose files still exist.
        """
        records = read_hypotheses(file, references)
        output = CaptionOutput(file, {image: str(record["text"]) for image, record in records.items()})
        report_records = [] if self.settings.report is None else list(records.items())[:PICTURE_CANDIDATES]
        for image, record in report_records:
            output.captions[image] = _caption(record)
            if (pixels := picture(record["file"])) is not None:
                output.pictures[image] = data_url(pixels)
        return output

    def _scorer_options(self, references: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The keyword arguments of the scorers. Raises InputError if one is invalid, before anything is decoded."""
        tokenize = self.tokeniser(lambda: fitting_tokeniser(chain.from_iterable(references.values())))
        file = self.settings.document_frequencies
        frequencies = None if file is None else DocumentFrequencies.load(Path(file)).check(tokenize=tokenize)
        return {"tokenize": tokenize, "document_frequencies": frequencies}

    def _evaluate(
        self, outputs: Sequence[CaptionOutput], references: Captions[str], *, options: Mapping[str, Any], **fields: Any
    ) -> CaptionEvaluation:
        """Evaluate the systems on the images that have references. A baseline may have captions of further images.
        options: the keyword arguments of the scorers (`_scorer_options`); fields: further fields of the evaluation
        """
        settings = self.settings
        for output in outputs[1:]:
            captioned_images = dict.fromkeys(image for image in references if image in output.hypotheses)
            check_images(captioned_images, references, hypotheses_name=output.name)
        results: list[tuple[dict[str, float], list[str]]] = [({}, []) for _ in outputs]
        if settings.java:
            system_captions = [{image: output.hypotheses[image] for image in references} for output in outputs]
            results = [java_scores(captions, references, tokenize=options["tokenize"]) for captions in system_captions]
        segments = [Segment(image, captions) for image, captions in references.items()]
        fields["meteor_and_spice"] = [scores for scores, _ in results]
        evaluation = CaptionEvaluation(settings=settings, segments=segments, outputs=outputs, options=options, **fields)
        for warning in [*chain(*(scorer.warnings() for scorer in evaluation.system.scorers)), *results[0][1]]:
            log.warning(warning)
        if settings.bootstrap and settings.baseline and len(references) < MIN_SEGMENTS:
            log.warning(too_few(len(references), "images"))
        return evaluation


def read_references(path: Path) -> Captions[str]:
    """Read the captions of each image from a file of any supported format."""
    entries = read_captions(path)
    check_captions(entry for image_entries in entries.values() for entry in image_entries if entry.by_user)
    captions = {image: [entry.caption for entry in image_entries] for image, image_entries in entries.items()}
    return Captions(captions, entries.other_names)


def read_hypotheses(file: str, references: Captions[str]) -> dict[str, dict[str, Any]]:
    """Read each image's caption as a record, by the name that the image has in the references.

    A record has the caption as `text`, the image's name in the file as `file`, and the other fields that
    `caption format=jsonl` wrote for its best caption. Raises InputError if an image has several captions.

    The image's names in the file and in the references match in any of these cases:

    - They are equal.
    - One is the end of the other's path (`photos/a.jpg` and `a.jpg`), in any Unicode normal form and case.
    - One is the image's number or name in COCO's results.

    An image that matches no image of the references, or several, keeps its name.
    """
    captions: dict[str, list[dict[str, Any]]] = {}
    image_by_other_name: dict[str, str] = {}  # the image's name by its other name in the file
    for record in records(Path(file)):
        entries = [{**record.best, "text": entry.caption, "file": entry.image} for entry in record.captions]
        captions.setdefault(record.image, []).extend(entries)
        image_by_other_name[record.other_name or record.image] = record.image
    if not captions:
        raise InputError(f"{file} has no captions.")
    for image, image_records in captions.items():
        if len(image_records) > 1:
            raise InputError(f"{file} has {len(image_records)} captions for image {image}: expected one per image.")
    image_names = ImageNames([*references, *references.other_names])
    by_short_name: dict[int | str, set[str]] = {}
    for image in references:
        by_short_name.setdefault(coco_id(image), set()).add(image)
    other_names = {image: other for other, image in image_by_other_name.items()}

    def find_reference(name: str) -> str | None:
        """The image of the references that `name` refers to; None if there is no such image, or several."""
        if name in references:
            return name
        similar_names = [name] if name in references.other_names else image_names.find(name)
        images = {references.other_names.get(other, other) for other in similar_names} & references.keys()
        images = images or by_short_name.get(coco_id(name), set())
        return next(iter(images)) if len(images) == 1 else None

    hypotheses: dict[str, dict[str, Any]] = {}
    names_in_file: dict[str, str] = {}
    for image, image_records in captions.items():
        if image_records:
            name = find_reference(image) or find_reference(other_names.get(image, image)) or image
            if name in hypotheses:
                raise InputError(f"{file} has captions for {names_in_file[name]} and {image}: both are image {name}.")
            hypotheses[name], names_in_file[name] = image_records[0], image
    return hypotheses


def check_images(
    hypotheses: Mapping[str, Any],
    references: Mapping[str, Sequence[str]],
    *,
    hypotheses_name: str = "the hypotheses",
    references_name: str = "the references",
) -> None:
    """Raise InputError if captions and references are not of the same images."""
    check_references(references, name=references_name)
    missing = [image for image in references if image not in hypotheses]
    unknown = [image for image in hypotheses if image not in references]
    if unknown and len(missing) == len(references):
        raise InputError(
            f"{hypotheses_name} and {references_name} have no image in common: {hypotheses_name} has "
            f"{_example(unknown).rstrip(',')}; {references_name} has {_example(missing).rstrip(',')}."
        )
    if missing:
        raise InputError(
            f"{hypotheses_name} has no caption for {_example(missing)} of {references_name}: every image must have one."
        )
    if unknown:
        raise InputError(
            f"{hypotheses_name} has captions for {_example(unknown)} that {references_name} does not have: "
            "remove them, or give the references of the same images. The references' images have names such as "
            f"{next(iter(getattr(references, 'other_names', None) or references))}."
        )


def check_references(references: Mapping[str, Sequence[str]], *, name: str) -> None:
    """Raise InputError if there are no images, or images without references. name: the file, for messages"""
    if not references:
        raise InputError(f"{name} has no images: there is nothing to score.")
    if missing := [image for image, captions in references.items() if not captions]:
        raise InputError(f"{name} has no caption for {_example(missing)}: every image needs at least one.")


def _example(images: Sequence[str]) -> str:
    """The number of images and an example, for messages."""
    return f"image {images[0]}" if len(images) == 1 else f"{len(images):,} images, such as {images[0]},"


def pictures(evaluation: SystemsEvaluation, outputs: Sequence[CaptionOutput]) -> report.Section:
    """The section of a report with pictures and the captions of each system. Images without pictures are left out."""
    data_urls = ChainMap(*(output.pictures for output in outputs))
    labels, values = evaluation.scores_by_segment
    column = next((j for j, name in enumerate(evaluation.system.values) if name == "cider_d"), 0)  # orders the pictures
    segments = [(i, segment) for i, segment in enumerate(evaluation.segments) if segment.name in data_urls]
    scores = [values[0][column][i] or 0.0 for i, _ in segments]
    ranking = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    random_order = np.random.default_rng(0).permutation(len(scores)).tolist()
    best, worst = ranking[:PICTURES_PER_ORDER], ranking[::-1][:PICTURES_PER_ORDER]
    priority_order = list(dict.fromkeys([*best, *worst, *random_order]))
    card_indices, random_indices = sorted(priority_order[:MAX_PICTURES]), random_order[:PICTURES_PER_ORDER]
    orders = {"best twelve": best, "worst twelve": worst, "random twelve": random_indices, "all": card_indices}
    cards = []
    for i, segment in (segments[index] for index in card_indices):
        image = str(segment.name)
        captions = [output.captions.get(image) or _caption({"text": output.hypotheses[image]}) for output in outputs]
        cards.append(
            {
                "name": image,
                "picture": data_urls[image],
                "captions": captions,
                "references": list(segment.references),
                "values": [[system_values[column][i]] for system_values in values],
            }
        )
    count, label = f"{len(cards):,} of {len(evaluation.segments):,} images", labels[column]["label"]
    return {
        "kind": "pictures",
        "title": "Pictures",
        "note": f"{count}: the best and the worst by {label}, and random others.",
        "systems": list(evaluation.systems),
        "pictures": cards,
        "orders": {name: list(map(card_indices.index, order)) for name, order in orders.items()},
        "scores": [labels[column]],
    }


def picture(file: str, mode: str = "squash") -> NDArray[np.uint8] | None:
    """An image as a square, made by `mode` (default: that of `caption`); None if it cannot be read."""
    with suppress(InputError):
        return fit(read_image(file), size=PICTURE_SIZE, mode=mode) if Path(file).is_file() else None
    return None


def data_url(pixels: NDArray[np.uint8]) -> str:
    """An image, height × width × 3, as a data URL."""
    buffer, image = io.BytesIO(), Image.fromarray(pixels)
    is_small = max(image.size) <= MAX_PNG_SIZE
    image_format, option = ("png", {"optimize": True}) if is_small else ("jpeg", {"quality": JPEG_QUALITY})
    image.save(buffer, image_format, **option)
    return f"data:image/{image_format};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def samples_of_run(name: str, run: Path) -> report.Section | None:
    """The section of the samples of a run's validations, with the pictures at which the model looked; None without."""
    from seqtool.training.recording import read_samples  # imports torch

    steps = read_samples(run)
    looked = (sample for step in steps for sample in step["samples"] if {"image", "attention"} <= sample.keys())
    fits = {sample["image"]: sample["attention"]["fit"] for sample in looked}
    urls = {file: data_url(seen) for file, fit in fits.items() if (seen := picture(file, fit)) is not None}
    return report.samples(f"Samples of {name}", steps, urls)


def _caption(record: Mapping[str, Any]) -> Caption:
    """Read a caption from its record. Attention is left out if it is missing or invalid."""
    text, words = str(record.get("text", "")), record.get("words")
    words = (list(map(str, words)) if isinstance(words, list) else []) or text.split()
    caption: Caption = {"text": text, "words": words}
    grid, attention, attended = record.get("grid"), record.get("attention"), record.get("attended")
    try:
        weights = np.asarray(attention, float)
        height, width = (int(side) for side in grid or ())  # raises ValueError if there is no grid
        locations = [int(row) * width + int(column) for row, column in attended or ()] if record.get("hard") else None
    except (TypeError, ValueError, OverflowError):
        return caption
    # One row of weights for each word, and possibly one for the end of the caption.
    fits = weights.ndim == 2 and weights.shape[1] == height * width and 0 <= len(weights) - len(words) <= 1
    if not fits or not np.isfinite(weights).all():
        return caption
    if len(weights) > len(words):
        words.append(END)
    caption |= {"grid": [height, width], "weights": report.rounded_weights(weights)}
    if locations is not None:
        caption["chosen"] = locations
    return caption
