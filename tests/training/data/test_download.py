import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.training.conftest import make_unavailable
from tests.training.data.files import write_cifar10, write_mnist
from training.data import DataError, load, published
from training.data.samples import UnavailableError


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
