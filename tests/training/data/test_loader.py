from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.data import Images
from training.data.loader import Batch, GangSampler, largest_batch

SIZES = {
    "count": st.integers(1, 60),
    "batch": st.integers(1, 9),
    "accumulate": st.integers(1, 3),
    "size": st.integers(1, 5),
}


def samples(count: int) -> Images:
    return Images(np.zeros((count, 1, 1, 1), np.uint8), np.zeros(count, np.int64), divisor=1)


def batches_by_turn(
    count: int, batch: int, accumulate: int, size: int, epoch: int = 0, seen: int = 0
) -> list[tuple[Batch, ...]]:
    """Return a tuple for each turn, with the batch of every process."""
    ranks = []
    for rank in range(size):
        sampler = GangSampler(samples(count), batch, accumulate, rank, size, seed=3)
        sampler.set_epoch(epoch, seen)
        ranks.append(list(sampler))
    return list(zip(*ranks, strict=True))


@given(**SIZES)
def test_batch_of_one_sample_is_padded_with_a_second_one(
    count: int, batch: int, accumulate: int, size: int
) -> None:
    for gang in batches_by_turn(count, batch, accumulate, size):
        for mine in gang:
            assert len(mine.indices) >= min(batch, 2)
    [*_, (last,)] = batches_by_turn(count=33, batch=16, accumulate=3, size=1)
    assert (len({*last.indices.tolist()}), last.real) == (2, 1)


def count_samples(turns: list[tuple[Batch, ...]]) -> Counter[int]:
    return Counter(
        sample for gang in turns for mine in gang for sample in mine.indices[: mine.real].tolist()
    )


@given(**SIZES)
def test_every_sample_counts_once_per_epoch(
    count: int, batch: int, accumulate: int, size: int
) -> None:
    assert count_samples(batches_by_turn(count, batch, accumulate, size)) == Counter(range(count))


@given(**SIZES)
def test_all_processes_compute_the_same_number_of_samples(
    count: int, batch: int, accumulate: int, size: int
) -> None:
    for gang in batches_by_turn(count, batch, accumulate, size):
        assert len({len(mine.indices) for mine in gang}) == 1
        assert 1 <= len(gang[0].indices) <= batch
        assert len({(mine.total, mine.seen, mine.last) for mine in gang}) == 1


@given(**SIZES)
def test_the_largest_batch_is_known(count: int, batch: int, accumulate: int, size: int) -> None:
    turns = batches_by_turn(count, batch, accumulate, size)
    largest = max(len(each.indices) for turn in turns for each in turn)
    assert largest == largest_batch(samples(count), batch, size)


@given(**SIZES)
def test_batch_states_the_size_of_its_step_and_the_position_after_that_step(
    count: int, batch: int, accumulate: int, size: int
) -> None:
    in_step, seen = 0, 0
    for gang in batches_by_turn(count, batch, accumulate, size):
        in_step += sum(mine.real for mine in gang)
        if gang[0].last:
            seen += in_step
            assert (in_step, seen) == (gang[0].total, gang[0].seen)
            in_step = 0
    assert (in_step, seen) == (0, count)


@given(**SIZES, new_size=st.integers(1, 5), stop=st.integers(0, 20))
def test_gang_of_another_size_resumes_at_the_same_sample(
    count: int, batch: int, accumulate: int, size: int, new_size: int, stop: int
) -> None:
    turns = batches_by_turn(count, batch, accumulate, size)
    ends = [index + 1 for index, gang in enumerate(turns) if gang[0].last]
    cut = ends[stop % len(ends)]
    remaining = batches_by_turn(count, batch, accumulate, new_size, seen=turns[cut - 1][0].seen)
    assert count_samples(turns[:cut]) + count_samples(remaining) == Counter(range(count))


def test_epochs_are_shuffled_reproducibly_and_differently() -> None:
    def order(epoch: int) -> list[int]:
        return [int(gang[0].indices[0]) for gang in batches_by_turn(50, 1, 1, 1, epoch)]

    assert order(0) == order(0)
    assert order(0) != order(1)
