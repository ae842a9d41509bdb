"""Tests of splitting the pieces of training sentences at random."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from seqtool.data.batches import Batch, make_batch, make_source
from seqtool.data.text.vocabulary import Vocabulary, VocabularySettings, train
from seqtool.errors import InputError
from seqtool.models.inputs import Annotations, Source
from seqtool.models.tokens import EOS, PAD
from seqtool.runtime.configs import defaults
from seqtool.training.piece_splitting import PieceSplitter

TEXTS = ["the red house stands near the river", "a reader reads the newest papers", "houses near rivers", "the papers"]


def make_vocabulary(kind: str, size: int | None) -> Vocabulary:
    settings = VocabularySettings(**defaults("preparation")["vocabulary"] | {"kind": kind, "size": size})
    stems, endings = ("read", "paint", "hous", "stand", "play"), ("er", "ing", "s", "ed", "able")
    return train(TEXTS + [f"{stem}{ending} {stem}s" for stem in stems for ending in endings] * 9, settings)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return make_vocabulary(request.param, 44)


def make_pairs(vocabulary: Vocabulary, order: list[int]) -> Batch:
    """Return the texts in this order, each with the next text as its target."""
    sources, targets = ([vocabulary.encode(TEXTS[(i + shift) % len(TEXTS)]) for i in order] for shift in range(2))
    return make_batch(make_source(sources), targets, np.array(order))


def rows_of(batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of all sources and of all targets, without special tokens."""
    assert isinstance(batch.source, Source)
    sources = [row[: n - 1] for row, n in zip(batch.source.tokens.tolist(), batch.source.lengths.tolist(), strict=True)]
    return sources, [[piece for piece in row if piece not in (PAD, EOS)] for row in batch.labels.tolist()]


def test_the_text_stays_and_the_pieces_change(vocabulary: Vocabulary) -> None:
    pairs = make_pairs(vocabulary, [0, 1, 2, 3])
    splitter = PieceSplitter({"source": vocabulary, "target": vocabulary}, 0.5, seed=1)
    split = splitter(pairs, epoch=0)
    for before, after in zip(rows_of(pairs), rows_of(split), strict=True):
        assert [vocabulary.decode(row) for row in after] == [vocabulary.decode(row) for row in before]
        assert sum(map(len, after)) > sum(map(len, before))
    assert split.tokens == int((split.labels != PAD).sum())
    assert rows_of(splitter(pairs, epoch=1)) != rows_of(split)


def test_draws_depend_on_seed_epoch_and_example_alone(vocabulary: Vocabulary) -> None:
    splitter = PieceSplitter({"source": vocabulary, "target": vocabulary}, 0.5, seed=1)
    rows = dict(enumerate(zip(*rows_of(splitter(make_pairs(vocabulary, [0, 1, 2, 3]), 2)), strict=True)))
    for order in ([3, 1], [2], [1, 0, 3]):
        assert list(zip(*rows_of(splitter(make_pairs(vocabulary, order), 2)), strict=True)) == [rows[i] for i in order]
    other_seed = PieceSplitter({"source": vocabulary, "target": vocabulary}, 0.5, seed=2)
    assert dict(enumerate(zip(*rows_of(other_seed(make_pairs(vocabulary, [0, 1, 2, 3]), 2)), strict=True))) != rows


def test_pieces_are_split_as_often_as_set(vocabulary: Vocabulary) -> None:
    """A piece is split with the probability 0.2, to within four standard errors, and each split is equally likely."""
    piece = max(range(4, len(vocabulary)), key=lambda i: len(PieceSplitter({"": vocabulary}, 1, 0).halves[""][i]))
    splitter = PieceSplitter({"target": vocabulary}, 0.2, seed=3)
    pairs, count = splitter.halves["target"][piece], 4000
    batch = make_batch(None, [[piece]] * count, np.arange(count))
    drawn = [tuple(row) for row in rows_of(replace(splitter(batch, 0), source=make_source([[]] * count)))[1]]
    split = [row for row in drawn if row != (piece,)]
    assert abs(len(split) - 0.2 * count) < 4 * (0.16 * count) ** 0.5
    assert set(split) == set(pairs)
    for pair in pairs:
        p = 1 / len(pairs)
        assert abs(split.count(pair) - p * len(split)) <= 4 * (p * (1 - p) * len(split)) ** 0.5 + 1e-9


def test_images_stay_as_they_are(vocabulary: Vocabulary) -> None:
    batch = make_batch(Annotations(torch.rand(1, 4, 3)), [vocabulary.encode(TEXTS[0])], np.array([0]))
    assert PieceSplitter({"target": vocabulary}, 1.0, seed=1)(batch, 0).source is batch.source


def test_words_cannot_be_split() -> None:
    with pytest.raises(InputError, match=r"train.split_pieces=0.1 .* one of words: set data.vocabulary.kind=bpe"):
        PieceSplitter({"target": make_vocabulary("word", None)}, 0.1, seed=1)
