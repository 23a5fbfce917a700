from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from training.sampler import GangSampler


def deal(count: int, batch: int, size: int, epoch: int, seen: int = 0) -> list[list[list[int]]]:
    """For every step the samples of each process."""
    ranks = []
    for rank in range(size):
        sampler = GangSampler(count, batch, rank, size, seed=3)
        sampler.set_epoch(epoch, seen)
        ranks.append([step.indices.tolist() for step in sampler])
    return [list(step) for step in zip(*ranks, strict=True)]


SIZES = {"count": st.integers(1, 60), "batch": st.integers(1, 9), "size": st.integers(1, 5)}


@given(**SIZES)
def test_every_sample_is_seen_once_and_nearly_none_twice(count: int, batch: int, size: int) -> None:
    steps = deal(count, batch, size, epoch=0)
    seen = Counter(sample for step in steps for mine in step for sample in mine)
    assert set(seen) == set(range(count))
    assert sum(seen.values()) - count < size


@given(**SIZES)
def test_all_processes_have_equally_many_samples_in_every_step(
    count: int, batch: int, size: int
) -> None:
    for step in deal(count, batch, size, epoch=1):
        assert len({len(mine) for mine in step}) == 1
        assert 1 <= len(step[0]) <= batch


@given(**SIZES, later=st.integers(1, 5))
def test_an_epoch_goes_on_where_it_was_with_another_number_of_processes(
    count: int, batch: int, size: int, later: int
) -> None:
    first = deal(count, batch, size, epoch=2)[:1]
    seen = min(batch * size, count)
    rest = deal(count, batch, later, epoch=2, seen=seen)
    before = {sample for step in first for mine in step for sample in mine}
    after = [sample for step in rest for mine in step for sample in mine]
    assert before | set(after) == set(range(count))
    assert len(after) < count - seen + later


def test_the_order_is_another_one_in_every_epoch_and_the_same_in_every_run() -> None:
    assert deal(40, 8, 2, epoch=0) == deal(40, 8, 2, epoch=0)
    assert deal(40, 8, 2, epoch=0) != deal(40, 8, 2, epoch=1)
