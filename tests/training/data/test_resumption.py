"""Interrupted epochs resume with each remaining sample once, for every type of data set."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.data.files import write_text
from training.data import load
from training.data.__main__ import main
from training.data.loader import GangSampler, Loader
from training.data.samples import DataError, Samples
from training.settings import DatasetName

KINDS: list[DatasetName] = ["shards", "tokens", "text", "photos"]


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
