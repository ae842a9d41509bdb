"""The cache of prepared captions: a directory named by its inputs and settings, complete or not there at all.

    cache/flickr8k-1f2e3d4c5b6a/
        target.vocabulary
        train.target.tokens.bin, train.target.offsets.bin    the captions' ids, as in data/cache.py
        train.image_of.bin        which image of the split each caption describes
        train.rows.bin            where each image of the split is in an image store
        train.images.jsonl        each image's identifier, file and captions as they came
        refused.txt               the images that were left out: split, tab, why
        summary.json              what was kept, what was dropped and why, settings, versions

The images' annotation vectors are in an image store beside it (data/image_store.py). Memory does not grow with the
corpus: arrays are memory-mapped, and texts are read when they are asked for.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqtool.data.batches import Annotations, Batch, Pixels, make_target
from seqtool.data.cache import OFFSET, Ids, known_type, mapped, table
from seqtool.data.directories import SUMMARY, read_summary
from seqtool.data.image_store import ImageStore
from seqtool.data.vocabulary import TARGET, Vocabulary, load
from seqtool.errors import InputError

FORMAT = 1  # of the directory; part of what names it
REFUSED = "refused.txt"


class CaptionSplit:
    """The captions of one split, by their index, and its images, by theirs.

    Training captions outside the limits are left out; of the other splits all captions are here, image by image.
    """

    def __init__(self, directory: Path, name: str, token_type: np.dtype[Any], store: ImageStore) -> None:
        self.name = name
        self.store = store
        self._directory = directory
        self._tokens = mapped(self._file("target.tokens.bin"), token_type)
        self._offsets = mapped(self._file("target.offsets.bin"), OFFSET)
        self._rows = mapped(self._file("rows.bin"), OFFSET)
        self.image_of: NDArray[np.int64] = mapped(self._file("image_of.bin"), OFFSET)

    def __len__(self) -> int:
        """The number of captions."""
        return len(self.image_of)

    def target(self, index: int) -> Ids:
        """The caption's token ids, without BOS and EOS."""
        if not 0 <= index < len(self):
            raise IndexError(f"caption {index} of {len(self)}")
        return self._tokens[self._offsets[index] : self._offsets[index + 1]]

    @cached_property
    def target_lengths(self) -> NDArray[np.int64]:
        """In tokens, of all captions."""
        return np.diff(self._offsets)

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """In tokens, of the sources, all 1, as images are of one size, and of the captions with these indices."""
        return np.ones(len(indices), np.int64), self._offsets[indices + 1] - self._offsets[indices]

    @cached_property
    def files(self) -> list[str]:
        """Of all images."""
        return [image["file"] for image in self._records()]

    def references(self) -> list[list[str]]:
        """The captions of each image, all of them, as they came."""
        return [image["captions"] for image in self._records()]

    def collate(self, indices: ArrayLike) -> Batch:
        """The captions with these indices as a batch, in their order, each with its image."""
        chosen = np.asarray(indices, dtype=np.int64)
        targets = [self.target(int(index)) for index in chosen]
        return Batch(
            source=self.pictures(self.image_of[chosen]),
            target=make_target(targets),
            indices=chosen,
            tokens=sum(len(ids) + 1 for ids in targets),
        )

    def pictures(self, rows: Sequence[int] | NDArray[np.integer]) -> Annotations | Pixels:
        """What an encoder reads of the images with these indices in the split."""
        return self.store.source(self._rows[np.asarray(rows, np.int64)])

    def _records(self) -> list[dict[str, Any]]:
        with self._file("images.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def _file(self, name: str) -> Path:
        return self._directory / f"{self.name}.{name}"


class CaptionCache:
    """A prepared corpus of captions: its vocabulary, its splits, its images, and what `prepare` counted."""

    source_vocabulary = None

    def __init__(self, directory: Path, store: ImageStore | None = None) -> None:
        """Raises InputError unless the directory is a whole cache of captions. Without a store it has no splits."""
        self.directory = directory
        self.summary = read_summary(directory, form=FORMAT, kind="a cache of captions")
        self.target_vocabulary = load_target(directory)
        self._store = store

    @property
    def name(self) -> str:
        """The corpus's: scenes, flickr8k, coco."""
        return str(self.summary["corpus"])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.summary["splits"])

    @property
    def vocabulary_files(self) -> list[Path]:
        return [self.directory / TARGET]

    @property
    def store(self) -> ImageStore:
        if self._store is None:
            raise ValueError(f"{self.directory} was opened without an image store")
        return self._store

    def split(self, name: str) -> CaptionSplit:
        """Raises InputError where the corpus has no such split."""
        if name not in self.splits:
            raise InputError(f"{self.directory} has no split '{name}'; it has {', '.join(self.splits)}.")
        token_type = known_type(self.directory, self.summary["token_type"])
        return CaptionSplit(self.directory, name, token_type, self.store)

    def describe(self) -> str:
        """What was kept, refused, dropped and why, lengths, vocabulary and annotation vectors, as text."""
        lines = _describe(self.summary)
        if self._store is not None:
            lines.insert(1, self._store.describe())
        if any(split["refused"] for split in self.summary["splits"].values()):
            lines.append(f"Refused images, each with the reason: {self.directory / REFUSED}")
        return "\n".join(lines)


def is_caption_cache(path: Path) -> bool:
    """Whether the directory was made by `prepare`, from images with captions."""
    return (path / SUMMARY).is_file() and (path / REFUSED).is_file()


def load_target(directory: Path) -> Vocabulary:
    """The one vocabulary of a cache or checkpoint of captions."""
    if not (directory / TARGET).exists():
        raise InputError(f"{directory} has no vocabulary of captions: expected {TARGET}.")
    return load(directory / TARGET)


def _describe(summary: Mapping[str, Any]) -> list[str]:
    rows = [("split", "images", "captions", "tokens/caption", "unknown", "refused", "dropped")]
    for name, split in summary["splits"].items():
        captions, tokens = split["captions"], split["tokens"]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in split["dropped"].items())
        length, unknown = tokens / max(captions, 1), split["unknown"] / max(tokens, 1)
        counts = f"{split['images']:,}", f"{captions:,}", f"{length:.1f}", f"{unknown:.2%}", f"{split['refused']:,}"
        rows.append((name, *counts, reasons or "none"))
    size, kind = summary["vocabulary"]["size"], summary["vocabulary"]["kind"]
    return [f"{summary['corpus']}, images and captions; vocabulary: {size:,} entries ({kind})", *table(rows)]
