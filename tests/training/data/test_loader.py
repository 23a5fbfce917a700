from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.files import write_text
from training.data import Images, load
from training.data.__main__ import main
from training.data.loader import Batch, GangSampler, Loader, largest_batch
from training.data.samples import DataError, Samples
from training.settings import DatasetName

SIZES = {
    "count": st.integers(1, 60),
    "batch": st.integers(1, 9),
    "accumulate": st.integers(1, 3),
    "size": st.integers(1, 5),
}
KINDS: list[DatasetName] = ["shards", "tokens", "text", "synthetic"]


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_text(folder / "text", {"a.txt": 9000, "b.txt": 4000})
    assert main(["prepare", "text", f"--folder={folder}/text", f"{folder}/tokens"]) == 0
    few = ["prepare", "images", "--dataset=digits", "--max-mib=1", f"{folder}/shards"]
    assert main(few) == 0
    return folder


def feed(samples: Samples, rank: int, size: int, seen: int, workers: int = 0) -> Loader:
    sampler = GangSampler(samples, 16, 1, rank, size, seed=3)
    sampler.set_epoch(1, seen)
    return Loader(samples, sampler, torch.device("cpu"), workers)


@pytest.mark.parametrize(("old_size", "new_size"), [(2, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_epoch_resumes_with_a_different_number_of_processes(
    kind: DatasetName, old_size: int, new_size: int, folder: Path
) -> None:
    samples = load(kind, folder, (8,) if kind in ("text", "tokens") else None, seed=0).train
    numbers: list[int] = []
    seen = 0
    for rank in range(old_size):
        for loaded in islice(feed(samples, rank, old_size, seen=0), 3):
            numbers += loaded.batch.indices[: loaded.batch.real].tolist()
            seen = loaded.batch.seen
    for rank in range(new_size):
        for loaded in feed(samples, rank, new_size, seen):
            numbers += loaded.batch.indices[: loaded.batch.real].tolist()
    assert sorted(numbers) == list(range(len(samples)))


@pytest.mark.parametrize("kind", ["shards", "tokens"])
def test_loader_workers_do_not_change_samples_or_their_order(
    kind: DatasetName, folder: Path
) -> None:
    samples = load(kind, folder, (8,) if kind == "tokens" else None, seed=0).train
    without_workers, with_workers = (feed(samples, 0, 1, 0, workers) for workers in (0, 2))
    for expected, loaded in islice(zip(without_workers, with_workers, strict=True), 5):
        assert np.array_equal(expected.batch.indices, loaded.batch.indices)
        assert torch.equal(expected.inputs, loaded.inputs)
        assert torch.equal(expected.targets, loaded.targets)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_loader_worker_names_only_the_sample(workers: int, folder: Path) -> None:
    samples = load("tests.training.custom_data:FromOne", folder, None, seed=0).train
    with pytest.raises(DataError, match=r"^sample \d+ of dataset .*, counted from 0$"):
        list(feed(samples, 0, 1, 0, workers))
