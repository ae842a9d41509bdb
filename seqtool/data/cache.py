"""The cache of a prepared corpus: a directory that is named after a hash of its inputs.

The directory is either complete or does not exist:

    cache/toy-en-es-1f2e3d4c5b6a/
        source.vocabulary target.vocabulary    or joint.vocabulary, for both; for captions only target.vocabulary
        train.source.tokens.bin                ids end to end, two or four bytes each; likewise for the target
        train.source.offsets.bin               where each sentence begins, and where the last sentence ends
        valid.source.txt valid.target.txt      the original sentences, as references (not for train)
        valid.alignments.txt                   gold alignments, if the corpus has them (not for train)
        train.words.txt                        how often each word occurs in the targets (of the first million examples)
        train.left_out.txt                     the numbers of the examples that `data.clean` leaves out, and the reasons
        summary.json                           counts of kept and dropped examples, settings, versions

If the corpus has images, there are these files instead of the sources and their text:

        train.image_of.bin        which image of the split each caption describes
        train.rows.bin            the row of each image of the split in an image store
        train.images.jsonl        each image's identifier, file and original captions
        refused.txt               the images that were left out: split, tab, reason

The images' annotation vectors are in an image store beside the cache (data/images/image_store.py). Plain text has only
the target's tokens; each line, with its line end unless `data.lines` is set, is an example. Numbers are little-endian.
Memory does not grow with the corpus: arrays are written a chunk at a time and memory-mapped, and texts are read when
they are needed.
"""

import json
import mmap
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqtool.data.directories import SUMMARY, read_summary
from seqtool.data.text.vocabulary import TARGET, Vocabulary, load_all
from seqtool.data.text.words import words
from seqtool.errors import InputError
from seqtool.runtime.tables import columns

if TYPE_CHECKING:
    from seqtool.data.batches import Batch, ShuffledEpoch
    from seqtool.data.images.image_store import ImageStore
    from seqtool.models.inputs import Images, Source

FORMAT = 1  # the version of the directory's format, which enters the directory's name
REFUSED = "refused.txt"
WORDS = "train.words.txt"
LEFT_OUT = "left_out.txt"
MAX_UNKNOWN = 0.01  # larger fractions of unknown tokens in a split are reported
OFFSET = np.dtype("<i8")
READS_UNTIL_RELEASE = 2**4  # each read may load a megabyte of pages

Ids = NDArray[np.unsignedinteger]


class Split:
    """The examples of one split by index (`batches.Examples`): sentence pairs, captions or lines of text.

    Images have an index of their own; captions are in the order of their images. Token ids are without BOS and EOS.
    Training examples outside the limits are left out; other splits are complete.
    """

    stream_count: int | None = None  # the examples are independent: no state is carried from batch to batch

    def __init__(
        self, directory: Path, name: str, vocabularies: Mapping[str, Vocabulary], store: "ImageStore | None"
    ) -> None:
        """Open a split of the cache in `directory`, with the vocabulary of each side, and the store of its images."""
        self.name = name
        self.store = store
        self._directory = directory
        dtypes = {side: token_type(vocabulary) for side, vocabulary in vocabularies.items()}
        self._columns = {side: Column(self._file(side), dtype) for side, dtype in dtypes.items()}
        self.stream: Ids = self._columns["target"].stream  # the targets end to end
        self.image_of: NDArray[np.int64] | None = None  # which image each caption describes
        if store is not None:
            self.image_of = map_array(self._file("image_of.bin"), OFFSET)
            self._rows = map_array(self._file("rows.bin"), OFFSET)

    def __len__(self) -> int:
        """The number of pairs, captions or lines."""
        return len(self._columns["target"])

    @property
    def has_pixels(self) -> bool:
        """Whether the encoder's input is pictures, as for an encoder that is trained, not annotation vectors."""
        return self.store is not None and self.store.locations is None

    def source(self, index: int) -> Ids:
        return self._columns["source"][index]

    def target(self, index: int) -> Ids:
        return self._columns["target"][index]

    def lengths(self, indices: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lengths in tokens of the sources, and of the targets, with these indices (None means all).

        An image has the length 1, since all images have the same size.
        """
        indices = np.arange(len(self)) if indices is None else indices
        sources = self._columns.get("source")
        ones = np.ones(len(indices), np.int64)
        return ones if sources is None else sources.lengths(indices), self._columns["target"].lengths(indices)

    def count_labels(self, indices: NDArray[np.int64]) -> int:
        """The number of tokens to predict in the targets with these indices, including each target's EOS."""
        return int(self._columns["target"].lengths(indices).sum()) + len(indices)

    def count_targets(self, indices: NDArray[np.int64]) -> int:
        return len(indices)

    @property
    def max_length(self) -> int:
        """The length in tokens of the longest source or target, including its EOS."""
        return 1 + max(int(side.max(initial=0)) for side in self.lengths())

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "ShuffledEpoch":
        """One pass over all examples (`batches.Epoch`)."""
        from seqtool.data.batches import ShuffledEpoch  # imports torch, which is not needed to prepare text

        return ShuffledEpoch(self, size=size, unit=unit, pool=pool, seed=seed, epoch=epoch)

    def probes(self, limit: int) -> "Batch":
        """Make a batch of up to `limit` examples whose sources (or else targets) have the 90th percentile's length."""
        sources, targets = self.lengths()
        lengths = targets if "source" not in self._columns else sources
        percentile = np.sort(lengths)[int(0.9 * (len(lengths) - 1))]
        return self.collate(np.flatnonzero(lengths == percentile)[:limit])

    def collate(self, indices: ArrayLike) -> "Batch":
        """Make a batch of the examples with these indices, in this order. Its captions of one image share the image."""
        from seqtool.data.batches import Batch, make_source, make_target, shared  # imports torch, as in `epoch`

        rows: NDArray[np.int64] = np.asarray(indices, dtype=np.int64)
        targets = self._columns["target"].read(rows)
        if self.image_of is not None:
            images, row = np.unique(self.image_of[rows], return_inverse=True)
            source: Source | Images | None = shared(self.pictures(images), row)
        else:
            source = make_source(self._columns["source"].read(rows)) if "source" in self._columns else None
        return Batch(source, make_target(targets), rows, tokens=sum(len(ids) + 1 for ids in targets))

    def pictures(self, images: Sequence[int] | NDArray[np.integer]) -> "Images":
        """The encoder's input for the images with these indices in the split."""
        assert self.store is not None, f"{self._directory} has no images"
        indices = np.asarray(images, np.int64)
        return self.store.source(self._rows[indices], self._may_mirror[indices] if self.store.mirror_unless else None)

    @cached_property
    def _may_mirror(self) -> NDArray[np.bool_]:
        """Whether each image may be mirrored: no caption of it has one of the store's words for this."""
        assert self.store is not None
        sides = set(map(str.lower, self.store.mirror_unless))
        return np.array([sides.isdisjoint(words(" ".join(captions))) for captions in self.references()])

    @cached_property
    def files(self) -> list[str]:
        """The file of each image."""
        return [image["file"] for image in self._images()]

    def references(self) -> list[list[str]]:
        """The original captions of each image, without those that `data.clean` leaves out of training."""
        captions: list[list[str]] = [image["captions"] for image in self._images()]
        if (file := self._file(LEFT_OUT)).exists():
            left_out, numbers = {int(line.split()[0]) for line in _lines(file)}, count(1)
            captions = [[caption for caption in each if next(numbers) not in left_out] for each in captions]
        return captions

    def texts(self, side: str) -> list[str]:
        """The original sentences of a side, `source` or `target`. The cache has none for the training split."""
        return _lines(self._file(f"{side}.txt"))

    def alignments(self) -> list[str] | None:
        """Gold alignments in Pharaoh format; None if the corpus has none."""
        path = self._file("alignments.txt")
        return _lines(path) if path.exists() else None

    def _images(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _lines(self._file("images.jsonl"))]

    def _file(self, name: str) -> Path:
        return self._directory / f"{self.name}.{name}"


class ByImage:
    """The images of a split as examples (`batches.Examples`), each with all its captions, so that an encoder that is
    trained reads an image once for all of them.
    """

    stream_count: int | None = None

    def __init__(self, split: Split) -> None:
        self.split = split
        assert split.image_of is not None, f"{split.name} has no images"
        _, first = np.unique(split.image_of, return_index=True)  # captions are in the order of their images
        self._bounds = np.append(first, len(split))
        longest = np.maximum.reduceat(1 + split.lengths()[1], first)
        self._labels = longest * np.diff(self._bounds)  # with padding

    def __len__(self) -> int:
        """The number of images that have captions."""
        return len(self._labels)

    def captions(self, images: ArrayLike) -> NDArray[np.int64]:
        """The indices in the split of all captions of these examples."""
        return np.concatenate([np.arange(*self._bounds[image : image + 2]) for image in np.asarray(images)])

    def lengths(self, images: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.ones_like(images), self._labels[images] - 1

    def count_labels(self, images: NDArray[np.int64]) -> int:
        return self.split.count_labels(self.captions(images))

    def count_targets(self, images: NDArray[np.int64]) -> int:
        return len(self.captions(images))

    def probes(self, limit: int) -> "Batch":
        return self.split.probes(limit)

    def collate(self, images: ArrayLike) -> "Batch":
        return self.split.collate(self.captions(images))

    def epoch(self, *, size: int, unit: str, pool: int, seed: int, epoch: int) -> "ShuffledEpoch":
        """One pass over all images, in batches of about `size` captions or at most `size` tokens."""
        from seqtool.data.batches import ShuffledEpoch  # imports torch

        size = max(1, round(size * len(self) / len(self.split))) if unit == "sentences" else size
        return ShuffledEpoch(self, size=size, unit=unit, pool=pool, seed=seed, epoch=epoch)


class Cache:
    """A prepared corpus: its vocabularies, its splits, its images if it has any, and what `prepare` counted."""

    def __init__(self, directory: Path, store: "ImageStore | None" = None) -> None:
        """Raises InputError unless the directory is a complete cache. With images, its splits need the `store`."""
        self.directory = directory
        self.summary = read_summary(directory, format_version=FORMAT, kind="a cache")
        self.name = str(self.summary["corpus"])  # such as toy, multi30k or flickr8k
        self.splits: tuple[str, ...] = tuple(self.summary["splits"])  # train, valid and perhaps test
        self.has_images = REFUSED in self.summary["files"]  # whether the targets are captions of images
        self.vocabulary_files = sorted(directory.glob("*.vocabulary"))
        has_sources = [file.name for file in self.vocabulary_files] != [TARGET]
        self.vocabularies = load_all(directory, ("source", "target") if has_sources else ("target",))
        self.target_vocabulary = self.vocabularies["target"]
        self._store = store

    @property
    def source_vocabulary(self) -> Vocabulary:
        return self.vocabularies["source"]

    @property
    def store(self) -> "ImageStore":
        if self._store is None:
            raise ValueError(f"{self.directory} was opened without an image store")
        return self._store

    def split(self, name: str) -> Split:
        """The split with this name. Raises InputError if the corpus has none."""
        if name not in self.splits:
            advice = "" if self.has_images else f" Where data.{name} is a setting, name its files there."
            raise InputError(f"{self.directory} has no split '{name}'; it has {', '.join(self.splits)}.{advice}")
        return Split(self.directory, name, self.vocabularies, self.store if self.has_images else None)

    def tokens(self) -> tuple[int, int]:
        """The number of training tokens, of both sides if there are two, and how many of them are unknown."""
        train = self.summary["splits"]["train"]
        sides = [train["source"], train["target"]] if "source" in train else [train]
        return sum(side["tokens"] for side in sides), sum(side["unknown"] for side in sides)

    def word_counts(self) -> dict[str, int] | None:
        """How often each word (`text.words.words`) occurs in the training targets; None for plain text."""
        path = self.directory / WORDS
        if not path.exists():
            return None
        return {word: int(count) for count, word in (line.split("\t") for line in _lines(path))}

    def describe(self) -> str:
        """Describe the cache: kept, refused and dropped examples, lengths, vocabularies and unknown tokens."""
        vocabulary, languages = self.summary["vocabulary"], self.summary.get("languages", [])
        subject = "images and captions" if "images" in self.summary["splits"]["train"] else " → ".join(languages)
        title = ", ".join(filter(None, [self.summary["corpus"], subject]))
        sizes = f"{vocabulary.get('size', vocabulary.get('source')):,}"
        if languages and not vocabulary["joint"]:
            sizes = f"{languages[0]} {vocabulary['source']:,} and {languages[1]} {vocabulary['target']:,}"
        joint = ", joint" if vocabulary.get("joint") else ""
        cells = [[("split", name), *_cells(split, languages)] for name, split in self.summary["splits"].items()]
        if not any("lines" not in split or split["dropped"] for split in self.summary["splits"].values()):
            cells = [row[:-1] for row in cells]  # of plain text, only `data.clean` leaves lines out
        header = [column for column, _ in cells[0]]
        rows = [[cell for _, cell in row] for row in cells]
        lines = [f"{title}; vocabulary: {sizes} entries ({vocabulary['kind']}){joint}", *columns([header, *rows])]
        if self._store is not None:
            lines.insert(1, self._store.describe())
        if any(split.get("refused") for split in self.summary["splits"].values()):
            lines.append(f"Refused images, each with the reason: {self.directory / REFUSED}")
        for finding in self.summary.get("findings", []):
            numbers = f"{finding['count']:,} of {finding['total']:,}"
            lines.append(f"Found in {finding['split']}: {finding['kind']} ({numbers})")
        return "\n".join(lines)

    def unknown_warning(self) -> list[str]:
        """A list with a warning that names the splits with many unknown tokens; empty if there are no such splits."""
        fractions = []
        for name, split in self.summary["splits"].items():
            sides = {side: split[side] for side in ("source", "target") if side in split} or {"": split}
            for side, entry in sides.items():
                if entry["unknown"] > MAX_UNKNOWN * entry["tokens"]:
                    part = f"{name}'s {side}" if side else name
                    pieces = entry.get("commonest_unknown", "")  # empty if the first examples have no unknown piece
                    examples = f": {pieces}" if pieces else ""
                    fractions.append(f"{entry['unknown'] / entry['tokens']:.1%} in {part}{examples}")
        if not fractions:
            return []
        return [
            f"Many tokens are unknown to the vocabulary, {'; '.join(fractions)}. More training text leaves "
            "fewer; so may a larger data.vocabulary.size, a smaller minimum_count, or data.vocabulary.kind=bpe."
        ]


def _cells(split: Mapping[str, Any], languages: Sequence[str]) -> list[tuple[str, str]]:
    """The (column, cell) pairs of a split's row: examples, mean lengths, unknown tokens, and examples left out."""
    sides = [split["source"], split["target"]] if languages else [split]
    tokens, unknown_tokens = (sum(side[name] for side in sides) for name in ("tokens", "unknown"))
    units = [name for name in ("pairs", "images", "captions", "characters", "lines") if name in split]
    counts = [(name, f"{split[name]:,}") for name in units]
    unknown = ("unknown", f"{unknown_tokens / max(tokens, 1):.2%}")
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in split["dropped"].items()) or "none"
    if "lines" in split:
        return [*counts, ("tokens", f"{tokens:,}"), unknown, ("dropped", dropped)]
    means = [f"{side['tokens'] / max(split[units[-1]], 1):.1f}" for side in sides]
    lengths = [(f"tokens/{name}", mean) for name, mean in zip(languages or ["caption"], means, strict=True)]
    refused = [("refused", f"{split['refused']:,}")] if "refused" in split else []
    return [*counts, *lengths, unknown, *refused, ("dropped", dropped)]


def is_cache(path: Path) -> bool:
    """Whether `seqtool prepare` made the directory."""
    return (path / SUMMARY).is_file() and any(path.glob("*.vocabulary"))


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


# The columns of token ids on disk, as `preparation.ColumnsWriter` writes them


class Column:
    """The sentences of one side of a split: token ids, without BOS and EOS."""

    def __init__(self, stem: Path, dtype: np.dtype[np.unsignedinteger]) -> None:
        """Open the files that begin with `stem`, such as cache/…/train.source."""
        self.stream: Ids = map_array(stem.with_name(f"{stem.name}.tokens.bin"), dtype)  # all sentences end to end
        self._offsets = map_array(stem.with_name(f"{stem.name}.offsets.bin"), OFFSET)
        self._reads = 0  # the number of reads since pages were last released

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.read(np.array([index]))[0]

    def read(self, indices: NDArray[np.int64]) -> list[Ids]:
        """The sentences with these indices. The file is indexed as a plain array: a memory map takes longer."""
        if (is_outside := (indices < 0) | (indices >= len(self))).any():
            raise IndexError(f"sentence {indices[is_outside][0]} of {len(self)}")
        stream, starts, ends = np.asarray(self.stream), self._offsets[indices], self._offsets[indices + 1]
        sentences = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            sentences.append(stream[start:end].copy())
            self._release_pages(1)
        return sentences

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths in tokens of the sentences with these indices."""
        lengths: NDArray[np.int64] = self._offsets[indices + 1] - self._offsets[indices]
        self._release_pages(len(indices))
        return lengths

    def _release_pages(self, reads: int) -> None:
        """Count reads, and release the files' pages every `READS_UNTIL_RELEASE`; the system's cache keeps them."""
        self._reads += reads
        if self._reads >= READS_UNTIL_RELEASE:
            self._reads = 0
            for values in (self.stream, self._offsets):
                if isinstance(values, np.memmap):
                    values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def map_array(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map the file's numbers into memory as an array. An empty file, which cannot be mapped, gives an empty array."""
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


def token_type(vocabulary: Vocabulary) -> np.dtype[np.unsignedinteger]:
    """The type of a token id: an integer of two bytes if they suffice, otherwise four; little-endian everywhere."""
    return np.dtype("<u2" if len(vocabulary) <= 1 << 16 else "<u4")
