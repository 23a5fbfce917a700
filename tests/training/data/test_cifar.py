from pathlib import Path

import numpy as np
import pytest

from tests.training.data.files import write_cifar10, write_cifar100
from training.data import DataError, load
from training.settings import DatasetName

FOLDERS: dict[DatasetName, str] = {
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
}


def write(folder: Path) -> None:
    write_cifar10(folder / FOLDERS["cifar10"])
    write_cifar100(folder / FOLDERS["cifar100"])


def test_cifar10_has_five_training_batches_and_one_held_out_batch(tmp_path: Path) -> None:
    write(tmp_path)
    data = load("cifar10", tmp_path, None, seed=0)
    assert (len(data.train), len(data.held_out)) == (25, 5)
    record = (tmp_path / "cifar-10-batches-bin/test_batch.bin").read_bytes()[:3073]
    pixels, labels = data.held_out.batch(np.array([0]))
    assert bytes([labels[0]]) + pixels.tobytes() == record


def test_cifar100_has_the_fine_labels_and_their_class_names(tmp_path: Path) -> None:
    write(tmp_path)
    data = load("cifar100", tmp_path, None, seed=0)
    assert data.train.batch(np.arange(5))[1].tolist() == [95, 96, 97, 98, 99]
    assert (data.outputs, data.classes[99]) == (100, "class-99")


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("cifar10", "test_batch.bin", b"x" * 3072, "not a multiple of 3073"),
        ("cifar10", "data_batch_3.bin", b"", "not a multiple of 3073"),
        ("cifar10", "data_batch_3.bin", None, "is missing: put the data set there"),
        ("cifar10", "data_batch_3.bin", b"\x0a" * 3073, "labels from 0 to 9"),
        ("cifar100", "train.bin", b"x" * 3073, "not a multiple of 3074"),
        ("cifar100", "train.bin", b"\x64" * 3074, "labels from 0 to 99"),
        ("cifar100", "fine_label_names.txt", None, "is missing"),
        ("cifar100", "fine_label_names.txt", b"cat dog cat", "2 different classes instead of 100"),
        ("cifar100", "fine_label_names.txt", b"\xff", "cannot be read"),
    ],
)
def test_error_names_the_missing_or_damaged_file(
    name: DatasetName, file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    write(tmp_path)
    path = tmp_path / FOLDERS[name] / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load(name, tmp_path, None, seed=0)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "python"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")]
)
def test_pickled_version_is_refused_with_an_explanation(
    name: DatasetName, python: str, tmp_path: Path
) -> None:
    (tmp_path / python).mkdir()
    with pytest.raises(DataError, match=f"{python} is the pickled version, which is not supported"):
        load(name, tmp_path, None, seed=0)
