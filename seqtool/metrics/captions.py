"""Scores of captions as coco-caption computes them, without Java: BLEU, ROUGE-L, CIDEr-D and CIDEr.

BLEU and ROUGE-L are on 0–1, CIDEr on coco-caption's 0–10. What coco-caption calls CIDEr is `cider_d`; `bleu4_no_bp` is
BLEU-4 as Xu et al. 2015 report it. All images are compared at once, with n-grams as numbers.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.words import characters, writing
from seqtool.errors import InputError
from seqtool.metrics import ptb
from seqtool.metrics.bootstrap import SEED
from seqtool.metrics.scores import Scorer, Statistics
from seqtool.runtime.files import check_file, parse_json, replacing, without_suffix
from seqtool.runtime.version import __version__

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ORDERS = (1, 2, 3, 4)  # of n-grams
LARGEST = 2**53  # the largest number of images
WORD_BITS = 32  # an n-gram's key is the number of its first n-1 words, shifted, and the number of its last word
TOKENIZERS = ("ptb", "char", "none")  # char: for scripts without spaces between words
NAMES = ("bleu1", "bleu2", "bleu3", "bleu4", "bleu4_no_bp", "rouge_l", "cider_d", "plain_cider")
ONE_IMAGE = (
    "CIDEr is 0 where document frequencies come from a single image, as every n-gram then weighs ln 1 = 0: "
    "score more images or give document frequencies."
)

SIGMA = 6.0  # of CIDEr-D's penalty on length: Vedantam et al. 2015, section 7
SCALE = 10.0  # of both CIDErs, as coco-caption prints them
BETA = 1.2  # weight of recall in ROUGE-L: coco-caption's
TINY, SMALL = 1e-15, 1e-9  # coco-caption's BLEU adds them to matched and possible n-grams to avoid dividing by zero

# The columns of an image's statistics.
CORRECT = slice(0, 4)  # n-grams of the hypothesis, n = 1..4, counted at most as often as in any one reference
POSSIBLE = slice(4, 8)  # n-grams of the hypothesis
HYPOTHESIS_LENGTH = 8  # words
REFERENCE_LENGTH = 9  # words of the reference closest in length, the shorter one in a tie
ROUGE_L, CIDER_D, CIDER = 10, 11, 12  # the image's scores; ROUGE-L is NaN if it was left out


@final
class CaptionScorer(Scorer):
    """The scores of captions against the references of their images, at least one each.

    Document frequencies are those of the references unless others, with the same tokenisation, are given. Without
    `rouge`, ROUGE-L is NaN: it takes half of the time.
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
        self._tokenize = tokenize
        self._rouge = rouge
        self._frequencies = document_frequencies
        self._references = [tokenized(image, tokenize) for image in references]
        captions = [caption.split() for image in self._references for caption in image]
        self._words = [word for caption in captions for word in caption]
        self._lengths = np.array([len(caption) for caption in captions], dtype=np.int64)
        self._image = np.repeat(np.arange(len(references)), [len(image) for image in references])
        self._first = np.searchsorted(self._image, np.arange(len(references)))

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        """Images × 13: everything from which the scores of a corpus are computed."""
        hypotheses = tokenized(hypotheses, self._tokenize)
        split = [hypothesis.split() for hypothesis in hypotheses]
        lengths = np.array([len(words) for words in split], dtype=np.int64)
        words = [*(word for hypothesis in split for word in hypothesis), *self._words]
        orders = zip(ORDERS, count_ngrams(words, np.append(lengths, self._lengths)), strict=True)
        compared = [self._compare(counts, self._inverse_frequencies(n, counts, words)) for n, counts in orders]
        correct, clipped, plain = zip(*compared, strict=True)
        # Δ uses bigram counts, as in coco-caption; for an empty caption they do not match lengths
        delta = np.maximum(lengths - 1, 0)[self._image] - np.maximum(self._lengths - 1, 0)
        penalty = np.exp(-(delta**2) / (2 * SIGMA**2))
        far = int(self._lengths.max(initial=0)) + 1
        rank = np.abs(self._lengths - lengths[self._image]) * far + self._lengths  # the closest, the shorter in a tie
        pairs = zip(hypotheses, self._references, strict=True)
        return np.column_stack(
            [
                *correct,
                *(np.maximum(lengths - shorter, 0) for shorter in range(len(ORDERS))),
                lengths,
                np.minimum.reduceat(rank, self._first) % far,
                np.array([rouge_l(*pair) if self._rouge else np.nan for pair in pairs]),
                SCALE * self._mean(np.mean(clipped, axis=0) * penalty),
                SCALE * self._mean(np.mean(plain, axis=0)),
            ]
        )

    def scores(self, statistics: Statistics) -> dict[str, float]:
        """BLEU from sums over images; the means of the other scores."""
        sums = bleu(statistics[:, :ROUGE_L].sum(0))
        means = [statistics[:, column].mean() for column in range(ROUGE_L, CIDER + 1)]
        return dict(zip(NAMES, [*sums.tolist(), *map(float, means)], strict=True))

    def each(self, statistics: Statistics) -> list[dict[str, float]]:
        rows = np.column_stack([bleu(statistics), statistics[:, ROUGE_L:]])
        return [dict(zip(NAMES, row, strict=True)) for row in rows.tolist()]

    def warnings(self) -> list[str]:
        images = self._frequencies.images if self._frequencies else len(self._references)
        return [ONE_IMAGE] if images == 1 else []

    def signature(self, *, samples: int | None = None) -> str:
        """Everything besides the captions that a score depends on, in sacreBLEU's style."""
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
        """By n-gram of order n: the logarithm of the number of documents over that of those with it, at least one.

        The documents are the images, each with its references, unless others were given.
        """
        documents, size = len(self._references), len(counts.place)
        if self._frequencies is None:
            theirs = counts.caption >= documents
            image = self._image[counts.caption[theirs] - documents]
            keys = image * size + counts.ngram[theirs]
            different, _ = np.unique(keys, return_counts=True)  # sorts; without counts numpy 2.4 hashes, slowly
            holding = np.bincount(different % max(size, 1), minlength=size)
        else:
            documents, frequencies = self._frequencies.images, self._frequencies.counts
            holding = np.array([frequencies.get(" ".join(words[i : i + n]), 0) for i in counts.place], dtype=np.int64)
        inverse: Floats = np.log(documents) - np.log(np.maximum(holding, 1))
        return inverse

    def _compare(self, counts: "Counts", inverse_frequencies: Floats) -> tuple[Integers, Floats, Floats]:
        """For n-grams of one order, those of the hypotheses followed by those of the references: how many of each
        hypothesis match, each at most as often as in any one reference; and each reference's cosine with its image's
        hypothesis, clipped as in CIDEr-D and plain, 0 if a norm is 0.
        """
        images, size = len(self._references), len(inverse_frequencies)
        half = int(np.searchsorted(counts.caption, images))
        caption = counts.caption[half:] - images
        keys = self._image[caption] * size + counts.ngram[half:]
        own = np.append(counts.caption[:half] * size + counts.ngram[:half], -1)
        place = np.searchsorted(own[:-1], keys)
        shared = own[place] == keys  # n-grams of a reference that its image's hypothesis has too
        caption, place = caption[shared], place[shared]
        most = np.zeros(half, dtype=np.int64)
        np.maximum.at(most, place, counts.count[half:][shared])
        matched = np.bincount(counts.caption[:half], np.minimum(counts.count[:half], most), images)
        weights = counts.count * inverse_frequencies[counts.ngram]
        norms = np.sqrt(np.bincount(counts.caption, weights**2, images + len(self._image)))
        product = norms[:images][self._image] * norms[images:]
        scale = np.divide(1, product, out=np.zeros_like(product), where=product != 0)
        ours, theirs = weights[place], weights[half:][shared]
        clipped = np.bincount(caption, np.minimum(ours, theirs) * theirs, len(self._image))
        plain = np.bincount(caption, ours * theirs, len(self._image))
        return matched, clipped * scale, plain * scale

    def _mean(self, values: Floats) -> Floats:
        """The mean over each image's references."""
        return np.bincount(self._image, values, len(self._references)) / np.bincount(self._image)


def tokenized(captions: Sequence[str], tokenize: str) -> list[str]:
    """The captions tokenised for scoring, words with spaces between them."""
    if tokenize not in TOKENIZERS:
        raise InputError(f"Unknown tokenize '{tokenize}'; choose from {', '.join(TOKENIZERS)}.")
    tokens = {"ptb": ptb.tokenize, "char": characters}.get(tokenize)
    return list(captions) if tokens is None else [" ".join(tokens(caption)) for caption in captions]


def fitting_tokeniser(references: Iterable[str]) -> tuple[str, str]:
    """The tokeniser for captions with these references; and a sentence about it, empty where there is nothing to say
    about `ptb`.
    """
    text = writing(references)
    if text.has_no_spaces:
        return "char", "tokenize=char: the captions have almost no spaces; each character counts as a word."
    cut = "the captions seem to be cut into words by spaces; tokenize=char counts characters"
    return "ptb", f"tokenize=ptb: {cut}." if text.is_mostly_unspaced else ""


def bleu(statistics: Floats) -> Floats:
    """BLEU-1 to 4 with brevity penalty, then BLEU-4 without it; for each row if there are rows."""
    products = np.cumprod((statistics[..., CORRECT] + TINY) / (statistics[..., POSSIBLE] + SMALL), axis=-1)
    values = products ** (1 / np.array(ORDERS))
    return np.concatenate([values * _penalty(statistics)[..., None], values[..., -1:]], axis=-1)


def _penalty(statistics: Floats) -> Floats:
    """BLEU's brevity penalty."""
    ratio = (statistics[..., HYPOTHESIS_LENGTH] + TINY) / (statistics[..., REFERENCE_LENGTH] + SMALL)
    return np.exp(np.minimum(1 - 1 / ratio, 0))


def brevity(statistics: Floats) -> dict[str, float]:
    """BLEU's brevity penalty (1 is none), and the ratio of the captions' length to the closest references' length."""
    sums = statistics.sum(0)
    ratio = sums[HYPOTHESIS_LENGTH] / max(sums[REFERENCE_LENGTH], 1)
    return {"brevity_penalty": float(_penalty(sums)), "length_ratio": float(ratio)}


def rouge_l(hypothesis: str, references: Sequence[str]) -> float:
    """The longest common subsequence as an F score; precision and recall are each the best over the references.

    Words are split at single spaces, as coco-caption does only for this score: an empty caption is one empty word.
    """
    words = hypothesis.split(" ")
    masks: dict[str, int] = {}
    for place, word in enumerate(words):
        masks[word] = masks.get(word, 0) | (1 << place)
    alternatives = [reference.split(" ") for reference in references]
    common = [_common_subsequence(masks, len(words), others) for others in alternatives]
    precision = max(common) / len(words)
    recall = max(shared / len(others) for shared, others in zip(common, alternatives, strict=True))
    if precision == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _common_subsequence(masks: dict[str, int], size: int, words: Sequence[str]) -> int:
    """The length of the longest one; each row of the usual table is the bits of one number (Crochemore et al. 2001)."""
    full = (1 << size) - 1
    row = full
    for word in words:
        match = row & masks.get(word, 0)
        row = ((row + match) | (row - match)) & full
    return size - row.bit_count()


@dataclass(frozen=True)
class Counts:
    """How often each n-gram of one order occurs in each caption: entries sorted by caption, then by n-gram.

    place: for each n-gram, by its number, its place among the words of all captions.
    """

    caption: Integers
    ngram: Integers
    count: Integers
    place: Integers


def count_ngrams(words: Sequence[str], lengths: Integers) -> Iterator[Counts]:
    """The counts of each order, given the words of all captions, one caption after another, and each one's length."""
    numbers: dict[str, int] = {}
    word = np.array([numbers.setdefault(text, len(numbers)) for text in words], dtype=np.int64)
    caption = np.repeat(np.arange(len(lengths)), lengths)
    end = np.repeat(np.cumsum(lengths), lengths)  # the end of each word's caption
    start, ngram = np.arange(len(word)), np.zeros_like(word)
    for n in ORDERS:
        inside = start + n <= end[start]
        start = start[inside]
        keys = (ngram[inside] << WORD_BITS) | word[start + n - 1]
        different, ngram = np.unique(keys, return_inverse=True)
        place = np.zeros_like(different)
        place[ngram] = start
        size = max(len(different), 1)
        entries, count = np.unique(caption[start] * size + ngram, return_counts=True)
        yield Counts(entries // size, entries % size, count, place)


@dataclass(frozen=True)
class DocumentFrequencies:
    """The number of images in whose references each n-gram occurs, by which CIDEr weights n-grams. The corpus need not
    be the scored one; its captions are tokenised: words with spaces between.
    """

    images: int
    counts: Mapping[str, int]  # words with a space between them → images
    tokenize: str
    name: str  # for the signature

    @classmethod
    def count(cls, references: Sequence[Sequence[str]], *, tokenize: str, name: str) -> "DocumentFrequencies":
        """Count a corpus of references, a list of tokenised captions per image; `tokenize` names their tokenisation."""
        counts: Counter[str] = Counter()
        for captions in references:
            split = [caption.split() for caption in captions]
            ngrams = (" ".join(w[i : i + n]) for w in split for n in ORDERS for i in range(len(w) - n + 1))
            counts.update(dict.fromkeys(ngrams, 1))  # a set whose order is the same in every run
        return cls(len(references), counts, tokenize, name)

    def save(self, path: Path) -> None:
        """Write a JSON file that `load` reads."""
        record = {"images": self.images, "tokenize": self.tokenize, "document_frequencies": self.counts}
        with replacing(path) as stream:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "DocumentFrequencies":
        """Read a file that `save` wrote; InputError for any other."""
        content = check_file(path).read_bytes()
        try:
            record = parse_json(content)
            counts = {str(ngram): int(images) for ngram, images in record["document_frequencies"].items()}
            images = int(record["images"])
            if not 0 < images <= LARGEST or not all(0 < count <= images for count in counts.values()):
                raise ValueError("no image, or an n-gram in the references of none or of more than there are")
            return cls(images, counts, str(record["tokenize"]), without_suffix(path.name))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{path} holds no document frequencies: expected a JSON object with images, tokenize and "
                "document_frequencies, as seqtool eval writes it for save_document_frequencies=FILE."
            ) from error

    def check(self, *, tokenize: str) -> "DocumentFrequencies":
        """Returns these. Raises InputError unless they were counted with this tokenisation."""
        if self.tokenize != tokenize:
            raise InputError(
                f"The document frequencies {self.name} were counted with tokenize={self.tokenize}: "
                f"they cannot be used with tokenize={tokenize}."
            )
        return self
