"""The steps of preparing that differ between kinds of data."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqtool.data.configuration import CacheSettings
from seqtool.data.corpora.corpus import Corpus
from seqtool.data.text.encoding import Texts

if TYPE_CHECKING:
    from seqtool.data.images.image_store import ImageStore


class Steps(ABC):
    """The steps of preparing that differ between kinds of data, for one corpus.

    name: the cache's. inputs: what the cache depends on besides text, vocabularies and limits. unit, training: the
    names of its examples, and of its training examples, in messages.
    """

    unit: str
    training: str  # "training pairs"
    store: "ImageStore | None" = None

    def __init__(self, corpus: Corpus, settings: CacheSettings, name: str, inputs: Mapping[str, Any]) -> None:
        self.corpus = corpus
        self.verbatim = corpus.verbatim  # whether white space stays as it is
        self.settings = settings
        self.name = name
        self.inputs = inputs

    @abstractmethod
    def texts(self, split: str) -> Iterator[Texts]:
        """The texts to encode: for each example of the split, the text of each side."""

    def kept(self, directory: Path, split: str, texts: Iterator[Texts]) -> Iterator[Texts]:
        """The same texts. The cache's other files of the split are written before or while these are yielded."""
        return texts

    def summary(self, directory: Path) -> dict[str, Any]:
        """Further entries of the cache's summary about the corpus. Writes files that belong to no single split."""
        return {}

    def split_summary(self, split: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        """A split's entry in the summary, from the counts of its examples and tokens."""
        return dict(counts)

    def image_of(self, split: str) -> NDArray[np.int64] | None:
        """The image of the split that each example describes."""
        return None

    def dropped(self, split: str) -> Counter[str]:
        """How many examples of the split are missing from its texts, by reason."""
        return Counter()

    def made(self, cache: Path) -> None:  # noqa: B027 there may be nothing to say
        """Log what a user should know about the new cache."""
