"""`eval task=captioning`: files of captions and of references, scored."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.config import build
from seqtool.data.captioning import ImageCorpus
from seqtool.data.preparation import corpus_settings
from seqtool.data.text_files import check_file, replacing
from seqtool.errors import InputError
from seqtool.metrics.captioning import TOKENIZERS, CaptionScores, check_images, score, tokenized
from seqtool.metrics.document_frequencies import DocumentFrequencies

if TYPE_CHECKING:
    from seqtool.captioner import Captioner

SHAPES = (
    'a list of {"image_id": …, "caption": …}, an object {"images": […], "annotations": […]}, '
    "or an object of image id to caption or list of captions"
)
LAST_JDK_OF_SPICE = 14  # its libraries reach into classes that JDK 15 and later removed or closed


@dataclass
class CaptionEvalSettings:
    """The settings of configs/eval.yaml that mean something for captions."""

    split: str
    hypotheses: str | None
    references: list[str]
    tokenize: str
    document_frequencies: str | None
    format: str
    output: str | None

    def check(self, *, checkpoint: bool) -> None:
        """Raise one InputError on what cannot be, before any work is done."""
        rules = {
            f"Unknown format '{self.format}'; choose from table, json.": self.format in ("table", "json"),
            f"Unknown tokeniser '{self.tokenize}'; choose from {', '.join(TOKENIZERS)}.": self.tokenize in TOKENIZERS,
            "eval needs either checkpoint=PATH or hypotheses=FILE references=FILE.": checkpoint
            == (self.hypotheses is None),
            "Captions are scored against one file: references=FILE.": len(self.references) == (0 if checkpoint else 1),
            "output= means nothing with hypotheses=.": checkpoint or self.output is None,
        }
        if problems := [problem for problem, holds in rules.items() if not holds]:
            raise InputError(" ".join(problems))
        for file in (self.hypotheses, *self.references, self.document_frequencies):
            if file is not None:
                check_file(Path(file))


def evaluate_captioner(
    captioner: "Captioner",
    split: str,
    data: DictConfig | None,
    *,
    output: Path | None,
    tokenize: str,
    document_frequencies: Path | None,
) -> CaptionScores:
    """Describe the images of a split, of the data that the checkpoint names or of `data`, and score the captions
    against all references. Images that cannot be read are reported and left out.
    """
    frequencies = None if document_frequencies is None else DocumentFrequencies.load(document_frequencies)
    corpus = build(corpus_settings(data or captioner.config["data"]), trusted=data is not None)
    if not isinstance(corpus, ImageCorpus):
        raise InputError("This model describes images: choose data=scenes, flickr8k or other images with captions.")
    corpus.fetch()
    if split not in corpus.splits():
        raise InputError(f"Unknown split '{split}'; this corpus has {', '.join(corpus.splits())}.")
    images = {str(image.file): image for image in corpus.images(split)}
    captions = {}
    with tqdm(total=len(images), unit="image", disable=None, desc="caption") as bar:
        for name, found in captioner.described(list(images)):
            bar.update()
            if isinstance(found, InputError):
                tqdm.write(f"Left out: {found}", file=sys.stderr)
            else:
                captions[images[name].identifier] = found[0].text
    if output is not None:
        results = [{"image_id": image, "caption": caption} for image, caption in captions.items()]
        with replacing(output) as stream:
            stream.write(json.dumps(results, ensure_ascii=False) + "\n")
    references = {image.identifier: image.captions for image in images.values() if image.identifier in captions}
    return score(captions, references, tokenize=tokenize, document_frequencies=frequencies)


def evaluate_caption_files(
    hypotheses: Path, references: Path, *, tokenize: str, document_frequencies: Path | None
) -> CaptionScores:
    """Score a file of captions, one an image, against a file of references, in any of the formats of `SHAPES`."""
    frequencies = None if document_frequencies is None else DocumentFrequencies.load(document_frequencies)
    captions, alternatives = read_hypotheses(hypotheses), read_references(references)
    check_images(captions, alternatives, hypotheses_name=str(hypotheses), references_name=str(references))
    return score(captions, alternatives, tokenize=tokenize, document_frequencies=frequencies)


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


def java_scores(
    hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]], *, tokenize: str
) -> tuple[dict[str, float], list[str]]:
    """METEOR and SPICE (0–1) through pycocoevalcap and Java, and a sentence on each that could not be had."""
    try:
        meteor = import_module("pycocoevalcap.meteor.meteor").Meteor
        spice = import_module("pycocoevalcap.spice.spice").Spice
    except ImportError:
        return {}, ["METEOR and SPICE need pycocoevalcap: pip install pycocoevalcap."]
    if shutil.which("java") is None:
        return {}, ["METEOR and SPICE need Java, which is not on the PATH."]
    texts = {image: tokenized([caption], tokenize) for image, caption in hypotheses.items()}
    alternatives = {image: tokenized(references[image], tokenize) for image in hypotheses}
    scores: dict[str, float] = {}
    problems: list[str] = []
    version = _java_version()
    for name, scorer in (("meteor", meteor), ("spice", spice)):
        if name == "spice" and version > LAST_JDK_OF_SPICE:
            problems.append(f"SPICE does not run on Java {version}: it needs {LAST_JDK_OF_SPICE} or older.")
            continue
        try:
            scores[name] = float(scorer().compute_score(alternatives, texts)[0])
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"{name.upper()} failed in Java: {error}")
    return scores, problems


def _java_version() -> int:
    """The major version: 8 for 1.8.0, 17 for 17.0.15; 0 where it cannot be told."""
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else 0


def _read_json(path: Path) -> Any:
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=lambda pairs: _unique(pairs, path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start:,}): expected JSON.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {error.lineno:,} is not JSON ({error.msg}): expected {SHAPES}.") from error


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
