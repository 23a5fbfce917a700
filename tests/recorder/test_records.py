import errno
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recorder import records
from recorder.__main__ import main
from recorder.pods import Attempt, Termination
from recorder.records import Bounds, failure_text, newest_failure, write

START = datetime(2026, 11, 21, 21, tzinfo=UTC)
FACTS = {"run": "digits-1", "node": "gpu-node-0", "events": []}


def fail(error: OSError) -> None:
    raise error


def termination(
    pod: str = "worker-0", *, end: float = 60, start: float = 0, code: int | None = 1
) -> Termination:
    """Return the termination of a container that ran from `start` to `end` seconds."""
    return Termination(
        attempt=Attempt(f"uid-{pod}-{start}", pod, "training", 0),
        started=START + timedelta(seconds=start),
        finished=START + timedelta(seconds=end),
        exit_code=code,
        reason="Error",
        message="the last message",
    )


def test_record_contains_the_log_and_the_exit_code(tmp_path: Path) -> None:
    path = write(tmp_path, termination(), ["one", "two"], FACTS, Bounds())
    assert path == tmp_path / "failures" / "20261121T210100Z" / "worker-0.training.0.json"
    assert path.with_suffix(".log").read_text() == "one\ntwo\n"
    record = json.loads(path.read_text())
    assert (record["exitCode"], record["message"], record["node"]) == (
        1,
        "the last message",
        "gpu-node-0",
    )
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "worker-0.training.0.json",
        "worker-0.training.0.log",
    ]


def test_each_failure_is_recorded_only_once(tmp_path: Path) -> None:
    assert write(tmp_path, termination(), ["one"], FACTS, Bounds()) is not None
    assert write(tmp_path, termination(), ["another"], FACTS, Bounds()) is None


def test_recorded_pods_are_not_added_to_a_later_failure(tmp_path: Path) -> None:
    write(tmp_path, termination("a", end=60), ["one"], FACTS, Bounds())
    write(tmp_path, termination("b", start=65, end=90), ["one"], FACTS, Bounds())
    # A restarted recorder sees the first pod again.
    assert write(tmp_path, termination("a", end=60), ["one"], FACTS, Bounds()) is None


def test_pods_of_a_gang_that_fail_together_are_recorded_as_one_failure(tmp_path: Path) -> None:
    for number, end in enumerate((60, 62, 59)):
        write(tmp_path, termination(f"worker-{number}", end=end), [], FACTS, Bounds())
    assert len(list((tmp_path / "failures").iterdir())) == 1


def test_immediate_failure_of_the_next_attempt_is_recorded_separately(tmp_path: Path) -> None:
    write(tmp_path, termination(end=60), [], FACTS, Bounds())
    write(tmp_path, termination(start=63, end=70), [], FACTS, Bounds())
    assert len(list((tmp_path / "failures").iterdir())) == 2


def test_pod_that_fails_again_within_a_second_is_recorded_separately(tmp_path: Path) -> None:
    first = write(tmp_path, termination(end=60), ["first"], FACTS, Bounds())
    second = write(tmp_path, termination(start=61, end=62), ["second"], FACTS, Bounds())
    assert first is not None
    assert second is not None
    assert first.with_suffix(".log").read_text() == "first\n"
    assert second.with_suffix(".log").read_text() == "second\n"


def test_much_later_failure_is_recorded_separately(tmp_path: Path) -> None:
    write(tmp_path, termination("a", end=60), [], FACTS, Bounds())
    write(tmp_path, termination("b", end=4000), [], FACTS, Bounds())
    assert len(list((tmp_path / "failures").iterdir())) == 2


def test_failure_on_a_node_whose_clock_is_ahead_does_not_remain_the_last_one(
    tmp_path: Path,
) -> None:
    now = (datetime.now(UTC) - START).total_seconds()
    for number in range(2):
        future = termination(f"worker-{number}", start=now + 3000, end=now + 3600)
        write(tmp_path, future, [], FACTS, Bounds())
    [directory] = (tmp_path / "failures").iterdir()
    assert directory.name <= f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def test_only_the_first_pods_of_a_failure_are_recorded(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, termination(f"worker-{number}"), [], FACTS, Bounds(records=2))
    recorded_pods = {path.name.split(".")[0] for path in tmp_path.rglob("*.json")}
    assert recorded_pods == {"worker-0", "worker-1"}


def test_only_the_latest_failures_are_kept_but_other_files_are_never_deleted(
    tmp_path: Path,
) -> None:
    (tmp_path / "failures" / "notes").mkdir(parents=True)
    for number in range(5):
        begin = number * 1000
        write(tmp_path, termination(start=begin, end=begin + 60), [], FACTS, Bounds(failures=2))
    names = sorted(path.name for path in (tmp_path / "failures").iterdir())
    assert names == ["20261121T215100Z", "20261121T220740Z", "notes"]


def test_nothing_is_recorded_on_a_nearly_full_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RESERVED_BYTES", 2**80)
    with pytest.raises(OSError, match="MiB is free"):
        write(tmp_path / "run", termination(), ["one"], FACTS, Bounds())
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, termination(), ["one"], FACTS, Bounds())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("link", ["", "failures", "failures/20261121T210100Z"])
def test_nothing_is_written_to_or_deleted_from_another_claim(tmp_path: Path, link: str) -> None:
    run, other = tmp_path / "mine" / "digits-1", tmp_path / "other"
    earlier = other / "failures" / "20261101T000000Z" / "worker-0.training.0.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("{}")
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(other / link)
    if link == "failures/20261121T210100Z":
        (other / link).mkdir()
    before = sorted(other.rglob("*"))
    with pytest.raises(OSError, match="this path contains a link"):
        write(run, termination("worker-1"), ["one"], FACTS, Bounds(failures=1))
    assert sorted(other.rglob("*")) == before


def test_link_with_the_name_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    run, other = tmp_path / "digits-1", tmp_path / "weights"
    other.write_text("weights")
    directory = run / "failures" / "20261121T210100Z"
    directory.mkdir(parents=True)
    (directory / ".worker-0.training.0.log.tmp").symlink_to(other)
    assert write(run, termination(), ["one"], FACTS, Bounds()) is not None
    assert other.read_text() == "weights"


def test_directory_of_a_failed_write_does_not_count_as_a_failure(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "digits-1"
    path = write(run, termination(end=1000), ["one"], FACTS, Bounds(failures=1))
    assert path is not None
    earlier, later = (path.parent.with_name(f"2026112{day}T000000Z") for day in (1, 2))
    earlier.mkdir()
    later.mkdir()
    assert newest_failure(tmp_path, "digits-1", fail) == path.parent
    another = termination("worker-1", end=1001)
    assert write(run, another, ["two"], FACTS, Bounds(failures=1)) is not None
    assert path.exists()
    assert not earlier.exists()


@pytest.mark.parametrize("text", ['{"pod": "work', "[" * 10**5], ids=["cut", "brackets"])
def test_damaged_records_are_skipped(text: str, tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path, termination(f"worker-{number}"), [f"log {number}"], FACTS, Bounds())
    [directory] = (tmp_path / "failures").iterdir()
    (directory / "worker-0.training.0.json").write_text(text)
    assert "log 1" in "".join(failure_text(directory))
    again = write(tmp_path, termination("worker-0", end=61), ["again"], FACTS, Bounds())
    assert again is not None


def test_fifos_and_huge_files_of_a_run_are_not_read(tmp_path: Path) -> None:
    directory = tmp_path / "failures" / "20261121T000000Z"
    directory.mkdir(parents=True)
    os.mkfifo(directory / "worker-0.training.0.json")
    huge = directory / "worker-1.training.0.json"
    huge.write_text(json.dumps({"uid": "uid-worker-1-0"}) + " " * 2**20)
    for number in range(2):
        assert write(tmp_path, termination(f"worker-{number}"), [], FACTS, Bounds()) is not None


def test_control_characters_are_not_sent_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["\x1b]0;title\x07 1%\r 2%\r\n", "\x9b31m\tä"]
    write(tmp_path / "checkpoints" / "digits-1", termination(), lines, FACTS, Bounds())
    monkeypatch.setattr("sys.argv", ["recorder", "show", "digits-1", "--claims", str(tmp_path)])
    assert main() == 0
    text = capsys.readouterr().out
    assert text.endswith("\\x1b]0;title\\x07 1%\n 2%\n\n\\x9b31m\tä\n")
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(text)


def test_latest_failure_is_shown_with_its_log_and_events(tmp_path: Path) -> None:
    events = [
        {
            "last": "21:01",
            "object": "Pod/a",
            "type": "Warning",
            "reason": "Killing",
            "message": "container stopped",
        }
    ]
    for number in (0, 1):
        failed = termination(
            start=number * 1000, end=number * 1000 + 60, code=None if number else 1
        )
        run = tmp_path / "checkpoints" / "digits-1"
        write(run, failed, [f"line of {number}"], FACTS | {"events": events}, Bounds())
    folder = newest_failure(tmp_path, "digits-1", fail)
    assert folder is not None
    text = "".join(failure_text(folder))
    assert "line of 1" in text
    assert "container stopped" in text
    assert "line of 0" not in text
    assert newest_failure(tmp_path, "another-1", fail) is None


def test_claims_that_cannot_be_read_are_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = str(tmp_path / "none")
    monkeypatch.setattr("sys.argv", ["recorder", "show", "digits-1", "--claims", claims])
    assert main() == 1
    assert capsys.readouterr().err == f"{claims} cannot be read: No such file or directory\n"


def test_claim_that_cannot_be_listed_does_not_hide_the_failures_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for claim in ("lost", "good"):
        write(tmp_path / claim / "digits-1", termination(), [f"line of {claim}"], FACTS, Bounds())
    list_entries = os.listdir

    def fail_on_lost(path: Path) -> list[str]:
        if "lost" in Path(path).parts:
            raise PermissionError(errno.ESTALE, "Stale file handle", str(path))
        return list_entries(path)

    monkeypatch.setattr("os.listdir", fail_on_lost)
    monkeypatch.setattr("sys.argv", ["recorder", "show", "digits-1", "--claims", str(tmp_path)])
    assert main() == 0
    shown = capsys.readouterr()
    assert "line of good" in shown.out
    assert shown.err == f"{tmp_path}/lost/digits-1/failures cannot be read: Stale file handle\n"


def test_failure_is_not_recorded_twice_if_a_claim_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, termination(), [], FACTS, Bounds())

    def fail_to_list(path: Path) -> None:
        raise PermissionError(errno.ESTALE, "Stale file handle", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("os.listdir", fail_to_list)
        patch.setattr("os.scandir", fail_to_list)
        with pytest.raises(OSError, match="Stale"):
            write(tmp_path, termination(), [], FACTS, Bounds())
