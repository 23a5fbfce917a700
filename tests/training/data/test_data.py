import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from training.catalog import MODELS as KNOWN
from training.catalog import DatasetName
from training.data import DataError, Images, fit, held_out_digits, load
from training.models import MODELS


def idx(array: NDArray[np.uint8]) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def write_mnist(folder: Path, count: int = 12) -> None:
    (folder / "mnist").mkdir()
    pixels = np.arange(count * 28 * 28, dtype=np.uint8).reshape(count, 28, 28)
    labels = (np.arange(count) % 10).astype(np.uint8)
    for part in ("train", "t10k"):
        (folder / f"mnist/{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        packed = gzip.compress(idx(labels))
        (folder / f"mnist/{part}-labels-idx1-ubyte.gz").write_bytes(packed)


def write_cifar10(folder: Path, count: int = 5) -> None:
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    records = np.random.default_rng(0).integers(0, 256, (count, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    for name in ["test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        (place / f"{name}.bin").write_bytes(records.tobytes())


def test_held_out_digits_are_always_the_same_and_every_digit_is_among_them() -> None:
    pixels, labels = held_out_digits()
    assert pixels.shape == (360, 1, 8, 8)
    assert np.array_equal(held_out_digits()[0], pixels)
    assert np.bincount(labels).min() >= 34
    assert (pixels.min(), pixels.max()) == (0, 1)


def test_what_is_held_out_is_not_trained_on() -> None:
    data = load("digits", Path("/nowhere"), (1, 8, 8), seed=5)
    assert isinstance(data.train, Images)
    assert isinstance(data.held_out, Images)
    trained = {image.tobytes() for image in data.train.pixels}
    assert len(data.train) + len(data.held_out) == 1797
    assert not any(image.tobytes() in trained for image in data.held_out.pixels)
    assert np.array_equal(data.held_out.scaled(), held_out_digits()[0])


@pytest.mark.parametrize("model", MODELS)
def test_every_fitting_data_set_comes_in_the_shape_of_the_model(model: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_cifar10(tmp_path)
    for name in {"digits", "mnist", "cifar10", "synthetic"} & set(KNOWN[model].datasets):
        data = load(name, tmp_path, MODELS[model].input_shape, seed=0)
        for part in (data.train, data.held_out):
            assert part.batch(np.arange(2))[0].shape[1:] == MODELS[model].input_shape
            assert len(part) > 0


def test_images_are_enlarged_and_centred() -> None:
    image = Images(np.array([[[[1, 2], [3, 4]]]], np.uint8), np.array([0]), white=4)
    assert fit(image, (1, 5, 5)).pixels[0, 0].tolist() == [
        [1, 1, 2, 2, 0],
        [1, 1, 2, 2, 0],
        [3, 3, 4, 4, 0],
        [3, 3, 4, 4, 0],
        [0, 0, 0, 0, 0],
    ]
    assert fit(image, (3, 2, 2)).pixels[0].tolist() == [[[1, 2], [3, 4]]] * 3


def test_images_are_never_shrunk() -> None:
    with pytest.raises(DataError, match="do not fit"):
        fit(Images(np.zeros((1, 3, 32, 32), np.uint8), np.array([0]), white=255), (1, 28, 28))


def test_synthetic_images_come_from_the_seed() -> None:
    first, same, other = (load("synthetic", Path("/"), (1, 8, 8), seed) for seed in (1, 1, 2))
    assert np.array_equal(first.train.pixels, same.train.pixels)
    assert not np.array_equal(first.train.pixels, other.train.pixels)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("mnist/train-images-idx3-ubyte", None, "is missing: put the data set there"),
        ("mnist/train-images-idx3-ubyte", b"\0\0\x08\x01", "no IDX file of 3 dimensions"),
        ("mnist/train-images-idx3-ubyte", idx(np.zeros((2, 28, 28), np.uint8))[:-1], "is damaged"),
        ("mnist/t10k-labels-idx1-ubyte", idx(np.zeros(3, np.uint8)), "12 images and 3 labels"),
        ("mnist/t10k-labels-idx1-ubyte", idx(np.full(12, 10, np.uint8)), "labels from 0 to 9"),
        ("mnist/t10k-labels-idx1-ubyte.gz", b"\x1f\x8b no", "cannot be read"),
        ("cifar-10-batches-bin/test_batch.bin", b"x" * 3072, "no multiple of 3073"),
    ],
)
def test_missing_and_damaged_files_are_named(
    file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path)
    write_cifar10(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    name: DatasetName = "mnist" if file.startswith("mnist") else "cifar10"
    with pytest.raises(DataError, match=message) as caught:
        load(name, tmp_path, (3, 32, 32), seed=0)
    assert str(tmp_path) in str(caught.value)
