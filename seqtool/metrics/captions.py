"""Scores of captions as coco-caption computes them, without Java: BLEU, ROUGE-L, CIDEr-D and CIDEr.

BLEU and ROUGE-L are on 0–1, CIDEr on coco-caption's 0–10. What coco-caption calls CIDEr is `cider_d`; `bleu4_no_bp` is
BLEU-4 as Xu et al. 2015 report it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from seqtool.errors import InputError
from seqtool.metrics import ptb
from seqtool.metrics.bootstrap import SEED
from seqtool.metrics.caption_statistics import CIDER, ROUGE_L, SIGMA, References, bleu
from seqtool.metrics.document_frequencies import DocumentFrequencies
from seqtool.metrics.scores import Scorer, Statistics
from seqtool.runtime.version import __version__

TOKENIZERS = ("ptb", "none")
NAMES = ("bleu1", "bleu2", "bleu3", "bleu4", "bleu4_no_bp", "rouge_l", "cider_d", "plain_cider")
ONE_IMAGE = (
    "CIDEr is 0 where document frequencies come from a single image, as every n-gram then weighs ln 1 = 0: "
    "score more images or give document frequencies."
)


@final
class CaptionScorer(Scorer):
    """The scores of captions against the references of their images, at least one each.

    Document frequencies are those of the references unless others are given, which must be tokenised alike. Without
    `rouge`, ROUGE-L is NaN: it takes half of the time.
    """

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        *,
        tokenize: str,
        document_frequencies: DocumentFrequencies | None = None,
        rouge: bool = True,
    ) -> None:
        if document_frequencies is not None:
            document_frequencies.check(tokenize=tokenize)
        self._tokenize = tokenize
        self._rouge = rouge
        self._frequencies = document_frequencies
        tokens = [tokenized(image, tokenize) for image in references]
        self._references = References(tokens, document_frequencies=document_frequencies)

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        return self._references.statistics(tokenized(hypotheses, self._tokenize), rouge=self._rouge)

    def scores(self, statistics: Statistics) -> dict[str, float]:
        """BLEU of the sums over images, the means of the others."""
        sums = bleu(statistics[:, :ROUGE_L].sum(0))
        means = [statistics[:, column].mean() for column in range(ROUGE_L, CIDER + 1)]
        return dict(zip(NAMES, [*sums.tolist(), *map(float, means)], strict=True))

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        rows = np.column_stack([bleu(statistics), statistics[:, ROUGE_L:]])
        return [dict(zip(NAMES, row, strict=True)) for row in rows.tolist()]

    def warnings(self) -> list[str]:
        images = self._frequencies.images if self._frequencies else len(self._references.references)
        return [ONE_IMAGE] if images == 1 else []

    def signature(self, *, samples: int | None = None) -> str:
        """All that a number depends on besides the captions, in sacreBLEU's manner."""
        sizes = sorted({len(captions) for captions in self._references.references})
        frequencies = self._frequencies
        parts = {
            "nrefs": "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))),
            **({} if samples is None else {"bs": samples, "seed": SEED}),
            "tok": f"ptb-{ptb.VERSION}" if self._tokenize == "ptb" else self._tokenize,
            "bp": "closest",
            "df": "corpus" if frequencies is None else f"{frequencies.name}({frequencies.images})",
            "sigma": f"{SIGMA:g}",
            "version": f"seqtool-{__version__}",
        }
        return "|".join(f"{name}:{value}" for name, value in parts.items())


def tokenized(captions: Sequence[str], tokenize: str) -> list[str]:
    """The captions as they are scored, words with spaces between them."""
    if tokenize not in TOKENIZERS:
        raise InputError(f"Unknown tokenize '{tokenize}'; choose from {', '.join(TOKENIZERS)}.")
    return [" ".join(ptb.tokenize(caption)) for caption in captions] if tokenize == "ptb" else list(captions)


def check_images(
    hypotheses: Mapping[str, Any],
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
