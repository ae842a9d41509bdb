"""N-grams: as numbers, counted in many captions at once, and their document frequencies in images' references."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqtool.errors import InputError
from seqtool.runtime.files import check_file, parse_json, replacing, without_suffix

Integers = NDArray[np.int64]

ORDERS = (1, 2, 3, 4)
LARGEST = 2**53  # the largest number of images
_WORD_BITS = 32  # an n-gram's key is the number of its first n-1 words, shifted, and the number of its last word


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
        keys = (ngram[inside] << _WORD_BITS) | word[start + n - 1]
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
