import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recorder import records
from recorder.pods import Attempt, Termination
from recorder.records import Bounds, failure_text, newest, write

START = datetime(2026, 11, 21, 21, tzinfo=UTC)
FACTS = {"run": "digits-1", "node": "gpu-node-0", "events": []}


def termination(
    pod: str = "worker-0", *, after: float = 60, alive: float = 0, code: int | None = 1
) -> Termination:
    """Of a container that lived from `alive` to `after` seconds."""
    return Termination(
        attempt=Attempt(f"uid-{pod}-{alive}", pod, "training", 0),
        started=START + timedelta(seconds=alive),
        finished=START + timedelta(seconds=after),
        exit_code=code,
        reason="Error",
        message="the last word",
    )


def test_a_record_has_the_log_and_the_exit_code(tmp_path: Path) -> None:
    path = write(tmp_path, termination(), ["one", "two"], FACTS, Bounds())
    assert path == tmp_path / "failures" / "20261121T210100Z" / "worker-0.training.0.json"
    assert path.with_suffix(".log").read_text() == "one\ntwo\n"
    record = json.loads(path.read_text())
    assert (record["exitCode"], record["message"], record["node"]) == (
        1,
        "the last word",
        "gpu-node-0",
    )
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "worker-0.training.0.json",
        "worker-0.training.0.log",
    ]


def test_one_failure_is_recorded_once(tmp_path: Path) -> None:
    assert write(tmp_path, termination(), ["one"], FACTS, Bounds()) is not None
    assert write(tmp_path, termination(), ["another"], FACTS, Bounds()) is None


def test_archived_pods_are_not_part_of_a_later_failure(tmp_path: Path) -> None:
    write(tmp_path, termination("a", after=60), ["one"], FACTS, Bounds())
    write(tmp_path, termination("b", alive=65, after=90), ["one"], FACTS, Bounds())
    # A recorder that was started again sees the first pod once more.
    assert write(tmp_path, termination("a", after=60), ["one"], FACTS, Bounds()) is None


def test_a_gang_that_ends_together_is_one_failure(tmp_path: Path) -> None:
    for number, after in enumerate((60, 62, 59)):
        write(tmp_path, termination(f"worker-{number}", after=after), [], FACTS, Bounds())
    assert len(list((tmp_path / "failures").iterdir())) == 1


def test_an_immediate_failure_of_the_next_attempt_is_recorded(tmp_path: Path) -> None:
    write(tmp_path, termination(after=60), [], FACTS, Bounds())
    write(tmp_path, termination(alive=63, after=70), [], FACTS, Bounds())
    assert len(list((tmp_path / "failures").iterdir())) == 2


def test_a_much_later_failure_is_a_new_one(tmp_path: Path) -> None:
    write(tmp_path, termination("a", after=60), [], FACTS, Bounds())
    write(tmp_path, termination("b", after=4000), [], FACTS, Bounds())
    assert len(list((tmp_path / "failures").iterdir())) == 2


def test_the_first_pods_of_a_failure_are_recorded(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, termination(f"worker-{number}"), [], FACTS, Bounds(pods=2))
    kept = {path.name.split(".")[0] for path in tmp_path.rglob("*.json")}
    assert kept == {"worker-0", "worker-1"}


def test_the_last_failures_of_a_run_and_other_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "failures" / "notes").mkdir(parents=True)
    for number in range(5):
        begin = number * 1000
        write(tmp_path, termination(alive=begin, after=begin + 60), [], FACTS, Bounds(failures=2))
    names = sorted(path.name for path in (tmp_path / "failures").iterdir())
    assert names == ["20261121T215100Z", "20261121T220740Z", "notes"]


def test_a_nearly_full_claim_gets_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RESERVED_BYTES", 2**80)
    with pytest.raises(OSError, match="MiB are free"):
        write(tmp_path / "run", termination(), ["one"], FACTS, Bounds())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, termination(), ["one"], FACTS, Bounds())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_latest_failure_is_shown_with_its_lines(tmp_path: Path) -> None:
    events = [
        {
            "last": "21:01",
            "object": "Pod/a",
            "type": "Warning",
            "reason": "Killing",
            "message": "by somebody",
        }
    ]
    for number in (0, 1):
        found = termination(
            alive=number * 1000, after=number * 1000 + 60, code=None if number else 1
        )
        run = tmp_path / "checkpoints" / "digits-1"
        write(run, found, [f"line of {number}"], FACTS | {"events": events}, Bounds())
    folder = newest(tmp_path, "digits-1")
    assert folder is not None
    text = "".join(failure_text(folder))
    assert "line of 1" in text
    assert "by somebody" in text
    assert "line of 0" not in text
    assert newest(tmp_path, "another-1") is None
