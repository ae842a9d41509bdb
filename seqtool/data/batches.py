"""Batches: sentences of like length together, in an order that is a function of the seed and the epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from seqtool.data.vocabulary import BOS, EOS, PAD
from seqtool.errors import InputError

Ids = Sequence[int] | NDArray[np.integer]
Indices = NDArray[np.int64]

UNITS = ("sentences", "tokens")


class Pairs(Protocol):
    """What batches are made from: token ids of sentence pairs, without BOS and EOS (`cache.Split`)."""

    def source(self, index: int) -> NDArray[np.integer]: ...

    def target(self, index: int) -> NDArray[np.integer]: ...


@dataclass(frozen=True)
class Source:
    """tokens: B×S ids, each row a sentence, EOS and then padding; lengths: B, EOS included."""

    tokens: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """B×S: true at real positions."""
        return torch.arange(self.tokens.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def to(self, device: torch.device | str) -> "Source":
        return Source(self.tokens.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True))


@dataclass(frozen=True)
class Annotations:
    """values: B×S×D annotation vectors of images in float16, as `data/image_store.py` keeps them."""

    values: Tensor

    def to(self, device: torch.device | str) -> "Annotations":
        return Annotations(self.values.to(device, non_blocking=True))


@dataclass(frozen=True)
class Pixels:
    """values: B×3×H×W uint8, images as a backbone reads them."""

    values: Tensor

    def to(self, device: torch.device | str) -> "Pixels":
        return Pixels(self.values.to(device, non_blocking=True))


@dataclass(frozen=True)
class Batch:
    """target: B×(T+1) ids, each row BOS, a sentence, EOS and then padding; indices: which pairs of the split
    these are; tokens: the number of labels that are no padding.
    """

    source: Source | Annotations | Pixels
    target: Tensor
    indices: Indices
    tokens: int

    @property
    def inputs(self) -> Tensor:
        """B×T: what the decoder reads."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """B×T: what it should say, one position ahead of `inputs`."""
        return self.target[:, 1:]

    def to(self, device: torch.device | str) -> "Batch":
        target = self.target.to(device, non_blocking=True)
        return Batch(self.source.to(device), target, self.indices, self.tokens)


def make_source(sentences: Sequence[Ids]) -> Source:
    """Token ids without specials as what an encoder reads."""
    lengths = torch.tensor([len(ids) + 1 for ids in sentences], dtype=torch.int64)
    return Source(_padded(sentences, before=[], after=[EOS]), lengths)


def make_target(sentences: Sequence[Ids]) -> Tensor:
    """Token ids without specials as B×(T+1): BOS, the sentence, EOS, padding."""
    return _padded(sentences, before=[BOS], after=[EOS])


def collate(pairs: Pairs, indices: ArrayLike) -> Batch:
    """The pairs with these indices as a batch, in their order."""
    chosen: Indices = np.asarray(indices, dtype=np.int64)
    targets = [pairs.target(int(index)) for index in chosen]
    return Batch(
        source=make_source([pairs.source(int(index)) for index in chosen]),
        target=make_target(targets),
        indices=chosen,
        tokens=sum(len(ids) + 1 for ids in targets),
    )


def epoch_batches(
    source_lengths: ArrayLike,
    target_lengths: ArrayLike,
    *,
    size: int,
    unit: str,
    seed: int,
    epoch: int,
    pool: int,
) -> list[Indices]:
    """The batches of an epoch, as indices of pairs: each pair once. The same arguments give the same batches.

    The pairs are shuffled and cut into pools of about `pool` batches; each pool is sorted by length and cut
    into batches of `size` sentences, or of at most `size` target tokens (EOS and padding included; a longer
    sentence is a batch of its own); the batches are shuffled. Lengths are in tokens without BOS and EOS.
    """
    if unit not in UNITS:
        raise InputError(f"Unknown batch unit '{unit}'; choose from {', '.join(UNITS)}.")
    if size < 1 or pool < 1:
        raise InputError(f"A batch and a pool hold at least 1, not {size} {unit} and {pool} batches.")
    sources, labels = np.asarray(source_lengths), np.asarray(target_lengths) + 1
    if len(labels) == 0:
        return []
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(labels))
    sentences = size if unit == "sentences" else max(1, int(size / labels.mean()))  # in a batch, on average
    batches = []
    for start in range(0, len(order), pool * sentences):
        chosen = order[start : start + pool * sentences]
        chosen = chosen[np.lexsort((sources[chosen], labels[chosen]))]  # by target, then by source
        if unit == "sentences":
            cuts = list(range(size, len(chosen), size))
        else:
            cuts = _token_cuts(labels[chosen].tolist(), size)
        batches += np.split(chosen, cuts)
    return [batches[place] for place in generator.permutation(len(batches))]


def _token_cuts(lengths: list[int], size: int) -> list[int]:
    """Where batches begin, the first apart, in rising lengths: rows times the longest stays within `size`."""
    cuts, start = [], 0
    for end, length in enumerate(lengths):
        if end > start and (end - start + 1) * length > size:
            cuts.append(end)
            start = end
    return cuts


def _padded(sentences: Sequence[Ids], *, before: list[int], after: list[int]) -> Tensor:
    extra = len(before) + len(after)
    longest = max((len(ids) for ids in sentences), default=0)
    tokens = np.full((len(sentences), longest + extra), PAD, dtype=np.int64)
    for row, ids in zip(tokens, sentences, strict=True):
        row[: len(ids) + extra] = np.concatenate([before, ids, after])
    return torch.from_numpy(tokens)
