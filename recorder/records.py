"""Records of failed containers, bounded in size and number, and written atomically.

    <claim>/<run>/failures/20261121T211605Z/<pod>.<container>.<restarts>.log    last lines
    <claim>/<run>/failures/20261121T211605Z/<pod>.<container>.<restarts>.json   exit code, events

Each directory describes one failure of a run. If a whole gang fails, the directory contains the
records of the containers that terminated first.
"""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from recorder.pods import Termination

DIRECTORY: Final = "failures"
SAME_FAILURE_WINDOW: Final = timedelta(minutes=10)
"""A container that was running when a failure began belongs to the failure if it terminates within
this time."""

RESERVED_BYTES: Final = 64 * 2**20
"""Free space (bytes) on a claim that is reserved for checkpoints."""

_MAX_RECORD_BYTES: Final = 2**20
"""Size limit (bytes) for reading a record. Runs can write to their claims, and a huge file would
exceed the memory limit of the recorder."""

_TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Bounds:
    """Maximum lines and bytes per container, failures per run, and records per failure.

    Each record describes one container.
    """

    lines: int = 500
    bytes: int = 64 * 1024
    failures: int = 10
    records: int = 16


def write(
    run_dir: Path,
    termination: Termination,
    lines: Sequence[str],
    details: Mapping[str, Any],
    bounds: Bounds,
) -> Path | None:
    """Write one record and remove the oldest failures beyond the limit.

    Return the record's JSON file, or None if the record already exists or its failure
    already has the maximum number of records.

    Raises:
        OSError: If the claim is full or not writable, or if a directory is a link.
    """
    attempt = termination.attempt
    name = f"{attempt.pod}.{attempt.container}.{attempt.restarts}.json"
    # A re-created pod reuses the name, so compare UIDs.
    same = [_read(each / name) for each in _directories(run_dir)]
    directory = _directory(run_dir / DIRECTORY, termination, name)
    if any(record["uid"] == attempt.uid for record in same if record is not None):
        return None
    if len(_records(directory)) >= bounds.records:
        return None
    path = directory / name
    run_path = run_dir.parent.resolve() / run_dir.name
    if directory.resolve() != run_path / DIRECTORY / directory.name:
        raise OSError(f"{directory}: this path contains a link, possibly to another claim")
    if shutil.disk_usage(_existing_ancestor(run_dir)).free < RESERVED_BYTES:
        raise OSError(
            f"{run_dir}: less than {RESERVED_BYTES // 2**20} MiB is free; this space is reserved "
            "for checkpoints"
        )
    directory.mkdir(parents=True, exist_ok=True)
    # Write the JSON file last, so that its presence implies that the log file exists.
    _write_atomically(path.with_suffix(".log"), "".join(f"{line}\n" for line in lines))
    _write_atomically(path, json.dumps(_as_json(termination) | dict(details), indent=2) + "\n")
    oldest = _failures(run_dir)[-bounds.failures :][0]
    for each in _directories(run_dir):
        if each.name < oldest.name:
            shutil.rmtree(each, ignore_errors=True)
    return path


def newest_failure(claims: Path, run: str, report: Callable[[OSError], object]) -> Path | None:
    """Return the directory of a run's last failure, or None if no failure is recorded.

    Call `report` for each claim that cannot be read. Raise OSError if `claims` cannot be read.
    """
    directories: list[Path] = []
    for claim in claims.iterdir():
        try:
            directories += _failures(claim / run)
        except OSError as error:
            report(error)
    return max(directories, key=lambda directory: directory.name, default=None)


def failure_text(directory: Path) -> Iterator[str]:
    """Yield a failure as readable text, with its containers in the order of their termination."""
    found = [(_read(path), path) for path in _records(directory)]
    records = [(record, path) for record, path in found if record is not None]
    for record, path in sorted(records, key=lambda each: str(each[0]["finished"])):
        code = record["exitCode"]
        outcome = record["reason"] if code is None else f"{record['reason']}, exit code {code}"
        yield f"--- {record['pod']}/{record['container']}, {record['finished']}: {outcome}\n"
        if record["message"]:
            yield f"{record['message'].rstrip()}\n"
        for event in record["events"]:
            text = f"{event['type']} {event['reason']}: {event['message']}"
            yield f"{event['last']} {event['object']} {text}\n"
        yield path.with_suffix(".log").read_text(errors="replace")


def _read(path: Path) -> dict[str, Any] | None:
    """Return a record; None if it is missing, damaged, or not a file that the recorder wrote."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_RECORD_BYTES:
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    return found


def _directory(failures: Path, termination: Termination, name: str) -> Path:
    """Return the directory of the failure that a termination belongs to, or a new directory."""
    now = datetime.now(UTC)
    end = (termination.finished or now).astimezone(UTC)
    # The node's clock may be ahead. A failure dated in the future would remain the newest.
    ahead = max(end - now, timedelta())
    start = (termination.started or end).astimezone(UTC) - ahead
    end -= ahead
    for directory in reversed(_failures(failures.parent)):
        first = datetime.strptime(directory.name, _TIME_FORMAT).replace(tzinfo=UTC)
        # Compare with a tolerance: directory names have a resolution of one second, and the
        # container that was observed first may not be the first one that terminated.
        is_same = start <= first + timedelta(seconds=1) and abs(end - first) <= SAME_FAILURE_WINDOW
        # A pod that was re-created within the tolerance has failed again.
        if is_same and not (directory / name).exists():
            return directory
    return failures / end.strftime(_TIME_FORMAT)


def _failures(run_dir: Path) -> list[Path]:
    """Return the directories with records, oldest first.

    If a write fails, for example because a quota is exceeded, the directory may contain no records.
    """
    return [each for each in _directories(run_dir) if _records(each)]


def _records(directory: Path) -> list[Path]:
    return [path for path in _entries(directory) if path.suffix == ".json"]


def _entries(directory: Path) -> list[Path]:
    """Return the entries of a directory, or an empty list if there is no such directory.

    Raise OSError if the directory cannot be listed. `glob` would hide this error.
    """
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _directories(run_dir: Path) -> list[Path]:
    directories = []
    for directory in _entries(run_dir / DIRECTORY):
        try:
            datetime.strptime(directory.name, _TIME_FORMAT)
        except ValueError:
            continue  # not written by the recorder
        directories.append(directory)
    return sorted(directories)


def _as_json(termination: Termination) -> dict[str, Any]:
    return {
        "pod": termination.attempt.pod,
        "uid": termination.attempt.uid,
        "container": termination.attempt.container,
        "restarts": termination.attempt.restarts,
        "started": _format_time(termination.started),
        "finished": _format_time(termination.finished),
        "exitCode": termination.exit_code,
        "signal": termination.signal,
        "reason": termination.reason,
        "message": termination.message,
    }


def _format_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _existing_ancestor(directory: Path) -> Path:
    while not directory.exists():
        directory = directory.parent
    return directory


def _write_atomically(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    # The run may have created a link with this name, and "x" does not follow links.
    unfinished.unlink(missing_ok=True)
    try:
        with unfinished.open("x", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
