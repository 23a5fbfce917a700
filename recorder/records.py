"""Files of what has failed: bounded in size and number, and each there completely or not at all.

    <claim>/<run>/failures/20261121T211605Z/<pod>.<container>.<restarts>.log    its last lines
    <claim>/<run>/failures/20261121T211605Z/<pod>.<container>.<restarts>.json   how it ended, events

A folder is one failure: of a gang that ended together, the pods that ended first.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from recorder.pods import Ending

FOLDER: Final = "failures"
TOGETHER: Final = timedelta(minutes=10)
"""What was alive at a failure and ends within this time ended of it."""

RESERVE: Final = 64 * 2**20
"""Bytes of a claim that are left to checkpoints."""

_STAMP: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Bounds:
    """Of what is kept: lines and bytes of a container, failures of a run, pods of a failure."""

    lines: int = 500
    size: int = 64 * 1024
    failures: int = 10
    pods: int = 16


def write(
    run_dir: Path,
    ending: Ending,
    lines: Sequence[str],
    facts: Mapping[str, Any],
    bounds: Bounds,
) -> Path | None:
    """Writes one record and removes the oldest failures beyond the bound.

    Returns its JSON file; None where the failure has its pods already, or the same is there.
    Raises OSError where the claim is full, or is not to be written.
    """
    attempt = ending.attempt
    name = f"{attempt.pod}.{attempt.container}.{attempt.restarts}.json"
    # The next pod of a gang has its name again.
    same = (json.loads(path.read_text()) for path in (run_dir / FOLDER).glob(f"*/{name}"))
    folder = _folder(run_dir / FOLDER, ending)
    if any(told["uid"] == attempt.uid for told in same):
        return None
    if len(list(folder.glob("*.json"))) >= bounds.pods:
        return None
    path = folder / name
    if shutil.disk_usage(_existing(run_dir)).free < RESERVE:
        raise OSError(f"{run_dir} has less than {RESERVE // 2**20} MiB left, which is checkpoints'")
    folder.mkdir(parents=True, exist_ok=True)
    # In this order: where the JSON is, the lines are.
    _atomically(path.with_suffix(".log"), "".join(f"{line}\n" for line in lines))
    _atomically(path, json.dumps(_told(ending) | dict(facts), indent=2) + "\n")
    for old in _failures(run_dir)[: -bounds.failures]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def newest(claims: Path, run: str) -> Path | None:
    """Folder of a run's latest failure."""
    found = [folder for claim in claims.iterdir() for folder in _failures(claim / run)]
    return max(found, key=lambda folder: folder.name, default=None)


def shown(folder: Path) -> Iterator[str]:
    """A failure as text for people, pod after pod in the order of their ends."""
    records = [(json.loads(path.read_text()), path) for path in folder.glob("*.json")]
    for told, path in sorted(records, key=lambda record: str(record[0]["finished"])):
        code = told["exitCode"]
        how = told["reason"] if code is None else f"{told['reason']}, exit code {code}"
        yield f"--- {told['pod']}/{told['container']}, {told['finished']}: {how}\n"
        if told["message"]:
            yield f"{told['message'].rstrip()}\n"
        for event in told["events"]:
            said = f"{event['type']} {event['reason']}: {event['message']}"
            yield f"{event['last']} {event['object']} {said}\n"
        yield path.with_suffix(".log").read_text(errors="replace")


def _folder(failures: Path, ending: Ending) -> Path:
    """Of the latest failure where the container was alive then, else a new one."""
    end = (ending.finished or datetime.now(UTC)).astimezone(UTC)
    start = (ending.started or end).astimezone(UTC)
    for folder in reversed(_failures(failures.parent)):
        first = datetime.strptime(folder.name, _STAMP).replace(tzinfo=UTC)
        # A stamp has no fractions, and the first to be heard of need not be the first to end.
        if start <= first + timedelta(seconds=1) and abs(end - first) <= TOGETHER:
            return folder
    return failures / end.strftime(_STAMP)


def _failures(run_dir: Path) -> list[Path]:
    found = []
    for folder in (run_dir / FOLDER).glob("*T*Z"):
        try:
            datetime.strptime(folder.name, _STAMP)
        except ValueError:
            continue  # somebody else's
        found.append(folder)
    return sorted(found)


def _told(ending: Ending) -> dict[str, Any]:
    return {
        "pod": ending.attempt.pod,
        "uid": ending.attempt.uid,
        "container": ending.attempt.container,
        "restarts": ending.attempt.restarts,
        "started": _text(ending.started),
        "finished": _text(ending.finished),
        "exitCode": ending.exit_code,
        "signal": ending.signal,
        "reason": ending.reason,
        "message": ending.message,
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _atomically(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        with unfinished.open("w", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
