import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.training.conftest import make_unavailable
from tests.training.data.files import idx, write_cifar10, write_cifar100, write_mnist
from training.data import DataError, load, published
from training.data.samples import UnavailableError
from training.settings import DatasetName

FOLDERS: dict[DatasetName, str] = {
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site with a small CIFAR-10. Its digest replaces the digest of the real archive."""
    site = tmp_path / "site"
    write_cifar10(site / "cifar-10-batches-bin")
    archive = site / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(site / "cifar-10-batches-bin", "cifar-10-batches-bin")
    digest = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(published, "CIFAR_SITE", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setitem(published.CIFAR_ARCHIVES, "cifar10", (archive.name, digest))
    yield site
    server.shutdown()
    server.server_close()


def test_missing_files_are_downloaded_only_if_requested_and_only_once(
    site: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    with pytest.raises(DataError, match="or set download"):
        load("cifar10", folder, None, seed=0)
    assert not folder.exists()
    assert len(load("cifar10", folder, None, seed=0, download=True).train) == 25
    (site / "cifar-10-binary.tar.gz").unlink()
    assert len(load("cifar10", folder, None, seed=0, download=True).train) == 25
    assert sorted(path.name for path in folder.iterdir()) == [
        ".cifar10.lock", "cifar-10-batches-bin",
    ]  # fmt: skip


def test_existing_files_are_not_downloaded_again_if_they_are_unavailable(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    load("cifar10", folder, None, seed=0, download=True)
    (site / "cifar-10-binary.tar.gz").unlink()
    make_unavailable(folder / "cifar-10-batches-bin", monkeypatch)
    with pytest.raises(UnavailableError, match="Stale file handle"):
        load("cifar10", folder, None, seed=0, download=True)


def test_an_archive_with_another_digest_is_rejected_and_removed(site: Path, tmp_path: Path) -> None:
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin"))
    (site / "cifar-10-binary.tar.gz").write_bytes(evil.getvalue())
    with pytest.raises(DataError, match=r"cifar10 cannot be downloaded to .*corrupted"):
        load("cifar10", tmp_path / "data", None, seed=0, download=True)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".cifar10.lock"]


def test_an_unreachable_site_is_reported(site: Path, tmp_path: Path) -> None:
    (site / "cifar-10-binary.tar.gz").unlink()
    with pytest.raises(UnavailableError, match="cifar10 cannot be downloaded to"):
        load("cifar10", tmp_path / "data", None, seed=0, download=True)


def test_existing_files_in_a_plain_directory_are_not_downloaded(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    assert len(load("mnist", tmp_path, None, seed=0, download=True).train) == 12


def test_only_published_data_sets_can_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shards cannot be downloaded \(only mnist"):
        load("shards", tmp_path, None, seed=0, download=True)


def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="mnist cannot be downloaded to") as raised:
        load("mnist", tmp_path / "file", None, seed=0, download=True)
    assert raised.type is DataError


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
def test_error_names_the_missing_or_damaged_file_of_mnist(
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
        "[load(name, Path('/'), None, 0) for name in ('digits', 'glyphs', 'synthetic')];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
