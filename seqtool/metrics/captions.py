"""Scores of captions as coco-caption computes them, without Java: BLEU, ROUGE-L, CIDEr-D and CIDEr.

BLEU and ROUGE-L range from 0 to 1, CIDEr-D and CIDEr from 0 to 10, as in coco-caption. What coco-caption calls CIDEr is
`cider_d`; `bleu4_no_bp` is BLEU-4 without brevity penalty, which Xu et al. 2015 report. n-grams are represented by
integers, so that all images are compared in a few array operations.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.words import analyse_writing, characters
from seqtool.errors import InputError
from seqtool.metrics import ptb
from seqtool.metrics.bootstrap import SEED
from seqtool.metrics.scores import Scorer, Statistics
from seqtool.runtime.files import check_file, parse_json, replacing, without_suffix
from seqtool.runtime.version import __version__
from seqtool.settings.classes import chosen

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ORDERS = (1, 2, 3, 4)  # the n of n-grams
MAX_IMAGES = 2**53  # double precision holds every integer up to this
WORD_BITS = 32  # an n-gram's key holds its last word's id in these bits, and the id of its first n-1 words above
# char: each character is a token, for scripts without spaces between words
TOKENIZERS: Mapping[str, Callable[[str], list[str]] | None] = {"ptb": ptb.tokenize, "char": characters, "none": None}
NAMES = ("bleu1", "bleu2", "bleu3", "bleu4", "bleu4_no_bp", "rouge_l", "cider_d", "plain_cider")
ONE_IMAGE_WARNING = (
    "CIDEr is 0 with document frequencies from a single image, as every n-gram then has the weight ln 1 = 0: "
    "score more images or give document_frequencies=FILE."
)

SIGMA = 6.0  # the width of CIDEr-D's length penalty: Vedantam et al. 2015, section 7
CIDER_SCALE = 10.0  # the factor by which coco-caption scales CIDEr
BETA = 1.2  # the weight of recall in ROUGE-L, as in coco-caption
TINY, SMALL = 1e-15, 1e-9  # coco-caption's BLEU adds these to numerators and denominators to avoid dividing by zero

# The columns of an image's statistics.
CORRECT = slice(0, 4)  # the numbers of matched n-grams, n = 1..4, each at most as often as it occurs in a reference
POSSIBLE = slice(4, 8)  # the numbers of n-grams of the hypothesis, n = 1..4
HYPOTHESIS_LENGTH = 8  # the number of words
REFERENCE_LENGTH = 9  # the number of words of the reference closest in length, the shorter one in a tie
ROUGE_L, CIDER_D, CIDER = 10, 11, 12  # the scores of the image; ROUGE-L is NaN without `rouge`


@final
class CaptionScorer(Scorer):
    """Scores captions against the references of their images.

    references: the reference captions of each image, at least one
    tokenize: how captions are tokenised (`TOKENIZERS`)
    document_frequencies: frequencies counted with the same tokenisation; None counts them in the references
    rouge: False sets ROUGE-L, which takes half of the time, to NaN
    """

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        *,
        tokenize: str,
        document_frequencies: "DocumentFrequencies | None" = None,
        rouge: bool = True,
    ) -> None:
        if document_frequencies is not None:
            document_frequencies.check(tokenize=tokenize)
        self._tokenize, self._rouge, self._frequencies = tokenize, rouge, document_frequencies
        self._references = [tokenize_captions(captions, tokenize) for captions in references]
        split = [caption.split() for captions in self._references for caption in captions]
        self._words = list(chain.from_iterable(split))  # the words of all references, one after another
        self._lengths = np.array([len(words) for words in split], dtype=np.int64)  # the length of each reference
        self._image = np.repeat(np.arange(len(references)), [len(captions) for captions in references])
        self._first_reference = np.searchsorted(self._image, np.arange(len(references)))  # each image's first reference

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        """Images × 13: everything from which the scores of a corpus are computed, in the columns listed above."""
        hypotheses = tokenize_captions(hypotheses, self._tokenize)
        split = [hypothesis.split() for hypothesis in hypotheses]
        lengths = np.array([len(words) for words in split], dtype=np.int64)
        words = [*chain.from_iterable(split), *self._words]
        orders = zip(ORDERS, count_ngrams(words, np.append(lengths, self._lengths)), strict=True)
        compared = [self._compare(counts, self._inverse_frequencies(n, counts, words)) for n, counts in orders]
        correct, clipped, plain = zip(*compared, strict=True)
        # the difference in length is one of bigram counts, as in coco-caption; an empty caption counts as one word
        delta = np.maximum(lengths - 1, 0)[self._image] - np.maximum(self._lengths - 1, 0)
        penalty = np.exp(-(delta**2) / (2 * SIGMA**2))
        # the smallest rank of an image's references belongs to the closest in length, the shorter one in a tie
        base = int(self._lengths.max(initial=0)) + 1
        rank = np.abs(self._lengths - lengths[self._image]) * base + self._lengths
        pairs = zip(hypotheses, self._references, strict=True)
        return np.column_stack(
            [
                *correct,
                *(np.maximum(lengths - n + 1, 0) for n in ORDERS),
                lengths,
                np.minimum.reduceat(rank, self._first_reference) % base,
                np.array([rouge_l(*pair) if self._rouge else np.nan for pair in pairs]),
                CIDER_SCALE * self._mean(np.mean(clipped, axis=0) * penalty),
                CIDER_SCALE * self._mean(np.mean(plain, axis=0)),
            ]
        )

    def scores(self, statistics: Statistics) -> dict[str, float]:
        """BLEU of the summed statistics, and the means of the other scores."""
        bleus = bleu(statistics[:, :ROUGE_L].sum(0))
        means = [statistics[:, column].mean() for column in range(ROUGE_L, CIDER + 1)]
        return dict(zip(NAMES, [*bleus.tolist(), *map(float, means)], strict=True))

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        rows = np.column_stack([bleu(statistics), statistics[:, ROUGE_L:]])
        return [dict(zip(NAMES, row, strict=True)) for row in rows.tolist()]

    def warnings(self) -> list[str]:
        images = self._frequencies.images if self._frequencies else len(self._references)
        return [ONE_IMAGE_WARNING] if images == 1 else []

    def signature(self, *, samples: int | None = None) -> str:
        """Everything that the scores depend on besides the captions, in the style of sacreBLEU's signatures."""
        sizes = sorted({len(captions) for captions in self._references})
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

    def _inverse_frequencies(self, n: int, counts: "Counts", words: Sequence[str]) -> Floats:
        """The inverse document frequency of each n-gram of order n: ln(documents / max(1, documents with the n-gram)).
        A document is an image with its references, of the corpus unless document frequencies were given.
        """
        documents, size = len(self._references), len(counts.example_start)
        if self._frequencies is None:
            is_reference = counts.caption >= documents  # the first captions are the hypotheses
            image = self._image[counts.caption[is_reference] - documents]
            keys = image * size + counts.ngram[is_reference]
            # with `return_counts` numpy 2.4 sorts, which is faster than its default, hashing
            unique, _ = np.unique(keys, return_counts=True)
            with_ngram = np.bincount(unique % max(size, 1), minlength=size)
        else:
            documents, frequencies = self._frequencies.images, self._frequencies.counts
            ngrams = (" ".join(words[start : start + n]) for start in counts.example_start)
            with_ngram = np.array([frequencies.get(ngram, 0) for ngram in ngrams], dtype=np.int64)
        inverse: Floats = np.log(documents) - np.log(np.maximum(with_ngram, 1))
        return inverse

    def _compare(self, counts: "Counts", inverse_frequencies: Floats) -> tuple[Integers, Floats, Floats]:
        """The number of matched n-grams of one order in each hypothesis (`CORRECT`), and the cosine of each reference
        with the hypothesis of its image, clipped as in CIDEr-D and plain as in CIDEr; a cosine is 0 if a norm is 0.
        counts: the entries of the hypotheses, followed by the entries of the references
        """
        images, size = len(self._references), len(inverse_frequencies)
        start = int(np.searchsorted(counts.caption, images))  # the first entry of the references
        reference = counts.caption[start:] - images
        keys = self._image[reference] * size + counts.ngram[start:]
        hypothesis_keys = np.append(counts.caption[:start] * size + counts.ngram[:start], -1)
        entry = np.searchsorted(hypothesis_keys[:-1], keys)  # the hypothesis's entry for the reference's n-gram
        is_shared = hypothesis_keys[entry] == keys  # whether there is such an entry
        reference, entry = reference[is_shared], entry[is_shared]
        limit = np.zeros(start, dtype=np.int64)
        np.maximum.at(limit, entry, counts.count[start:][is_shared])
        matched = np.bincount(counts.caption[:start], np.minimum(counts.count[:start], limit), images)
        weights = counts.count * inverse_frequencies[counts.ngram]
        norms = np.sqrt(np.bincount(counts.caption, weights**2, images + len(self._image)))
        product = norms[:images][self._image] * norms[images:]
        scale = np.divide(1, product, out=np.zeros_like(product), where=product != 0)
        hypothesis_weights, reference_weights = weights[entry], weights[start:][is_shared]
        clipped_weights = np.minimum(hypothesis_weights, reference_weights)
        clipped = np.bincount(reference, clipped_weights * reference_weights, len(self._image))
        plain = np.bincount(reference, hypothesis_weights * reference_weights, len(self._image))
        return matched, clipped * scale, plain * scale

    def _mean(self, values: Floats) -> Floats:
        """The mean over each image's references."""
        return np.bincount(self._image, values, len(self._references)) / np.bincount(self._image)


def tokenize_captions(captions: Sequence[str], tokenize: str) -> list[str]:
    """Tokenise captions for scoring; return the tokens of each, separated by spaces."""
    tokens = chosen(tokenize, TOKENIZERS, kind="tokenize")
    return list(captions) if tokens is None else [" ".join(tokens(caption)) for caption in captions]


def fitting_tokeniser(references: Iterable[str]) -> tuple[str, str]:
    """The name of the tokeniser that fits these references, and the reason, empty for `ptb` in ordinary text."""
    writing = analyse_writing(references)
    if writing.has_no_spaces:
        return "char", "tokenize=char: the captions have almost no spaces; each character counts as a word."
    note = "tokenize=ptb: the captions seem to be segmented into words by spaces; tokenize=char counts characters."
    return "ptb", note if writing.is_mostly_unspaced else ""


def bleu(statistics: Floats) -> Floats:
    """BLEU-1 to BLEU-4, then BLEU-4 without brevity penalty, of a row of statistics, or of each of several rows."""
    products = np.cumprod((statistics[..., CORRECT] + TINY) / (statistics[..., POSSIBLE] + SMALL), axis=-1)
    values = products ** (1 / np.array(ORDERS))
    return np.concatenate([values * _penalty(statistics)[..., None], values[..., -1:]], axis=-1)


def _penalty(statistics: Floats) -> Floats:
    """BLEU's brevity penalty."""
    ratio = (statistics[..., HYPOTHESIS_LENGTH] + TINY) / (statistics[..., REFERENCE_LENGTH] + SMALL)
    return np.exp(np.minimum(1 - 1 / ratio, 0))


def brevity(statistics: Floats) -> dict[str, float]:
    """BLEU's brevity penalty (1: none), and the ratio of the captions' length to that of the closest references."""
    sums = statistics.sum(0)
    ratio = sums[HYPOTHESIS_LENGTH] / max(sums[REFERENCE_LENGTH], 1)
    return {"brevity_penalty": float(_penalty(sums)), "length_ratio": float(ratio)}


def rouge_l(hypothesis: str, references: Sequence[str]) -> float:
    """ROUGE-L: the F-score of the longest common subsequence, from the best precision and best recall over references.

    Words are split at single spaces, as coco-caption does for this score only: an empty caption is one empty word.
    """
    words = hypothesis.split(" ")
    masks: dict[str, int] = {}  # the positions of each word, as bits
    for position, word in enumerate(words):
        masks[word] = masks.get(word, 0) | (1 << position)
    alternatives = [reference.split(" ") for reference in references]
    common = [_lcs_length(masks, len(words), reference) for reference in alternatives]
    precision = max(common) / len(words)
    recall = max(length / len(reference) for length, reference in zip(common, alternatives, strict=True))
    if precision == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _lcs_length(masks: dict[str, int], size: int, words: Sequence[str]) -> int:
    """The length of the longest common subsequence of `words` and a sequence of `size` words, in which `masks` has the
    positions of each word as bits. One integer holds a row of the dynamic-programming table (Crochemore et al. 2001).
    """
    full = (1 << size) - 1
    row = full
    for word in words:
        match = row & masks.get(word, 0)
        row = ((row + match) | (row - match)) & full
    return size - row.bit_count()


@dataclass(frozen=True)
class Counts:
    """How often each n-gram of one order occurs in each caption: entries sorted by caption, then by n-gram."""

    caption: Integers  # the index of each entry's caption
    ngram: Integers  # the id of each entry's n-gram
    count: Integers  # how often the n-gram occurs in the caption
    example_start: Integers  # for each n-gram id, where one of its occurrences starts in the words of all captions


def count_ngrams(words: Sequence[str], lengths: Integers) -> Iterator[Counts]:
    """Yield the counts of each order, from the words of all captions, one after another, and the captions' lengths."""
    word_ids: dict[str, int] = {}
    word = np.array([word_ids.setdefault(text, len(word_ids)) for text in words], dtype=np.int64)
    caption = np.repeat(np.arange(len(lengths)), lengths)
    end = np.repeat(np.cumsum(lengths), lengths)  # the end of each word's caption
    start, ngram = np.arange(len(word)), np.zeros_like(word)
    for n in ORDERS:
        is_inside = start + n <= end[start]
        start = start[is_inside]
        keys = (ngram[is_inside] << WORD_BITS) | word[start + n - 1]
        unique, ngram = np.unique(keys, return_inverse=True)
        example_start = np.zeros_like(unique)
        example_start[ngram] = start
        size = max(len(unique), 1)
        entries, count = np.unique(caption[start] * size + ngram, return_counts=True)
        yield Counts(entries // size, entries % size, count, example_start)


@dataclass(frozen=True)
class DocumentFrequencies:
    """The number of images in whose references each n-gram occurs, by which CIDEr weights n-grams. The corpus need not
    be the one that is scored.
    """

    images: int  # the number of images
    counts: Mapping[str, int]  # the number of images by n-gram, whose tokens are separated by spaces
    tokenize: str  # how the captions were tokenised, one of `TOKENIZERS`
    name: str  # the name in signatures

    @classmethod
    def count(cls, references: Sequence[Sequence[str]], *, tokenize: str, name: str) -> "DocumentFrequencies":
        """Count a corpus. `references` holds the tokenised captions of each image."""
        counts: Counter[str] = Counter()
        for captions in references:
            ngrams: dict[str, int] = {}  # unlike a set, in a reproducible order
            for words in map(str.split, captions):
                for n in ORDERS:
                    ngrams |= {" ".join(words[start : start + n]): 1 for start in range(len(words) - n + 1)}
            counts.update(ngrams)
        return cls(len(references), counts, tokenize, name)

    def without_single(self) -> "DocumentFrequencies":
        """The frequencies without those of a single image, which weigh as much as unknown ones; in less memory."""
        return replace(self, counts={ngram: count for ngram, count in self.counts.items() if count > 1})

    def save(self, path: Path) -> None:
        """Write a JSON file that `load` reads."""
        record = {"images": self.images, "tokenize": self.tokenize, "document_frequencies": self.counts}
        with replacing(path) as stream:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "DocumentFrequencies":
        """Read a file that `save` wrote. Raises InputError for any other file."""
        content = check_file(path).read_bytes()
        try:
            record = parse_json(content)
            counts = {str(ngram): int(images) for ngram, images in record["document_frequencies"].items()}
            images = int(record["images"])
            if not 0 < images <= MAX_IMAGES or not all(0 < count <= images for count in counts.values()):
                raise ValueError("the number of images, or an n-gram's number of images, is out of range")
            tokenize = str(record["tokenize"])
            if tokenize not in TOKENIZERS:
                raise ValueError(f"tokenize is {tokenize}")
            return cls(images, counts, tokenize, without_suffix(path.name))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{path} holds no document frequencies: expected a JSON object with images, tokenize and "
                "document_frequencies, as written by seqtool eval save_document_frequencies=FILE."
            ) from error

    def check(self, *, tokenize: str) -> "DocumentFrequencies":
        """Return self. Raises InputError unless the captions were tokenised in this way."""
        if self.tokenize != tokenize:
            raise InputError(
                f"The document frequencies {self.name} were counted with tokenize={self.tokenize}: "
                f"they cannot be used with tokenize={tokenize}."
            )
        return self
