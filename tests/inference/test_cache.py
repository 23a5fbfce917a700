"""Cached copies of weights, which the pods on a node share. Only intact copies are used."""

import errno
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from inference import cache as cache_module
from inference.cache import Cache, copy
from inference.fetch import fetch, main
from tests.inference.test_fetch import Quiet, listening, weights
from workload import exit_codes
from workload.files import sha256_of
from workload.manifest import read_manifest

WEIGHTS = "model.safetensors"
Spoil = Callable[[Path], object]


class Counting(Quiet):
    """A web server that records requests, and sends weights only while `gate` is set."""

    requests: list[str]
    gate: threading.Event

    def do_GET(self) -> None:  # noqa: N802  the name that the server calls
        self.requests.append(self.path.rpartition("/")[2])
        if self.path.endswith(WEIGHTS):
            assert self.gate.wait()
        super().do_GET()


@dataclass
class Node:
    """A node's cache, and a web server with an export."""

    url: str
    cache: Cache
    pods: Path
    requests: list[str]
    gate: threading.Event
    started: list[Path] = field(default_factory=list)

    def pod(self) -> Path:
        """Fetch the export for a new pod and return its directory."""
        folder = self.pods / str(len(self.started)) / "export"
        self.started.append(folder)
        fetch(self.url, folder, cache=self.cache)
        assert {path.name for path in folder.iterdir()} == {"manifest.json", WEIGHTS}
        return folder

    def copies(self) -> set[str]:
        """Return the names of the copies, excluding lock files."""
        return {path.name for path in self.cache.folder.iterdir() if path.suffix != ".lock"}


@pytest.fixture
def node(trained: Path, tmp_path: Path) -> Iterator[Node]:
    folder = tmp_path / "cache"
    folder.mkdir()
    requests: list[str] = []
    gate = threading.Event()
    gate.set()
    handler = type("Handler", (Counting,), {"requests": requests, "gate": gate})
    with listening(handler, trained.parent) as url:
        server = url.removesuffix("export") + trained.name
        yield Node(server, Cache(folder, 2**30), tmp_path / "pods", requests, gate)


@pytest.fixture
def digest(trained: Path) -> str:
    return read_manifest(trained).weights.sha256


def test_second_pod_does_not_download_the_weights(node: Node, trained: Path, digest: str) -> None:
    first, second = node.pod(), node.pod()
    assert node.requests == ["manifest.json", WEIGHTS, "manifest.json"]
    assert weights(first) == weights(second) == weights(trained)
    assert node.copies() == {digest}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    """Replace the copy with a link to an intact file."""
    path.symlink_to(path.rename(path.with_name("moved")))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def lengthen(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


def shorten(path: Path) -> None:
    os.truncate(path, 10)


@pytest.mark.parametrize("spoil", [flip, lengthen, shorten, link, fifo])
def test_damaged_or_replaced_copy_is_downloaded_again(
    node: Node, trained: Path, digest: str, spoil: Spoil
) -> None:
    node.pod()
    spoil(node.cache.folder / digest)
    assert weights(node.pod()) == weights(trained)
    assert node.requests.count(WEIGHTS) == 2
    assert weights(node.pod()) == weights(trained)
    assert node.requests.count(WEIGHTS) == 2
    copied = node.cache.folder / digest
    assert copied.is_file()
    assert not copied.is_symlink()


def test_cached_copy_is_kept_if_the_target_cannot_be_verified_at_the_moment(
    node: Node, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.pod()
    failure = [OSError(errno.EIO, "Input/output error")]

    def verify(path: Path, progress: Callable[[], object] = int) -> str:
        if failure:
            raise failure.pop()
        return sha256_of(path, progress)

    monkeypatch.setattr("workload.manifest.sha256_of", verify)
    discarded: list[str] = []
    monkeypatch.setattr(Cache, "discard", lambda _, sha256: discarded.append(sha256))
    assert weights(node.pod()) == weights(trained)
    assert (discarded, failure) == ([], [])


def test_file_that_grows_while_it_is_copied_cannot_fill_the_disk(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(100))
    with source.open("rb") as growing, (tmp_path / "target").open("wb") as target:
        lengthen(source)
        copy(growing, target, 100)
    assert (tmp_path / "target").stat().st_size == 100


def test_files_are_copied_between_file_systems(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as source:
        source.write(b"weights" * 1000)
        source.flush()
        with Path(source.name).open("rb") as read, (tmp_path / "target").open("wb") as target:
            copy(read, target, 7000)
    assert (tmp_path / "target").read_bytes() == b"weights" * 1000


def test_pods_that_start_together_download_the_weights_once(node: Node, trained: Path) -> None:
    node.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        pods = [pool.submit(node.pod) for _ in range(3)]
        while WEIGHTS not in node.requests:
            time.sleep(0.01)
        time.sleep(0.3)
        node.gate.set()
        assert {weights(pod.result(30)) for pod in pods} == {weights(trained)}
    assert node.requests.count(WEIGHTS) == 1


def test_pod_does_not_wait_for_a_stalled_download(
    node: Node,
    trained: Path,
    digest: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cache_module, "_STALLED_SECONDS", 0.3)
    with node.cache.lock(digest):
        assert weights(node.pod()) == weights(trained)
    assert "another download has stalled" in capsys.readouterr().out


def test_pod_waits_for_another_download_that_makes_progress(
    node: Node, digest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache_module, "_STALLED_SECONDS", 2)
    with ThreadPoolExecutor(1) as pool:
        with node.cache.lock(digest) as progress:
            pod = pool.submit(node.pod)
            for _ in range(30):
                time.sleep(0.1)
                progress()
            assert not pod.done()
        pod.result(30)
    assert "stalled" not in capsys.readouterr().out


def test_copies_and_verifications_count_as_progress(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    monkeypatch.setattr(cache_module, "_touch", touched.append)
    node.pod()
    assert len(touched) == len(("verification", "copy to the cache"))
    touched.clear()
    node.pod()
    assert len(touched) == len(("use of the copy", "copy from the cache", "verification"))


def full(_: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def missing(node: Node, _: pytest.MonkeyPatch) -> None:
    node.cache.folder.rmdir()


def full_disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "write_atomically", full)


def too_small(node: Node, _: pytest.MonkeyPatch) -> None:
    node.cache = Cache(node.cache.folder, 100)


@pytest.mark.parametrize("fault", [missing, full_disk, too_small])
def test_a_cache_that_cannot_be_written_is_reported_and_not_used(
    node: Node,
    trained: Path,
    fault: Callable[[Node, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault(node, monkeypatch)
    assert weights(node.pod()) == weights(node.pod()) == weights(trained)
    assert '"not_cached"' in capsys.readouterr().out
    assert not node.cache.folder.exists() or node.copies() == set()


def test_directory_in_place_of_a_copy_is_not_used(node: Node, trained: Path, digest: str) -> None:
    (node.cache.folder / digest).mkdir()
    assert weights(node.pod()) == weights(trained)


def keep_copy(cache: Cache, number: int, used: float) -> str:
    content = bytes([number]) * 100
    name = hashlib.sha256(content).hexdigest()
    cache.keep(name, content)
    os.utime(cache.folder / name, (used, used))
    return name


def test_the_least_recently_used_copies_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes").write_bytes(bytes(1000))
    now, cache = time.time(), Cache(tmp_path, 300)
    old, older, new = (
        keep_copy(cache, 1, now - 20),
        keep_copy(cache, 2, now - 30),
        keep_copy(cache, 3, now - 10),
    )
    assert cache.read(older, 100) == b"\2" * 100
    latest = keep_copy(cache, 4, now)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {older, new, latest, "lost+found", "notes"}
    assert old not in left


@pytest.mark.parametrize("name", [".snapshot", "0" * 64])
def test_directories_in_the_cache_are_not_deleted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    os.utime(tmp_path / name, (0, 0))
    cache = Cache(tmp_path, 100)
    keep_copy(cache, 1, 1)
    latest = keep_copy(cache, 2, 2)
    assert {path.name for path in tmp_path.iterdir()} == {name, latest}


def test_unfinished_copies_count_towards_the_size_until_they_are_abandoned(tmp_path: Path) -> None:
    now, cache = time.time(), Cache(tmp_path, 300)
    unfinished = tmp_path / f".{'0' * 64}.1234.tmp"
    unfinished.write_bytes(bytes(200))
    first, second = keep_copy(cache, 1, now - 10), keep_copy(cache, 2, now)
    assert {path.name for path in tmp_path.iterdir()} == {unfinished.name, second}
    os.utime(unfinished, (0, 0))
    first = keep_copy(cache, 1, now)
    assert {path.name for path in tmp_path.iterdir()} == {first, second}


def test_command_line_options_configure_the_cache(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--cache={node.cache.folder}", "--cache-bytes=1000000"]
    for name in ("first", "second"):
        assert main([node.url, str(tmp_path / name), *options]) == exit_codes.DONE
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert events == ["fetched", "copied_from_cache", "fetched"]
