"""`eval task=captioning`: files of captions and of references, scored."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.config import build
from seqtool.data.captioning import ImageCorpus
from seqtool.data.preparation import corpus_settings
from seqtool.data.text_files import check_file, parse_json, replacing
from seqtool.data.translation import Corpus
from seqtool.errors import InputError
from seqtool.metrics.captioning import (
    TOKENIZERS,
    CaptionScores,
    check_images,
    check_references,
    score,
    tokenized,
)
from seqtool.metrics.document_frequencies import DocumentFrequencies
from seqtool.metrics.java import java_scores

if TYPE_CHECKING:
    from seqtool.captioner import Captioner

SHAPES = (
    'a list of {"image_id": …, "caption": …}, an object {"images": […], "annotations": […]}, '
    "or an object of image id to caption or list of captions"
)

log = logging.getLogger(__name__)


@dataclass
class CaptionEvalSettings:
    """The settings of configs/eval.yaml that mean something for captions."""

    split: str
    hypotheses: str | None
    references: list[str]
    tokenize: str
    java: bool
    document_frequencies: str | None
    save_document_frequencies: str | None
    format: str
    output: str | None

    def check(self, *, checkpoint: bool) -> None:
        """Raise one InputError on what cannot be, before any work is done."""
        saves = self.save_document_frequencies is not None
        others = checkpoint or self.java or {self.hypotheses, self.document_frequencies, self.output} != {None}
        rules = {
            f"Unknown format '{self.format}'; choose from table, json.": self.format in ("table", "json"),
            f"Unknown tokeniser '{self.tokenize}'; choose from {', '.join(TOKENIZERS)}.": self.tokenize in TOKENIZERS,
            "save_document_frequencies=FILE goes with references=FILE alone.": not saves
            or (len(self.references) == 1 and not others),
            "eval needs either checkpoint=PATH or hypotheses=FILE references=FILE.": saves
            or checkpoint == (self.hypotheses is None),
            "Captions are scored against one file: references=FILE.": saves
            or len(self.references) == (0 if checkpoint else 1),
            "output= means nothing with hypotheses=.": saves or checkpoint or self.output is None,
        }
        if problems := [problem for problem, holds in rules.items() if not holds]:
            raise InputError(" ".join(problems))
        for file in (self.hypotheses, *self.references, self.document_frequencies):
            if file is not None:
                check_file(Path(file))


@dataclass(frozen=True)
class SavedFrequencies:
    """What `save_document_frequencies=` wrote."""

    frequencies: DocumentFrequencies
    file: Path

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""
        counted = self.frequencies
        return {
            "document_frequencies": str(self.file),
            "images": counted.images,
            "ngrams": len(counted.counts),
            "tokenize": counted.tokenize,
        }

    def text(self) -> str:
        """A line for people."""
        counted = self.frequencies
        return f"{self.file}: {len(counted.counts):,} n-grams in the references of {counted.images:,} images"


def evaluate_captioner(
    captioner: "Captioner",
    split: str,
    data: DictConfig | None,
    *,
    output: Path | None,
    tokenize: str,
    document_frequencies: Path | None,
    java: bool,
) -> CaptionScores:
    """Describe the images of a split, of the data that the checkpoint names or of `data`, and score the captions
    against all references. Images that cannot be read are reported and left out.
    """
    frequencies = _frequencies(document_frequencies, tokenize)
    settings = corpus_settings(captioner.config.get("data", {}) if data is None else data)
    corpus = build(settings, trusted=data is not None, base=(Corpus, ImageCorpus))
    if not isinstance(corpus, ImageCorpus):
        raise InputError("This model describes images: choose data=scenes, flickr8k or other images with captions.")
    if data is None:
        corpus.check()  # a checkpoint does not say what is written where
    else:
        corpus.fetch()
    if split not in corpus.splits():
        raise InputError(f"Unknown split '{split}'; this corpus has {', '.join(corpus.splits())}.")
    images = {str(image.file): image for image in corpus.images(split)}
    captions = {}
    with tqdm(total=len(images), unit="image", disable=None, desc="caption") as bar:
        for name, _, found in captioner.described(list(images)):
            bar.update()
            if isinstance(found, InputError):
                tqdm.write(f"Left out: {found}", file=sys.stderr)
            else:
                captions[images[name].identifier] = found[0].text
    if output is not None:
        results = [{"image_id": _coco_id(image), "caption": caption} for image, caption in captions.items()]
        with replacing(output) as stream:
            stream.write(json.dumps(results, ensure_ascii=False) + "\n")
    references = {image.identifier: image.captions for image in images.values() if image.identifier in captions}
    return _scores(captions, references, tokenize=tokenize, frequencies=frequencies, java=java)


def evaluate_caption_files(
    hypotheses: Path, references: Path, *, tokenize: str, document_frequencies: Path | None, java: bool
) -> CaptionScores:
    """Score a file of captions, one an image, against a file of references, in any of the formats of `SHAPES`."""
    frequencies = _frequencies(document_frequencies, tokenize)
    captions, alternatives = read_hypotheses(hypotheses), read_references(references)
    check_images(captions, alternatives, hypotheses_name=str(hypotheses), references_name=str(references))
    return _scores(captions, alternatives, tokenize=tokenize, frequencies=frequencies, java=java)


def save_document_frequencies(references: Path, file: Path, *, tokenize: str) -> SavedFrequencies:
    """Count the document frequencies of a file of references, for `document_frequencies=`."""
    alternatives = read_references(references)
    check_references(alternatives, name=str(references))
    captions = [tokenized(image, tokenize) for image in alternatives.values()]
    counted = DocumentFrequencies.count(captions, tokenize=tokenize, name=file.stem)
    counted.save(file)
    return SavedFrequencies(counted, file)


def read_hypotheses(path: Path) -> dict[str, str]:
    """Image id → caption; two captions of an image are an InputError."""
    captions = read_references(path)
    for image, alternatives in captions.items():
        if len(alternatives) > 1:
            raise InputError(f"{path} has {len(alternatives)} captions for image {image}: expected one an image.")
    return {image: alternatives[0] for image, alternatives in captions.items() if alternatives}


def read_references(path: Path) -> dict[str, list[str]]:
    """Image id → captions. Ids are text: the number 42 and the text "42" are the same image."""
    data = _read_json(path)
    captions: dict[str, list[str]] = {}
    if isinstance(data, dict) and "annotations" in data:
        images, annotations = data.get("images", []), data["annotations"]
        if not isinstance(images, list) or not isinstance(annotations, list):
            raise InputError(f"{path}: images and annotations must be lists.")
        for place, entry in _objects(images, "images", path):
            captions.setdefault(_identifier(entry.get("id"), f"{place}.id"), [])
    elif isinstance(data, dict):
        for image, value in data.items():
            values = value if isinstance(value, list) else [value]
            captions[image] = [_caption(caption, f"{path}: image {image}") for caption in values]
        return captions
    elif isinstance(data, list):
        annotations = data
    else:
        raise InputError(f"{path} holds no captions: expected {SHAPES}.")
    for place, annotation in _objects(annotations, "annotations" if isinstance(data, dict) else "", path):
        image = _identifier(annotation.get("image_id"), f"{place}.image_id")
        captions.setdefault(image, []).append(_caption(annotation.get("caption"), f"{place}.caption"))
    return captions


def _frequencies(path: Path | None, tokenize: str) -> DocumentFrequencies | None:
    """Those of a file, checked before anything is decoded."""
    if path is None:
        return None
    frequencies = DocumentFrequencies.load(path)
    frequencies.check(tokenize=tokenize)
    return frequencies


def _scores(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    tokenize: str,
    frequencies: DocumentFrequencies | None,
    java: bool,
) -> CaptionScores:
    scores = score(captions, references, tokenize=tokenize, document_frequencies=frequencies)
    if not java:
        return scores
    found, problems = java_scores(captions, references, tokenize=tokenize)
    for problem in problems:
        log.warning(problem)
    return replace(scores, java=found, warnings=(*scores.warnings, *problems))


def _coco_id(identifier: str) -> int | str:
    """COCO's own tools know images by numbers."""
    return int(identifier) if identifier.isdecimal() and str(int(identifier)) == identifier else identifier


def _read_json(path: Path) -> Any:
    content = check_file(path).read_bytes()
    try:
        return parse_json(content, lambda pairs: _unique(pairs, path))
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start:,}): expected JSON.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {error.lineno:,} is not JSON ({error.msg}): expected {SHAPES}.") from error
    except ValueError as error:
        raise InputError(f"{path} cannot be read as JSON ({error}): expected {SHAPES}.") from error


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """An object whose keys are all different: of two equal ones JSON readers silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{path} has '{twice}' twice in one object: every image must stand once.")
    return found


def _objects(items: Sequence[Any], name: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a list with their places, each checked to be an object."""
    for number, item in enumerate(items):
        place = f"{path}: {name}[{number}]" if name else f"{path}: entry {number}"
        if not isinstance(item, dict):
            raise InputError(f"{place} is not an object: expected {SHAPES}.")
        yield place, item


def _identifier(value: Any, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{place} is {json.dumps(value)}: expected an image id, a whole number or text.")
    return str(value)


def _caption(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{place} is {json.dumps(value)[:60]}: expected a caption.")
    return value
