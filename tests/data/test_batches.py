"""Batches: each pair once in an epoch, in an order that seed and epoch alone decide, padded right."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqtool.data.batches import ShuffledEpoch, make_source, make_target
from seqtool.data.cache import Split
from seqtool.models.tokens import BOS, EOS, PAD

generator = np.random.default_rng(7)
SOURCES = generator.integers(0, 30, size=1003)
TARGETS = np.maximum(0, SOURCES + generator.integers(-3, 4, size=1003))
ORDER = [  # batches 40 and 41 of 101, as commit ad25e6a made them
    [181, 871, 863, 792, 596, 671, 992, 443, 602, 753],
    [116, 512, 396, 729, 731, 955, 502, 24, 196, 467],
]


class Pairs:
    """Pair i: a source of SOURCES[i] tokens and a target of TARGETS[i], all of them 10 + i."""

    image_of = None

    def __len__(self) -> int:
        return len(SOURCES)

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return SOURCES[indices], TARGETS[indices]

    def source(self, index: int) -> NDArray[np.uint16]:
        return np.full(SOURCES[index], 10 + index, dtype=np.uint16)

    def target(self, index: int) -> NDArray[np.uint16]:
        return np.full(TARGETS[index], 10 + index, dtype=np.uint16)


def make(
    *, size: int = 32, unit: str = "sentences", seed: int = 1, epoch: int = 0, pool: int = 8, buffer: int = 2000
) -> list[list[int]]:
    made = ShuffledEpoch(Pairs(), size=size, unit=unit, seed=seed, epoch=epoch, pool=pool, buffer=buffer)
    return [batch.tolist() for batch in all_of(made)]


def all_of(epoch: ShuffledEpoch, *, start: int = 0, count: int = 1) -> list[NDArray[np.int64]]:
    batches: list[NDArray[np.int64]] = []
    while not epoch.has_ended(start + len(batches)):
        batches += epoch.batches(start + len(batches), count)
    return batches


@pytest.mark.parametrize(("unit", "size"), [("sentences", 32), ("sentences", 1), ("tokens", 400), ("tokens", 1)])
@pytest.mark.parametrize("buffer", [1, 300, 1002, 1003])
def test_an_epoch_has_each_pair_once(unit: str, size: int, buffer: int) -> None:
    batches = make(unit=unit, size=size, buffer=buffer)
    assert sorted(index for batch in batches for index in batch) == list(range(len(SOURCES)))
    assert all(batches)


def test_seed_and_epoch_decide_the_batches() -> None:
    assert make() == make()
    assert make(unit="tokens", size=300) == make(unit="tokens", size=300)
    orders = [make(), make(epoch=1), make(seed=2)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_sentences_fill_the_batches() -> None:
    sizes = sorted(len(batch) for batch in make(size=32))
    assert sizes == [1003 % 32] + [32] * (1003 // 32)


def test_tokens_stay_within_the_budget_unless_one_sentence_does_not() -> None:
    for batch in make(unit="tokens", size=20):
        assert len(batch) == 1 or len(batch) * (max(TARGETS[batch]) + 1) <= 20
    padded = [len(batch) * (max(TARGETS[batch]) + 1) for batch in make(unit="tokens", size=1000)]
    assert np.median(padded) > 900


def test_batches_hold_sentences_of_like_length() -> None:
    def share_of_padding(batches: list[list[int]]) -> float:
        padded = sum(len(batch) * TARGETS[batch].max() for batch in batches)
        return float(1 - TARGETS.sum() / padded)

    assert share_of_padding(make(pool=20)) < 0.1 < 0.3 < share_of_padding(make(pool=1))


def test_batches_come_in_no_order_of_length() -> None:
    lengths = [float(np.mean(TARGETS[batch])) for batch in make(pool=100)]
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.5


def test_a_corpus_beyond_the_buffer_is_shuffled_within_buffers_of_shuffled_blocks() -> None:
    made = ShuffledEpoch(Pairs(), size=10, unit="sentences", seed=1, epoch=0, pool=5, buffer=256)
    batches = all_of(made)
    assert len(batches) == 25 + 3 * 26  # 1,003 pairs: a buffer of 248 and three of 251 or 252
    first = np.concatenate(batches[:25])
    blocks, sizes = np.unique(first // 4, return_counts=True)  # 62 blocks of 4 neighbours, the last of all having 3
    assert len(blocks) == 62
    assert set(sizes[blocks < 250]) == {4}
    assert blocks.min() < 20
    assert blocks.max() > 230
    orders = [make(buffer=256), make(buffer=256, epoch=1), make(buffer=256, seed=2), make()]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize("buffer", [256, 2000])
@pytest.mark.parametrize("start", [0, 1, 26, 27, 70])
def test_an_epoch_goes_on_from_any_place(buffer: int, start: int) -> None:
    def epoch() -> ShuffledEpoch:
        return ShuffledEpoch(Pairs(), size=10, unit="sentences", seed=1, epoch=0, pool=5, buffer=buffer)

    whole, again = all_of(epoch()), epoch()
    rest = all_of(again, start=start)
    assert [batch.tolist() for batch in rest] == [batch.tolist() for batch in whole[start:]]
    assert again.fraction_done(len(whole)) == 1.0
    assert all_of(again)[0].tolist() == whole[0].tolist()  # and back
    shares = [again.fraction_done(position) for position in range(len(whole)) if again.batches(position, 1)]
    assert shares[0] == 0
    assert np.all(np.diff(shares) > 0)


class Even(Pairs):
    """So many pairs of one length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.full(len(indices), 7), np.full(len(indices), 7)


@pytest.mark.parametrize("count", [255, 256, 257, 260, 300, 513, 700, 768, 1003])
@pytest.mark.parametrize("unit", ["sentences", "tokens"])
def test_the_share_of_an_epoch_is_counted_in_pairs(count: int, unit: str) -> None:
    """Also where what is shuffled at once, 256 pairs, is most of the corpus, or a little less than all of it."""
    epoch = ShuffledEpoch(
        Even(count), size=16 if unit == "tokens" else 2, unit=unit, seed=1, epoch=0, pool=5, buffer=256
    )
    batches, before, shares = all_of(epoch), 0, []
    for position, batch in enumerate(batches):
        epoch.batches(position, 1)
        shares.append(epoch.fraction_done(position))
        assert abs(shares[-1] - before / count) <= 2 / count  # a batch has two pairs
        before += len(batch)
    assert shares[0] == 0 and np.all(np.diff(shares) > 0)
    assert epoch.fraction_done(len(batches)) == pytest.approx(1, abs=1e-12)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert abs(len(epoch) - len(batches)) <= 0.03 * len(batches)


@pytest.mark.parametrize("unit", ["sentences", "tokens"])
def test_the_share_is_counted_in_pairs_whatever_the_lengths(unit: str) -> None:
    epoch = ShuffledEpoch(
        Pairs(), size=10 if unit == "sentences" else 200, unit=unit, seed=1, epoch=0, pool=5, buffer=992
    )
    batches, before = all_of(epoch), 0  # 1,003 pairs: a buffer and a little
    largest = max(map(len, batches))
    for position, batch in enumerate(batches):
        epoch.batches(position, 1)
        assert abs(epoch.fraction_done(position) * len(SOURCES) - before) <= largest
        before += len(batch)


def test_what_is_shuffled_at_once_is_never_a_few_neighbours() -> None:
    """A pair more than fit: half of them and half of them, not all and one."""
    batches = all_of(ShuffledEpoch(Even(257), size=4, unit="sentences", seed=1, epoch=0, pool=5, buffer=256))
    last = np.concatenate(batches[-8:])
    assert np.ptp(last) > 100


def test_a_corpus_that_is_shuffled_at_once_keeps_its_order() -> None:
    """So that a run that was begun with another version continues with the batches that it had."""
    epoch = ShuffledEpoch(Pairs(), size=10, unit="sentences", seed=1, epoch=2, pool=5, buffer=1003)
    assert [batch.tolist() for batch in epoch.batches(40, 2)] == ORDER
    assert [epoch.fraction_done(position) for position in (0, 40, 101)] == [0, 40 / 101, 1]


def test_nothing_makes_no_batches() -> None:
    class Nothing(Pairs):
        def __len__(self) -> int:
            return 0

    assert all_of(ShuffledEpoch(Nothing(), size=4, unit="tokens", seed=1, epoch=0, pool=2)) == []


def test_rows_are_sentences_with_their_marks_and_padding() -> None:
    source = make_source([[5, 6], [], [7]])
    assert source.tokens.tolist() == [[5, 6, EOS], [EOS, PAD, PAD], [7, EOS, PAD]]
    assert source.lengths.tolist() == [3, 1, 2]
    assert make_target([[5, 6], [], [7]]).tolist() == [
        [BOS, 5, 6, EOS],
        [BOS, EOS, PAD, PAD],
        [BOS, 7, EOS, PAD],
    ]
    assert make_source([]).tokens.shape == (0, 1)


def test_a_batch_is_its_pairs_in_order() -> None:
    indices = [17, 3, 999]
    batch = Split.collate(Pairs(), indices)
    assert batch.indices.tolist() == indices
    assert batch.source.lengths.tolist() == [SOURCES[i] + 1 for i in indices]
    for row, i in enumerate(indices):
        source = batch.source.tokens[row]
        assert source[source != PAD].tolist() == [10 + i] * SOURCES[i] + [EOS]
        target = batch.target[row]
        assert target[target != PAD].tolist() == [BOS] + [10 + i] * TARGETS[i] + [EOS]
    assert batch.target.dtype == batch.source.tokens.dtype == batch.source.lengths.dtype == torch.int64


def test_labels_are_inputs_one_position_ahead() -> None:
    batch = Split.collate(Pairs(), range(40))
    assert torch.equal(batch.inputs[:, 1:], batch.labels[:, :-1])
    assert (batch.inputs[:, 0] == BOS).all()
    assert batch.tokens == (batch.labels != PAD).sum() == sum(TARGETS[:40] + 1)


def test_a_batch_moves_whole() -> None:
    batch = Split.collate(Pairs(), [1, 2]).to("meta")
    assert {batch.target.device.type, batch.source.tokens.device.type, batch.source.lengths.device.type} == {"meta"}
    assert batch.indices.tolist() == [1, 2]
