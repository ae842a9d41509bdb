"""The cache of a prepared corpus: a directory named by its inputs and settings, complete or not there at all.

    cache/toy-en-es-1f2e3d4c5b6a/
        source.vocabulary target.vocabulary    or joint.vocabulary, for both
        train.source.tokens.bin                ids end to end, two or four bytes each
        train.source.offsets.bin               where each sentence begins, and the last one ends
        valid.source.txt valid.target.txt      the sentences as they came: references (not of train)
        valid.alignments.txt                   gold alignments, where the corpus has them (not of train)
        summary.json                           what was kept, what was dropped and why, settings, versions

Arrays are memory-mapped, so memory does not grow with the corpus.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqtool.data.directories import SUMMARY, read_summary
from seqtool.data.encoding import Side
from seqtool.data.vocabulary import Vocabulary, load_pair
from seqtool.errors import InputError

if TYPE_CHECKING:
    from seqtool.data.batches import Batch

FORMAT = 1  # of the directory; part of what names it
OFFSET = np.dtype("<i8")
TOKEN_TYPES = ("<u2", "<u4")
GIVE_BACK = 2**4  # reads, each of which may bring a megabyte with it

Ids = NDArray[np.unsignedinteger]


class Split:
    """The sentence pairs of one split, by their index: token ids, without BOS and EOS."""

    def __init__(self, directory: Path, name: str, types: Mapping[str, np.dtype[np.unsignedinteger]]) -> None:
        self.name = name
        self._directory = directory
        self._tokens = {side: mapped(self._file(f"{side}.tokens.bin"), types[side]) for side in types}
        self._offsets = {side: mapped(self._file(f"{side}.offsets.bin"), OFFSET) for side in types}
        self._read = 0

    def __len__(self) -> int:
        return len(self._offsets["source"]) - 1

    def source(self, index: int) -> Ids:
        return self._ids("source", index)

    def target(self, index: int) -> Ids:
        return self._ids("target", index)

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """In tokens, of the sources and targets of these pairs."""
        source, target = (offsets[indices + 1] - offsets[indices] for offsets in self._offsets.values())
        self._give_back(len(indices))
        return source, target

    @cached_property
    def target_lengths(self) -> NDArray[np.int64]:
        """In tokens, of all targets."""
        return np.diff(self._offsets["target"])

    def collate(self, indices: ArrayLike) -> "Batch":
        """These pairs as a batch."""
        from seqtool.data.batches import collate  # imports torch, which preparing does without

        return collate(self, indices)

    def _give_back(self, read: int) -> None:
        """After so many reads, from all over the files, their pages: the system's cache keeps them."""
        self._read += read
        if self._read >= GIVE_BACK:
            self._read = 0
            for values in (*self._tokens.values(), *self._offsets.values()):
                if isinstance(values, np.memmap):
                    values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def texts(self, side: str) -> list[str]:
        """The sentences as they came, of `source` or `target`. The cache keeps none of the training split."""
        return _read_lines(self._file(f"{side}.txt"))

    def alignments(self) -> list[str] | None:
        """Gold alignments in Pharaoh format, where the corpus has them."""
        path = self._file("alignments.txt")
        return _read_lines(path) if path.exists() else None

    def _ids(self, side: str, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        offsets = self._offsets[side]
        ids = np.array(self._tokens[side][offsets[index] : offsets[index + 1]])
        self._give_back(1)
        return ids

    def _file(self, name: str) -> Path:
        return self._directory / f"{self.name}.{name}"


class Cache:
    """A prepared corpus: its vocabularies, its splits, and what `prepare` counted."""

    def __init__(self, directory: Path) -> None:
        """Raises InputError unless the directory is a whole cache."""
        self.directory = directory
        self.summary = read_summary(directory, form=FORMAT, kind="a cache")
        self.source_vocabulary: Vocabulary
        self.target_vocabulary: Vocabulary
        self.source_vocabulary, self.target_vocabulary = load_pair(directory)

    @property
    def name(self) -> str:
        """The corpus's: toy, multi30k, parallel."""
        return str(self.summary["corpus"])

    @property
    def languages(self) -> tuple[str, str]:
        """Of source and target."""
        source, target = self.summary["languages"]
        return source, target

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.summary["splits"])

    @property
    def vocabulary_files(self) -> list[Path]:
        return sorted(self.directory.glob("*.vocabulary"))

    def split(self, name: str) -> Split:
        """Raises InputError where the corpus has no such split."""
        if name not in self.splits:
            raise InputError(
                f"{self.directory} has no split '{name}'; it has {', '.join(self.splits)}. "
                f"Where data.{name} is a setting, name its files there."
            )
        types = self.summary["token_types"]
        return Split(self.directory, name, {side: known_type(self.directory, types[side]) for side in types})

    def describe(self) -> str:
        """What was kept, dropped and why, lengths, vocabularies and unknown tokens, as text."""
        return _describe(self.summary)


class SideWriter:
    """Writes the tokens and offsets of one side of a split; `stem` as in cache/…/train.source.

    `begun`: goes on where another one was when it `noted` this.
    """

    def __init__(self, stem: Path, begun: Mapping[str, int] | None = None) -> None:
        self._stem = stem
        self._stack = ExitStack()
        self._begun = begun
        self.sentences, self.tokens, self.unknown = (
            (begun or {}).get(name, 0) for name in ("sentences", "tokens", "unknown")
        )

    def __enter__(self) -> "SideWriter":
        tokens, offsets = (self._stem.with_name(f"{self._stem.name}.{name}.bin") for name in ("tokens", "offsets"))
        mode = "wb" if self._begun is None else "r+b"
        self._tokens: Any = self._stack.enter_context(tokens.open(mode))
        self._offsets: Any = self._stack.enter_context(offsets.open(mode))
        if self._begun is None:
            self._offsets.write(np.zeros(1, OFFSET).tobytes())
        else:
            sizes = self._begun["bytes"], OFFSET.itemsize * (self.sentences + 1)
            for file, size in zip((self._tokens, self._offsets), sizes, strict=True):
                file.truncate(size)
                file.seek(size)
        return self

    def noted(self) -> dict[str, int]:
        """How far this is, all of it on the disk."""
        for file in (self._tokens, self._offsets):
            file.flush()
            os.fsync(file.fileno())
        counts = {"sentences": self.sentences, "tokens": self.tokens, "unknown": self.unknown}
        return {**counts, "bytes": self._tokens.tell()}

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, side: Side) -> None:
        self._tokens.write(side.tokens.tobytes())
        self._offsets.write((self.tokens + np.cumsum(side.lengths)).astype(OFFSET).tobytes())
        self.sentences += len(side.lengths)
        self.tokens += len(side.tokens)
        self.unknown += side.unknown


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def copied(pairs: Iterable[tuple[str, str]], source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs again, each written into the two files as it passes."""
    with (
        source.open("w", encoding="utf-8", newline="\n") as source_file,
        target.open("w", encoding="utf-8", newline="\n") as target_file,
    ):
        for pair in pairs:
            source_file.write(f"{pair[0]}\n")
            target_file.write(f"{pair[1]}\n")
            yield pair


def known_type(directory: Path, name: str) -> np.dtype[np.unsignedinteger]:
    """The type that tokens are stored in. Raises InputError on one that they never are."""
    if name not in TOKEN_TYPES:
        raise InputError(f"{directory / SUMMARY} is damaged: remove {directory} and prepare again.")
    return np.dtype(name)


def is_cache(path: Path) -> bool:
    """Whether the directory was made by `prepare`."""
    return (path / SUMMARY).is_file()


def _describe(summary: Mapping[str, Any]) -> str:
    source, target = summary["languages"]
    sizes, kind = summary["vocabulary"], summary["vocabulary"]["kind"]
    both = f"{sizes['source']:,} entries ({kind}), joint"
    apart = f"{source} {sizes['source']:,} and {target} {sizes['target']:,} entries ({kind})"
    rows = [("split", "pairs", f"tokens/{source}", f"tokens/{target}", "unknown", "dropped")]
    for name, split in summary["splits"].items():
        sides = split["source"], split["target"]
        tokens = sum(side["tokens"] for side in sides)
        unknown = sum(side["unknown"] for side in sides) / max(tokens, 1)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in split["dropped"].items())
        lengths = (f"{side['tokens'] / max(split['pairs'], 1):.1f}" for side in sides)
        rows.append((name, f"{split['pairs']:,}", *lengths, f"{unknown:.2%}", reasons or "none"))
    title = f"{summary['corpus']}, {source} → {target}; vocabulary: {both if sizes['joint'] else apart}"
    return "\n".join([title, *table(rows)])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines: the first column to the left, numbers to the right, the last column as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells, last]))
    return lines


def mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The file's numbers, read as they are used; an empty file cannot be mapped."""
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


def _read_lines(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]
