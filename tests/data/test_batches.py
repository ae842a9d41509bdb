"""Tests of batches: an epoch has each pair once, seed and epoch decide the order, and rows are padded correctly."""

from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqtool.data.batches import ShuffledEpoch, make_source, make_target
from seqtool.data.cache import Split
from seqtool.models.tokens import BOS, EOS, PAD

generator = np.random.default_rng(7)
SOURCE_LENGTHS = generator.integers(0, 30, size=1003)
TARGET_LENGTHS = np.maximum(0, SOURCE_LENGTHS + generator.integers(-3, 4, size=1003))
EXPECTED_BATCHES = [  # batches 40 and 41 of 101, as commit ad25e6a made them
    [181, 871, 863, 792, 596, 671, 992, 443, 602, 753],
    [116, 512, 396, 729, 731, 955, 502, 24, 196, 467],
]


class Side:
    """Sentences of these lengths; all tokens of sentence i are 10 + i."""

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        self.lengths = lengths

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint16]]:
        return [np.full(self.lengths[index], 10 + index, dtype=np.uint16) for index in indices]


class Pairs:
    """A corpus whose pair i has SOURCE_LENGTHS[i] and TARGET_LENGTHS[i] tokens, all of them 10 + i."""

    image_of = None
    _columns: ClassVar = {"source": Side(SOURCE_LENGTHS), "target": Side(TARGET_LENGTHS)}

    def __len__(self) -> int:
        return len(SOURCE_LENGTHS)

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return SOURCE_LENGTHS[indices], TARGET_LENGTHS[indices]


def make_batches(
    *, size: int = 32, unit: str = "sentences", seed: int = 1, epoch: int = 0, pool: int = 8, buffer: int = 2000
) -> list[list[int]]:
    shuffled_epoch = ShuffledEpoch(Pairs(), size=size, unit=unit, seed=seed, epoch=epoch, pool=pool, buffer=buffer)
    return [batch.tolist() for batch in read_batches(shuffled_epoch)]


def read_batches(epoch: ShuffledEpoch, *, start: int = 0, count: int = 1) -> list[NDArray[np.int64]]:
    batches: list[NDArray[np.int64]] = []
    while following := epoch.batches(start + len(batches), count):
        batches += following
    return batches


@pytest.mark.parametrize(("unit", "size"), [("sentences", 32), ("sentences", 1), ("tokens", 400), ("tokens", 1)])
@pytest.mark.parametrize("buffer", [1, 300, 1002, 1003])
def test_an_epoch_has_each_pair_once(unit: str, size: int, buffer: int) -> None:
    batches = make_batches(unit=unit, size=size, buffer=buffer)
    assert sorted(index for batch in batches for index in batch) == list(range(len(SOURCE_LENGTHS)))
    assert all(batches)


def test_seed_and_epoch_decide_the_batches() -> None:
    assert make_batches() == make_batches()
    assert make_batches(unit="tokens", size=300) == make_batches(unit="tokens", size=300)
    orders = [make_batches(), make_batches(epoch=1), make_batches(seed=2)]
    assert all(order != other_order for order, other_order in combinations(orders, 2))


def test_sentences_fill_the_batches() -> None:
    sizes = sorted(len(batch) for batch in make_batches(size=32))
    assert sizes == [1003 % 32] + [32] * (1003 // 32)


def test_only_a_single_long_sentence_exceeds_the_token_budget() -> None:
    for batch in make_batches(unit="tokens", size=20):
        assert len(batch) == 1 or len(batch) * (max(TARGET_LENGTHS[batch]) + 1) <= 20
    padded = [len(batch) * (max(TARGET_LENGTHS[batch]) + 1) for batch in make_batches(unit="tokens", size=1000)]
    assert np.median(padded) > 900


def test_batches_hold_sentences_of_similar_length() -> None:
    def padding_share(batches: list[list[int]]) -> float:
        padded = sum(len(batch) * TARGET_LENGTHS[batch].max() for batch in batches)
        return float(1 - TARGET_LENGTHS.sum() / padded)

    assert padding_share(make_batches(pool=20)) < 0.1 < 0.3 < padding_share(make_batches(pool=1))


def test_batches_are_not_ordered_by_length() -> None:
    lengths = [float(np.mean(TARGET_LENGTHS[batch])) for batch in make_batches(pool=100)]
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.5


def test_a_large_corpus_is_shuffled_in_buffers_of_shuffled_blocks() -> None:
    epoch = ShuffledEpoch(Pairs(), size=10, unit="sentences", seed=1, epoch=0, pool=5, buffer=256)
    batches = read_batches(epoch)
    assert len(batches) == 25 + 3 * 26  # 1,003 pairs: a buffer of 248 and three of 251 or 252
    first = np.concatenate(batches[:25])
    # The corpus consists of blocks of 4 neighbours and a last one of 3; the first buffer has 62 of them.
    blocks, sizes = np.unique(first // 4, return_counts=True)
    assert len(blocks) == 62
    assert set(sizes[blocks < 250]) == {4}
    assert blocks.min() < 20
    assert blocks.max() > 230
    changes: list[dict[str, int]] = [{}, {"epoch": 1}, {"seed": 2}]
    orders = [*(make_batches(buffer=256, **change) for change in changes), make_batches()]
    assert all(order != other_order for order, other_order in combinations(orders, 2))


@pytest.mark.parametrize("buffer", [256, 2000])
@pytest.mark.parametrize("start", [0, 1, 26, 27, 70])
def test_an_epoch_continues_from_any_position(buffer: int, start: int) -> None:
    def make_epoch() -> ShuffledEpoch:
        return ShuffledEpoch(Pairs(), size=10, unit="sentences", seed=1, epoch=0, pool=5, buffer=buffer)

    expected, epoch = read_batches(make_epoch()), make_epoch()
    remaining = read_batches(epoch, start=start)
    assert [batch.tolist() for batch in remaining] == [batch.tolist() for batch in expected[start:]]
    assert epoch.fraction_done(len(expected)) == 1.0
    assert read_batches(epoch)[0].tolist() == expected[0].tolist()  # an epoch can also start again
    fractions = [epoch.fraction_done(position) for position in range(len(expected)) if epoch.batches(position, 1)]
    assert fractions[0] == 0
    assert np.all(np.diff(fractions) > 0)


class EqualLengths(Pairs):
    """A corpus of `count` pairs of 7 tokens."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.full(len(indices), 7), np.full(len(indices), 7)


@pytest.mark.parametrize("count", [255, 256, 257, 260, 300, 513, 700, 768, 1003])
@pytest.mark.parametrize("unit", ["sentences", "tokens"])
def test_the_fraction_of_an_epoch_counts_pairs(count: int, unit: str) -> None:
    """The buffer of 256 pairs holds all, most, or a small part of the corpus."""
    epoch = ShuffledEpoch(
        EqualLengths(count), size=16 if unit == "tokens" else 2, unit=unit, seed=1, epoch=0, pool=5, buffer=256
    )
    batches, pairs_before, fractions = read_batches(epoch), 0, []
    for position, batch in enumerate(batches):
        epoch.batches(position, 1)
        fractions.append(epoch.fraction_done(position))
        assert abs(fractions[-1] - pairs_before / count) <= 2 / count  # a batch has two pairs
        pairs_before += len(batch)
    assert fractions[0] == 0 and np.all(np.diff(fractions) > 0)
    assert epoch.fraction_done(len(batches)) == pytest.approx(1, abs=1e-12)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert abs(len(epoch) - len(batches)) <= 0.03 * len(batches)


@pytest.mark.parametrize("unit", ["sentences", "tokens"])
def test_the_fraction_counts_pairs_of_unequal_lengths(unit: str) -> None:
    epoch = ShuffledEpoch(
        Pairs(), size=10 if unit == "sentences" else 200, unit=unit, seed=1, epoch=0, pool=5, buffer=992
    )
    batches, pairs_before = read_batches(epoch), 0  # 1,003 pairs are a few more than the buffer holds
    largest = max(map(len, batches))
    for position, batch in enumerate(batches):
        epoch.batches(position, 1)
        assert abs(epoch.fraction_done(position) * len(SOURCE_LENGTHS) - pairs_before) <= largest
        pairs_before += len(batch)


def test_no_buffer_holds_only_a_few_neighbours() -> None:
    """A corpus with one pair more than the buffer is split into halves, not into a full buffer and one pair."""
    epoch = ShuffledEpoch(EqualLengths(257), size=4, unit="sentences", seed=1, epoch=0, pool=5, buffer=256)
    last = np.concatenate(read_batches(epoch)[-8:])
    assert np.ptp(last) > 100


def test_a_corpus_that_fits_into_the_buffer_keeps_its_order() -> None:
    """A run that was begun with an earlier version continues with the same batches."""
    epoch = ShuffledEpoch(Pairs(), size=10, unit="sentences", seed=1, epoch=2, pool=5, buffer=1003)
    assert [batch.tolist() for batch in epoch.batches(40, 2)] == EXPECTED_BATCHES
    assert [epoch.fraction_done(position) for position in (0, 40, 101)] == [0, 40 / 101, 1]


def test_an_empty_corpus_has_no_batches() -> None:
    class EmptyCorpus(Pairs):
        def __len__(self) -> int:
            return 0

    assert read_batches(ShuffledEpoch(EmptyCorpus(), size=4, unit="tokens", seed=1, epoch=0, pool=2)) == []


def test_rows_are_sentences_with_special_tokens_and_padding() -> None:
    source = make_source([[5, 6], [], [7]])
    assert source.tokens.tolist() == [[5, 6, EOS], [EOS, PAD, PAD], [7, EOS, PAD]]
    assert source.lengths.tolist() == [3, 1, 2]
    assert make_target([[5, 6], [], [7]]).tolist() == [
        [BOS, 5, 6, EOS],
        [BOS, EOS, PAD, PAD],
        [BOS, 7, EOS, PAD],
    ]
    assert make_source([]).tokens.shape == (0, 1)


def test_a_batch_holds_its_pairs_in_order() -> None:
    indices = [17, 3, 999]
    batch = Split.collate(Pairs(), indices)
    assert batch.indices.tolist() == indices
    assert batch.source.lengths.tolist() == [SOURCE_LENGTHS[i] + 1 for i in indices]
    for row, i in enumerate(indices):
        source = batch.source.tokens[row]
        assert source[source != PAD].tolist() == [10 + i] * SOURCE_LENGTHS[i] + [EOS]
        target = batch.target[row]
        assert target[target != PAD].tolist() == [BOS] + [10 + i] * TARGET_LENGTHS[i] + [EOS]
    assert batch.target.dtype == batch.source.tokens.dtype == batch.source.lengths.dtype == torch.int64


def test_labels_are_inputs_one_position_ahead() -> None:
    batch = Split.collate(Pairs(), range(40))
    assert torch.equal(batch.inputs[:, 1:], batch.labels[:, :-1])
    assert (batch.inputs[:, 0] == BOS).all()
    assert batch.tokens == (batch.labels != PAD).sum() == sum(TARGET_LENGTHS[:40] + 1)


def test_all_tensors_of_a_batch_move_to_a_device() -> None:
    batch = Split.collate(Pairs(), [1, 2]).to("meta")
    assert {batch.target.device.type, batch.source.tokens.device.type, batch.source.lengths.device.type} == {"meta"}
    assert batch.indices.tolist() == [1, 2]
