"""What the scores of captions are made of: per image, how its caption compares with its references.

All images are compared at once, as n-grams that are numbers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqtool.metrics.document_frequencies import DocumentFrequencies
from seqtool.metrics.ngrams import ORDERS, Counts, Integers, NGramIndex, find

Floats = NDArray[np.float64]

SIGMA = 6.0  # of CIDEr-D's penalty on length: Vedantam et al. 2015, section 7
SCALE = 10.0  # of both CIDErs, as coco-caption prints them
BETA = 1.2  # weight of recall in ROUGE-L: coco-caption's


# The columns of an image's statistics.
CORRECT = slice(0, 4)  # n-grams of the hypothesis that a reference has, n = 1..4, each at most as often as one of them
POSSIBLE = slice(4, 8)  # n-grams of the hypothesis
HYPOTHESIS_LENGTH = 8  # words
REFERENCE_LENGTH = 9  # of the reference closest in length, the shorter of two
ROUGE_L, CIDER_D, CIDER = 10, 11, 12  # of the image; ROUGE-L is NaN where it was left out


class References:
    """The references of a corpus, counted once, against which any number of hypotheses can be scored.

    The captions are tokenised: words with white space between them, one list of captions an image, none empty.
    """

    def __init__(
        self, references: Sequence[Sequence[str]], *, document_frequencies: DocumentFrequencies | None
    ) -> None:
        self.references = references
        self.document_frequencies = document_frequencies
        captions = [caption.split() for image in references for caption in image]
        self._image = np.repeat(np.arange(len(references)), [len(image) for image in references])
        self._lengths = np.array([len(caption) for caption in captions], dtype=np.int64)
        self._first = np.searchsorted(self._image, np.arange(len(references)))
        # n-grams of the document frequencies come after the captions, only to be numbered
        extra = list(document_frequencies.counts) if document_frequencies else []
        self._index = NGramIndex([*captions, *(ngram.split() for ngram in extra)])
        values = np.array(list(document_frequencies.counts.values()) if document_frequencies else [], dtype=np.int64)
        self._images = document_frequencies.images if document_frequencies else len(references)
        self._orders = [
            self._order(n, counts, len(captions), values)
            for n, counts in zip(ORDERS, self._index.counts(), strict=True)
        ]

    def statistics(self, hypotheses: Sequence[str], *, rouge: bool) -> Floats:
        """Images × 13, all that the scores of a corpus are made of; one tokenised hypothesis an image, in the order of
        the references.
        """
        split = [hypothesis.split() for hypothesis in hypotheses]
        lengths = np.array([len(words) for words in split], dtype=np.int64)
        correct, clipped, plain = [], [], []
        for order, counts in zip(self._orders, self._index.counts_of(split), strict=True):
            correct.append(order.correct(counts, len(split)))
            similarities = order.similarities(counts, self._image)
            clipped.append(similarities[0])
            plain.append(similarities[1])
        # Δ is of bigram counts, as coco-caption has it, which differ from lengths for an empty caption
        delta = np.maximum(lengths - 1, 0)[self._image] - np.maximum(self._lengths - 1, 0)
        penalty = np.exp(-(delta**2) / (2 * SIGMA**2))
        return np.column_stack(
            [
                *correct,
                *(np.maximum(lengths - shorter, 0) for shorter in range(len(ORDERS))),
                lengths,
                self._closest(lengths),
                self._rouge(hypotheses) if rouge else np.full(len(split), np.nan),
                SCALE * self._mean(np.mean(clipped, axis=0) * penalty),
                SCALE * self._mean(np.mean(plain, axis=0)),
            ]
        )

    def _order(self, n: int, counts: Counts, captions: int, values: Integers) -> "_Order":
        """The n-grams of order n; `captions` is how many of the counted ones are references."""
        own = counts.caption < captions
        counts = Counts(counts.caption[own], counts.ngram[own], counts.count[own])
        frequencies = None
        if self.document_frequencies is not None:
            # a caption that was added for an n-gram of n words has one window of n words, the n-gram itself
            caption_of, ids = self._index.caption_of[n - 1], self._index.ids[n - 1]
            lengths = np.bincount(self._index.caption_of[0], minlength=captions + len(values))
            whole = (caption_of >= captions) & (lengths[caption_of] == n)
            frequencies = np.zeros(self._index.sizes[n - 1], dtype=np.int64)
            frequencies[ids[whole]] = values[caption_of[whole] - captions]
        return _Order(
            counts,
            self._image[counts.caption],
            captions=captions,
            size=self._index.sizes[n - 1],
            documents=self._images,
            frequencies=frequencies,
        )

    def _closest(self, lengths: Integers) -> Integers:
        far = int(self._lengths.max(initial=0)) + 1
        rank = np.abs(self._lengths - lengths[self._image]) * far + self._lengths
        return np.minimum.reduceat(rank, self._first) % far

    def _mean(self, values: Floats) -> Floats:
        """The mean over each image's references."""
        return np.bincount(self._image, values, len(self.references)) / np.bincount(self._image)

    def _rouge(self, hypotheses: Sequence[str]) -> Floats:
        return np.array([rouge_l(*pair) for pair in zip(hypotheses, self.references, strict=True)])


class _Order:
    """What the n-grams of one order say of the references."""

    def __init__(
        self,
        counts: Counts,
        image: Integers,  # of each entry of the counts
        *,
        captions: int,
        size: int,  # how many n-grams are numbered
        documents: int,
        frequencies: Integers | None,  # by n-gram; None: in how many of these images it stands
    ) -> None:
        self._size = size
        self._caption = counts.caption
        self._captions = captions
        self._keys = image * size + counts.ngram
        order = np.argsort(self._keys, kind="stable")
        self._clip_keys, first = np.unique(self._keys[order], return_index=True)
        self._clip = np.maximum.reduceat(counts.count[order], first) if len(first) else first
        if frequencies is None:
            frequencies = np.bincount(self._clip_keys % max(size, 1), minlength=size)
        inverse = np.log(documents) - np.log(np.maximum(frequencies, 1))
        self._inverse = np.append(inverse, np.log(documents))  # the last: of an n-gram that no document holds
        self._weights = counts.count * inverse[counts.ngram]
        self._norms = np.sqrt(np.bincount(self._caption, self._weights**2, captions))

    def correct(self, counts: Counts, images: int) -> Integers:
        """Matched n-grams of each image's hypothesis, each at most as often as one reference has it."""
        seen = counts.ngram < self._size
        place, found = find(counts.caption[seen] * self._size + counts.ngram[seen], self._clip_keys)
        matched = np.minimum(counts.count[seen][found], self._clip[place[found]])
        return np.bincount(counts.caption[seen][found], matched, images).astype(np.int64)

    def similarities(self, counts: Counts, image: Integers) -> tuple[Floats, Floats]:
        """Each reference's cosine with its image's hypothesis: clipped as in CIDEr-D, and plain. 0 without a norm."""
        weights = counts.count * self._inverse[np.minimum(counts.ngram, self._size)]
        norms = np.sqrt(np.bincount(counts.caption, weights**2, int(image[-1]) + 1))
        seen = counts.ngram < self._size
        place, found = find(self._keys, counts.caption[seen] * self._size + counts.ngram[seen])
        theirs, ours = self._weights[found], weights[seen][place[found]]
        product = norms[image] * self._norms
        scale = np.divide(1, product, out=np.zeros_like(product), where=product != 0)
        clipped = np.bincount(self._caption[found], np.minimum(ours, theirs) * theirs, self._captions)
        plain = np.bincount(self._caption[found], ours * theirs, self._captions)
        return clipped * scale, plain * scale


def rouge_l(hypothesis: str, references: Sequence[str]) -> float:
    """The longest common subsequence as an F score; precision and recall are each the best over the references.

    Words are split at single spaces, as coco-caption does here and only here: an empty caption is one empty word.
    """
    words = hypothesis.split(" ")
    masks: dict[str, int] = {}
    for place, word in enumerate(words):
        masks[word] = masks.get(word, 0) | (1 << place)
    precision = recall = 0.0
    for reference in references:
        others = reference.split(" ")
        common = _common_subsequence(masks, len(words), others)
        precision = max(precision, common / len(words))
        recall = max(recall, common / len(others))
    if precision == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _common_subsequence(masks: dict[str, int], size: int, words: Sequence[str]) -> int:
    """Its length; a row of the usual table is the bits of one number (Crochemore et al. 2001)."""
    full = (1 << size) - 1
    row = full
    for word in words:
        match = row & masks.get(word, 0)
        row = ((row + match) | (row - match)) & full
    return size - row.bit_count()
