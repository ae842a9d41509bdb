"""In how many images' references each n-gram stands: what CIDEr weighs n-grams by."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqtool.errors import InputError
from seqtool.metrics.ngrams import ORDERS
from seqtool.runtime.files import check_file, parse_json, replacing

LARGEST = 2**53  # a number of images


@dataclass(frozen=True)
class DocumentFrequencies:
    """Those of a corpus, which need not be the scored one. The captions are tokenised: words with spaces between."""

    images: int
    counts: Mapping[str, int]  # words with a space between them → images
    tokenize: str
    name: str  # for the signature

    @classmethod
    def count(cls, references: Sequence[Sequence[str]], *, tokenize: str, name: str) -> "DocumentFrequencies":
        """Count a corpus of references, a list of tokenised captions an image; `tokenize` says how they were."""
        counts: dict[str, int] = {}
        for captions in references:
            split = [caption.split() for caption in captions]
            ngrams = (" ".join(w[i : i + n]) for w in split for n in ORDERS for i in range(len(w) - n + 1))
            for ngram in dict.fromkeys(ngrams):  # a set whose order is the same in every run
                counts[ngram] = counts.get(ngram, 0) + 1
        return cls(len(references), counts, tokenize, name)

    def save(self, path: Path) -> None:
        """Write a JSON file that `load` reads."""
        record = {"images": self.images, "tokenize": self.tokenize, "document_frequencies": self.counts}
        with replacing(path) as stream:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "DocumentFrequencies":
        """Read a file that `save` wrote; any other is an InputError."""
        content = check_file(path).read_bytes()
        try:
            record = parse_json(content)
            counts = {str(ngram): int(images) for ngram, images in record["document_frequencies"].items()}
            images = int(record["images"])
            if not all(0 < count <= images <= LARGEST for count in counts.values()):
                raise ValueError("an n-gram in the references of no image, or of more than there are")
            return cls(images, counts, str(record["tokenize"]), path.stem)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{path} holds no document frequencies: expected a JSON object with images, tokenize and "
                "document_frequencies, as seqtool eval writes it for save_document_frequencies=FILE."
            ) from error

    def check(self, *, tokenize: str) -> None:
        """Raise InputError unless captions that are tokenised so can be weighed by these."""
        if self.tokenize != tokenize:
            raise InputError(
                f"The document frequencies {self.name} were counted with tokenize={self.tokenize}: "
                f"they cannot serve with tokenize={tokenize}."
            )
