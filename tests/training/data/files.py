"""Small files in the formats of published data sets."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def idx(array: NDArray[np.uint8]) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def write_mnist(folder: Path, count: int = 12) -> None:
    folder.mkdir(parents=True)
    pixels = np.arange(count * 28 * 28, dtype=np.uint8).reshape(count, 28, 28)
    labels = (np.arange(count) % 10).astype(np.uint8)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        packed = gzip.compress(idx(labels))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed)


def write_cifar10(folder: Path, count: int = 5) -> None:
    folder.mkdir(parents=True)
    records = np.random.default_rng(0).integers(0, 256, (count, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    for name in ["test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_cifar100(folder: Path, count: int = 5) -> None:
    folder.mkdir(parents=True)
    records = np.random.default_rng(0).integers(0, 256, (count, 3074), dtype=np.uint8)
    records[:, 1] = 95 + np.arange(count)
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    names = [f"class-{number}" for number in range(100)]
    (folder / "fine_label_names.txt").write_text("\n".join(names) + "\n")


def write_published(folder: Path) -> None:
    """Write small versions of all data sets that are published as files."""
    write_mnist(folder / "mnist")
    write_mnist(folder / "FashionMNIST/raw")
    write_cifar10(folder / "cifar-10-batches-bin")
    write_cifar100(folder / "cifar-100-binary")


def write_text(folder: Path, sizes: dict[str, int]) -> None:
    """Write text files with different contents; `sizes` states the bytes of each file."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        letters = random.choice(list(b"abcdefgh .\n"), size).astype(np.uint8)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(letters.tobytes())
