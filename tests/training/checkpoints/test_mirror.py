"""Copies of checkpoints and exports in an object store (moto's S3 server)."""

import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast
from unittest.mock import Mock

import boto3
import pytest
import torch.distributed as dist
from moto.server import ThreadedMotoServer

from tests.stores import ACCESS, proxy
from tests.training.data.test_text import write_tokens
from training.checkpoints import storage
from training.checkpoints.mirror import Mirror
from training.checkpoints.saver import Saver
from training.checkpoints.storage import (
    Position,
    Seal,
    amend_checkpoint,
    file_entry,
    rotate,
    seal_checkpoint,
)
from training.config import TrainingConfig
from training.data import DataError
from training.data.manifest import download
from training.data.samples import UnavailableError
from training.gang.world import World
from workload import exit_codes, files
from workload.files import create_unfinished
from workload.store import StoreDirectory, StoreError

URL = "s3://models/runs"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """The bucket `models`. Environment variables contain its endpoint and access keys."""
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL": f"http://{server}"}.items():
        monkeypatch.setenv(name, value)
    s3_bucket = boto3.resource("s3").Bucket("models")
    s3_bucket.create()
    yield s3_bucket
    s3_bucket.objects.delete()


def object_names(bucket: object) -> list[str]:
    return [each.key.removeprefix("runs/run/") for each in bucket.objects.all()]  # type: ignore[attr-defined]


def save(run_dir: Path, step: int, loss: float | None = None, keep: int = 9) -> Path:
    """Save a checkpoint with one file, whose content depends on the step."""
    written = create_unfinished(files.checkpoint_of(run_dir / "checkpoints", step))
    (written / "rank-0.safetensors").write_bytes(bytes([step]) * 1000)
    seal = Seal(
        model="digits-net",
        model_options={},
        dataset="digits",
        samples=1,
        optimizer="adamw",
        position=Position(step=step),
        processes=1,
        seconds=1,
        held_out_loss=loss,
        files=(file_entry(written / "rank-0.safetensors"),),
    )
    path = seal_checkpoint(written, seal)
    rotate(path, keep, keep_best=True)
    return path


def content(run_dir: Path) -> dict[str, bytes]:
    paths = [path for path in (run_dir / "checkpoints").rglob("*") if path.is_file()]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in paths}


def copy_checkpoints(run_dir: Path, *checkpoints: Path, keep: int = 2) -> Mirror:
    mirror = Mirror(run_dir, URL, keep, keep_best=True)
    for checkpoint in checkpoints:
        mirror.submit(checkpoint)
        mirror.wait(lambda: None)
    return mirror


def test_newest_copy_is_restored_bit_for_bit(bucket: object, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    copy_checkpoints(run_dir, save(run_dir, 1), save(run_dir, 2))
    newest = {name: each for name, each in content(run_dir).items() if "step-00000002" in name}
    shutil.rmtree(run_dir)
    beats: list[None] = []
    assert copy_checkpoints(run_dir).restore(lambda: beats.append(None))
    assert content(run_dir) == newest
    assert beats


def test_a_resumed_run_copies_its_checkpoint_again(
    train: Callable[..., int], bucket: object, tmp_path: Path
) -> None:
    assert train(epochs=1, run_url=URL) == exit_codes.DONE
    first_copies = sorted(object_names(bucket))
    (tmp_path / "run/export/manifest.json").unlink()
    bucket.objects.delete()  # type: ignore[attr-defined]
    assert train(epochs=1, run_url=URL) == exit_codes.DONE
    assert sorted(object_names(bucket)) == first_copies
    assert any(name.startswith("checkpoints/") for name in first_copies)


def test_run_whose_directory_is_lost_resumes_from_the_store(
    train: Callable[..., int], bucket: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(epochs=1, run_url=URL) == exit_codes.DONE
    shutil.rmtree(tmp_path / "run")
    capsys.readouterr()
    assert train(epochs=1, run_url=URL) == exit_codes.DONE
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert "resume" in events
    assert "epoch" not in events


def test_nothing_is_restored_from_an_empty_store(bucket: object, tmp_path: Path) -> None:
    assert not copy_checkpoints(tmp_path / "run").restore(lambda: None)


def test_store_keeps_the_newest_copies_and_the_best_one(bucket: object, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    copy_checkpoints(
        run_dir, *[save(run_dir, step, loss) for step, loss in enumerate([3, 1, 3, 3, 2], 1)]
    )
    kept_steps = {name.split("/")[1] for name in object_names(bucket)}
    assert kept_steps == {"step-00000002", "step-00000004", "step-00000005"}


def test_copies_of_later_steps_are_removed_when_a_run_resumes_from_an_earlier_step(
    bucket: object, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    copy_checkpoints(run_dir, save(run_dir, 5))
    copy_checkpoints(run_dir, save(run_dir, 3))
    assert {name.split("/")[1] for name in object_names(bucket)} == {"step-00000003"}


def test_incomplete_copy_is_not_restored_and_is_later_removed(
    bucket: object, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    copy_checkpoints(run_dir, save(run_dir, 1), save(run_dir, 2))
    bucket.Object("runs/run/checkpoints/step-00000002/checkpoint.json").delete()  # type: ignore[attr-defined]
    shutil.rmtree(run_dir)
    assert copy_checkpoints(run_dir).restore(lambda: None)
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000001"]
    copy_checkpoints(run_dir, save(run_dir, 3))
    assert {name.split("/")[1] for name in object_names(bucket)} == {
        "step-00000001",
        "step-00000003",
    }


@pytest.mark.parametrize("damage", [None, b"", b"\x02" * 999, b"\x02" * 1001, b"\x03" * 1000])
def test_older_checkpoint_is_restored_if_an_object_is_damaged(
    damage: bytes | None, bucket: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    copy_checkpoints(run_dir, save(run_dir, 1), save(run_dir, 2))
    name = "runs/run/checkpoints/step-00000002/rank-0.safetensors"
    s3_object = bucket.Object(name)  # type: ignore[attr-defined]
    s3_object.delete() if damage is None else s3_object.put(Body=damage)
    shutil.rmtree(run_dir)
    assert copy_checkpoints(run_dir).restore(lambda: None)
    assert [path.name for path in files.list_checkpoints(run_dir / "checkpoints")] == [
        "step-00000001"
    ]
    problem = "does not exist" if damage is None else "is damaged"
    assert f"step-00000002/rank-0.safetensors {problem}" in capsys.readouterr().out


def test_new_checkpoint_of_the_same_step_replaces_the_copy(bucket: object, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    mirror = copy_checkpoints(run_dir, save(run_dir, 1))
    folder = save(run_dir, 1)
    (folder / "rank-0.safetensors").write_bytes(b"other")
    seal = json.loads((folder / "checkpoint.json").read_bytes())
    seal["files"] = [file_entry(folder / "rank-0.safetensors").model_dump()]
    (folder / "checkpoint.json").write_text(json.dumps(seal))
    mirror.submit(folder)
    mirror.wait(lambda: None)
    shutil.rmtree(run_dir)
    assert copy_checkpoints(run_dir).restore(lambda: None)
    assert (folder / "rank-0.safetensors").read_bytes() == b"other"


def requests_during(
    server: str, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], failures: int = 0
) -> list[tuple[str, str]]:
    """Return the requests that an action sends. The first `failures` are answered with 503."""
    requests_seen: list[tuple[str, str]] = []

    def status_of_request(method: str, path: str) -> int | None:
        requests_seen.append((method, path.partition("?")[0]))
        return 503 if len(requests_seen) <= failures else None

    with proxy(server, status_of_request) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        action()
    return requests_seen


def test_only_the_seal_of_an_amended_checkpoint_is_copied(
    server: str, bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    folder = save(run_dir, 1)
    copy_checkpoints(run_dir, folder)
    amend_checkpoint(run_dir / "checkpoints/step-00000001", Position(step=1), 1, 0.5)
    requests = requests_during(server, monkeypatch, lambda: copy_checkpoints(run_dir, folder))
    written = [path for method, path in requests if method == "PUT"]
    assert written == ["/models/runs/run/checkpoints/step-00000001/checkpoint.json"]


def test_requests_that_fail_with_503_are_retried(
    server: str, bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    folder = save(run_dir, 1)
    requests_during(server, monkeypatch, lambda: copy_checkpoints(run_dir, folder), failures=3)
    shutil.rmtree(run_dir)
    requests_during(
        server, monkeypatch, lambda: copy_checkpoints(run_dir).restore(lambda: None), failures=3
    )
    assert content(run_dir)


def test_failed_copy_is_reported_and_raises_an_error(
    bucket: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    folder = save(run_dir, 1)
    mirror = copy_checkpoints(run_dir)
    bucket.delete()  # type: ignore[attr-defined]
    mirror.submit(folder)
    with pytest.raises(StoreError, match=r"s3://models/runs/run: .* cannot be"):
        mirror.wait(lambda: None)
    bucket.create()  # type: ignore[attr-defined]
    assert "the newest checkpoint could not be copied" in capsys.readouterr().out
    mirror.submit(folder)
    mirror.wait(lambda: None)


def test_checkpoint_is_not_removed_while_it_is_copied(
    bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the first checkpoint could start while the second one replaces it on disk."""
    run_dir = tmp_path / "run"
    first, second = save(run_dir, 1), save(run_dir, 2)
    ready, started, removed = threading.Event(), threading.Event(), threading.Event()
    read, rotate = StoreDirectory.read, storage.rotate

    def read_after_removal(self: StoreDirectory, name: str) -> bytes | None:
        started.set()
        assert removed.wait(60)
        return read(self, name)

    def rotate_during_copy(*arguments: Any) -> None:
        ready.set()
        assert started.wait(60)
        rotate(*arguments)
        removed.set()

    monkeypatch.setattr(StoreDirectory, "read", read_after_removal)
    monkeypatch.setattr(storage, "rotate", rotate_during_copy)
    mirror = Mirror(run_dir, URL, keep=1, keep_best=False)
    config = TrainingConfig(run_dir=PurePosixPath(run_dir), keep_checkpoints=1, keep_best=False)
    saver = Saver(config, World(0, 1, 0, ""), cast(dist.ProcessGroup, None), mirror)
    mirror._thread.submit(ready.wait, 60)
    mirror.submit(first)
    copy = mirror._last
    assert copy is not None
    saver._rotate_and_copy(second)
    assert copy.exception() is None
    mirror.wait(lambda: None)
    assert "checkpoints/step-00000002/checkpoint.json" in object_names(bucket)


def test_slow_copy_is_not_treated_as_a_hang(
    bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    folder = save(run_dir, 1)
    beat, write = threading.Event(), StoreDirectory.write

    def write_after_a_beat(self: StoreDirectory, name: str, content: bytes | Path) -> None:
        assert beat.wait(60)
        write(self, name, content)

    mirror = copy_checkpoints(run_dir)
    monkeypatch.setattr(StoreDirectory, "write", write_after_a_beat)
    mirror.submit(folder)
    mirror.wait(beat.set)
    (run_dir / "export").mkdir()
    (run_dir / "export" / "manifest.json").write_text("{}")
    beat.clear()
    mirror.copy_export(beat.set)
    assert {"checkpoints/step-00000001/checkpoint.json", "export/manifest.json"} <= {
        *object_names(bucket)
    }


def test_store_that_cannot_be_written_is_reported_at_the_start(
    bucket: object, tmp_path: Path
) -> None:
    copy_checkpoints(tmp_path / "run").check()
    assert object_names(bucket) == []
    with pytest.raises(StoreError, match=r"s3://other/run: .probe cannot be written"):
        Mirror(tmp_path / "run", "s3://other", 1, keep_best=False).check()


def test_manifest_of_an_export_is_copied_last(
    server: str, bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "export" / "huggingface").mkdir(parents=True)
    for name in ("manifest.json", "model.safetensors", "huggingface/config.json"):
        (run_dir / "export" / name).write_text(name)
    requests = requests_during(
        server, monkeypatch, lambda: copy_checkpoints(run_dir).copy_export(lambda: None)
    )
    written = [path for method, path in requests if method == "PUT"]
    assert written[-1] == "/models/runs/run/export/manifest.json"
    assert sorted(object_names(bucket)) == [
        "export/huggingface/config.json", "export/manifest.json", "export/model.safetensors",
    ]  # fmt: skip
    later_requests = requests_during(
        server, monkeypatch, lambda: copy_checkpoints(run_dir).copy_export(lambda: None)
    )
    assert [method for method, _ in later_requests] == ["GET"]


def test_files_of_a_previous_export_are_removed(bucket: object, tmp_path: Path) -> None:
    folder = tmp_path / "run/export"
    folder.mkdir(parents=True)
    for artifact in ("model.pt2", "model-int8.pt2"):
        (folder / "manifest.json").write_text(artifact)
        (folder / artifact).write_text(artifact)
        copy_checkpoints(tmp_path / "run").copy_export(lambda: None)
        (folder / artifact).unlink()
    assert sorted(object_names(bucket)) == ["export/manifest.json", "export/model-int8.pt2"]


def test_files_of_a_data_set_are_fetched_again_only_if_they_differ(
    server: str, bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(tmp_path / "source", 80)
    for path in (tmp_path / "source").iterdir():
        bucket.upload_file(str(path), f"books/{path.name}")  # type: ignore[attr-defined]

    def fetch() -> list[str]:
        requests = requests_during(
            server, monkeypatch, lambda: download("s3://models/books", target, print)
        )
        assert {path.name: path.read_bytes() for path in target.iterdir()} == source
        return sorted(path.rpartition("/")[2] for _, path in requests)

    target = tmp_path / "data" / "tokens"
    source = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    assert fetch() == sorted(source)
    assert fetch() == ["manifest.json"]
    (target / "train-00000.bin").write_bytes(bytes(80))
    assert fetch() == ["manifest.json", "train-00000.bin"]


def test_missing_object_in_a_data_set_is_reported_as_a_data_error(
    bucket: object, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "source", 80)
    bucket.upload_file(str(tmp_path / "source/manifest.json"), "books/manifest.json")  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"s3://models/books/train-00000\.bin"):
        download("s3://models/books", tmp_path / "tokens", print)


def test_data_set_is_fetched_again_after_an_error_of_network_storage(
    bucket: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(tmp_path / "source", 80)
    for path in (tmp_path / "source").iterdir():
        StoreDirectory(URL).write(path.name, path)
    error = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr("workload.store.write_atomically", Mock(side_effect=error))
    with pytest.raises(UnavailableError, match="cannot be written: Stale file handle"):
        download(URL, tmp_path / "target", print)


def test_different_data_set_is_not_overwritten(bucket: object, tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", 80)
    with pytest.raises(DataError, match=r"s3://models/none has no manifest\.json"):
        download("s3://models/none", tmp_path / "tokens", print)
    bucket.Object("books/manifest.json").put(  # type: ignore[attr-defined]
        Body=(tmp_path / "tokens/manifest.json").read_bytes() + b"\n"
    )
    with pytest.raises(
        DataError, match=r"tokens contains a data set that differs from s3://models/books"
    ):
        download("s3://models/books", tmp_path / "tokens", print)
