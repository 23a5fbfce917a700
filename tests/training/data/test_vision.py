import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.data.files import idx, write_mnist
from training.data import DataError, load


@pytest.mark.parametrize("layout", ["MNIST/raw", "mnist"])
def test_mnist_is_read_from_torchvisions_directory_or_a_plain_one(
    layout: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path / layout)
    data = load("mnist", tmp_path, None, seed=0)
    pixels, labels = data.train.batch(np.array([11, 0]))
    assert pixels[1, 0, 0, :3].tolist() == [0, 1, 2]
    assert labels.tolist() == [1, 0]
    assert not list(tmp_path.rglob("*labels-idx1-ubyte"))  # the mounted directory is unchanged


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-images-idx3-ubyte", None, "is missing: put the data set there"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x01", "is damaged, or not an IDX file"),
        ("train-images-idx3-ubyte", b"", "is damaged, or not an IDX file"),
        ("train-images-idx3-ubyte", b"\0\0\x0a\x03" + b"\0" * 12, "is damaged, or not an IDX file"),
        ("train-images-idx3-ubyte", idx(np.zeros((2, 28, 28), np.uint8))[:-1], "is damaged"),
        ("train-images-idx3-ubyte", idx(np.zeros(2, np.uint8)), "should have 3 dimension"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(3, np.uint8)), "12 images and 3 labels"),
        ("t10k-labels-idx1-ubyte", idx(np.full(12, 10, np.uint8)), "labels from 0 to 9"),
        ("t10k-labels-idx1-ubyte.gz", b"\x1f\x8b no", "cannot be read"),
    ],
)
def test_error_names_the_missing_or_damaged_file(
    file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", tmp_path, (3, 32, 32), seed=0)
    assert str(tmp_path) in str(caught.value)


def test_loading_numpy_data_sets_does_not_import_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from training.data import load;"
        "[load(name, Path('/'), None, 0) for name in ('digits', 'glyphs', 'photos', 'synthetic')];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
