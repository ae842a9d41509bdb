"""Scores of captions as coco-caption computes them, without Java: BLEU, ROUGE-L, CIDEr-D and CIDEr.

Every number is a corpus score of statistics per image. BLEU and ROUGE-L are on 0–1, CIDEr on coco-caption's 0–10.
What coco-caption calls CIDEr is `cider_d`; `bleu4_no_bp` is BLEU-4 as Xu et al. 2015 report it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import seqtool
from seqtool.errors import InputError
from seqtool.metrics import ptb
from seqtool.metrics.caption_statistics import SIGMA, Floats, References, Statistics
from seqtool.metrics.document_frequencies import DocumentFrequencies
from seqtool.metrics.ngrams import ORDERS, Integers

TOKENIZERS = ("ptb", "none")
TINY, SMALL = 1e-15, 1e-9  # coco-caption's BLEU adds them to matched and to possible n-grams, against dividing by zero
NAMES = ("bleu1", "bleu2", "bleu3", "bleu4", "bleu4_no_bp", "rouge_l", "cider_d", "cider")
ONE_IMAGE = (
    "CIDEr is 0 where document frequencies come from a single image, as every n-gram then weighs ln 1 = 0: "
    "score more images or give document frequencies."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CaptionScores:
    """What the captions of a set of images scored."""

    bleu1: float
    bleu2: float
    bleu3: float
    bleu4: float
    bleu4_no_bp: float
    rouge_l: float
    cider_d: float
    cider: float
    per_image: dict[str, dict[str, float]]  # image → score → value
    signature: str
    warnings: tuple[str, ...]
    java: Mapping[str, float]  # meteor and spice (0–1) where they were asked for and could be had

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON: the scores of the corpus and the signature they must be quoted with."""
        return {**self._scores(), "signature": self.signature}

    def text(self) -> str:
        """A table for people."""
        width = max(map(len, NAMES))
        lines = [f"{'score':<{width}}  {len(self.per_image):,} images"]
        lines += [f"{name:<{width}}  {value:.4f}" for name, value in self._scores().items()]
        return "\n".join([*lines, "", self.signature, *(f"Warning: {warning}" for warning in self.warnings)])

    def _scores(self) -> dict[str, float]:
        return {**{name: getattr(self, name) for name in NAMES}, **self.java}


def score(
    hypotheses: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    tokenize: str,
    document_frequencies: DocumentFrequencies | None = None,
) -> CaptionScores:
    """Score image → caption against image → reference captions; both must be of the same images.

    Document frequencies are those of the references unless others are given, which must be tokenised alike.
    """
    check_images(hypotheses, references)
    if document_frequencies is not None:
        document_frequencies.check(tokenize=tokenize)
    images = list(references)
    prepared = [tokenized(references[image], tokenize) for image in images]
    texts = tokenized([hypotheses[image] for image in images], tokenize)
    statistics = References(prepared, document_frequencies=document_frequencies).statistics(texts, rouge=True)
    warnings = []
    if (document_frequencies.images if document_frequencies else len(images)) == 1:
        warnings.append(ONE_IMAGE)
        log.warning(ONE_IMAGE)
    rows = _image_scores(statistics).tolist()
    return CaptionScores(
        **corpus_scores(statistics),
        per_image={image: dict(zip(NAMES, row, strict=True)) for image, row in zip(images, rows, strict=True)},
        signature=signature(references, tokenize=tokenize, document_frequencies=document_frequencies),
        warnings=tuple(warnings),
        java={},
    )


def corpus_scores(statistics: Statistics) -> dict[str, float]:
    """The scores by name: BLEU of the sums over images, the means of the others."""
    s = statistics
    sums = (s.correct.sum(0), s.possible.sum(0), s.hypothesis_length.sum(), s.reference_length.sum())
    others = [float(values.mean()) for values in (s.rouge_l, s.cider_d, s.cider)]
    return dict(zip(NAMES, [*_bleu(*sums).tolist(), *others], strict=True))


class ValidationScorer:
    """BLEU-4 and CIDEr-D of one set of images again and again: its references are tokenised and counted once."""

    def __init__(self, references: Sequence[Sequence[str]], *, tokenize: str) -> None:
        self._tokenize = tokenize
        self._references = References([tokenized(image, tokenize) for image in references], document_frequencies=None)

    def scores(self, hypotheses: Sequence[str]) -> tuple[float, float]:
        """BLEU-4 (0–1, with brevity penalty) and CIDEr-D (0–10) of a caption an image, in the references' order."""
        statistics = self._references.statistics(tokenized(hypotheses, self._tokenize), rouge=False)
        scores = corpus_scores(statistics)
        return scores["bleu4"], scores["cider_d"]


def tokenized(captions: Sequence[str], tokenize: str) -> list[str]:
    """The captions as they are scored, words with spaces between them."""
    if tokenize not in TOKENIZERS:
        raise InputError(f"Unknown tokenize '{tokenize}'; choose from {', '.join(TOKENIZERS)}.")
    return [" ".join(ptb.tokenize(caption)) for caption in captions] if tokenize == "ptb" else list(captions)


def signature(
    references: Mapping[str, Sequence[str]], *, tokenize: str, document_frequencies: DocumentFrequencies | None
) -> str:
    """All that a number depends on besides the captions, in sacreBLEU's manner."""
    sizes = sorted({len(captions) for captions in references.values()})
    frequencies = document_frequencies
    parts = {
        "nrefs": "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))),
        "tok": f"ptb-{ptb.VERSION}" if tokenize == "ptb" else tokenize,
        "bp": "closest",
        "df": "corpus" if frequencies is None else f"{frequencies.name}({frequencies.images})",
        "sigma": f"{SIGMA:g}",
        "version": f"seqtool-{seqtool.__version__}",
    }
    return "|".join(f"{name}:{value}" for name, value in parts.items())


def check_images(
    hypotheses: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    hypotheses_name: str = "the hypotheses",
    references_name: str = "the references",
) -> None:
    """Refuse captions and references that are not of the same images, saying how many are not and naming one."""
    check_references(references, name=references_name)
    if missing := [image for image in references if image not in hypotheses]:
        raise InputError(
            f"{hypotheses_name} has no caption for {_some(missing)} of {references_name}: every image must have one."
        )
    if unknown := [image for image in hypotheses if image not in references]:
        raise InputError(
            f"{hypotheses_name} has captions for {_some(unknown)} that {references_name} does not have: "
            "remove them, or give the references of the same images."
        )


def check_references(references: Mapping[str, Sequence[str]], *, name: str) -> None:
    """Refuse references of no image, and an image without any."""
    if not references:
        raise InputError(f"{name} has no image: there is nothing to score.")
    if without := [image for image, captions in references.items() if not captions]:
        raise InputError(f"{name} has no caption for {_some(without)}: every image needs at least one.")


def _some(images: Sequence[str]) -> str:
    return f"image {images[0]}" if len(images) == 1 else f"{len(images):,} images, such as {images[0]},"


def _bleu(correct: Integers, possible: Integers, hypothesis: Integers, reference: Integers) -> Floats:
    """BLEU-1 to 4 with brevity penalty, then BLEU-4 without; of each row where the arguments have rows."""
    products = np.cumprod((correct + TINY) / (possible + SMALL), axis=-1)
    values = products ** (1 / np.array(ORDERS))
    ratio = (hypothesis + TINY) / (reference + SMALL)
    penalty = np.exp(np.minimum(1 - 1 / ratio, 0))
    return np.concatenate([values * penalty[..., None], values[..., -1:]], axis=-1)


def _image_scores(statistics: Statistics) -> Floats:
    """Images × scores, in the order of NAMES."""
    s = statistics
    bleu = _bleu(s.correct, s.possible, s.hypothesis_length, s.reference_length)
    return np.column_stack([bleu, s.rouge_l, s.cider_d, s.cider])
